"""The options of a request in one line, declared once for the command line, questions on a terminal and the form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from meshwright.app.base.quoting import shell_word


class Task(StrEnum):
    """The work that devices are planned for."""

    SERVE = "serve"
    TRAIN = "train"


TOKENS = "TOKENS"
"""What stands for a number of tokens, which may be written with a k."""


@dataclass(frozen=True, slots=True)
class Option:
    """What is said of an option where it can be given.

    help      its line on the command line
    metavar   what stands for its value there
    label     its words in a form, and its question on a terminal; empty where none asks for it
    example   a value that is shown as an example
    task      the one task that it goes with
    optional  whether a request does without it, so that a question takes no answer for one
    """

    help: str
    metavar: str
    label: str = ""
    example: str = ""
    task: Task | None = None
    optional: bool = False

    @property
    def question(self) -> str:
        """The question for it on a terminal."""
        return f"{self.label} ({self.example}{'; empty for none' if self.optional else ''})"


def _option(help: str, metavar: str, **said: Any) -> Any:
    return field(default=None, metadata={"option": Option(help, metavar, **said)})


def _serving(help: str, metavar: str, **said: Any) -> Any:
    return _option(f"Serving: {help}", metavar, task=Task.SERVE, **said)


def _training(help: str, metavar: str, **said: Any) -> Any:
    return _option(f"Training: {help}", metavar, task=Task.TRAIN, **said)


@dataclass(frozen=True, slots=True)
class OneLine:
    """The options of a request as they were typed; None where one was not given."""

    model: str
    gpus: str | None = _option(
        "Plan a model on these: 8xH100, 3x8xH100@400Gb, '5 of 8 H100'; several: 8xH100,8xH200.", "DEVICES"
    )
    task: Task | None = None
    isl: str | None = _serving("tokens of a prompt: 8192, 8k.", TOKENS, label="Tokens of a prompt", example="2000")
    osl: str | None = _serving("tokens of an answer.", TOKENS, label="Tokens of an answer", example="300")
    rate: str | None = _serving("requests a second: 4, 240/min.", "RATE", label="Requests a second", example="4")
    concurrency: str | None = _serving("requests at once, instead of --rate.", "N", label="or requests at once", optional=True)
    ttft_p95: str | None = _serving(
        "P95 time to first token: 1s.", "TIME", label="P95 time to first token", example="1s", optional=True
    )
    tpot_p95: str | None = _serving(
        "P95 time per output token: 40ms.", "TIME", label="P95 time per output token", example="40ms", optional=True
    )
    batch: str | None = _training("sequences a step.", "N", label="Sequences a step", example="512")
    seq: str | None = _training("tokens of a sequence: 8192, 8k.", TOKENS, label="Tokens of a sequence", example="8192")
    tokens: str | None = _training("tokens of the whole run, for its days and cost: 15B, 1T.", "NUMBER")
    within: str | None = _training("the time that the run may take: 30d. Needs --tokens.", "TIME")
    budget: str | None = _training("USD that the run may cost: 500k. Needs --tokens.", "USD")
    lora: str | None = _training("adapters of this rank beside frozen weights.", "RANK")
    qlora: str | None = _training("the same, the frozen weights in four bits.", "RANK")
    precision: str | None = _option("With --gpus: bf16, fp8 ...", "FORMAT", label="Precision")
    launcher: str | None = _option("With --gpus: vllm, megatron-lm ...", "NAME", label="Launcher")
    objective: str | None = _option("With --gpus: throughput, devices, cost ...", "NAME", label="Objective")
    host_memory: str | None = _option(
        "With --gpus: memory of each host, for offload: 512GB.", "SIZE", label="Memory of each host"
    )
    assume_decoder: bool | None = None

    @property
    def is_asked(self) -> bool:
        """True if any option was given: the argument is then a model and no file."""
        return any(getattr(self, each.name) is not None for each in fields(self) if each.name != "model")

    @property
    def parts(self) -> tuple[str, ...]:
        """The line as it is typed again, an option with its value a part, each word quoted for a shell."""
        given = [(name, getattr(self, name)) for name in OPTIONS]
        task = [] if self.task is None else [typed(self.task)]
        options = [f"{typed(name)} {shell_word(text)}" for name, text in given if text is not None]
        assumed = [typed("assume_decoder")] if self.assume_decoder else []
        return (shell_word(self.model), *task, *options, *assumed)


OPTIONS: Mapping[str, Option] = {each.name: each.metadata["option"] for each in fields(OneLine) if each.metadata}
"""The options that take a value, by their field."""

OF_TASK: Mapping[Task, tuple[str, ...]] = {
    task: tuple(name for name, option in OPTIONS.items() if option.task is task) for task in Task
}
"""Options that go with one task only."""


def typed(name: str) -> str:
    """Return the option of a field as it is typed."""
    return f"--{name.replace('_', '-')}"
