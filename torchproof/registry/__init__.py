"""A client for OCI distribution registries: streams blobs, checks digests, retries faults.

Built on httpx because layers are made while they are sent: the digest of a blob is known only at
the end, and there is no copy on disk or in memory.
"""

from __future__ import annotations

from torchproof.registry.client import Registry
from torchproof.registry.descriptor import (
    DOCKER_MANIFEST,
    DOCKER_MANIFEST_LIST,
    OCI_CONFIG,
    OCI_EMPTY,
    OCI_INDEX,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    Descriptor,
)
from torchproof.registry.manifest import Manifest
from torchproof.registry.reference import Reference

__all__ = [
    "DOCKER_MANIFEST",
    "DOCKER_MANIFEST_LIST",
    "OCI_CONFIG",
    "OCI_EMPTY",
    "OCI_INDEX",
    "OCI_LAYER_GZIP",
    "OCI_MANIFEST",
    "Descriptor",
    "Manifest",
    "Reference",
    "Registry",
]
