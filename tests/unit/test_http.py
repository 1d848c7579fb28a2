"""Why a request got no answer: real failures of a real client, in words."""

from __future__ import annotations

import httpx
import pytest

from torchproof._http import NO_ANSWER, failure_text


def why(url: str) -> str:
    with pytest.raises(NO_ANSWER) as caught:
        httpx.get(url, timeout=2, trust_env=False)
    return failure_text(caught.value)


def test_an_unknown_host_is_told_as_one_and_without_numbers() -> None:
    assert why("http://no-such-host.invalid/") == "its name cannot be looked up (DNS)"


def test_a_closed_port_says_refused() -> None:
    assert why("http://127.0.0.1:1/") == "connection refused"


def test_an_address_that_is_none_is_told() -> None:
    assert "port" in why("http://host:port/")


def test_an_error_without_words_is_told_by_its_kind() -> None:
    assert failure_text(httpx.ReadError("")) == "ReadError"


def test_no_password_is_told() -> None:
    assert "secret" not in failure_text(httpx.ConnectError("cannot ask http://me:secret@host/x"))
