"""Fetch what a registry already has: an image into the engine, passes into a trial.

The run then goes on as if it had built and probed before: the engine finds the image, and the trial
its results. If anything goes wrong, nothing is fetched.
"""

from __future__ import annotations

from contextlib import suppress

import docker
import docker.errors

from torchproof.engines.docker import REPOSITORY
from torchproof.errors import TorchproofError
from torchproof.matrix.schema import Matrix
from torchproof.model.lock import Lock
from torchproof.model.results import Gpu, Host, ProbeResult
from torchproof.probing.run_probes import Trial
from torchproof.publish.attestation.statement import ProbeRead
from torchproof.publish.attestation.verification import Trust
from torchproof.publish.ledger import Ledger, PublishedImage
from torchproof.registry import Reference, Registry
from torchproof.registry.transport import Patience

_SHORT = Patience(attempts=2)


def open_ledger(matrix: Matrix, trust: Trust | None = None) -> Ledger | None:
    """Return the ledger of the registry in matrix.yaml; None if there is none, or it is invalid."""
    if not matrix.publish.registry:
        return None
    try:
        where = Reference.parse(f"{matrix.publish.registry}/{matrix.publish.repository}")
        registry = Registry(where.registry, patience=_SHORT, timeout=20)
    except TorchproofError:
        return None
    return Ledger(registry=registry, repository=where.repository, trust=trust or Trust())


def pull_published_image(ledger: Ledger, lock: Lock) -> PublishedImage | None:
    """Pull the published image of a lock into the Docker Engine, tagged with the cell's id.

    None if nothing is published for the lock, or it cannot be pulled: then it must be built.
    """
    found = ledger.already_built(lock)
    if found is None:
        return None
    with suppress(docker.errors.DockerException):
        engine = docker.from_env(timeout=3600)
        try:
            repository, _, _ = found.ref.partition("@")
            image = engine.images.pull(repository, tag=found.digest)
            image.tag(REPOSITORY, tag=lock.cell)
        finally:
            engine.close()
        return found
    return None


def reuse_passes(ledger: Ledger, trial: Trial, image: PublishedImage) -> tuple[str, ...]:
    """Give a trial the passes that evidence has for its image, suite, driver and GPUs.

    Returns the names of the probes that need not run. Evidence does not cover the user's own
    thresholds, so if there are any, nothing is reused.
    """
    key = trial.store.key
    if trial.built.digest not in (image.digest, image.config) or trial.options.thresholds:
        return ()
    held = trial.store.load()
    proven = ledger.already_proven(image, key["suite"], key["driver"], key["gpus"])
    reused = [probe for probe in proven if probe.name not in held]
    for probe in reused:
        trial.store.save(_result(probe))
    return tuple(probe.name for probe in reused)


def _result(probe: ProbeRead) -> ProbeResult:
    host = Host(
        engine=probe.host.engine,
        driver=probe.host.driver,
        gpus=tuple(Gpu(model=gpu.model, arch=gpu.arch) for gpu in probe.host.gpus),
    )
    return ProbeResult(
        name=probe.name,
        outcome=probe.outcome,
        code=probe.code,
        seconds=probe.seconds,
        message=probe.message,
        required=probe.required,
        metrics=probe.metrics,
        host=host,
    )
