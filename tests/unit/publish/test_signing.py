"""Signed envelopes and key files."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import given
from hypothesis import strategies as st

from torchproof.errors import EvidenceError, InputError
from torchproof.publish.attestation.signing import (
    PASSWORD,
    SigningKey,
    load_signing_key,
    load_verifying_key,
    open_envelope,
    parse_verifying_key,
)

KEY = SigningKey(private=ec.generate_private_key(ec.SECP256R1()))
OTHER = SigningKey(private=ec.generate_private_key(ec.SECP256R1()))


def write(path: Path, key: object, password: bytes | None = None) -> Path:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password)
    path.write_bytes(
        key.private_bytes(  # type: ignore[attr-defined]
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
    )
    return path


@given(st.binary(max_size=500))
def test_a_signature_is_valid_only_for_its_payload_and_key(payload: bytes) -> None:
    data = KEY.sign(payload)
    envelope = open_envelope(data, where="here")
    assert envelope.payload == payload
    assert KEY.public.verifies(envelope) and not OTHER.public.verifies(envelope)
    assert KEY.sign(payload) == data
    raw = json.loads(data)
    raw["payload"] = base64.b64encode(payload + b".").decode()
    assert not KEY.public.verifies(open_envelope(json.dumps(raw).encode(), where="here"))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_envelope_or_refused(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        open_envelope(data, where="here")


def test_an_envelope_of_another_kind_is_refused() -> None:
    raw = json.loads(KEY.sign(b"x")) | {"payloadType": "text/plain"}
    with pytest.raises(EvidenceError, match="text/plain"):
        open_envelope(json.dumps(raw).encode(), where="here")


def test_a_key_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = write(tmp_path / "plain", KEY.private)
    assert load_signing_key(plain).public.fingerprint == KEY.public.fingerprint
    locked = write(tmp_path / "locked", KEY.private, b"secret")
    with pytest.raises(InputError, match="is encrypted"):
        load_signing_key(locked)
    monkeypatch.setenv(PASSWORD, "wrong")
    with pytest.raises(InputError, match="wrong password") as error:
        load_signing_key(locked)
    assert "wrong" not in str(error.value).replace("the wrong password", "")
    monkeypatch.setenv(PASSWORD, "secret")
    assert load_signing_key(locked).public.fingerprint == KEY.public.fingerprint
    public = tmp_path / "public"
    public.write_text(KEY.public.pem)
    assert load_verifying_key(public).fingerprint == KEY.public.fingerprint


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    for key in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(InputError, match="P-256"):
            load_signing_key(write(tmp_path / "key", key))
    (tmp_path / "cosign").write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nx\n")
    with pytest.raises(InputError, match="cosign's own format") as error:
        load_signing_key(tmp_path / "cosign")
    assert "import-key-pair" in error.value.fix
    with pytest.raises(InputError, match="No such file"):
        load_signing_key(tmp_path / "absent")


def test_a_private_key_does_not_verify(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs the public one"):
        load_verifying_key(write(tmp_path / "key", KEY.private))
    with pytest.raises(InputError, match="not a public key"):
        parse_verifying_key(b"nothing", where="here")


def test_keys_are_never_printed() -> None:
    assert "private" not in repr(KEY).lower().replace("signingkey", "")
