"""`verify`: does a published image have evidence, is it intact, and what does it say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torchproof.commands.options import AsJson
from torchproof.errors import Exit
from torchproof.publish.attestation.answer_text import answer_json, answer_lines
from torchproof.publish.attestation.coverage import parse_requirement
from torchproof.publish.attestation.signing import load_verifying_key
from torchproof.publish.attestation.verification import Trust, verify
from torchproof.registry import Reference, Registry


def run(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="REGISTRY/REPOSITORY:TAG")],
    require: Annotated[
        list[str] | None,
        typer.Option(help="probe=NAME, verdict=verified, suite=HASH or cell=ID. May be repeated."),
    ] = None,
    driver: Annotated[
        str, typer.Option(help="Must be proven with this driver: 550 or 550.90.07.")
    ] = "",
    gpu: Annotated[str, typer.Option(help="Must be proven on this GPU model: H100.")] = "",
    key: Annotated[
        Path | None,
        typer.Option(help="Public key (PEM, P-256): only evidence that it signed counts."),
    ] = None,
    identity: Annotated[str, typer.Option(help="Signer's identity, for keyless signatures.")] = "",
    issuer: Annotated[str, typer.Option(help="Issuer of the identity (a URL).")] = "",
    as_json: AsJson = False,
) -> int:
    """Check an image's evidence: signature, subject, content. Exit 1 if it does not hold."""
    reference = Reference.parse(image)
    requirement = parse_requirement(require or [], driver=driver, gpu=gpu)
    trust = Trust(key=load_verifying_key(key) if key else None, identity=identity, issuer=issuer)
    with Registry(reference.registry) as registry:
        answer = verify(registry, reference, requirement, trust)
    if as_json:
        typer.echo(json.dumps(answer_json(answer), indent=2))
    else:
        typer.echo("\n".join(answer_lines(answer)))
    return int(Exit.OK if answer.good else Exit.CELL_FAILED)
