"""A table of measured training runs. What was run and what came of it are two records: predictions see only the first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from meshwright.app.validation.cells import Cells, read_table
from meshwright.app.validation.notes import (
    stated_flash_attention,
    stated_implementation,
)
from meshwright.app.validation.sources import NO_SOURCES, UNKNOWN, Source, Sources
from meshwright.solver.problem.implementation import StatedImplementation

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

NOTHING_STATED = StatedImplementation()


class RunStatus(StrEnum):
    """The end of a run."""

    OK = "ok"
    OOM = "oom"
    FAILED_OR_OOM = "failed_or_oom"


class Quality(StrEnum):
    """The known part of a plan: all of it, all but a field or two, or its outline."""

    A = "A"
    B = "B"
    C = "C"


@dataclass(frozen=True, slots=True)
class Run:
    """A measured run: model, cluster and plan, with None where the table is silent.

    ``line`` is its line in the file, ``reading`` what its source says of all rows; ``implementation`` is what the row itself
    states of its framework.
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
    implementation: StatedImplementation = NOTHING_STATED
    reading: Source = UNKNOWN


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run; None where it was not measured. Memory is in the source's own gigabytes."""

    status: RunStatus
    step_time_s: float | None
    peak_memory_gb: float | None


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A row of the table; ``licence`` is that of its source."""

    run: Run
    outcome: RunResult
    licence: str = ""


def read_measured_runs(path: Path, sources: Sources = NO_SOURCES) -> tuple[MeasuredRun, ...]:
    """Every row of a file, read as the mapping of its sources says.

    Raises InvalidInputError that names line and column of what can't be read.
    """
    return tuple(_measured_run(cells, sources) for cells in read_table(path, COLUMNS, what="measured training runs"))


def _measured_run(cells: Cells, sources: Sources) -> MeasuredRun:
    flash_attention = stated_flash_attention(cells.text("notes"), cells.count("flash_attention"))
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
        implementation=stated_implementation(
            cells.text("notes"),
            origin=cells.text("source"),
            recompute=cells.text("recompute"),
            flash_attention=flash_attention,
        ),
        reading=sources.of(cells.required_text("source_id")),
    )
    run = _on_devices(run, run.reading.devices)
    status = RunStatus(cells.one_of("status", tuple(RunStatus)))
    return MeasuredRun(run, RunResult(status, _step_time_s(run, cells), cells.number("peak_mem_gb")), cells.text("licence"))


def _on_devices(run: Run, devices: int | None) -> Run:
    """The run with its source's number of devices and the replicas that fill them, where the row gives neither."""
    if devices is None or run.n_gpus is not None or run.dp is not None:
        return run
    replica = (run.tp or 1) * (run.pp or 1) * (run.cp or 1)
    return run if devices % replica else replace(run, n_gpus=devices, dp=devices // replica)


def _step_time_s(run: Run, cells: Cells) -> float | None:
    """The step time, or where only the throughput was measured what that says of it."""
    step_time_s, tokens_per_s = cells.number("step_time_s"), cells.number("tokens_per_s")
    if step_time_s is None and tokens_per_s is not None and run.global_batch and run.seq_len:
        return run.global_batch * run.seq_len / tokens_per_s
    return step_time_s
