"""Keyless signatures: by the OIDC identity of a CI system, through sigstore.

The bundle is attached as cosign and other tools expect it. Signing and verifying need the network;
sites without one use a key file (`signing.py`).
"""

from __future__ import annotations

import importlib
from typing import Any

from torchproof.errors import EvidenceError, HostError
from torchproof.publish.attestation.statement import PAYLOAD_TYPE


def sign_keyless(statement: bytes) -> bytes | None:
    """Sign as the identity that this machine's CI system provides; None if it provides none.

    Raises `HostError` if there is an identity, but sigstore does not answer or refuses it.
    """
    try:
        oidc = importlib.import_module("sigstore.oidc")
        credential = oidc.detect_credential()
    except ImportError:
        return None
    except Exception as error:  # the library's own and those of what it is built on
        raise HostError(
            f"this machine has an OIDC identity that cannot be used: {type(error).__name__}",
            fix="give the job permission to request an identity token, or sign with --key",
        ) from error
    if credential is None:
        return None
    try:
        sign = importlib.import_module("sigstore.sign")
        models = importlib.import_module("sigstore.models")
        dsse = importlib.import_module("sigstore.dsse")
        context = sign.SigningContext.from_trust_config(models.ClientTrustConfig.production())
        with context.signer(oidc.IdentityToken(credential)) as signer:
            bundle = signer.sign_dsse(dsse.Statement(statement))
    except Exception as error:
        raise HostError(
            f"sigstore did not sign: {type(error).__name__}",
            fix="run the same command again, or sign with --key",
        ) from error
    return str(bundle.to_json()).encode()


def open_bundle(data: bytes, identity: str, issuer: str, *, where: str) -> bytes:
    """Return the statement in a bundle, if this identity of this issuer signed it.

    Raises `EvidenceError` if it did not, `HostError` if that cannot be checked here.
    """
    try:
        models = importlib.import_module("sigstore.models")
        verify = importlib.import_module("sigstore.verify")
    except ImportError as error:
        raise HostError(
            "this evidence is signed by sigstore", fix="install torchproof[sign]"
        ) from error
    policy: Any = verify.policy.Identity(identity=identity, issuer=issuer)
    try:
        bundle = models.Bundle.from_json(data)
    except Exception as error:
        raise EvidenceError(
            f"the evidence is not a sigstore bundle: {error}", where=where
        ) from error
    try:
        verifier = verify.Verifier.production()
    except Exception as error:
        raise HostError(f"cannot get sigstore's trust root: {error}") from error
    try:
        kind, payload = verifier.verify_dsse(bundle, policy)
    except Exception as error:
        raise EvidenceError(f"the signature is not valid: {error}", where=where) from error
    if kind != PAYLOAD_TYPE:
        raise EvidenceError(f"the bundle contains {kind!r}, not an in-toto statement", where=where)
    return bytes(payload)
