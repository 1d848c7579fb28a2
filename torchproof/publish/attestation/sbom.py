"""The contents of an image as a CycloneDX document: wheels with their hashes, Debian packages."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from torchproof.image.stored_image import Image
from torchproof.model.lock import Lock
from torchproof.publish.image_check import Inside

SBOM_TYPE = "application/vnd.cyclonedx+json"
_NAMESPACE = uuid.UUID("6f1f3a0e-7a43-5d0e-9b39-5b0f0c6f7d11")


def make_sbom(image: Image, inside: Inside, lock: Lock | None) -> bytes:
    """Return the document, CycloneDX 1.6 in JSON. Equal images give equal bytes.

    The lock adds the hash of each wheel; what the image has beyond the lock is listed too.
    """
    hashes = {wheel.name: (wheel.version, wheel.sha256) for wheel in lock.wheels} if lock else {}
    components = [_wheel(name, version, hashes) for name, version in inside.distributions]
    present = {name for name, _ in inside.distributions}
    components += [
        _wheel(name, version, hashes)
        for name, (version, _) in sorted(hashes.items())
        if name not in present
    ]
    components += [_package(*package) for package in inside.packages]
    root = Component(
        name=image.labels.get("torchproof.cell", "image"),
        version=image.config_digest,
        type=ComponentType.CONTAINER,
        bom_ref="image",
    )
    bom = Bom(
        components=components,
        serial_number=uuid.uuid5(_NAMESPACE, image.config_digest),
        metadata=BomMetaData(
            component=root,
            timestamp=_created(image.config),
        ),
    )
    bom.register_dependency(root, components)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _wheel(name: str, version: str, hashes: dict[str, tuple[str, str]]) -> Component:
    locked_version, sha256 = hashes.get(name, ("", ""))
    known = sha256 and locked_version.partition("+")[0] == version.partition("+")[0]
    purl = PackageURL("pypi", None, name, version)
    return Component(
        name=name,
        version=version,
        purl=purl,
        bom_ref=str(purl),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if known else [],
    )


def _package(name: str, version: str, architecture: str) -> Component:
    purl = PackageURL("deb", "debian", name, version, {"arch": architecture})
    return Component(name=name, version=version, purl=purl, bom_ref=str(purl))


def _created(config: bytes) -> datetime:
    try:
        text = str(json.loads(config).get("created", ""))
        created = datetime.fromisoformat(text.partition(".")[0].rstrip("Z") + "+00:00")
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return created
