"""`prune`: list, and with --yes delete, published images that nobody needs any more."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from torchproof.commands.options import AsJson, MatrixFile
from torchproof.commands.publishing.publish import repository_of
from torchproof.errors import Exit
from torchproof.matrix.expand import DEFAULT, expand, load_matrix
from torchproof.publish.pruning import Policy, decide, delete, survey
from torchproof.registry import Registry
from torchproof.upstream.facts import load_facts


def run(
    yes: Annotated[bool, typer.Option("--yes", help="Delete what is listed as going.")] = False,
    keep: Annotated[
        int | None, typer.Option(min=0, help="Versions of a cell to keep (else publish.keep).")
    ] = None,
    as_json: AsJson = False,
    matrix: MatrixFile = DEFAULT,
) -> int:
    """List images of cells that left the matrix, and old ones; with --yes delete them."""
    asked = load_matrix(matrix)
    where = repository_of(asked, matrix)
    policy = Policy(
        cells=frozenset(one.id for one in expand(asked, load_facts())),
        keep=asked.publish.keep if keep is None else keep,
        keep_verified=asked.publish.keep_verified,
    )
    with Registry(where.registry) as registry:
        found = decide(*survey(registry, where.repository), policy)
        going = {one.version.digest for one in found if one.goes}
        deleted = delete(registry, where.repository, going, policy) if yes and going else ()
    if as_json:
        rows = [
            {
                "digest": one.version.digest,
                "cell": one.version.cell,
                "tags": list(one.version.tags),
                "goes": one.goes,
                "reason": one.reason,
                "deleted": one.version.digest in deleted,
            }
            for one in found
        ]
        typer.echo(json.dumps(rows, indent=2))
        return int(Exit.OK)
    for one in found:
        word = "deleted" if one.version.digest in deleted else "goes" if one.goes else "stays"
        typer.echo(f"{word:8}{one.version.cell}  {one.version.digest}  {one.reason}")
    if going and not yes:
        typer.echo("nothing is deleted yet; --yes deletes what goes")
    if deleted:
        typer.echo("the registry's garbage collector now frees the blobs that no image needs")
    return int(Exit.OK)
