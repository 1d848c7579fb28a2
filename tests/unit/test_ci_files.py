"""The pipelines of CI systems: right by their own schemas, and by the plan."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
WORKFLOW = ROOT / ".github/workflows/matrix.yml"
GITLAB = ROOT / ".gitlab-ci.yml"
PLAN = {
    "cells": [
        {"id": "2.9.1-cu128-py311", "state": "planned"},
        {"id": "2.9.1-cu118-py311", "state": "unavailable"},
        {"id": "2.7.1-cu126-py311", "state": "planned"},
        {"id": "2.7.1-cu118-py311", "state": "blocked"},
    ]
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / f"ci/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(form: str, plan: object = PLAN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "ci/cells.py", form],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        check=False,
    )


def check(*arguments: str | Path) -> str:
    done = subprocess.run(
        [BIN / arguments[0], *arguments[1:]], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_actionlint_finds_nothing_in_the_workflow() -> None:
    assert check("actionlint", "-no-color", WORKFLOW) == ""


def test_the_workflow_is_right_by_its_schema() -> None:
    schema = ("--builtin-schema", "vendor.github-workflows")
    assert check("check-jsonschema", *schema, WORKFLOW) == ""


def test_the_pipeline_and_its_children_are_right_by_their_schema(tmp_path: Path) -> None:
    child = tmp_path / "cells.yml"
    child.write_text(cells("gitlab").stdout)
    schema = ("--builtin-schema", "vendor.gitlab-ci")
    files = (GITLAB, ROOT / "ci/gitlab-jobs.yml", child)
    assert check("check-jsonschema", *schema, *files) == ""


def test_the_strategy_matrix_names_the_planned_cells() -> None:
    matrix = json.loads(cells("github").stdout)
    assert matrix == {"cell": ["2.9.1-cu128-py311", "2.7.1-cu126-py311"]}


def test_the_other_cells_are_reported_without_a_machine() -> None:
    assert cells("rest").stdout.split() == ["2.9.1-cu118-py311", "2.7.1-cu118-py311"]


def test_each_planned_cell_has_a_job_for_cpu_and_for_gpu_runners() -> None:
    jobs = yaml.safe_load(cells("gitlab").stdout)
    for cell in ("2.9.1-cu128-py311", "2.7.1-cu126-py311"):
        assert jobs[f"cpu {cell}"]["variables"] == {"CELL": cell}
        assert jobs[f"gpu {cell}"]["needs"] == [f"cpu {cell}"]
    templates = yaml.safe_load((ROOT / "ci/gitlab-jobs.yml").read_text())
    assert {one["extends"] for name, one in jobs.items() if name != "include"} <= templates.keys()


def test_a_plan_without_cells_to_try_gives_a_pipeline_that_still_merges() -> None:
    jobs = yaml.safe_load(cells("gitlab", {"cells": []}).stdout)
    assert list(jobs) == ["include", "merge"]
    assert json.loads(cells("github", {"cells": []}).stdout) == {"cell": []}


@pytest.mark.parametrize("form", ["bitbucket", ""])
def test_an_unknown_form_is_refused(form: str) -> None:
    done = cells(form)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_secrets_reach_only_the_steps_that_publish() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    for job in workflow["jobs"].values():
        assert "secrets" not in json.dumps(job.get("env", {}))
        for step in job["steps"]:
            if "secrets." in json.dumps(step):
                assert "publish.sh" in step["run"]
                assert "pull_request" in step["if"]


def test_both_pipelines_take_the_same_steps() -> None:
    github = WORKFLOW.read_text()
    gitlab = GITLAB.read_text() + (ROOT / "ci/gitlab-jobs.yml").read_text()
    for step in ("make matrix ARGS=", "ci/publish.sh --stage", "ci/merge.sh", "ci/rest.sh"):
        assert step in github and step in gitlab


@pytest.mark.parametrize("script", sorted((ROOT / "ci").glob("*.sh")), ids=lambda one: one.name)
def test_scripts_are_right_shell(script: Path) -> None:
    done = subprocess.run(["sh", "-n", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert script.stat().st_mode & 0o111


def test_reports_that_differ_in_times_alone_are_the_same() -> None:
    local = load("local")
    one: dict[str, Any] = {"generated_at": "1", "cells": [{"id": "a", "build": {"seconds": 1}}]}
    other: dict[str, Any] = {"generated_at": "2", "cells": [{"id": "a", "build": {"seconds": 2}}]}
    assert list(local.differences(one, other)) == []
    other["cells"][0]["id"] = "b"
    assert list(local.differences(one, other)) == [
        "report.cells[0].id: 'a' in the whole run, 'b' in the shards"
    ]
    assert list(local.differences(one, {"generated_at": "1", "cells": []}))
