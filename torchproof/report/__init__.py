"""Verdicts with their evidence → files for people and programs. Renders, decides nothing."""

from __future__ import annotations

from torchproof.report.convert import make_report, report_cell, report_hosts
from torchproof.report.files import read_report, write_reports
from torchproof.report.merge import merge
from torchproof.report.text import summary

__all__ = [
    "make_report",
    "merge",
    "read_report",
    "report_cell",
    "report_hosts",
    "summary",
    "write_reports",
]
