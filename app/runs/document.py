"""The run document (meshwright.run/1): what was measured when a plan ran, or that it ran out of memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Final, Literal

from annotated_types import Len

from meshwright.app.documents.records import read_record, to_document
from meshwright.app.fleet.registry import canonical_digest
from meshwright.app.plans.digest import DIGEST_PATTERN
from meshwright.app.requests.limits import check_values
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import STRICT_RECORD, PositiveFloat, PositiveInt

RUN_SCHEMA: Final = "meshwright.run/1"

MAX_WORDS = 200
"""Characters of the words that a user adds to a run."""

Words = Annotated[str, Len(0, MAX_WORDS)]


class RunOutcome(StrEnum):
    """The end of a run."""

    COMPLETED = "completed"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run of a plan. Figures that were not measured are left out.

    plan               digest of the plan that ran
    outcome            completed, or out of memory, which has no figures
    step_time_s        training: median time of a step
    peak_memory_bytes  of the fullest device, as the allocator reserved it
    tokens_per_s       serving: tokens generated a second by all devices
    ttft_p95_s, tpot_p95_s  serving
    software           versions it ran with
    label              words that tell two runs with the same figures apart: a job's number, a date
    """

    __pydantic_config__ = STRICT_RECORD

    plan: Annotated[str, Len(1, MAX_WORDS)]
    outcome: RunOutcome = RunOutcome.COMPLETED
    step_time_s: PositiveFloat | None = None
    peak_memory_bytes: PositiveInt | None = None
    tokens_per_s: PositiveFloat | None = None
    ttft_p95_s: PositiveFloat | None = None
    tpot_p95_s: PositiveFloat | None = None
    software: Words = ""
    label: Words = ""
    schema: Literal["meshwright.run/1"] = RUN_SCHEMA

    def __post_init__(self) -> None:
        if not DIGEST_PATTERN.fullmatch(self.plan):
            raise InvalidInputError("plan is no digest", given=self.plan, allowed="sha256: and 64 hexadecimal digits")
        measured = self.measured()
        if self.outcome is RunOutcome.OUT_OF_MEMORY and measured:
            raise InvalidInputError(
                "a run that went out of memory has no figures", given=", ".join(measured), remedy="leave them out"
            )
        if self.outcome is RunOutcome.COMPLETED and not measured:
            raise InvalidInputError(
                "a run that completed has at least one figure", given="none", allowed=", ".join(figure_names())
            )

    def measured(self) -> dict[str, float]:
        """Return the figures that were measured, by name."""
        return {name: value for name in figure_names() if (value := getattr(self, name)) is not None}


FIGURES_OF = {
    "training": ("step_time_s", "peak_memory_bytes"),
    "serving": ("tokens_per_s", "ttft_p95_s", "tpot_p95_s", "peak_memory_bytes"),
}
"""The figures that runs of each kind of plan have."""


def figure_names() -> tuple[str, ...]:
    """Return the names of all figures, in the order of the record."""
    known = {name for names in FIGURES_OF.values() for name in names}
    return tuple(each.name for each in fields(MeasuredRun) if each.name in known)


def read_run(document: object) -> MeasuredRun:
    """The run of a parsed document; raises DocumentError."""
    check_values(document)
    return read_record(MeasuredRun, document, what="run")


def run_document(run: MeasuredRun) -> dict[str, object]:
    """Return the run as a document, its schema first, without what was not measured."""
    whole = to_document(MeasuredRun, run)
    return {"schema": whole.pop("schema")} | {name: value for name, value in whole.items() if value not in (None, "")}


def run_digest(run: MeasuredRun) -> str:
    """Return ``sha256:<hex>`` of the canonical run: the same run has one digest however it was written."""
    return canonical_digest(run_document(run))
