"""The keys of DeepSpeed's configuration, as flags, and the flags of its launcher (0.9 to 0.19).

Sources: deepspeed/runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py, launcher/runner.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.app.launching.flags.flag import Flag, FlagTable, count, share, truth

AUTO = "auto"
"""The value that Hugging Face's Trainer fills in."""


@dataclass(frozen=True, slots=True)
class DeepSpeedKeys:
    """The keys that say something of a plan or its work; None where a configuration does not give one or leaves it to the
    trainer."""

    train_batch: int | None = None
    microbatch: int | None = None
    accumulation: int | None = None
    optimizer: str | None = None
    zero_stage: int | None = None
    optimizer_to: str | None = None
    optimizer_share: float | None = None
    weights_to: str | None = None
    shard_ranks: int | None = None
    all_offloaded: bool | None = None
    bf16: bool | None = None
    fp16: bool | None = None
    tp: int | None = None
    stages: int | None = None
    recomputed: int | None = None
    gradient_dtype: str | None = None
    sequence_ranks: int | None = None


@dataclass(frozen=True, slots=True)
class DeepSpeedLaunch:
    """The flags of DeepSpeed's launcher that say on what it runs."""

    nodes: int | None = None
    devices: int | None = None


def _or_auto(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.casefold() == AUTO else read(text)


def _stage(text: str) -> int:
    stage = int(text)
    if stage not in range(4):
        raise ValueError(text)
    return stage


DEEPSPEED = FlagTable(
    (
        Flag(("train-batch-size",), "train_batch", _or_auto(count)),
        Flag(("train-micro-batch-size-per-gpu",), "microbatch", _or_auto(count)),
        Flag(("gradient-accumulation-steps",), "accumulation", _or_auto(count)),
        Flag(("optimizer.type",), "optimizer", _or_auto(str)),
        Flag(("zero-optimization.stage",), "zero_stage", _or_auto(_stage)),
        Flag(("zero-optimization.offload-optimizer.device",), "optimizer_to", _or_auto(str)),
        Flag(("zero-optimization.offload-optimizer.ratio",), "optimizer_share", _or_auto(share)),
        Flag(("zero-optimization.offload-param.device",), "weights_to", _or_auto(str)),
        Flag(("zero-optimization.mics-shard-size",), "shard_ranks", _or_auto(int)),
        Flag(("zero-optimization.cpu-offload",), "all_offloaded", truth, optional=True),
        Flag(("bf16.enabled", "bfloat16.enabled"), "bf16", _or_auto(truth), optional=True),
        Flag(("fp16.enabled",), "fp16", _or_auto(truth), optional=True),
        Flag(("tensor-parallel.autotp-size",), "tp", _or_auto(int)),
        Flag(("pipeline.stages",), "stages", _or_auto(count)),
        Flag(("pipeline.activation-checkpoint-interval",), "recomputed", int),
        Flag(("data-types.grad-accum-dtype",), "gradient_dtype", _or_auto(str)),
        Flag(("sequence-parallel-size",), "sequence_ranks", _or_auto(count)),
    ),
    harmless={
        **dict.fromkeys(("steps-per-print", "wall-clock-breakdown", "dump-state", "gradient-clipping", "seed"), True),
        **dict.fromkeys(("prescale-gradients", "zero-allow-untested-optimizer", "gradient-predivide-factor"), True),
        **dict.fromkeys(("memory-breakdown", "zero-force-ds-cpu-optimizer", "$schema"), True),
    },
    not_priced={
        "communication-data-type": "the format in which gradients travel",
        "sparse-gradients": "gradients of the token table",
        "disable-allgather": "how new weights are gathered",
        "data-types.grad-accum-dtype": "the format of gradients",
    },
    sections={
        **dict.fromkeys(("scheduler", "optimizer", "fp16", "bf16", "bfloat16", "tensorboard", "wandb", "csv-monitor"), ""),
        **dict.fromkeys(("flops-profiler", "comms-logger", "monitor-config", "checkpoint", "elasticity", "autotuning"), ""),
        "zero-optimization": "sizes of buffers and what of ZeRO's messages overlaps",
        "aio": "how drives are read and written",
        "activation-checkpointing": "where what is recomputed is kept",
        "tensor-parallel": "how layers are split",
        "pipeline": "how the script's pipeline is cut",
        "compression-training": "compressed weights",
        "data-efficiency": "shorter sequences at the beginning",
        "curriculum-learning": "shorter sequences at the beginning",
        "hybrid-engine": "answers between steps",
        "amp": "formats of products",
        "torch-autocast": "formats of products",
        "compile": "how layers are compiled",
    },
)

DEEPSPEED_RUNNER = FlagTable(
    (Flag(("num-nodes",), "nodes", count), Flag(("num-gpus",), "devices", count)),
    harmless={
        **dict.fromkeys(("hostfile", "include", "i", "exclude", "e", "master-port", "master-addr", "launcher"), True),
        **dict.fromkeys(("launcher-args", "node-rank", "save-pid", "ssh-port", "bind-core-list", "min-elastic-nodes"), True),
        **dict.fromkeys(("module", "no-python", "no-local-rank", "no-ssh", "force-multi", "bind-cores-to-rank"), False),
    },
)
