"""The documents of questions that are answered at once: what a launch command does, what a plan would do, how it is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from meshwright.app.launching.parts.flag import Standing
from meshwright.app.requests.document import RequestDocument
from meshwright.app.service.explaining.measured import Metric
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import STRICT_RECORD
from meshwright.solver.answer.plan_record import PlanRecord
from meshwright.solver.answer.predicted import Reason
from meshwright.solver.problem.choices import Launcher

MOST_FILES = 20
"""Files that a launch command may be given with."""
MOST_CHARACTERS = 200_000
"""Characters of a command, and of each of its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewExplanation:
    """A launch command, and what it does not say.

    command      the command, a script around it, or a launcher's configuration; it is read, never run
    files        texts of the configurations that the command names, by name
    model        name of a catalogue's model, or id of one on the Hugging Face Hub, in place of the command's
    config       its ``config.json``, in place of a name
    cluster      the devices in words: ``8xH100``, ``3x8xH100@400Gb``
    isl, osl     serving: tokens of a prompt and of an answer
    rate         serving: requests a second
    concurrency  serving: requests at once, instead of a rate
    p95_ttft_ms  serving: target of the time to the first token
    p95_tpot_ms  serving: target of the time per output token
    batch, seq   training: sequences of a step, and their tokens
    precision    number format of the weights
    objective    what a better plan is better at
    measured     figures that were measured, with commas between: ``840tok/s/gpu``, ``ttft 1.2s, tpot 35ms``
    """

    __pydantic_config__ = STRICT_RECORD

    command: str
    files: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    config: Mapping[str, Any] | None = None
    cluster: str | None = None
    isl: int | None = None
    osl: int | None = None
    rate: float | None = None
    concurrency: int | None = None
    p95_ttft_ms: float | None = None
    p95_tpot_ms: float | None = None
    batch: int | None = None
    seq: int | None = None
    precision: str | None = None
    objective: str | None = None
    measured: str | None = None

    def __post_init__(self) -> None:
        if len(self.files) > MOST_FILES:
            raise InvalidInputError("too many files", given=str(len(self.files)), allowed=f"at most {MOST_FILES}")
        longest = max(map(len, (self.command, *self.files.values(), *self.files)))
        if longest > MOST_CHARACTERS:
            allowed = f"at most {MOST_CHARACTERS:,}"
            raise InvalidInputError("a text is too long", given=f"{longest:,} characters", allowed=allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPlan:
    """A plan to be predicted or simulated under a request.

    request   a request (``meshwright.request/1``, RequestDocument)
    plan      a plan (``meshwright.plan/1``, PlanRecord); the request that it was made for may stand in it
    """

    __pydantic_config__ = STRICT_RECORD

    request: Mapping[str, Any]
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExplainedFlag:
    """A flag of a command: as it is written, its standing in the figures, and what it changes, of one that is not priced."""

    flag: str
    value: str | None
    standing: Standing
    why: str


@dataclass(frozen=True, slots=True)
class ExplainedDifference:
    """A flag that a better command has otherwise; null where a command leaves it out."""

    flag: str
    given: str | None
    better: str | None


@dataclass(frozen=True, slots=True)
class BetterCommand:
    """A better plan, its command, and the share of the objective that it saves."""

    plan: PlanRecord
    command: str
    gain: float | None
    differences: tuple[ExplainedDifference, ...]


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A measured figure as it was given, and in the unit of predictions beside the predicted one and its band."""

    given: str
    metric: Metric
    measured: float
    predicted: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class GapCause:
    """A cause of a gap: its factor, null where it has none; the first compared figure under it; the share of the gap that it
    makes up; whether the measured figures lie in the band of a prediction under it; and what to look at."""

    name: str
    what: str
    factor: float | None
    figure: float
    share: float
    explains: bool
    check: str


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """Measured figures, the farthest off first, and the causes by rank; there are none where all are as predicted."""

    as_predicted: bool
    compared: tuple[ComparedFigure, ...]
    causes: tuple[GapCause, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationDocument:
    """The explanation of a launch command (``meshwright.explanation/1``)."""

    schema: str
    verdict: Literal["runs", "misses", "does not fit", "does not start"]
    launcher: Launcher
    command: str
    flags: tuple[ExplainedFlag, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    reason: Reason | None
    plan: PlanRecord | None
    most: PlanRecord | None
    searched: bool
    better: BetterCommand | None
    request: RequestDocument
    measured: ComparedRun | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchJob:
    """The file of a scheduler's job, what submits it, and what it takes for granted."""

    file: str
    text: str
    submit: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDocument:
    """The command and files that start a plan (``meshwright.export/1``)."""

    schema: str
    launcher: Launcher
    version: str
    command: str
    files: Mapping[str, str]
    assumptions: tuple[str, ...]
    inexpressible: tuple[str, ...]
    written: tuple[str, ...]
    job: LaunchJob | None = None


EXPLANATION_EXAMPLES: dict[str, Any] = {
    "server": {
        "summary": "A server of vLLM on eight H100",
        "value": {
            "command": "vllm serve Qwen/Qwen3-8B -tp 4",
            "cluster": "8xH100",
            "isl": 200,
            "osl": 20,
            "rate": 4,
            "p95_tpot_ms": 40,
            "objective": "devices",
        },
    },
    "training": {
        "summary": "A run of DeepSpeed, its configuration beside the command",
        "value": {
            "command": "deepspeed --num_gpus 8 train.py --deepspeed_config ds.json",
            "files": {
                "ds.json": '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, '
                '"zero_optimization": {"stage": 3}}'
            },
            "model": "llama-3.1-8b",
            "cluster": "8xH100",
            "seq": 2048,
        },
    },
}
