"""Verbs that prove images: audit, probe, report, and matrix (the whole road of a cell)."""
