"""What a long run tells, on a terminal and in CI."""

from __future__ import annotations

import io
import re
import threading

from rich.console import Console

from torchproof._progress import Progress


def ci() -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(Console(file=out, width=40, markup=False, soft_wrap=True)), out


def terminal() -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(Console(file=out, width=100, markup=False, force_terminal=True)), out


def test_in_ci_each_step_is_one_line_with_the_seconds_since_the_start() -> None:
    progress, out = ci()
    with progress:
        progress.say("2.9.1-cu128", "building")
        progress.done("2.9.1-cu128", "image of 7.6 GB")
    lines = out.getvalue().splitlines()
    assert [re.sub(r"^\[ +\d+\.\d s\] ", "", line) for line in lines] == [
        "2.9.1-cu128: building",
        "2.9.1-cu128: image of 7.6 GB",
    ]


def test_in_ci_a_long_line_stays_one_line() -> None:
    progress, out = ci()
    with progress:
        progress.done("2.9.1-cu128", "word " * 40)
    assert len(out.getvalue().splitlines()) == 1


def test_in_ci_nothing_moves_the_cursor() -> None:
    progress, out = ci()
    with progress:
        progress.say("a", "building")
        progress.say("a", "probing")
    assert "\x1b" not in out.getvalue()


def test_words_of_the_run_itself_name_no_cell() -> None:
    progress, out = ci()
    with progress:
        progress.done("", "planned 10 cells")
    assert out.getvalue().endswith("s] planned 10 cells\n")


def test_brackets_are_text_not_markup() -> None:
    progress, out = ci()
    with progress:
        progress.done("a", "[bold]error[/bold] [Errno 28]")
    assert "[bold]error[/bold] [Errno 28]" in out.getvalue()


def test_a_terminal_keeps_the_last_word_of_a_cell_and_drops_its_live_line() -> None:
    progress, out = terminal()
    with progress:
        progress.say("a", "building")
        progress.say("a", "[red] probing\nranks")
        progress.done("a", "verified")
    last = out.getvalue().rpartition("verified")
    assert last[1] == "verified"
    assert "probing" not in last[2]


def test_threads_do_not_mix_their_lines() -> None:
    progress, out = ci()

    def tell(name: str) -> None:
        for step in range(50):
            progress.say(name, f"step {step}")

    threads = [threading.Thread(target=tell, args=(f"cell-{n}",)) for n in range(4)]
    with progress:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = out.getvalue().splitlines()
    assert len(lines) == 200
    assert all(re.fullmatch(r"\[ *\d+\.\d s\] cell-\d: step \d+", line) for line in lines)
