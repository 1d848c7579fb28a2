"""Commands with a hard end, and GPU leases between processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchproof._process import run_command
from torchproof.errors import HostError
from torchproof.probing.leases import lease

GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


def python(code: str, timeout: float = 30.0) -> object:
    return run_command([sys.executable, "-c", code], env=dict(os.environ), timeout=timeout)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0]
    except OSError:
        return False


def test_returns_exit_code_and_output() -> None:
    result = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert (result.exit_code, result.stdout, result.stderr) == (7, "out\n", "err\n")


def test_a_hang_ends_hard_and_leaves_its_stack() -> None:
    result = python("import time\ndef waits():\n  time.sleep(60)\nwaits()", timeout=1.5)
    assert result.exit_code is None
    assert "waits" in result.stderr
    assert result.seconds < 10


def test_no_descendant_outlives_a_command_even_in_a_session_of_its_own(tmp_path: Path) -> None:
    child = "import time; time.sleep(60)"
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        "print(p.pid, flush=True)\n"
    )
    result = python(code)
    assert not alive(int(result.stdout))


def test_death_by_a_signal_is_a_negative_code() -> None:
    assert python("import os; os.kill(os.getpid(), 11)").exit_code == -signal.SIGSEGV


def test_a_program_that_is_not_there_is_a_fault_of_the_host() -> None:
    with pytest.raises(HostError):
        run_command(["/no/such/program"], env={}, timeout=1)


def test_two_leases_never_overlap(tmp_path: Path) -> None:
    with lease(GPUS, 2, folder=tmp_path) as one, lease(GPUS, 2, folder=tmp_path) as two:
        assert set(one).isdisjoint(two)


def test_a_third_waits_until_one_comes_back(tmp_path: Path) -> None:
    with (
        lease(GPUS, 4, folder=tmp_path),
        pytest.raises(HostError, match="came free"),
        lease(GPUS, 1, folder=tmp_path, timeout=0.3),
    ):
        pass
    with lease(GPUS, 4, folder=tmp_path) as again:
        assert len(again) == 4


def test_more_than_there_are_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="has 4"), lease(GPUS, 5, folder=tmp_path):
        pass


def test_none_needs_no_lock(tmp_path: Path) -> None:
    with lease((), 0, folder=tmp_path / "never") as held:
        assert held == ()
    assert not (tmp_path / "never").exists()


def test_a_killed_worker_gives_its_lease_back(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from torchproof.probing.leases import lease\n"
        f"with lease({GPUS!r}, 4, folder=Path(sys.argv[1])):\n"
        "  print('held', flush=True)\n  time.sleep(60)\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "held\n"
    with pytest.raises(HostError), lease(GPUS, 1, folder=tmp_path, timeout=0.3):
        pass
    worker.kill()
    worker.wait()
    begin = time.monotonic()
    with lease(GPUS, 4, folder=tmp_path, timeout=10):
        assert time.monotonic() - begin < 5
