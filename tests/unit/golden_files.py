"""Generated files, compared with the committed ones. TORCHPROOF_UPDATE_GOLDEN=1 writes them."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).with_name("golden")


def assert_golden(name: str, text: str) -> None:
    """Compare with tests/unit/golden/NAME."""
    path = GOLDEN / name
    if os.environ.get("TORCHPROOF_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
