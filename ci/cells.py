"""`plan --json` on standard input → the cells to run, as a CI system wants them.

`python ci/cells.py github` prints the strategy matrix of .github/workflows/matrix.yml, `gitlab` the
child pipeline of .gitlab-ci.yml, `planned` and `rest` one cell a line: those that a machine must
try, and those that have their verdict already (unavailable, excluded, blocked).
"""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml

RULE = {"if": '$GPU_TAG != null && $GPU_TAG != ""'}


def planned(cells: list[dict[str, Any]]) -> list[str]:
    """Return the ids of the cells that a machine must try."""
    return [cell["id"] for cell in cells if cell["state"] == "planned"]


def rest(cells: list[dict[str, Any]]) -> list[str]:
    """Return the ids of the cells that have their verdict already."""
    return [cell["id"] for cell in cells if cell["state"] != "planned"]


def github(cells: list[dict[str, Any]]) -> str:
    """Return the strategy matrix, one line of JSON."""
    return json.dumps({"cell": planned(cells)})


def gitlab(cells: list[dict[str, Any]]) -> str:
    """Return the child pipeline: a job for each cell and kind of runner, then one that merges."""
    jobs: dict[str, Any] = {"include": [{"local": "ci/gitlab-jobs.yml"}]}
    for cell in planned(cells):
        jobs[f"cpu {cell}"] = {"extends": ".cpu", "variables": {"CELL": cell}}
        jobs[f"gpu {cell}"] = {
            "extends": ".gpu",
            "variables": {"CELL": cell},
            "needs": [f"cpu {cell}"],
            "rules": [RULE],
        }
    jobs["merge"] = {"extends": ".merge"}
    return yaml.safe_dump(jobs, sort_keys=False, width=100)


def main(arguments: list[str], plan: str) -> int:
    """Print what was asked for; 2 for a wrong argument or plan."""
    forms = {
        "github": github,
        "gitlab": gitlab,
        "planned": lambda cells: "\n".join(planned(cells)),
        "rest": lambda cells: "\n".join(rest(cells)),
    }
    try:
        (form,) = arguments
        text = forms[form](json.loads(plan)["cells"])
    except (ValueError, KeyError) as error:
        sys.stderr.write(
            f"ci/cells.py: {error!r}; usage: plan --json | cells.py {'|'.join(forms)}\n"
        )
        return 2
    if text:
        sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin.read()))
