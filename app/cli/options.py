"""The options that several groups of the command line share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from meshwright.app.base.output_files import check_output, is_stdout
from meshwright.app.base.settings import Settings, read_settings
from meshwright.costmodels.errors import InvalidInputError

if TYPE_CHECKING:
    from meshwright.app.requests.one_line import OneLine


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
    """The options as they stand on a command line; those of the request itself have the names of `OneLine`."""

    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="DEVICES", help="Plan a model on these: 8xH100, 3x8xH100@400Gb, '5 of 8 H100'."),
    ] = None
    serve: Annotated[bool, typer.Option("--serve", help="With --gpus: the devices serve the model.")] = False
    train: Annotated[bool, typer.Option("--train", help="With --gpus: the devices train the model.")] = False
    isl: Annotated[str | None, typer.Option("--isl", metavar="TOKENS", help="Serving: tokens of a prompt.")] = None
    osl: Annotated[str | None, typer.Option("--osl", metavar="TOKENS", help="Serving: tokens of an answer.")] = None
    rate: Annotated[str | None, typer.Option("--rate", metavar="RATE", help="Serving: requests a second: 4, 240/min.")] = None
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", metavar="N", help="Serving: requests at once, instead of --rate.")
    ] = None
    ttft_p95: Annotated[
        str | None, typer.Option("--ttft-p95", metavar="TIME", help="Serving: P95 time to first token: 1s.")
    ] = None
    tpot_p95: Annotated[
        str | None, typer.Option("--tpot-p95", metavar="TIME", help="Serving: P95 time per output token: 40ms.")
    ] = None
    batch: Annotated[str | None, typer.Option("--batch", metavar="N", help="Training: sequences a step.")] = None
    seq: Annotated[str | None, typer.Option("--seq", metavar="TOKENS", help="Training: tokens of a sequence.")] = None
    precision: Annotated[str | None, typer.Option("--precision", metavar="FORMAT", help="With --gpus: bf16, fp8 ...")] = None
    launcher: Annotated[str | None, typer.Option("--launcher", metavar="NAME", help="With --gpus: vllm, megatron-lm ...")] = (
        None
    )
    objective: Annotated[
        str | None, typer.Option("--objective", metavar="NAME", help="With --gpus: throughput, devices, cost ...")
    ] = None
    host_memory: Annotated[
        str | None, typer.Option("--host-memory", metavar="SIZE", help="With --gpus: memory of each host, for offload: 512GB.")
    ] = None
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
        from meshwright.app.requests.one_line import OneLine, Task
        from meshwright.costmodels.errors import InvalidInputError

        if self.serve and self.train:
            raise InvalidInputError("a request serves or trains", given="--serve --train", allowed="one of them")
        task = Task.SERVE if self.serve else Task.TRAIN if self.train else None
        words = {each.name: getattr(self, each.name) for each in fields(OneLine) if each.name not in ("model", "task")}
        return OneLine(model, task=task, **words)


def with_line_options(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with each of `LineOptions` as a parameter of its own, in place of its parameter ``line``."""
    names = [each.name for each in fields(LineOptions)]

    @functools.wraps(command)
    def run(*given: Any, **options: Any) -> int:
        line = LineOptions(**{name: options.pop(name) for name in names})
        return command(*given, line=line, **options)

    own = inspect.signature(command, eval_str=True)
    # Typer reads the signature that a function says it has.
    parameters = [each for name, own_one in own.parameters.items() for each in (_parameters() if name == "line" else [own_one])]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _parameters() -> list[inspect.Parameter]:
    kinds = get_type_hints(LineOptions, include_extras=True)
    return [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=kinds[each.name])
        for each in fields(LineOptions)
    ]


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
CsvFile = Annotated[Path | None, typer.Option("--csv", metavar="FILE", parser=output_file, help="Write the stages as a table.")]


def environment_settings() -> Settings:
    """Return the settings of the environment; logging starts with them."""
    from meshwright.app.base.logs import start_logging

    settings = read_settings()
    start_logging(settings.log_level, settings.log_format)
    return settings
