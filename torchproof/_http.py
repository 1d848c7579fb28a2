"""Why a request failed, in plain words and without credentials."""

from __future__ import annotations

import re

import httpx

NO_ANSWER = (httpx.HTTPError, httpx.InvalidURL)
"""What httpx raises for a server that does not answer, and for an address that is not a URL."""
_CODE = re.compile(r"^\[(Errno -?\d+|SSL: \w+)\] ")


def redact(text: str) -> str:
    """Take user names and passwords out of every URL in a text."""
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1***@", text)


def failure_text(error: Exception) -> str:
    """Return what went wrong: the system's words without its numbers, or the kind of error."""
    text = _CODE.sub("", redact(str(error)))
    if not text:
        return type(error).__name__
    if text.startswith(("Name or service not known", "nodename nor servname", "No address")):
        return "its name cannot be looked up (DNS)"
    return text[0].lower() + text[1:] if text[1:2].islower() else text
