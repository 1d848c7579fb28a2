"""Store manifests while other clients store the same ones."""

from __future__ import annotations

import random
import time

from torchproof.errors import RegistryError
from torchproof.registry import OCI_MANIFEST, Registry

_TRIES = 6
_CLASHES = ("MANIFEST_BLOB_UNKNOWN", "DIGEST_INVALID", "BLOB_UNKNOWN", "MANIFEST_UNVERIFIED")
"""What docker-registry 2.8 answers while another client writes the same blob or manifest: it reads
files that are not completely written yet.
"""


def put_manifest(
    registry: Registry,
    repository: str,
    target: str,
    data: bytes,
    *,
    media_type: str = OCI_MANIFEST,
) -> str:
    """Store a manifest and return its digest; try again if it clashes with another client's.

    Raises what `Registry.put_manifest` raises.
    """
    for attempt in range(_TRIES):
        try:
            return registry.put_manifest(repository, target, data, media_type=media_type)
        except RegistryError as error:
            if attempt + 1 == _TRIES or not any(clash in error.message for clash in _CLASHES):
                raise
        time.sleep(0.1 * 2**attempt * random.uniform(0.5, 1.0))
    raise AssertionError("the last try returns or raises")
