"""The options of a request in one line, declared once for all commands that take them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from meshwright.app.ways_in.one_line import OneLine


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
        from meshwright.app.ways_in.one_line import OneLine, Task
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
