"""The answer of `verify`, as text for people and as JSON for programs."""

from __future__ import annotations

from typing import Any

from torchproof.publish.attestation.coverage import host_text
from torchproof.publish.attestation.verification import Answer


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON data."""
    return {
        "image": answer.reference,
        "digest": answer.digest,
        "ok": answer.good,
        "faults": [
            {"part": str(fault.part), "message": fault.message, "artifact": fault.artifact}
            for fault in answer.faults
        ],
        "uncovered": list(answer.uncovered),
        "not_counted": list(answer.not_counted),
        "evidence": [
            {
                "artifact": proof.artifact,
                "signer": proof.signer,
                "statement": proof.statement.model_dump(mode="json", by_alias=True),
            }
            for proof in answer.proofs
        ],
    }


def answer_lines(answer: Answer) -> list[str]:
    """Return an answer as lines of text."""
    lines = [f"{answer.reference}", f"  digest    {answer.digest}"]
    for proof in answer.proofs:
        predicate = proof.statement.predicate
        lines += [
            f"  cell      {predicate.cell.id}: {predicate.cell.verdict}",
            f"  evidence  {proof.artifact}, {predicate.generated_at}, suite {predicate.suite_hash}",
            f"  signer    {proof.signer}",
        ]
        if predicate.accepted_unproven:
            unproven = ", ".join(predicate.accepted_unproven)
            lines.append(f"  UNPROVEN  {unproven}: accepted by its policy")
        lines += [
            f"  {probe.outcome:10}{probe.name}  on {host_text(probe.host)}"
            for probe in predicate.cell.probes
        ]
    lines += [f"  not counted: {reason}" for reason in answer.not_counted]
    lines += [f"  {fault.part} is wrong: {fault.message}" for fault in answer.faults]
    lines += [f"  not covered: {gap}" for gap in answer.uncovered]
    lines.append("verified" if answer.good else "NOT verified")
    return lines
