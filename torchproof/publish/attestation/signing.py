"""Signatures by key file: DSSE envelopes, ECDSA on P-256, as cosign makes and verifies them.

Formats: github.com/secure-systems-lab/dsse (protocol.md, envelope.md). cosign's keys are the
same kind: `cosign verify-attestation --key proof.pub` takes the public half of any P-256 key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from torchproof.errors import EvidenceError, InputError
from torchproof.publish.attestation.statement import PAYLOAD_TYPE

DSSE_TYPE = "application/vnd.dsse.envelope.v1+json"
PASSWORD = "TORCHPROOF_KEY_PASSWORD"
"""Environment variable: the password of an encrypted key file."""
_NEW_KEY = (
    "make a key with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 "
    "-out proof.key` and its public half with `openssl pkey -in proof.key -pubout -out proof.pub`"
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SigningKey:
    """A private key. Never printed."""

    private: EllipticCurvePrivateKey

    @property
    def public(self) -> VerifyingKey:
        """The public half, which verifies."""
        return VerifyingKey(public=self.private.public_key())

    def sign(self, payload: bytes) -> bytes:
        """Wrap a statement in a signed envelope. Equal payloads give equal envelopes (RFC 6979)."""
        algorithm = ECDSA(hashes.SHA256(), deterministic_signing=True)
        signature = self.private.sign(_pae(PAYLOAD_TYPE, payload), algorithm)
        envelope = {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(payload).decode(),
            # No key id: cosign compares it with an id that it computes, and skips what differs.
            "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}],
        }
        return json.dumps(envelope, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyingKey:
    """A public key."""

    public: EllipticCurvePublicKey

    @property
    def pem(self) -> str:
        """The key as cosign reads it."""
        pem = self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return pem.decode()

    @property
    def fingerprint(self) -> str:
        """`sha256:…` of the key's DER form."""
        der = self.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return "sha256:" + hashlib.sha256(der).hexdigest()

    def verifies(self, envelope: Envelope) -> bool:
        """Tell whether this key made one of an envelope's signatures."""
        message = _pae(envelope.payload_type, envelope.payload)
        for signature in envelope.signatures:
            try:
                self.public.verify(signature, message, ECDSA(hashes.SHA256()))
            except InvalidSignature:
                continue
            return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A DSSE envelope, decoded."""

    payload_type: str
    payload: bytes
    signatures: tuple[bytes, ...]


def open_envelope(data: bytes, *, where: str) -> Envelope:
    """Decode an envelope without trusting it. Raise `EvidenceError` if it is not one."""
    try:
        raw = json.loads(data)
        envelope = Envelope(
            payload_type=raw["payloadType"],
            payload=base64.b64decode(raw["payload"], validate=True),
            signatures=tuple(
                base64.b64decode(item["sig"], validate=True) for item in raw["signatures"]
            ),
        )
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise EvidenceError(f"the evidence is not a DSSE envelope: {error}", where=where) from error
    if envelope.payload_type != PAYLOAD_TYPE:
        raise EvidenceError(
            f"the envelope contains {envelope.payload_type!r}, not an in-toto statement",
            where=where,
        )
    return envelope


def load_signing_key(path: Path) -> SigningKey:
    """Read a private key file (PEM, P-256). Raise `InputError` if it is not one."""
    data = _read(path)
    if b"ENCRYPTED SIGSTORE PRIVATE KEY" in data or b"ENCRYPTED COSIGN PRIVATE KEY" in data:
        raise InputError(
            "this key is encrypted in cosign's own format, which only cosign can open",
            where=str(path),
            fix=f"{_NEW_KEY}; `cosign import-key-pair` imports the same key into cosign",
        )
    password = os.environ.get(PASSWORD, "").encode() or None
    try:
        key = serialization.load_pem_private_key(data, password)
    except TypeError as error:
        problem = "is encrypted" if password is None else "is not encrypted"
        raise InputError(
            f"the key {problem}", where=str(path), fix=f"set or unset {PASSWORD}"
        ) from error
    except ValueError as error:
        raise InputError(
            "not a private key in PEM, or the wrong password", where=str(path), fix=_NEW_KEY
        ) from error
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise InputError("the key is not on the curve P-256", where=str(path), fix=_NEW_KEY)
    return SigningKey(private=key)


def load_verifying_key(path: Path) -> VerifyingKey:
    """Read a public key file (PEM, P-256). Raise `InputError` if it is not one."""
    return parse_verifying_key(_read(path), where=str(path))


def parse_verifying_key(data: bytes, *, where: str) -> VerifyingKey:
    """Read a public key in PEM (P-256). Raise `InputError` if it is not one."""
    if b"PRIVATE KEY" in data:
        raise InputError("this is a private key; verifying needs the public one", where=where)
    try:
        key = serialization.load_pem_public_key(data)
    except ValueError as error:
        raise InputError("not a public key in PEM", where=where, fix=_NEW_KEY) from error
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise InputError("the key is not on the curve P-256", where=where, fix=_NEW_KEY)
    return VerifyingKey(public=key)


def _pae(payload_type: str, payload: bytes) -> bytes:
    """Pre-authentication encoding of DSSE v1 (protocol.md): what is signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the key: {error.strerror}", where=str(path)) from error
