"""What verifying found, in words for people and in JSON for programs."""

from __future__ import annotations

from typing import Any

from torchproof.publish.attestation.coverage import describe_host
from torchproof.publish.attestation.verification import Answer


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return an answer for programs."""
    return {
        "image": answer.reference,
        "digest": answer.digest,
        "ok": answer.good,
        "faults": [
            {"part": str(one.part), "message": one.message, "artifact": one.artifact}
            for one in answer.faults
        ],
        "uncovered": list(answer.uncovered),
        "not_counted": list(answer.others),
        "evidence": [
            {
                "artifact": one.artifact,
                "signer": one.signer,
                "statement": one.statement.model_dump(mode="json", by_alias=True),
            }
            for one in answer.proofs
        ],
    }


def answer_lines(answer: Answer) -> list[str]:
    """Return an answer for people."""
    lines = [f"{answer.reference}", f"  digest    {answer.digest}"]
    for one in answer.proofs:
        said = one.statement.predicate
        lines += [
            f"  cell      {said.cell.id}: {said.cell.verdict}",
            f"  evidence  {one.artifact}, {said.generated_at}, suite {said.suite_hash}",
            f"  signer    {one.signer}",
        ]
        if said.accepted_unproven:
            lines.append(f"  UNPROVEN  {', '.join(said.accepted_unproven)}: accepted by its policy")
        lines += [
            f"  {probe.outcome:10}{probe.name}  on {describe_host(probe.host)}"
            for probe in said.cell.probes
        ]
    lines += [f"  not counted: {one}" for one in answer.others]
    lines += [f"  {one.part} is not right: {one.message}" for one in answer.faults]
    lines += [f"  not covered: {one}" for one in answer.uncovered]
    lines.append("verified" if answer.good else "NOT verified")
    return lines
