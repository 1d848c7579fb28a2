from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.audit.audit_files import SITE, Content, Link, facts_of
from torchproof.audit.facts import RunConfig, Subject
from torchproof.audit.rule import Rule, evaluate
from torchproof.audit.rules.image import compile as compiling
from torchproof.audit.rules.image import entry, shadowing, user
from torchproof.model.cell import Cell
from torchproof.model.results import Finding, Level

RULES: tuple[Rule, ...] = (*entry.RULES, *user.RULES, *shadowing.RULES, *compiling.RULES)
PYTHON = "#!/opt/venv/bin/python\n"
GOOD: Mapping[str, Content] = {
    f"{SITE}/torch/__init__.py": "",
    f"{SITE}/torch-2.9.1.dist-info/METADATA": "Name: torch\nVersion: 2.9.1\n",
    f"{SITE}/triton-3.5.1.dist-info/METADATA": "Name: triton\nVersion: 3.5.1\n",
    "/opt/venv/pyvenv.cfg": "home = /usr/bin\n",
    "/opt/venv/bin/python": Link("/usr/bin/python3.11"),
    "/opt/venv/bin/python3": Link("python"),
    "/opt/venv/bin/torchrun": PYTHON,
    "/opt/venv/bin/pip": PYTHON,
    "/usr/bin/python3.11": "",
    "/usr/bin/gcc": "",
    "/usr/bin/g++": "",
    "/usr/sbin/ldconfig": "",
    "/usr/include/python3.11/Python.h": "",
    "/usr/include/stdio.h": "",
    "/usr/include/stdlib.h": "",
    "/usr/include/stdint.h": "",
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\ntorch:x:1000:0:torch:/home/torch:/bin/sh\n",
    "/home/torch": None,
    "/workspace": None,
    "/root": None,
}
MODES = {"/home/torch": 0o775, "/workspace": 0o775, "/root": 0o700, "/usr/sbin/ldconfig": 0o755}
OWNERS = {"/home/torch": (1000, 0), "/workspace": (1000, 0)}
ENV = {"PATH": "/opt/venv/bin:/usr/bin:/usr/sbin:/bin", "HOME": "/home/torch", "USER": "torch"}
CELL = Cell(torch="2.9.1", cuda="cu128")


def found(
    change: Mapping[str, Content] | None = None,
    *,
    without: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    unset: tuple[str, ...] = (),
    modes: Mapping[str, int] | None = None,
    cell: Cell | None = CELL,
    rule: str = "",
    **config: Any,
) -> list[Finding]:
    files = {path: text for path, text in GOOD.items() if not path.startswith(without or ("\0",))}
    variables = {name: text for name, text in (ENV | dict(env or {})).items() if name not in unset}
    facts = facts_of(
        files | dict(change or {}),
        modes=MODES | dict(modes or {}),
        owners=OWNERS,
        config=RunConfig(
            **{"env": variables, "user": "1000:0", "workdir": "/workspace", "cmd": ("python",)}
            | config
        ),
        subject=Subject.IMAGE,
        cell=cell,
    )
    return [item for item in evaluate(RULES, facts) if not rule or item.rule == rule]


def errors(*args: Any, **more: Any) -> list[str]:
    return [item.message for item in found(*args, **more) if item.level is Level.ERROR]


def test_an_image_as_we_build_it_has_no_finding() -> None:
    assert found() == []


def test_torchrun_outside_of_path_is_named_with_its_place() -> None:
    items = found(env={"PATH": "/usr/local/bin:/usr/bin:/bin"}, rule="entry.path")
    torchrun = next(item for item in items if "torchrun" in item.message)
    assert torchrun.level is Level.ERROR
    assert "/opt/venv/bin/torchrun" in torchrun.message
    assert "/usr/local/bin:/usr/bin:/bin" in torchrun.message
    assert "ENV PATH" in torchrun.fix


def test_no_path_at_all_means_the_engines_default() -> None:
    assert any("/usr/local/sbin" in text for text in errors(unset=("PATH",), rule="entry.path"))


def test_a_missing_pip_is_a_note() -> None:
    (item,) = found(without=("/opt/venv/bin/pip",))
    assert item.level is Level.NOTE


def test_python_of_another_environment_first_on_path_is_an_error() -> None:
    (text,) = errors(
        {"/opt/conda/bin/python": ""},
        env={"PATH": "/opt/conda/bin:/opt/venv/bin:/usr/bin:/usr/sbin"},
        rule="entry.other-python",
    )
    assert "/opt/conda/bin/python" in text


def test_torchrun_of_another_interpreter_is_an_error() -> None:
    (text,) = errors(
        {"/root/.local/bin/torchrun": "#!/opt/miniforge/bin/python3.12\n"},
        env={"PATH": "/root/.local/bin:/opt/venv/bin:/usr/bin:/usr/sbin"},
        rule="entry.other-python",
    )
    assert "/opt/miniforge/bin/python3.12" in text


def test_a_moved_environment_has_dead_shebangs() -> None:
    (item,) = found({"/opt/venv/bin/accelerate": "#!/build/venv/bin/python\n"})
    assert (item.rule, item.level) == ("entry.shebang", Level.ERROR)
    assert item.where == "/opt/venv/bin/accelerate"


@pytest.mark.parametrize(
    ("change", "config"),
    [
        ({}, {"entrypoint": ("/entrypoint.sh",)}),
        ({}, {"cmd": ("pythonn",)}),
        ({"/entrypoint.sh": "#!/bin/bash\n"}, {"entrypoint": ("/entrypoint.sh",)}),
        ({"/e/bin/go": "#!/bin/bash\r\n", "/bin/bash": ""}, {"entrypoint": ("/e/bin/go",)}),
        ({"/e/bin/go": "#!/bin/bash\n"}, {"entrypoint": ("/e/bin/go",)}),
        ({"/e/bin/go": "#!/usr/bin/env bash\n"}, {"entrypoint": ("/e/bin/go",)}),
    ],
)
def test_an_entry_point_that_cannot_start_is_an_error(
    change: dict[str, Content], config: dict[str, Any]
) -> None:
    assert len(errors(change, rule="entry.command", **config)) == 1


def test_an_interpreter_below_root_is_out_of_reach() -> None:
    change: dict[str, Content] = {
        "/opt/venv/bin/python": Link("/root/uv/bin/python3.11"),
        "/root/uv/bin/python3.11": "",
    }
    (text,) = errors(change, rule="entry.reachable")
    assert "/root has mode 700" in text
    (item,) = found(change, rule="entry.reachable", user="")
    assert item.level is Level.WARNING


def test_an_unknown_user_does_not_start() -> None:
    assert "USER nobody-here" in errors(user="nobody-here", rule="user.unknown")[0]
    assert errors(user="torch", rule="user.unknown") == []
    assert errors(user="4711:4711", rule="user.unknown") == []


@pytest.mark.parametrize(
    ("more", "level"),
    [
        ({"user": "1234", "unset": ("HOME",)}, Level.ERROR),
        ({"modes": {"/home/torch": 0o755}}, Level.WARNING),
        ({"user": "", "unset": ("HOME",)}, Level.WARNING),
        ({"env": {"HOME": "/root"}}, Level.ERROR),
        ({"env": {"HOME": "/nowhere"}}, Level.ERROR),
        ({"user": "torch", "unset": ("HOME",)}, Level.WARNING),
    ],
)
def test_a_home_that_cannot_be_written(more: dict[str, Any], level: Level) -> None:
    (item,) = found(rule="user.home", **more)
    assert item.level is level
    assert "HOME" in item.message


def test_caches_elsewhere_make_home_unimportant() -> None:
    env = {
        "HOME": "/nowhere",
        "TRITON_CACHE_DIR": "/workspace/t",
        "TORCHINDUCTOR_CACHE_DIR": "/workspace/i",
    }
    assert found(env=env) == []


def test_a_cache_folder_that_the_user_cannot_write_is_an_error() -> None:
    (item,) = found(env={"TRITON_CACHE_DIR": "/usr/share/triton"}, rule="user.cache")
    assert "TRITON_CACHE_DIR=/usr/share/triton" in item.message


def test_old_torch_needs_a_user_name() -> None:
    assert found(unset=("USER",), rule="user.name")[0].level is Level.WARNING
    newer: dict[str, Content] = {
        f"{SITE}/torch-2.9.1.dist-info/METADATA": "Name: torch\nVersion: 2.13.0\n"
    }
    assert found(newer, unset=("USER",), rule="user.name") == []


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"/workspace/torch/__init__.py": ""}, {}),
        ({"/workspace/torch.py": ""}, {}),
        ({"/src/torch/__init__.py": ""}, {"env": {"PYTHONPATH": "/src"}}),
        ({"/src/torch/__init__.py": "", "/w": Link("/src")}, {"workdir": "/w"}),
        ({"/home/torch/.local/lib/python3.11/site-packages/torch/__init__.py": ""}, {}),
        (
            {
                "/workspace/triton.cpython-311-x86_64-linux-gnu.so": "",
                f"{SITE}/triton/__init__.py": "",
            },
            {},
        ),
    ],
)
def test_a_module_that_takes_torchs_place_is_an_error(
    change: dict[str, Content], more: dict[str, Any]
) -> None:
    (text,) = errors(change, rule="shadowing.module", **more)
    assert "loads it instead of" in text


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"/workspace/torch/README": ""}, {}),
        ({"/workspace/torch/__init__.py": ""}, {"env": {"PYTHONSAFEPATH": "1"}}),
        ({"/workspace/torchlike/__init__.py": "", "/workspace/torch.txt": ""}, {}),
        ({"/workspace/numpy/__init__.py": ""}, {}),
        ({}, {"workdir": SITE}),
        ({}, {"env": {"PYTHONPATH": SITE}}),
        (
            {"/home/torch/.local/lib/python3.11/site-packages/torch/__init__.py": ""},
            {"env": {"PYTHONNOUSERSITE": "1"}},
        ),
    ],
)
def test_what_shadows_nothing_has_no_finding(
    change: dict[str, Content], more: dict[str, Any]
) -> None:
    assert found(change, rule="shadowing.module", **more) == []


@pytest.mark.parametrize(
    ("change", "more", "rule", "level"),
    [
        ({}, {"env": {"LD_PRELOAD": "/lib/gone.so"}}, "shadowing.preload", Level.WARNING),
        (
            {"/x/libnccl.so.2": ""},
            {"env": {"LD_PRELOAD": "/x/libnccl.so.2"}},
            "shadowing.preload",
            Level.WARNING,
        ),
        ({"/etc/ld.so.preload": "/gone.so\n"}, {}, "shadowing.preload", Level.WARNING),
        ({f"{SITE}/sitecustomize.py": ""}, {}, "shadowing.start-hook", Level.NOTE),
        ({f"{SITE}/x.pth": "import os; os.x()\n"}, {}, "shadowing.start-hook", Level.NOTE),
        ({f"{SITE}/__editable__.app.pth": "/src/app\n"}, {}, "shadowing.start-hook", Level.WARNING),
        ({}, {"env": {"NCCL_P2P_DISABLE": "1"}}, "shadowing.environment", Level.WARNING),
        ({}, {"env": {"CUDA_MODULE_LOADING": "AUTO"}}, "shadowing.environment", Level.WARNING),
        ({}, {"env": {"PYTHONHOME": "/usr"}}, "shadowing.environment", Level.WARNING),
        (
            {},
            {"env": {"PYTHONPATH": "/x/lib/python3.9/site-packages"}},
            "shadowing.pythonpath",
            Level.ERROR,
        ),
    ],
)
def test_other_surprises(
    change: dict[str, Content], more: dict[str, Any], rule: str, level: Level
) -> None:
    (item,) = found(change, **more)
    assert (item.rule, item.level) == (rule, level)


@pytest.mark.parametrize(
    ("without", "rule"),
    [
        (("/usr/bin/gcc",), "compile.compiler"),
        (("/usr/bin/g++",), "compile.compiler"),
        (("/usr/include/python3.11",), "compile.headers"),
        (("/usr/include/std",), "compile.headers"),
        (("/usr/sbin/ldconfig",), "compile.ldconfig"),
    ],
)
def test_torch_compile_needs_its_tools_where_the_cell_promises_it(
    without: tuple[str, ...], rule: str
) -> None:
    (item,) = found(without=without)
    assert (item.rule, item.level) == (rule, Level.ERROR)
    (foreign,) = found(without=without, cell=None)
    assert foreign.level is Level.WARNING
    plain = Cell(torch="2.9.1", cuda="cu128", compile=False)
    assert found(without=without, cell=plain) == []


def test_an_image_without_torch_has_no_finding() -> None:
    assert (
        found(without=(SITE, "/opt/venv/bin/pip", "/usr/bin/gcc"), cell=None, unset=("HOME",)) == []
    )


def test_an_entry_point_of_its_own_may_set_path() -> None:
    change: dict[str, Content] = {"/e/bin/start": "#!/usr/bin/python3.11\n"}
    path = {"PATH": "/usr/bin:/bin:/usr/sbin"}
    items = found(change, env=path, rule="entry.path", entrypoint=("/e/bin/start",))
    assert {item.level for item in items} == {Level.WARNING}
    tini: dict[str, Content] = {"/e/bin/tini": ""}
    items = found(tini, env=path, rule="entry.path", entrypoint=("/e/bin/tini", "--"))
    assert Level.ERROR in {item.level for item in items}
