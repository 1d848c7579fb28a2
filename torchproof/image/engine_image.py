"""Images that a container engine has (Docker, or Podman by its socket): inspected and saved.

An edge. Docker's client takes long to import, so modules that may do without an engine import this
one only when they need it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import docker
import docker.errors

from torchproof.errors import CellError, HostError
from torchproof.image.saved_archive import from_saved
from torchproof.image.stored_image import CHUNK, Image

_TIMEOUT: Final = 600
"""Seconds that an engine may take for one answer; it starts to save a large image slowly."""


class EngineImages:
    """The images of one engine. Methods raise what Docker's client raises, unless they say more."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    def inspect(self, name: str) -> dict[str, Any] | None:
        """Return what the engine says of an image; None if it has none of that name."""
        try:
            attributes: dict[str, Any] = self._client.api.inspect_image(name)  # type: ignore[no-untyped-call]
        except docker.errors.ImageNotFound:
            return None
        except docker.errors.APIError as error:
            if error.status_code in (400, 404):
                return None
            raise
        return attributes

    def history(self, digest: str) -> list[dict[str, Any]]:
        """Return the steps that made an image, the newest first."""
        return list(self._client.api.history(digest))  # type: ignore[no-untyped-call]

    @contextmanager
    def saved(self, digest: str, scratch: Path | None = None) -> Iterator[Image]:
        """Have the engine save an image to a file below `scratch`, and read that.

        Raises HostError if what it saved is not an image.
        """
        with tempfile.TemporaryDirectory(dir=scratch, prefix="torchproof-") as folder:
            saved = Path(folder) / "image.tar"
            with saved.open("wb") as file:
                for chunk in self._client.images.get(digest).save(chunk_size=CHUNK):
                    file.write(chunk)
            yield from_saved(saved, digest)


@contextmanager
def connect() -> Iterator[EngineImages]:
    """Connect to the engine that DOCKER_HOST names.

    Raises HostError if none answers, and for what it answers with an error while it is used.
    """
    try:
        client = docker.from_env(timeout=_TIMEOUT)
    except docker.errors.DockerException as error:
        raise HostError(f"no container engine answers ({error})") from error
    try:
        yield EngineImages(client)
    except docker.errors.APIError as error:
        raise HostError(f"the engine answers: {error.explanation}") from error
    finally:
        client.close()


@contextmanager
def tested_image(digest: str, scratch: Path) -> Iterator[Image]:
    """Open the image of the engine that a report names by its id.

    The engine's own push would give the image a tag before its evidence is there. Raises CellError
    if the engine does not have it, HostError if no engine answers or it cannot save the image.
    """
    with connect() as engine:
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            with engine.saved(digest, scratch) as image:
                yield image
        except docker.errors.ImageNotFound as error:
            raise CellError(
                f"the engine has no image {digest}; publish never builds",
                fix="publish where it was built, or run the matrix here again",
            ) from error
        except docker.errors.APIError as error:
            raise HostError(f"the engine cannot save {digest}: {error.explanation}") from error
