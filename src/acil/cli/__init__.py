"""The `acil` command. Each group of commands has a file; errors become exit codes here.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by a gate, 130 interrupted. Results go to stdout,
talk to stderr.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from acil import __version__
from acil.cli import (
    bench,
    classes,
    data,
    doctor,
    history,
    learn,
    models,
    predict,
    privacy,
    serve,
    suggest,
)
from acil.cli.shared import is_rank_zero, plain, tell
from acil.errors import ACILError, GateError, ProcessLostError


class _Commands(TyperGroup):
    """Group of commands whose errors become one line on stderr."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of ours becomes one line, anything else (a bug) a traceback."""
        try:
            return super().invoke(ctx)
        except ACILError as error:
            if not is_rank_zero() and not isinstance(error, ProcessLostError):
                # Rank 0 has the same error and prints it; its exit code counts.
                raise typer.Exit(0) from error
            # Messages quote files and names of files, which must not control the terminal.
            tell("error: " + "\n".join(map(plain, str(error).split("\n"))))
            raise typer.Exit(3 if isinstance(error, GateError) else 1) from error
        except OSError as error:
            if error.filename is None:  # not of a file, such as stdout
                raise
            said = f"error: {error.strerror}: {error.filename}. Check path and permissions."
            tell(plain(said))
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            if is_rank_zero():
                tell("interrupted")
            raise typer.Exit(130) from error


app = typer.Typer(
    name="acil",
    cls=_Commands,
    no_args_is_help=True,
    epilog="To begin: acil learn FOLDER --model m.acil, with a folder for each class.",
    rich_markup_mode=None,  # at 80 columns, rich cuts off names and breaks lines anywhere
    # A plain traceback is what a bug report needs.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"acil {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Learn new classes in closed form, forget nothing, keep no sample."""


app.command("learn")(learn.learn)
app.command("predict")(predict.predict)
app.command("evaluate")(predict.evaluate)
app.command("suggest")(suggest.suggest)
app.command("embed")(predict.embed)
app.command("forget")(learn.forget)
app.command("undo")(history.undo)
app.command("history")(history.history)
app.command("rename")(classes.rename)
app.command("merge-classes")(classes.merge_classes)
app.command("merge")(models.merge)
app.command("inspect")(models.inspect)
app.command("verify")(models.verify)
app.command("export")(models.export)
app.command("audit")(privacy.audit)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the `acil` command with the arguments of the process, and exit."""
    # Threads that are done wait asleep. torch's library of threads reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        try:
            app(prog_name="acil")
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # The reader is gone, as in `acil inspect m.acil | head`, or the disk of the output is full.
        # Python would flush stdout again at its end, and fail.
        if error.errno == errno.ENOSPC:
            tell(f"error: {error.strerror}: not all could be written. Free some space, and try again.")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
