"""Look up what a run can skip: published images need not be built, nor proven ones probed again.

A lookup that fails for any reason answers "no": then everything is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchproof.errors import TorchproofError
from torchproof.image.config import PLAN_LABEL
from torchproof.image.layers import make_plan
from torchproof.image.open_image import from_registry
from torchproof.model.lock import Lock
from torchproof.model.results import Outcome
from torchproof.publish.attestation.coverage import Requirement
from torchproof.publish.attestation.statement import ProbeRead
from torchproof.publish.attestation.verification import Proof, Trust, verify
from torchproof.publish.tags import immutable_tag
from torchproof.registry import Reference, Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedImage:
    """An image that need not be built. `ref` pulls it; `config` is its id in a Docker Engine."""

    ref: str
    digest: str
    config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Lookups in one repository. With a signer in `trust`, only what that signer signed counts."""

    registry: Registry
    repository: str
    trust: Trust

    def already_built(self, lock: Lock) -> PublishedImage | None:
        """Return the published image of a lock; None if there is none, or that is not known."""
        try:
            tag = immutable_tag(lock.cell, lock.digest)
            digest = self.registry.manifest_digest(self.repository, tag)
            image = from_registry(self.registry, self.repository, digest) if digest else None
            if digest is None or image is None:
                return None
            if image.labels.get(PLAN_LABEL) != make_plan(lock).hash:
                return None
            if not self._proofs(digest):
                return None
        except TorchproofError:
            return None
        return PublishedImage(
            ref=f"{self.registry.host}/{self.repository}@{digest}",
            digest=digest,
            config=image.config_digest,
        )

    def already_proven(
        self, image: PublishedImage, suite_hash: str, driver: str | None, gpus: Sequence[str]
    ) -> tuple[ProbeRead, ...]:
        """Return the passes that count for this image, suite, driver and these GPU models.

        A pass counts if it is of the same suite, with the same driver and on the same GPUs (model
        and number). Empty if nothing is proven, or that is not known.
        """
        found: dict[str, ProbeRead] = {}
        try:
            proofs = self._proofs(image.digest)
        except TorchproofError:
            return ()
        for proof in proofs:
            predicate = proof.statement.predicate
            if predicate.suite_hash != suite_hash:
                continue
            for probe in predicate.cell.probes:
                models = sorted(gpu.model for gpu in probe.host.gpus)
                same = (probe.host.driver or "") == (driver or "") and models == sorted(gpus)
                if probe.outcome is Outcome.PASS and same:
                    found[probe.name] = probe
        return tuple(found[name] for name in sorted(found))

    def _proofs(self, digest: str) -> tuple[Proof, ...]:
        reference = Reference(
            registry=self.registry.host, repository=self.repository, digest=digest
        )
        answer = verify(self.registry, reference, Requirement(), self.trust)
        return answer.proofs if answer.good else ()
