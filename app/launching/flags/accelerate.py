"""The keys of Accelerate's configuration, as flags, and the options of ``accelerate launch`` (0.20 to 1.15).

Sources: accelerate/commands/config/config_args.py, commands/launch.py, utils/dataclasses.py, parallelism_config.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.app.launching.flags.flag import Flag, FlagTable, count, truth


@dataclass(frozen=True, slots=True)
class AccelerateKeys:
    """The keys that say something of a plan or its work; None where neither the configuration nor an option gives one."""

    config_file: str | None = None
    backend: str | None = None
    world: int | None = None
    nodes: int | None = None
    precision: str | None = None
    accumulation: int | None = None
    fsdp_version: int | None = None
    strategy: str | None = None
    reshard: str | None = None
    offloaded: bool | None = None
    loaded_once: bool | None = None
    checkpointing: bool | None = None
    deepspeed_file: str | None = None
    zero_stage: int | None = None
    optimizer_to: str | None = None
    weights_to: str | None = None
    replicate: int | None = None
    shard: int | None = None
    tp: int | None = None
    cp: int | None = None
    sp: int | None = None


def _stage(text: str) -> int:
    stage = int(text)
    if stage not in range(4):
        raise ValueError(text)
    return stage


def _upper(text: str) -> str:
    return text.upper()


def _keys(section: str, *names: str) -> tuple[str, ...]:
    """Names in the file, below a section, and as options."""
    return (*(f"{section}.{name}" for name in names), *names)


def _of(section: str, name: str, said: str, read: Callable[[str], Any], *, means: Any = True) -> Flag:
    return Flag(_keys(section, name), said, read, means=means, optional=read is truth)


_FSDP, _DEEPSPEED, _PARALLEL = "fsdp-config", "deepspeed-config", "parallelism-config"

ACCELERATE = FlagTable(
    (
        Flag(("config-file",), "config_file", str),
        Flag(("distributed-type",), "backend", _upper),
        Flag(("multi-gpu",), "backend", means="MULTI_GPU"),
        Flag(("use-fsdp",), "backend", means="FSDP"),
        Flag(("use-deepspeed",), "backend", means="DEEPSPEED"),
        Flag(("use-megatron-lm",), "backend", means="MEGATRON_LM"),
        Flag(("num-processes",), "world", count),
        Flag(("num-machines",), "nodes", count),
        Flag(("mixed-precision",), "precision", str),
        _of(_DEEPSPEED, "gradient-accumulation-steps", "accumulation", lambda text: None if text == "auto" else count(text)),
        _of(_FSDP, "fsdp-version", "fsdp_version", count),
        _of(_FSDP, "fsdp-sharding-strategy", "strategy", _upper),
        _of(_FSDP, "fsdp-reshard-after-forward", "reshard", _upper),
        _of(_FSDP, "fsdp-offload-params", "offloaded", truth),
        _of(_FSDP, "fsdp-activation-checkpointing", "checkpointing", truth),
        _of(_FSDP, "fsdp-cpu-ram-efficient-loading", "loaded_once", truth),
        _of(_DEEPSPEED, "deepspeed-config-file", "deepspeed_file", str),
        _of(_DEEPSPEED, "zero-stage", "zero_stage", _stage),
        _of(_DEEPSPEED, "offload-optimizer-device", "optimizer_to", str),
        _of(_DEEPSPEED, "offload-param-device", "weights_to", str),
        _of(_PARALLEL, "parallelism-config-dp-replicate-size", "replicate", count),
        _of(_PARALLEL, "parallelism-config-dp-shard-size", "shard", count),
        _of(_PARALLEL, "parallelism-config-tp-size", "tp", count),
        _of(_PARALLEL, "parallelism-config-cp-size", "cp", count),
        _of(_PARALLEL, "parallelism-config-sp-size", "sp", count),
    ),
    harmless={
        **dict.fromkeys(("compute-environment", "main-training-function", "rdzv-backend", "machine-rank", "debug"), True),
        **dict.fromkeys(("main-process-ip", "main-process-port", "same-network", "gpu-ids", "log-dir", "role"), True),
        **dict.fromkeys(("rdzv-conf", "max-restarts", "monitor-interval", "num-cpu-threads-per-process", "tee"), True),
        **dict.fromkeys(("use-cpu", "tpu-env", "tpu-use-cluster", "tpu-use-sudo", "tpu-name", "tpu-zone", "commands"), True),
        **dict.fromkeys(("downcast-bf16", "enable-cpu-affinity", "command-file", "tpu-vm"), True),
        **dict.fromkeys(_keys(_FSDP, "fsdp-state-dict-type", "fsdp-sync-module-states"), True),
        **dict.fromkeys(_keys(_DEEPSPEED, "deepspeed-multinode-launcher", "gradient-clipping", "zero3-init-flag"), True),
        **dict.fromkeys(_keys(_DEEPSPEED, "zero3-save-16bit-model", "deepspeed-hostfile", "deepspeed-inclusion-filter"), True),
        **dict.fromkeys(_keys(_DEEPSPEED, "offload-optimizer-nvme-path", "offload-param-nvme-path"), True),
        **dict.fromkeys(_keys(_PARALLEL, "parallelism-config-cp-backend", "parallelism-config-sp-backend"), True),
        **dict.fromkeys(("use-parallelism-config", "quiet", "q", "module", "m", "no-python", "cpu"), False),
    },
    not_priced={
        **dict.fromkeys(_keys(_FSDP, "fsdp-auto-wrap-policy", "fsdp-min-num-params"), "how layers are grouped"),
        **dict.fromkeys(_keys(_FSDP, "fsdp-transformer-layer-cls-to-wrap"), "how layers are grouped"),
        **dict.fromkeys(_keys(_FSDP, "fsdp-backward-prefetch", "fsdp-forward-prefetch"), "when weights are gathered"),
        **dict.fromkeys(_keys(_FSDP, "fsdp-backward-prefetch-policy", "fsdp-use-orig-params"), "when weights are gathered"),
        **dict.fromkeys(_keys(_PARALLEL, "parallelism-config-cp-comm-strategy"), "how keys and values travel"),
        "dynamo-backend": "how layers are compiled",
    },
    sections={
        "dynamo-config": "how layers are compiled",
        "fp8-config": "formats of products",
        "megatron-lm-config": "degrees of Megatron-LM",
        "mpirun-config": "",
    },
)
