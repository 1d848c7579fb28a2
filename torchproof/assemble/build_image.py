"""A cell's image straight from its wheels: the builder `assemble`, told from beginning to end.

    lock ─► recipe (layers to make, each with its key) ─► streams ─► blobs ─► documents ─► name

    built = build_image(lock, "build/oci", resources, log=log)

Nothing of the image is run, and no daemon or root is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torchproof.assemble.base_image import BaseImage, from_registry, from_tar
from torchproof.assemble.destination import Destination
from torchproof.assemble.image_documents import TITLE, Image, ImageLayerFacts, make_image
from torchproof.assemble.layer_facts import FactsStore, LayerFacts, write_facts
from torchproof.assemble.make_layers import BuildResources, LayerMaker, copy_blob
from torchproof.assemble.recipes import ImageRecipe, image_recipe
from torchproof.assemble.target import open_destination
from torchproof.image.bootstrap import ensure_base
from torchproof.model.lock import LayerName, Lock, LockedBase
from torchproof.model.results import Built, ImageLayer, SubjectKind
from torchproof.registry import Reference, Registry

FACTS_FILE = "layers.yaml"
"""Beside the lock."""


def build_image(
    lock: Lock,
    target: str,
    resources: BuildResources,
    *,
    log: Path,
    folder: Path | None = None,
    name: str | None = None,
    beside: Sequence[str] = (),
) -> Built:
    """Build one cell's image into a folder or a registry; return what it is there.

    `target` is a folder (an OCI image layout) or `REGISTRY/REPOSITORY[:TAG]`. `log` takes the
    output of making a `bootstrap:` base. `folder` holds the cell's lock and gets its
    `layers.yaml`. `name` is the image's name in a layout, as `docker load` shows it. `beside` are
    repositories of the same registry whose blobs may be mounted.

    Raises InputError, CellError (IntegrityError for bytes that are not as locked), HostError
    (RegistryError). A blob is either whole and right at the destination or not there, and the
    image's name is set last, when all of it is there.
    """
    facts = FactsStore(resources.cache / "layers")
    beside = (*beside, *_base_beside(lock.base, target))
    with ExitStack() as stack:
        base = stack.enter_context(
            open_base(lock.base, lock.platform, facts, cache=resources.cache, log=log)
        )
        destination = stack.enter_context(
            open_destination(target, lock.cell, name=name, beside=beside)
        )
        return assemble(lock, base, destination, resources, facts=facts, folder=folder)


def assemble(
    lock: Lock,
    base: BaseImage,
    destination: Destination,
    resources: BuildResources,
    *,
    facts: FactsStore,
    folder: Path | None = None,
) -> Built:
    """Build one cell's image on an open base, into an open destination. Raises as `build_image`."""
    started = time.monotonic()

    # What the image consists of. The lock goes no further.
    recipe = image_recipe(lock, base_id=base.id, base_layers=len(base.layers))

    # If every layer has been made before, the image's digest is known without making any.
    if folder is not None:
        facts.load(folder / FACTS_FILE)
    maker = LayerMaker(recipe, base, destination, facts=facts, resources=resources)
    layers = maker.known()
    complete = len(layers) == len(recipe.layers)
    image = _image(recipe, base, layers) if complete else None
    reused = image is not None and image.digest == destination.current()

    # Otherwise bring every blob there, then the two documents that make them an image: its
    # configuration, and its manifest with the name.
    if image is None or not reused:
        layers = maker.make(layers)
        image = _image(recipe, base, layers)
        copy_blob(
            destination, lambda: iter((image.config,)), image.config_digest, len(image.config)
        )
        destination.finish(image.manifest, image.config_digest, image.layer_digests)

    if folder is not None:
        write_facts(folder / FACTS_FILE, [(one.title, layers[one.key]) for one in recipe.layers])
    return Built(
        cell=recipe.cell,
        subject=SubjectKind.IMAGE,
        ref=destination.ref,
        digest=image.digest,
        size=sum(layer.descriptor.size for layer in image.layers),
        layers=tuple(
            ImageLayer(name=layer.name, digest=layer.descriptor.digest, size=layer.descriptor.size)
            for layer in image.layers
        ),
        plan_hash=recipe.plan_hash,
        seconds=time.monotonic() - started,
        reused=reused,
    )


@contextmanager
def open_base(
    base: LockedBase, platform: str, facts: FactsStore, *, cache: Path, log: Path
) -> Iterator[BaseImage]:
    """Open a lock's base: read from its registry as needed, or made on this machine."""
    if base.image is None:
        yield from_tar(ensure_base(base, platform, cache=cache, log=log), facts)
        return
    reference = Reference.familiar(base.image)
    with Registry(reference.registry) as registry:
        yield from_registry(registry, reference, platform)


def _base_beside(base: LockedBase, target: str) -> tuple[str, ...]:
    """Return the base's repository if it is in the registry that the image goes to."""
    if base.image is None:
        return ()
    reference = Reference.familiar(base.image)
    return (reference.repository,) if target.startswith(f"{reference.registry}/") else ()


def _image(recipe: ImageRecipe, base: BaseImage, made: Mapping[str, LayerFacts]) -> Image:
    """Write the image's documents from the facts of its layers."""
    layers = [
        ImageLayerFacts(
            name=LayerName.BASE, title="", descriptor=one.descriptor, diff_id=one.diff_id
        )
        for one in base.layers
    ]
    layers += [
        ImageLayerFacts(
            name=one.layer,
            title=one.title,
            descriptor=made[one.key].descriptor({TITLE: one.title}),
            diff_id=made[one.key].diff_id,
        )
        for one in recipe.layers
    ]
    return make_image(
        recipe.platform,
        recipe.config,
        layers,
        base_config=base.config,
        annotations=base.annotations,
    )
