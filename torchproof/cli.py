"""The command line: parses, prints, and turns errors into exit codes. Verbs are in `commands/`."""

from __future__ import annotations

import importlib
import signal
import sys

import click
import typer
from rich.console import Console

from torchproof.errors import Exit, TorchproofError

VERBS = (
    "plan",
    "lock",
    "generate",
    "build",
    "audit",
    "probe",
    "report",
    "publish",
    "verify",
    "pick",
    "compat",
    "matrix",
    "explain",
    "prune",
    "schema",
)
"""Each is a module of `torchproof.commands` whose function `run` is the verb."""


def app() -> typer.Typer:
    """Return the command line with every verb registered."""
    application = typer.Typer(
        name="torchproof",
        help="Container images of PyTorch on CUDA that come with proof.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for verb in VERBS:
        module = importlib.import_module(f"torchproof.commands.{verb}")
        application.command(verb, **getattr(module, "SETTINGS", {}))(module.run)
    return application


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code. The one place where errors are caught."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    # What stops a CI job is SIGTERM: it ends a run as Ctrl-C does, with everything cleaned up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = app()(args=argv, standalone_mode=False, prog_name="torchproof")
    except TorchproofError as error:
        errors.print(f"torchproof: {error}")
        return int(error.exit_code)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show(sys.stderr)
        return int(Exit.USAGE)
    except (KeyboardInterrupt, click.exceptions.Abort):
        errors.print("torchproof: interrupted; finished results are kept, run again to resume")
        return int(Exit.INTERRUPTED)
    return int(result) if isinstance(result, int) else int(Exit.OK)
