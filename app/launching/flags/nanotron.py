"""The keys of nanotron's YAML file (src/nanotron/config of main, 7 April 2026)."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.app.launching.flags.flag import Flag, FlagTable, count, truth


@dataclass(frozen=True, slots=True)
class NanotronKeys:
    """The keys that say something of a plan, its model or its work; None where a file does not give one."""

    config_file: str | None = None
    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    cp: int | None = None
    ep: int | None = None
    engine: str | None = None
    tp_mode: str | None = None
    recomputes: bool | None = None
    dtype: str | None = None
    layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    vocab: int | None = None
    tied: bool | None = None
    qkv_bias: bool | None = None
    seq_len: int | None = None
    microbatch: int | None = None
    accumulation: int | None = None
    zero_stage: int | None = None
    sums_in_fp32: bool | None = None
    optimizer: str | None = None


_MODEL = "model.model-config"

NANOTRON = FlagTable(
    (
        Flag(("config-file",), "config_file", str),
        Flag(("parallelism.dp",), "dp", count),
        Flag(("parallelism.pp",), "pp", count),
        Flag(("parallelism.tp",), "tp", count),
        Flag(("parallelism.context-parallel-size",), "cp", count),
        Flag(("parallelism.expert-parallel-size",), "ep", count),
        Flag(("parallelism.pp-engine",), "engine", str),
        Flag(("parallelism.tp-mode",), "tp_mode", str),
        Flag(("parallelism.recompute-layer",), "recomputes", truth),
        Flag(("model.dtype",), "dtype", str),
        Flag((f"{_MODEL}.num-hidden-layers",), "layers", count),
        Flag((f"{_MODEL}.hidden-size",), "hidden", count),
        Flag((f"{_MODEL}.intermediate-size",), "ffn", count),
        Flag((f"{_MODEL}.num-attention-heads",), "heads", count),
        Flag((f"{_MODEL}.num-key-value-heads",), "kv_heads", count),
        Flag((f"{_MODEL}.vocab-size",), "vocab", count),
        Flag((f"{_MODEL}.tie-word-embeddings",), "tied", truth),
        Flag((f"{_MODEL}.attention-bias",), "qkv_bias", truth),
        Flag(("tokens.sequence-length",), "seq_len", count),
        Flag(("tokens.micro-batch-size",), "microbatch", count),
        Flag(("tokens.batch-accumulation-per-replica",), "accumulation", count),
        Flag(("optimizer.zero-stage",), "zero_stage", int),
        Flag(("optimizer.accumulate-grad-in-fp32",), "sums_in_fp32", truth),
        Flag(("optimizer.optimizer-factory.name",), "optimizer", str),
    ),
    harmless={
        **dict.fromkeys(("parallelism.tp-recompute-allgather", "data-stages", "profiler", "s3-upload", "lighteval"), True),
    },
    not_priced={
        "parallelism.tp-linear-async-communication": "gathers over tp beside products",
        f"{_MODEL}.-attn-implementation": "kernels of attention",
        f"{_MODEL}.sliding-window-size": "a window of attention",
    },
    sections={
        f"{_MODEL}.moe-config": "experts",
        **dict.fromkeys(("general", "model", "tokens", "optimizer", "checkpoints", "logging", "metrics-logging"), ""),
        **dict.fromkeys(("tokenizer", "lighteval", "profiler", "s3-upload"), ""),
    },
)
