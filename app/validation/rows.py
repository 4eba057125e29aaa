"""A table of measured training runs. What was run and what came of it are two records: predictions see only the first."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Never

from costmodels.errors import InvalidInputError
from costmodels.implementation import VectorKernels

COLUMNS = (
    "source_id",
    "source",
    "model",
    "n_layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn_hidden",
    "vocab",
    "n_experts",
    "top_k",
    "params_b",
    "gpu",
    "gpu_mem_gb",
    "peak_tflops_bf16",
    "n_gpus",
    "gpus_per_node",
    "intra_node_bw",
    "inter_node_bw",
    "precision",
    "seq_len",
    "micro_batch",
    "global_batch",
    "dp",
    "zero_stage_or_fsdp",
    "tp",
    "sp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "recompute",
    "schedule",
    "flash_attention",
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu_pct",
    "peak_mem_gb",
    "notes",
    "quality",
    "status",
    "arch",
    "group",
    "licence",
)
"""The schema: these columns, in any order."""


class RunStatus(StrEnum):
    """How a run ended."""

    OK = "ok"
    OOM = "oom"
    FAILED_OR_OOM = "failed_or_oom"


class Quality(StrEnum):
    """How much of the plan is known: all of it, all but a field or two, or its outline."""

    A = "A"
    B = "B"
    C = "C"


@dataclass(frozen=True, slots=True)
class Run:
    """What was run: model, cluster and plan, with None where the table is silent.

    ``line`` is its line in the file; ``kernels`` is what its notes say of the kernels between matrix products.
    """

    line: int
    source: str
    quality: Quality
    group: str
    model: str
    arch: str
    n_layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    vocab: int | None
    n_experts: int | None
    gpu: str
    gpu_memory_gb: float | None
    n_gpus: int | None
    gpus_per_node: int | None
    intra_node_bandwidth: str
    inter_node_bandwidth: str
    precision: str
    seq_len: int | None
    micro_batch: int | None
    global_batch: int | None
    dp: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    cp: int | None
    ep: int | None
    zero: str
    sequence_parallel: int | None
    recompute: str
    schedule: str
    flash_attention: int | None
    kernels: VectorKernels | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run; None where it was not measured. Memory is in the source's own gigabytes."""

    status: RunStatus
    step_time_s: float | None
    peak_memory_gb: float | None


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A row of the table; ``licence`` is that of its source."""

    run: Run
    outcome: Outcome
    licence: str = ""


def read_measured_runs(path: Path) -> tuple[MeasuredRun, ...]:
    """Every row of a file; raises InvalidInputError that names line and column of what can't be read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return tuple(_rows(csv.reader(file, strict=True)))
    except OSError as error:
        raise InvalidInputError(f"the file can't be read: {error.strerror}", given=str(path)) from None
    except UnicodeDecodeError:
        raise InvalidInputError("the file is not a table in UTF-8", given=str(path)) from None
    except csv.Error as error:
        raise InvalidInputError(f"the file is not a CSV table: {error}", given=str(path)) from None


def _rows(lines: Iterator[list[str]]) -> Iterator[MeasuredRun]:
    header = next(lines, [])
    missing, unknown = sorted(set(COLUMNS) - set(header)), sorted(set(header) - set(COLUMNS))
    if missing or unknown or len(set(header)) < len(header):
        raise InvalidInputError(
            "the table does not have the columns of measured training runs",
            given=f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}",
            allowed=f"each of {', '.join(COLUMNS)} once",
        )
    for number, values in enumerate(lines, start=2):
        if not values:
            continue
        if len(values) != len(header):
            raise InvalidInputError(f"line {number} has {len(values)} values", allowed=f"{len(header)}, one for each column")
        yield _measured_run(_Cells(number, dict(zip(header, values, strict=True))))


def _measured_run(cells: _Cells) -> MeasuredRun:
    run = Run(
        line=cells.line,
        source=cells.required_text("source_id"),
        quality=Quality(cells.one_of("quality", tuple(Quality))),
        group=cells.text("group"),
        model=cells.text("model"),
        arch=cells.text("arch"),
        n_layers=cells.size("n_layers"),
        hidden=cells.size("hidden"),
        heads=cells.size("heads"),
        kv_heads=cells.size("kv_heads"),
        ffn=cells.size("ffn_hidden"),
        vocab=cells.size("vocab"),
        n_experts=cells.size("n_experts"),
        gpu=cells.text("gpu"),
        gpu_memory_gb=cells.number("gpu_mem_gb"),
        n_gpus=cells.size("n_gpus"),
        gpus_per_node=cells.size("gpus_per_node"),
        intra_node_bandwidth=cells.text("intra_node_bw"),
        inter_node_bandwidth=cells.text("inter_node_bw"),
        precision=cells.text("precision"),
        seq_len=cells.size("seq_len"),
        micro_batch=cells.size("micro_batch"),
        global_batch=cells.size("global_batch"),
        dp=cells.size("dp"),
        tp=cells.size("tp"),
        pp=cells.size("pp"),
        vpp=cells.size("vpp"),
        cp=cells.size("cp"),
        ep=cells.size("ep"),
        zero=cells.text("zero_stage_or_fsdp"),
        sequence_parallel=cells.count("sp"),
        recompute=cells.text("recompute"),
        schedule=cells.text("schedule"),
        flash_attention=cells.count("flash_attention"),
        kernels=_stated_kernels(cells.text("notes")),
    )
    status = RunStatus(cells.one_of("status", tuple(RunStatus)))
    return MeasuredRun(run, Outcome(status, _step_time_s(run, cells), cells.number("peak_mem_gb")), cells.text("licence"))


_KERNELS_IN_NOTES = {
    "rms kernel": VectorKernels.FUSED_NORMS,
    "compile": VectorKernels.COMPILED,
    "eager": VectorKernels.EAGER,
}


def _stated_kernels(notes: str) -> VectorKernels | None:
    return next((kernels for words, kernels in _KERNELS_IN_NOTES.items() if words in notes.lower()), None)


def _step_time_s(run: Run, cells: _Cells) -> float | None:
    """The step time, or where only the throughput was measured what that says of it."""
    step_time_s, tokens_per_s = cells.number("step_time_s"), cells.number("tokens_per_s")
    if step_time_s is None and tokens_per_s is not None and run.global_batch and run.seq_len:
        return run.global_batch * run.seq_len / tokens_per_s
    return step_time_s


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of one line, read as what they must be."""

    line: int
    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell as it stands, outer blanks removed."""
        return self.values[column].strip()

    def required_text(self, column: str) -> str:
        """A cell that may not be empty."""
        return self.text(column) or self._refuse(column, "a text")

    def one_of(self, column: str, allowed: tuple[str, ...]) -> str:
        """One of a few words."""
        return self.text(column) if self.text(column) in allowed else self._refuse(column, ", ".join(allowed))

    def number(self, column: str) -> float | None:
        """A positive number, or None for an empty cell."""
        value = self._float(column, "a positive number, or nothing")
        return value if value is None or value > 0 else self._refuse(column, "a positive number, or nothing")

    def size(self, column: str) -> int | None:
        """A positive integer (4.0 is one), or None for an empty cell."""
        return self._integer(column, least=1)

    def count(self, column: str) -> int | None:
        """An integer from 0, or None for an empty cell."""
        return self._integer(column, least=0)

    def _integer(self, column: str, *, least: int) -> int | None:
        allowed = f"an integer from {least}, or nothing"
        value = self._float(column, allowed)
        if value is None or (value >= least and value == int(value)):
            return None if value is None else int(value)
        return self._refuse(column, allowed)

    def _float(self, column: str, allowed: str) -> float | None:
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            return self._refuse(column, allowed)
        return value if math.isfinite(value) else self._refuse(column, allowed)

    def _refuse(self, column: str, allowed: str) -> Never:
        raise InvalidInputError(f"line {self.line}, column {column}", given=self.text(column), allowed=allowed)
