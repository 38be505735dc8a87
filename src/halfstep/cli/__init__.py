"""The command line: one file per command. `main` turns errors into one line and an exit code.

A command parses its arguments, calls one function, and prints the result. Exit codes: 0 for
success, 1 for a bad result, 2 for invalid input, 130 after Ctrl-C, 141 if the reader of the output
has closed it (`| head`).
"""

import inspect
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import halfstep
from halfstep import caller
from halfstep.cli import (
    advise,
    bench,
    compare,
    configs,
    data,
    doctor,
    env,
    export,
    init,
    migrate,
    predict,
    recipes,
    runs,
    streams,
    suggestions,
    train,
)
from halfstep.cli import eval as eval_
from halfstep.cli.arguments import normalise
from halfstep.cli.front_end import CommandLine
from halfstep.cli.interrupts import Interrupts
from halfstep.cli.notices import in_one_line

BAD_INPUT = 2
INTERRUPTED = 130
COMPLETE = "_HALFSTEP_COMPLETE"
"""The variable with which a shell requests completions; see `halfstep --install-completion`."""

app = typer.Typer(
    name="halfstep",
    help="Mixed-precision training you can trust. Compares recipes side by side, explains why a "
    "training run broke, and predicts time and memory on GPUs that you do not have.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(halfstep.__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _global_options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. May appear anywhere.")
    ] = False,
) -> None:
    del version, debug  # `version` acts in its callback; `_run` handles --debug
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


train.register(app)
eval_.register(app)
predict.register(app)
export.register(app)
init.register(app)
runs.register(app)
compare.register(app)
advise.register(app)
bench.register(app)
doctor.register(app)
configs.register(app)
recipes.register(app)
data.register(app)
migrate.register(app)
env.register(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments after the program's name; default: those in `sys.argv`.

    Returns:
        The exit code.
    """
    streams.open_closed()
    with caller.through(CommandLine()):
        code = _run(normalise(sys.argv[1:] if argv is None else argv))
    streams.let_go()
    return code


def _run(arguments: list[str]) -> int:
    given = tuple(arguments)  # the parser empties the list
    debug = "--debug" in given
    command = typer.main.get_command(app)
    _reflow(command)
    if COMPLETE in os.environ:
        command.main(prog_name="halfstep", complete_var=COMPLETE)
    interrupts = Interrupts()
    try:
        # Not command(): typer would handle Ctrl-C and usage errors itself, and print boxes.
        with in_one_line(), interrupts, command.make_context("halfstep", arguments) as context:
            command.invoke(context)
            sys.stdout.flush()  # an error of the flush at exit would not be one line
    except typer.Exit as done:
        return done.exit_code
    except KeyboardInterrupt as stop:
        if debug:
            raise
        return _interrupted(str(stop))
    except (Exception, SystemExit) as error:
        if streams.is_of_the_reader(error):
            return streams.READER_LEFT
        if interrupts.seen and not debug:
            return _interrupted()
        if debug or not _is_of_the_user(error):
            raise
        return _fail(f"error: {_message(error, command, given)}", BAD_INPUT)
    return 0


def _reflow(command: Any) -> None:
    """Join the lines of each paragraph of the help texts, so that the terminal wraps them."""
    if command.help:
        command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(command.help))
    for subcommand in getattr(command, "commands", {}).values():
        _reflow(subcommand)


def _interrupted(message: str = "") -> int:
    # If Ctrl-C interrupted exec() in an import, CPython ends with SIGINT instead of our exit code.
    # Another exec() resets this state.
    exec("")  # noqa: S102
    return _fail(message or "interrupted", INTERRUPTED)


def _is_of_the_user(error: BaseException) -> bool:
    # Some versions of typer contain a copy of click, so usage errors have no common base class.
    return isinstance(error, ValueError | OSError) or hasattr(error, "format_message")


def _message(error: BaseException, program: Any, arguments: Sequence[str]) -> str:
    """Return an error in one line."""
    if hasattr(error, "format_message"):
        return suggestions.message(error, program, arguments)
    return " ".join(str(error).split())


def _fail(line: str, code: int) -> int:
    streams.say(line)
    return code
