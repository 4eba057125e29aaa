"""The ends of commands: exit codes, messages on stderr, and a bug report where the fault is ours."""

from __future__ import annotations

import functools
import itertools
import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from enum import Enum
from typing import Any, ParamSpec, cast

import typer

from meshwright.app.base.errors import (
    EXIT_BAD_INPUT,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_NO,
    EXIT_PIPE,
    ServiceError,
    SolveTimeoutError,
    StoreError,
)
from meshwright.app.base.quoting import json_text, terminal_line, terminal_lines
from meshwright.app.base.version import installed_version
from meshwright.costmodels.errors import InfeasibleError, InvalidInputError, MeshwrightError, nearest_name

Options = ParamSpec("Options")

_WRONG_CHOICE = re.compile(r"'(?P<given>[^']*)' is not one of (?P<known>.*)")
"""The words that Typer has for a value that an option does not know."""
_QUOTED = re.compile("'([^']*)'")

USAGE_ERROR = cast(
    "type[typer.BadParameter]", next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
)
"""The exception that Typer raises for a command line that it can't read. It exports only this subclass, whose home its versions
differ in."""

DEBUG = "--debug"
"""The option of every command under which errors end in a traceback; it stands before the command."""


class Output(Enum):
    """The form of the text on stdout: what fits a screen, the whole page, or a JSON document."""

    PAGE = "page"
    FULL = "full"
    JSON = "json"


def exits(command: Callable[Options, int]) -> Callable[Options, None]:
    """The command, ending the process with the exit code it returns or with that of the error it raises."""

    @functools.wraps(command)
    def run(*args: Options.args, **kwargs: Options.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except (KeyboardInterrupt, typer.Abort):  # A prompt raises the second, at the end of its input too.
            say("interrupted")
            code = EXIT_INTERRUPTED
        except BrokenPipeError:
            # Nobody reads on; what Python would still flush at exit goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = EXIT_PIPE
        except Exception as error:
            if DEBUG in itertools.takewhile(lambda word: word.startswith("-"), sys.argv[1:]):
                traceback.print_exc()
            code = _explain(error, as_json=bool(kwargs.get("as_json")))
        raise typer.Exit(code)

    return run


def explain_usage(error: typer.BadParameter) -> int:
    """Tell how a command line is wrong, with ``--json`` as a problem document too; the exit code for it."""
    if "--json" in sys.argv[1:]:
        from meshwright.app.edge.problems import problem_of

        wrong = InvalidInputError(f"the command line can't be read: {error.format_message()}", remedy="see --help")
        print_json(problem_of(wrong))
    error.show()
    choice = _WRONG_CHOICE.search(error.format_message())
    near = nearest_name(choice["given"], _QUOTED.findall(choice["known"])) if choice else None
    if near is not None:
        say(f"did you mean {near!r}?")
    return EXIT_BAD_INPUT


def say(message: str) -> None:
    """A message on stderr; its lines after the first are indented."""
    print(terminal_lines(f"meshwright: {message}"), file=sys.stderr)


def tell(text: str) -> None:
    """A line on stdout."""
    print(terminal_line(text))


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json_text(document))


def _explain(error: Exception, *, as_json: bool) -> int:
    """Tell what went wrong and give the exit code for it."""
    if as_json:
        from meshwright.app.edge.problems import problem_of

        print_json(problem_of(error))
    if isinstance(error, InvalidInputError):
        say(f"error: {error}")
        return EXIT_BAD_INPUT
    if isinstance(error, InfeasibleError):
        say(str(error))
        return EXIT_NO
    if isinstance(error, StoreError | SolveTimeoutError | ServiceError):
        say(f"error: {error}")
    else:
        say(f"internal error: {_first_line(error)}; please report it with the file {_write_report(error)}")
    return EXIT_INTERNAL


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0][:200]
    name = "" if isinstance(error, MeshwrightError) else type(error).__name__
    return ": ".join(part for part in (name, text) if part)


def _write_report(error: Exception) -> str:
    """A file with what a report of a defect needs; its path, or why there is none."""
    lines = [
        f"meshwright {installed_version()}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {sys.argv}",
        "".join(traceback.format_exception(error)),
    ]
    try:
        with tempfile.NamedTemporaryFile("w", prefix="meshwright-bug-", suffix=".txt", delete=False) as report:
            report.write("\n".join(lines))
    except OSError as unwritable:
        return f"(not written: {unwritable})"
    return report.name
