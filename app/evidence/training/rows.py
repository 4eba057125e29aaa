"""A table of measured training runs. What was run and what came of it are two records: predictions see only the first."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from pathlib import Path

from meshwright.app.evidence.training.cells import COLUMNS, CP_COMM_TYPE, ETP, Cells, read_table
from meshwright.app.evidence.training.sources import NO_SOURCES, UNKNOWN, Source, Sources
from meshwright.app.evidence.training.stated import (
    NOTHING_STATED,
    StatedModel,
    completed_by_assumptions,
    completed_by_rules,
    stated_over,
)
from meshwright.costmodels.model.implementation import AttentionKernels, FlashAttention, SelectiveRecompute, TrainedWeights
from meshwright.solver.problem.implementation import StatedImplementation

_SAYS_ADAPTERS = re.compile(r"(?<![a-z])(q?lora|dora)(?![a-z])", re.IGNORECASE)
"""A word of a model's name by which adapters are trained: `Llama-2-70B-LoRA-r16`."""

SECOND_FLASH_ATTENTION = 2


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
    states of its framework, ``stated_model`` the model that the mapping names for it. ``assumed`` is what was assumed where row
    and mapping are silent, in words.
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
    top_k: int | None = None
    etp: int | None = None
    cp_comm_type: str = ""
    stated_model: StatedModel | None = None
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run; None where it was not measured. Memory is in the source's own gigabytes."""

    status: RunStatus
    step_time_s: float | None
    peak_memory_gb: float | None


@dataclass(frozen=True, slots=True)
class ValidationRun:
    """A row of the table; ``licence`` is that of its source."""

    run: Run
    outcome: RunResult
    licence: str = ""


def read_measured_runs(path: Path, sources: Sources = NO_SOURCES) -> tuple[ValidationRun, ...]:
    """Every row of a file, read as the mapping of its sources says.

    Raises InvalidInputError that names line and column of what can't be read.
    """
    return tuple(_measured_run(cells, sources) for cells in read_table(path, COLUMNS, what="measured training runs"))


def _measured_run(as_written: Cells, sources: Sources) -> ValidationRun:
    reading = sources.of(as_written.required_text("source_id"))
    cells, said = completed_by_rules(as_written, reading.rows)
    reading = replace(reading, **said.reading)
    cells, assumed = completed_by_assumptions(_with_source(cells, reading))
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
        implementation=stated_over(_in_columns(cells), said.implementation),
        reading=reading,
        top_k=cells.size("top_k"),
        etp=None if ETP not in cells.values else cells.size(ETP),
        cp_comm_type="" if CP_COMM_TYPE not in cells.values else cells.text(CP_COMM_TYPE),
        stated_model=said.model,
        assumed=(*said.bases, *assumed) if reading.is_assumed else assumed,
    )
    status = RunStatus(cells.one_of("status", tuple(RunStatus)))
    return ValidationRun(run, RunResult(status, _step_time_s(run, cells), cells.number("peak_mem_gb")), cells.text("licence"))


def _with_source(cells: Cells, source: Source) -> Cells:
    """The row with the columns that its source states of all rows. The source's number of devices counts only where the row's
    degrees fill them: other rows ran on more."""
    filled = dict(cells.values)
    mamba = cells.text("arch").startswith("mamba")
    vocab = source.mamba_vocab if mamba else source.vocab
    if vocab is not None and not filled["vocab"].strip():
        filled["vocab"] = str(vocab)
    replica = prod(cells.size(degree) or 1 for degree in ("tp", "pp", "cp"))
    if source.devices is not None and not (filled["n_gpus"].strip() or filled["dp"].strip() or source.devices % replica):
        filled["n_gpus"], filled["dp"] = str(source.devices), str(source.devices // replica)
    return replace(cells, values=filled)


def _in_columns(cells: Cells) -> StatedImplementation:
    """Return what columns state of the framework. Where rows tell generations of FlashAttention apart, 2 is the second. A model
    whose name says LoRA is trained by adapters."""
    generation = cells.count("flash_attention")
    every_second = cells.text("recompute") == "selective (op)"
    kernels = None if generation is None else AttentionKernels.FUSED if generation else AttentionKernels.UNFUSED
    return StatedImplementation(
        attention_kernels=kernels,
        attention=FlashAttention.FLASH_2 if generation == SECOND_FLASH_ATTENTION else None,
        selective=SelectiveRecompute.EVERY_SECOND_PRODUCT if every_second else None,
        trained=TrainedWeights.ADAPTERS if _SAYS_ADAPTERS.search(cells.text("model")) else None,
    )


def _step_time_s(run: Run, cells: Cells) -> float | None:
    """The step time, or where only the throughput was measured what that says of it."""
    step_time_s, tokens_per_s = cells.number("step_time_s"), cells.number("tokens_per_s")
    if step_time_s is None and tokens_per_s is not None and run.global_batch and run.seq_len:
        return run.global_batch * run.seq_len / tokens_per_s
    return step_time_s
