"""Headers of probe scripts, read without importing them."""

from pathlib import Path

import pytest

from torchproof.errors import InputError
from torchproof.probing.script import load_probes, read_probes, select_probes, suite_hash


def script(folder: Path, header: str, name: str = "thing.py") -> Path:
    lines = "".join(f"# {line}\n" if line else "#\n" for line in header.splitlines())
    path = folder / name
    path.write_text(f'"""x"""\n\n# /// probe\n{lines}# ///\nraise SystemExit("was imported")\n')
    return path


def test_reads_what_a_probe_needs(tmp_path: Path) -> None:
    (probe,) = read_probes(script(tmp_path, 'summary = "s"\ngpus = 2\ntimeout = 30\nmin_gpus = 1'))
    assert (probe.name, probe.gpus, probe.min_gpus, probe.timeout) == ("thing", 2, 1, 30)


def test_a_variant_is_a_probe_of_its_own(tmp_path: Path) -> None:
    header = 'summary = "s"\ngpus = 2\nmin_gpus = 1\n[variant.gloo]\ngpus = 0\nargs = ["--x"]'
    _, gloo = read_probes(script(tmp_path, header))
    assert (gloo.name, gloo.gpus, gloo.min_gpus, gloo.args) == ("thing_gloo", 0, 0, ("--x",))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("gpus = 1", "summary"),
        ('summary = "s"\ntimout = 5', "timeout"),
        ('summary = "s"\ngpus = "two"', "gpus"),
        ('summary = "s"\ngpus = -1', "gpus"),
        ('summary = "s"\ntimeout = 0', "timeout"),
        ('summary = "s', "TOML"),
    ],
)
def test_a_wrong_header_names_the_line_and_the_key(tmp_path: Path, header: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_probes(script(tmp_path, header))
    assert caught.value.where.endswith("thing.py:3")


def test_a_script_without_a_header_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("print(1)\n")
    with pytest.raises(InputError, match="header"):
        load_probes(tmp_path)


def test_shared_code_is_no_probe(tmp_path: Path) -> None:
    script(tmp_path, 'summary = "s"')
    (tmp_path / "_shared.py").write_text("")
    assert [probe.name for probe in load_probes(tmp_path)] == ["thing"]


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load_probes(tmp_path)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(InputError) as caught:
        select_probes(load_probes(), required=["nccl_int"])
    assert "nccl_init" in caught.value.fix


def test_the_matrix_decides_what_is_required() -> None:
    chosen = {probe.name: must for probe, must in select_probes(load_probes(), required=["shm"])}
    assert chosen["shm"]
    assert not chosen["versions"]
    assert "deepspeed" not in chosen


def test_an_optional_probe_runs_where_the_matrix_names_it() -> None:
    chosen = {p.name: m for p, m in select_probes(load_probes(), optional=["deepspeed"])}
    assert chosen["deepspeed"] is False


def test_any_change_of_a_script_changes_the_suite(tmp_path: Path) -> None:
    path = script(tmp_path, 'summary = "s"')
    before = suite_hash(tmp_path)
    path.write_text(path.read_text() + "\n")
    assert suite_hash(tmp_path) != before


def test_the_set_of_this_repository_is_whole() -> None:
    names = {probe.name for probe in load_probes()}
    cpu = "versions torchrun spawn linkage shm sampler rendezvous user compile signals threads"
    gpu = "driver nccl_init ddp_step allreduce_bandwidth amp_tf32 fsdp_step compile_gpu gpu_balance"
    more = "determinism ddp_step_gloo allreduce_bandwidth_gloo oom deepspeed megatron"
    assert set(f"{cpu} {gpu} {more}".split()) <= names
