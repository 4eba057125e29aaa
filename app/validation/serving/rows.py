"""A table of measured serving points. What was run and what came of it are two records: predictions see only the first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshwright.app.validation.cells import Cells, read_table

COLUMNS = (
    "source",
    "model",
    "gpu",
    "n_gpus",
    "engine",
    "engine_version",
    "precision",
    "mode",
    "tp",
    "pp",
    "dp_attn",
    "ep",
    "isl",
    "osl",
    "concurrency",
    "output_tok_s",
    "ttft_ms",
    "tpot_ms",
    "ttft_stat",
    "note",
    "verified",
    "ttft_p99_ms",
    "tpot_p99_ms",
)
"""The schema: these columns, in any order."""

AGGREGATED, DISAGGREGATED = "agg", "disagg"


@dataclass(frozen=True, slots=True)
class ServingRun:
    """A serving run. Degrees are texts as they stand: disaggregated rows give one for each phase ("P1x8/D9x8")."""

    line: int
    source: str
    model: str
    gpu: str
    n_gpus: int | None
    engine: str
    precision: str
    mode: str
    tp: str
    pp: str
    attention_dp: str
    ep: str
    prompt_tokens: int | None
    output_tokens: int | None
    concurrency: str
    note: str

    @property
    def group(self) -> str:
        """Rows that are scored together."""
        kind = "" if self.mode == AGGREGATED else f" {self.mode}"
        return f"{self.model.split('/')[-1]} {self.gpu} {self.engine} {self.precision or '16 bit'}{kind}"


@dataclass(frozen=True, slots=True)
class ServingOutcome:
    """The measured figures; None where not measured. The statistic of the times is the source's own (mean or median)."""

    ttft_ms: float | None
    tpot_ms: float | None
    output_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A row of the table."""

    run: ServingRun
    outcome: ServingOutcome


def is_serving_table(header: tuple[str, ...]) -> bool:
    """Return True if a table's columns are those of serving points rather than of training runs."""
    return {"ttft_ms", "tpot_ms"} <= set(header)


def read_measured_points(path: Path) -> tuple[MeasuredPoint, ...]:
    """Every row of a file; raises InvalidInputError that names line and column of what can't be read."""
    return tuple(_point(cells) for cells in read_table(path, COLUMNS, what="measured serving points"))


def _point(cells: Cells) -> MeasuredPoint:
    run = ServingRun(
        line=cells.line,
        source=cells.required_text("source"),
        model=cells.required_text("model"),
        gpu=cells.text("gpu"),
        n_gpus=cells.size("n_gpus"),
        engine=cells.text("engine"),
        precision=cells.text("precision"),
        mode=cells.one_of("mode", (AGGREGATED, DISAGGREGATED)),
        tp=cells.text("tp"),
        pp=cells.text("pp"),
        attention_dp=cells.text("dp_attn"),
        ep=cells.text("ep"),
        prompt_tokens=cells.size("isl"),
        output_tokens=cells.size("osl"),
        concurrency=cells.text("concurrency"),
        note=cells.text("note"),
    )
    outcome = ServingOutcome(cells.number("ttft_ms"), cells.number("tpot_ms"), cells.number("output_tok_s"))
    return MeasuredPoint(run, outcome)
