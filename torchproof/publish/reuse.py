"""What a registry already has, brought here: an image into the engine, passes into a trial.

Afterwards the run goes on as if it had built and probed before: the engine finds the image, and the
trial its results. Whatever goes wrong brings nothing.
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
from torchproof.publish.skip import Ledger, PublishedImage
from torchproof.registry import Reference, Registry
from torchproof.registry.transport import Patience

_SHORT = Patience(attempts=2)


def open_ledger(matrix: Matrix, trust: Trust | None = None) -> Ledger | None:
    """Return what knows the registry of matrix.yaml; None if it names none, or none that works."""
    if not matrix.publish.registry:
        return None
    try:
        where = Reference.parse(f"{matrix.publish.registry}/{matrix.publish.repository}")
        registry = Registry(where.registry, patience=_SHORT, timeout=20)
    except TorchproofError:
        return None
    return Ledger(registry=registry, repository=where.repository, trust=trust or Trust())


def bring_image(ledger: Ledger, lock: Lock) -> PublishedImage | None:
    """Pull the published image of a lock into the Docker Engine, under the cell's own name.

    None if nothing is published for the lock, or it cannot be pulled: then it is to be built.
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


def bring_passes(ledger: Ledger, trial: Trial, image: PublishedImage) -> tuple[str, ...]:
    """Give a trial the passes that evidence has for its image, suite, driver and GPUs.

    Returns the names of the probes that need not run. Thresholds of the user's own are no part of
    evidence, so with any of them nothing is brought.
    """
    key = trial.store.key
    if trial.built.digest not in (image.digest, image.config) or trial.options.thresholds:
        return ()
    held = trial.store.load()
    proven = ledger.already_proven(image, key["suite"], key["driver"], key["gpus"])
    brought = [one for one in proven if one.name not in held]
    for one in brought:
        trial.store.save(_result(one))
    return tuple(one.name for one in brought)


def _result(one: ProbeRead) -> ProbeResult:
    host = Host(
        engine=one.host.engine,
        driver=one.host.driver,
        gpus=tuple(Gpu(model=gpu.model, arch=gpu.arch) for gpu in one.host.gpus),
    )
    return ProbeResult(
        name=one.name,
        outcome=one.outcome,
        code=one.code,
        seconds=one.seconds,
        message=one.message,
        required=one.required,
        metrics=one.metrics,
        host=host,
    )
