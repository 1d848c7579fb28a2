"""Keyless signatures, as far as they go without a network."""

from __future__ import annotations

import pytest
from sigstore.dsse import Statement

from tests.unit.publish.test_policy import statement
from torchproof.errors import EvidenceError, HostError, InputError
from torchproof.publish.attestation.keyless import open_bundle, sign_keyless
from torchproof.publish.attestation.verification import Trust

IDENTITY = ("GITHUB_ACTIONS", "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN")


@pytest.fixture(autouse=True)
def no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*IDENTITY, "GITLAB_CI", "SIGSTORE_ID_TOKEN", "BUILDKITE", "CIRCLECI"):
        monkeypatch.delenv(name, raising=False)


def test_a_machine_without_an_identity_does_not_sign() -> None:
    assert sign_keyless(statement()) is None


def test_an_unusable_identity_is_reported_without_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in zip(IDENTITY, ("true", "http://127.0.0.1:9/", "s3cret"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(HostError, match="OIDC identity") as error:
        sign_keyless(statement())
    assert "s3cret" not in str(error.value)


def test_sigstore_can_sign_our_statement() -> None:
    assert Statement(statement())


def test_an_invalid_bundle_is_refused() -> None:
    with pytest.raises(EvidenceError, match="not a sigstore bundle"):
        open_bundle(b"{}", "me@example.org", "https://issuer.example.org", where="here")


def test_identity_and_issuer_go_together() -> None:
    with pytest.raises(InputError):
        Trust(identity="me@example.org")
