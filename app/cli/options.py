"""The options that several groups of the command line share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from meshwright.app.base.output_files import check_output, is_stdout
from meshwright.app.base.settings import Settings, read_settings
from meshwright.app.requests.options import OPTIONS, OneLine, Task, typed
from meshwright.costmodels.errors import InvalidInputError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
FullPage = Annotated[bool, typer.Option("--full", help="Print the whole page: what lost, what is equal, calibrations, notes.")]


def input_path(text: str) -> Path:
    """Return the path of a file or folder that a command reads; what it does not find is said where it is read."""
    return Path(text)


def work_units(text: str) -> int:
    """Return the units of work of an option, such as 3e9; raises BadParameter for what is no whole number from 1."""
    from meshwright.app.base.figures import read_count

    try:
        return read_count(text, what="the work limit")
    except InvalidInputError as error:
        raise typer.BadParameter(str(error)) from None


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


# The options of a request in one line, declared once for all commands that take them.


@dataclass(frozen=True, slots=True)
class LineOptions:
    """The options as they stand on a command line: those of a request that take a value, and flags."""

    words: Mapping[str, str | None]
    serve: Annotated[bool, typer.Option("--serve", help="With --gpus: the devices serve the model.")] = False
    train: Annotated[bool, typer.Option("--train", help="With --gpus: the devices train the model.")] = False
    assume_decoder: Annotated[
        bool | None,
        typer.Option("--assume-decoder", help="Read a config.json of an unknown kind approximately, as a decoder like Llama."),
    ] = None
    download: Annotated[
        bool,
        typer.Option("--download", help="Fetch the config of a model of the Hugging Face Hub that is not on this machine."),
    ] = False

    def of_model(self, model: str) -> OneLine:
        """Return the line that asks for a model with these options; raises InvalidInputError where both tasks are named."""
        if self.serve and self.train:
            raise InvalidInputError("a request serves or trains", given="--serve --train", allowed="one of them")
        task = Task.SERVE if self.serve else Task.TRAIN if self.train else None
        return OneLine(model, task=task, assume_decoder=self.assume_decoder, **self.words)


def with_line_options(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with each option of a request as a parameter of its own, in place of its parameter ``line``."""
    flags = [each for each in fields(LineOptions) if each.name != "words"]

    @functools.wraps(command)
    def run(*given: Any, **options: Any) -> int:
        words = {name: options.pop(name) for name in OPTIONS}
        line = LineOptions(words, **{each.name: options.pop(each.name) for each in flags})
        return command(*given, line=line, **options)

    own = inspect.signature(command, eval_str=True)
    kinds = get_type_hints(LineOptions, include_extras=True)
    asked = [(name, None, _annotation(name)) for name in OPTIONS]
    line = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, default, annotation in (*asked, *((each.name, each.default, kinds[each.name]) for each in flags))
    ]
    # Typer reads the signature that a function says it has.
    parameters = [each for name, own_one in own.parameters.items() for each in (line if name == "line" else [own_one])]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _annotation(name: str) -> Any:
    said = OPTIONS[name]
    return Annotated[str | None, typer.Option(typed(name), metavar=said.metavar, help=said.help)]


# The options that write a plan as a picture or a file to take away, declared once for all commands that take them.

TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", parser=output_file, help="Training: write the step as a trace for Perfetto."),
]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", parser=output_file, help="Write the plan as one page of HTML.")
]
TimelineFile = Annotated[
    Path | None,
    typer.Option("--svg-timeline", metavar="FILE", parser=output_file, help="Training: draw the pipeline timeline."),
]
MemoryFile = Annotated[
    Path | None, typer.Option("--svg-memory", metavar="FILE", parser=output_file, help="Draw the memory of each stage.")
]
FrontierFile = Annotated[
    Path | None, typer.Option("--svg-frontier", metavar="FILE", parser=output_file, help="Draw the frontier.")
]
MapFile = Annotated[
    Path | None, typer.Option("--svg-map", metavar="FILE", parser=output_file, help="Draw the ranks over the nodes.")
]
CsvFile = Annotated[
    Path | None,
    typer.Option(
        "--csv", metavar="FILE", parser=output_file, help="Write the stages, or rows of several clusters, as a table."
    ),
]


def environment_settings() -> Settings:
    """Return the settings of the environment; logging starts with them."""
    from meshwright.app.base.logs import start_logging

    settings = read_settings()
    start_logging(settings.log_level, settings.log_format)
    return settings
