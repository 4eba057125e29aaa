"""The options that several groups of the command line share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.app.documents.output_files import check_output, is_stdout
from meshwright.costmodels.errors import InvalidInputError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
FullPage = Annotated[bool, typer.Option("--full", help="Print the whole page: what lost, what is equal, calibrations, notes.")]


def input_path(text: str) -> Path:
    """Return the path of a file or folder that a command reads; what it does not find is said where it is read."""
    return Path(text)


def output_file(name: str) -> Path:
    """Return the path of an option that names a file to write; every such option has this as its parser.

    Raises BadParameter for what can't be written, before any work.
    """
    try:
        check_output(Path(name), what="output")
    except InvalidInputError as error:
        raise typer.BadParameter(str(error)) from None
    return Path(name)


def output_file_or_folder(name: str) -> Path:
    """Return the path of an option that names a file or, as another option asks, a folder; the command checks which.

    Raises BadParameter for what can be neither, before any work.
    """
    return Path(name) if Path(name).is_dir() else output_file(name)


def output_folder(name: str) -> Path:
    """Return the path of an option that names a folder to write files into; every such option has this as its parser."""
    path = Path(name)
    if path.exists() and not path.is_dir() and not is_stdout(path):
        error = InvalidInputError(
            "files can't be written into it: this is not a directory",
            given=name,
            allowed="a directory, a name where nothing is yet, or - for stdout",
        )
        raise typer.BadParameter(str(error))
    return path


def output_folder_of_many(name: str) -> Path:
    """Return the path of an option that names a folder for files which stdout can't hold; its parser as `output_folder`."""
    if is_stdout(Path(name)):
        error = InvalidInputError("many files can't be written to stdout", given=name, allowed="a folder")
        raise typer.BadParameter(str(error))
    return output_folder(name)


def group_of(name: str, *, purpose: str, exit_codes: str | None = None, completes: bool = False) -> typer.Typer:
    """A group of commands whose help is plain text and whose errors are shown without a traceback. With ``completes`` it has
    options that install and print the completion of its words in a shell."""
    return typer.Typer(
        name=name,
        help=purpose,
        epilog=exit_codes,
        no_args_is_help=True,
        add_completion=completes,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
