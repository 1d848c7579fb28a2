"""Every build stage among the texts of an image. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.audit.facts import ImageFacts
from torchproof.audit.parsing.dockerfile import Stage
from torchproof.audit.parsing.texts import dockerfile_of


def stages(facts: ImageFacts) -> Iterator[tuple[str, Stage]]:
    """Yield every stage of every Dockerfile with the file's path."""
    for text in facts.texts:
        parsed = dockerfile_of(text)
        for stage in parsed.stages if parsed else ():
            yield text.path, stage
