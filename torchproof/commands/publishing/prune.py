"""`prune`: list published images that are no longer needed, and with --yes delete them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from torchproof.commands.options import AsJson, MatrixFile
from torchproof.commands.publishing.publish import repository_of
from torchproof.errors import Exit
from torchproof.matrix.expand import DEFAULT, expand, load_matrix
from torchproof.publish.pruning import RetentionPolicy, decide, delete, survey
from torchproof.registry import Registry
from torchproof.upstream.facts import load_facts


def run(
    yes: Annotated[bool, typer.Option("--yes", help="Delete the images listed as `goes`.")] = False,
    keep: Annotated[
        int | None,
        typer.Option(min=0, help="Versions of each cell to keep (default: publish.keep)."),
    ] = None,
    as_json: AsJson = False,
    matrix: MatrixFile = DEFAULT,
) -> int:
    """List old images and those of cells that left the matrix; with --yes delete them."""
    wanted = load_matrix(matrix)
    where = repository_of(wanted, matrix)
    policy = RetentionPolicy(
        cells=frozenset(request.id for request in expand(wanted, load_facts())),
        keep=wanted.publish.keep if keep is None else keep,
        keep_verified=wanted.publish.keep_verified,
    )
    with Registry(where.registry) as registry:
        decisions = decide(*survey(registry, where.repository), policy)
        going = {decision.version.digest for decision in decisions if decision.goes}
        deleted = delete(registry, where.repository, going, policy) if yes and going else ()
    if as_json:
        rows = [
            {
                "digest": decision.version.digest,
                "cell": decision.version.cell,
                "tags": list(decision.version.tags),
                "goes": decision.goes,
                "reason": decision.reason,
                "deleted": decision.version.digest in deleted,
            }
            for decision in decisions
        ]
        typer.echo(json.dumps(rows, indent=2))
        return int(Exit.OK)
    for decision in decisions:
        version = decision.version
        word = "deleted" if version.digest in deleted else "goes" if decision.goes else "stays"
        typer.echo(f"{word:8}{version.cell}  {version.digest}  {decision.reason}")
    if going and not yes:
        typer.echo("nothing was deleted; --yes deletes the images that go")
    if deleted:
        typer.echo("the registry's garbage collector can now free the blobs that no image needs")
    return int(Exit.OK)
