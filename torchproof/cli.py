"""The command line: parses, prints, turns errors into exit codes. The verbs are in `commands/`."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable

import typer
from rich.console import Console

from torchproof.errors import Exit, TorchproofError

VERBS = {
    "plan": "asking",
    "lock": "making",
    "generate": "making",
    "build": "making",
    "audit": "proving",
    "probe": "proving",
    "report": "proving",
    "publish": "publishing",
    "verify": "publishing",
    "pick": "asking",
    "compat": "asking",
    "matrix": "proving",
    "explain": "asking",
    "prune": "publishing",
    "schema": "asking",
}
"""Verb → its package in `torchproof.commands`; the function `run` of the verb's module runs it."""

_INTERRUPTED = "torchproof: interrupted; finished results are kept, run again to resume"

DEBUG = "TORCHPROOF_DEBUG"
"""Environment variable: if set, an internal error prints its traceback."""


def app(verbs: Iterable[str] = tuple(VERBS)) -> typer.Typer:
    """Return the command line with these verbs registered."""
    application = typer.Typer(
        name="torchproof",
        help="Container images of PyTorch on CUDA that come with proof.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    # typer treats an application with a single command as that command, and drops its name.
    application.callback()(lambda: None)
    for verb in verbs:
        module = importlib.import_module(f"torchproof.commands.{VERBS[verb]}.{verb}")
        application.command(verb, **getattr(module, "SETTINGS", {}))(_exiting(module.run))
    return application


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code. The one place where errors are caught."""
    # CI systems stop a job with SIGTERM: end the run as Ctrl-C does, with everything cleaned up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
    try:
        asked = sys.argv[1:] if argv is None else argv
        # Importing every verb takes seconds, so import only the one that was asked for.
        verbs = asked[:1] if asked and asked[0] in VERBS else list(VERBS)
        app(verbs)(args=argv, prog_name="torchproof")
    except TorchproofError as error:
        errors.print(f"torchproof: {error}")
        return int(error.exit_code)
    except KeyboardInterrupt:
        errors.print(_INTERRUPTED)
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:  # the reader (`… | head`) closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return int(Exit.OK)
    except SystemExit as stop:
        if stop.code == Exit.INTERRUPTED:  # typer exits on an interrupt without a word
            errors.print(_INTERRUPTED)
        return stop.code if isinstance(stop.code, int) else int(Exit.OK)
    except Exception as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        errors.print(
            f"torchproof: internal error: {type(error).__name__}: {error}\n"
            f"  fix: run again with {DEBUG}=1 and report the traceback"
        )
        return int(Exit.ENVIRONMENT)
    return int(Exit.OK)


def _exiting(verb: Callable[..., int]) -> Callable[..., None]:
    """Make the code that a verb returns the exit code of the process.

    typer alone would ignore it.
    """

    @functools.wraps(verb)
    def run(*args: object, **options: object) -> None:
        raise SystemExit(verb(*args, **options))

    return run
