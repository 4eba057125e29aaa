"""A table of measured serving points. What was run and what came of it are two records: predictions see only the first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from meshwright.app.base.digits import is_digits
from meshwright.app.evidence.serving.open_rows import (
    ALL_QUEUED,
    LIMITS,
    TIMES,
    ignored_open_columns,
    is_open_table,
    open_cells,
)
from meshwright.app.evidence.training.cells import Cells, read_header, read_table
from meshwright.costmodels.queueing.router import Router

COLUMNS = (
    "source",
    "model",
    "gpu",
    "n_gpus",
    "engine",
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
    "note",
)
"""The schema: these columns, in any order."""

WORKER_COLUMNS = ("workers", "tp", "ep", "dp_attn")
"""Of each phase of disaggregated rows, with its name before: ``decode_tp`` are the devices of a worker, ``decode_dp_attn`` is 1
where attention runs on each of them by itself."""

OPTIONAL_COLUMNS = (
    "engine_version",
    "ttft_stat",
    "verified",
    "ttft_p99_ms",
    "tpot_p99_ms",
    "speculation",
    "draft_tokens",
    "acceptance",
    "launch",
    "prefill_launch",
    "decode_launch",
    *(f"{phase}_{column}" for phase in ("prefill", "decode") for column in WORKER_COLUMNS),
    "arrival",
    "rate_req_s",
    "requests",
    "max_num_seqs",
    "max_num_batched_tokens",
    "router",
    "dataset",
    "submitter",
    "system",
    *(name for name in TIMES if not name.endswith("_p99_ms")),
    *LIMITS,
)
"""Columns that a table may have besides. Any other is listed as ignored."""

AGGREGATED, DISAGGREGATED = "agg", "disagg"


class Statistic(StrEnum):
    """Statistics of a time over the requests of a run."""

    MEAN = "mean"
    MEDIAN = "median"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"


class Arrival(StrEnum):
    """How requests come: from clients that wait for answers, by themselves as a Poisson process, or all at the start."""

    CLOSED = "closed"
    POISSON = "poisson"
    QUEUED = "queued"


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Measured percentiles of a time in milliseconds; None where not measured."""

    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class PhaseCells:
    """The workers of one phase in columns of their own: how many, devices of each, degree of experts, attention on each
    device."""

    workers: int
    tp: int
    ep: int
    attention_apart: bool


@dataclass(frozen=True, slots=True)
class ServingRun:
    """A serving run. Degrees are texts as they stand: disaggregated rows give one for each phase ("P1x8/D9x8"). ``launch`` is
    the command of its workers, in place of which disaggregated rows may give that of each phase. Requests of an open loop
    arrive at ``requests_per_s``, with lengths as those of ``dataset``, and are dealt out by ``router``; its limits are those
    that the row had to keep. A run of so many ``requests`` is predicted from its first to its last. ``sequences`` and
    ``step_tokens`` are the limits of a step where columns state them."""

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
    speculation: str = ""
    draft_tokens: int | None = None
    acceptance: float | None = None
    engine_version: str = ""
    launch: str = ""
    prefill_launch: str = ""
    decode_launch: str = ""
    prefill: PhaseCells | None = None
    decode: PhaseCells | None = None
    arrival: Arrival = Arrival.CLOSED
    requests_per_s: float | None = None
    dataset: str = ""
    submitter: str = ""
    system: str = ""
    ttft_limit_p99_ms: float | None = None
    tpot_limit_p99_ms: float | None = None
    router: Router = Router.RANDOM
    requests: int | None = None
    sequences: int | None = None
    step_tokens: int | None = None

    @property
    def group(self) -> str:
        """Rows that are scored together."""
        kind = "" if self.mode == AGGREGATED else f" {self.mode}"
        return f"{self.model.split('/')[-1]} {self.gpu} {self.engine} {self.precision or '16 bit'}{kind}"


@dataclass(frozen=True, slots=True)
class ServingOutcome:
    """The measured figures; None where not measured. ``statistic`` is the one of the times that the table states; P99 have
    columns of their own."""

    ttft_ms: float | None
    tpot_ms: float | None
    output_tokens_per_s: float | None
    statistic: Statistic | None = None
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    ttft: Percentiles = Percentiles()
    tpot: Percentiles = Percentiles()


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A row of the table."""

    run: ServingRun
    outcome: ServingOutcome


def is_serving_table(header: tuple[str, ...]) -> bool:
    """Return True if a table's columns are those of serving points rather than of training runs."""
    return {"ttft_ms", "tpot_ms"} <= set(header) or is_open_table(header)


def read_measured_points(path: Path) -> tuple[MeasuredPoint, ...]:
    """Every row of a file; raises InvalidInputError that names line and column of what can't be read."""
    if is_open_table(read_header(path)):
        absent = dict.fromkeys(OPTIONAL_COLUMNS, "")
        return tuple(_point(Cells(cells.line, {**absent, **cells.values})) for cells in open_cells(path))
    return tuple(
        _point(cells) for cells in read_table(path, COLUMNS, what="measured serving points", optional=OPTIONAL_COLUMNS)
    )


def ignored_columns(path: Path) -> tuple[str, ...]:
    """Columns of a table that nothing is read from, sorted."""
    header = read_header(path)
    return ignored_open_columns(path) if is_open_table(header) else tuple(sorted(set(header) - {*COLUMNS, *OPTIONAL_COLUMNS}))


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
        speculation=cells.text("speculation"),
        draft_tokens=cells.size("draft_tokens"),
        acceptance=_share(cells, "acceptance"),
        engine_version=cells.text("engine_version"),
        launch=cells.text("launch"),
        prefill_launch=cells.text("prefill_launch"),
        decode_launch=cells.text("decode_launch"),
        prefill=_phase(cells, "prefill"),
        decode=_phase(cells, "decode"),
        arrival=_arrival(cells),
        requests_per_s=cells.number("rate_req_s"),
        dataset=cells.text("dataset"),
        submitter=cells.text("submitter"),
        system=cells.text("system"),
        ttft_limit_p99_ms=cells.number("slo_ttft_p99_ms"),
        tpot_limit_p99_ms=cells.number("slo_tpot_p99_ms"),
        router=_router(cells),
        requests=cells.size("requests"),
        sequences=cells.size("max_num_seqs"),
        step_tokens=cells.size("max_num_batched_tokens"),
    )
    outcome = ServingOutcome(
        ttft_ms=cells.number("ttft_ms"),
        tpot_ms=cells.number("tpot_ms"),
        output_tokens_per_s=cells.number("output_tok_s"),
        statistic=_statistic(cells.text("ttft_stat")),
        ttft_p99_ms=cells.number("ttft_p99_ms"),
        tpot_p99_ms=cells.number("tpot_p99_ms"),
        ttft=_percentiles(cells, "ttft"),
        tpot=_percentiles(cells, "tpot"),
    )
    return MeasuredPoint(run, outcome)


def _percentiles(cells: Cells, time: str) -> Percentiles:
    """The percentiles of a time."""
    return Percentiles(*(cells.number(f"{time}_{statistic}_ms") for statistic in ("p50", "p90", "p95", "p99")))


def _arrival(cells: Cells) -> Arrival:
    """How requests come; a row that does not say it is a closed loop, unless it has a rate and no number of clients."""
    text = cells.text("arrival").casefold()
    if text:
        return Arrival(text) if text in set(Arrival) else cells.refuse("arrival", ", ".join(Arrival))
    said = cells.text("concurrency")
    has_clients = is_digits(said[:1]) or said == ALL_QUEUED
    return Arrival.POISSON if cells.number("rate_req_s") and not has_clients else Arrival.CLOSED


def _router(cells: Cells) -> Router:
    """How requests reach workers; of a row that does not say it, as the search takes it where a request does not."""
    text = cells.text("router")
    return Router(text) if text in set(Router) else Router.RANDOM if not text else cells.refuse("router", ", ".join(Router))


def _phase(cells: Cells, phase: str) -> PhaseCells | None:
    """The workers of a phase; None where their columns do not say how many there are and of how many devices."""
    workers, tp, ep = (cells.count(f"{phase}_{column}") for column in ("workers", "tp", "ep"))
    apart = cells.count(f"{phase}_dp_attn")
    return PhaseCells(workers, tp, max(1, ep or 1), bool(apart)) if workers and tp else None


def _share(cells: Cells, column: str) -> float | None:
    """A number from 0 to 1, or None for an empty cell."""
    value = cells.number(column)
    return value if value is None or value <= 1.0 else cells.refuse(column, "a number above 0 and up to 1, or nothing")


def _statistic(text: str) -> Statistic | None:
    """The statistic that a cell begins with, as in "median (p99 in own column)"; None where it begins with none of them."""
    words = re.match(r"[a-z0-9]*", text.casefold())
    return next((each for each in Statistic if words is not None and each.value == words[0]), None)
