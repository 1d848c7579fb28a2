"""NCCL's own log: which transport it actually used. Read by keyword, not by column."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

CHANNEL = re.compile(r"Channel \d+(?:/\d+)? ?: ?\d+\[[^\]]*\] -> \d+\[[^\]]*\].*? via (?P<via>\S+)")
GRAPH_TYPE = re.compile(r"Pattern \d+, .*?type (?P<intra>\w+)/(?P<inter>\w+)")
"""GRAPH lines name the slowest link of a pattern: LOC NVL C2C PIX PXB PHB SYS NET."""
KINDS = {"P2P": "P2P", "SHM": "SHM", "NET": "NET", "COLLNET": "COLLNET"}


def start():
    """Let NCCL write its log to files; returns their folder. Before the first communicator."""
    folder = Path(tempfile.mkdtemp(prefix="torchproof-nccl-"))
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,GRAPH,ENV,NET,TUNING"
    os.environ["NCCL_DEBUG_FILE"] = str(folder / "%h.%p.log")
    return folder


def read(folder):
    """Return {transport, transports: {via: count}, link, nvls}; transport is `unknown` if unread.

    `transport` is NVLink, P2P, SHM or NET: P2P over NVLink where every pattern's links are NVL.
    """
    text = "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.log")))
    seen = {}
    for match in CHANNEL.finditer(text):
        via = match["via"].split(" ")[0]
        seen[via] = seen.get(via, 0) + 1
    kinds = {via.split("/")[0] for via in seen}
    links = {match["intra"] for match in GRAPH_TYPE.finditer(text)}
    known = [KINDS[kind] for kind in sorted(kinds) if kind in KINDS]
    transport = "+".join(known) if known else "unknown"
    if transport == "P2P" and links and links <= {"NVL", "LOC"} and "NVL" in links:
        transport = "NVLink"
    return {
        "transport": transport,
        "transports": seen,
        "links": sorted(links),
        "nvls": bool(re.search(r"NVLS multicast support is available", text)),
    }
