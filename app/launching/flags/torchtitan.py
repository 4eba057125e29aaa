"""The options of torchtitan: keys of its TOML files (0.1, 0.2) and flags of its command (0.3), which have the same names.

Sources: torchtitan/config/job_config.py of 0.2, torchtitan/config/configs.py of 0.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.app.launching.flags.flag import Flag, FlagTable, count, truth


@dataclass(frozen=True, slots=True)
class TorchtitanFlags:
    """The options that say something of a plan, its model or its work; None where a run does not give one.

    stages       names of the modules of each model part
    components   what is compiled
    """

    config_file: str | None = None
    model: str | None = None
    flavor: str | None = None
    module: str | None = None
    config: str | None = None
    local_batch: int | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    precision: str | None = None
    cpu_offload: bool | None = None
    replicate: int | None = None
    shard: int | None = None
    reshard: str | None = None
    tp: int | None = None
    sequence_parallel: bool | None = None
    pp: int | None = None
    schedule: str | None = None
    microbatch: int | None = None
    layers_per_stage: int | None = None
    first_stage_less: int | None = None
    last_stage_less: int | None = None
    stages: tuple[tuple[str, ...], ...] = ()
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    checkpointing: str | None = None
    checkpointed: str | None = None
    compile: bool | None = None
    components: tuple[str, ...] | None = None
    asynchronous: bool | None = None
    optimizer: str | None = None
    converters: tuple[str, ...] = ()


def _rest(text: str) -> int | None:
    """Return a degree; None of -1, which stands for what the others leave."""
    return None if int(text) == -1 else count(text)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _stages(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the parts of ``tok_embeddings,layers.0 layers.1,norm,output``."""
    return tuple(tuple(part.split(",")) for part in text.split())


_ENDS = {
    **dict.fromkeys(("job", "profiling", "profiler", "metrics", "checkpoint", "lr-scheduler", "optimizer", "comm"), ""),
    **dict.fromkeys(("validation", "validator", "debug", "dataloader", "experimental", "loss", "memory-estimation"), ""),
    **dict.fromkeys(("quantize", "float8", "mx"), "how products in few bits are scaled"),
    "fault-tolerance": "replicas that may come and go",
    "activation-checkpoint": "what selective recomputation keeps",
    "compile": "how layers are compiled",
    "training": "",
    "model": "",
}

TORCHTITAN = FlagTable(
    (
        Flag(("job.config-file",), "config_file", str),
        Flag(("model.name",), "model", str),
        Flag(("model.flavor",), "flavor", str),
        Flag(("module",), "module", str),
        Flag(("config",), "config", str),
        Flag(("training.local-batch-size", "training.batch-size"), "local_batch", count),
        Flag(("training.global-batch-size",), "global_batch", _rest),
        Flag(("training.seq-len",), "seq_len", count),
        Flag(("training.mixed-precision-param",), "precision", str),
        Flag(("training.enable-cpu-offload",), "cpu_offload", truth, optional=True),
        Flag(("parallelism.data-parallel-replicate-degree", "training.data-parallel-replicate-degree"), "replicate", count),
        Flag(("parallelism.data-parallel-shard-degree", "training.data-parallel-shard-degree"), "shard", _rest),
        Flag(("parallelism.fsdp-reshard-after-forward", "training.fsdp-reshard-after-forward"), "reshard", str),
        Flag(("parallelism.tensor-parallel-degree", "training.tensor-parallel-degree"), "tp", count),
        Flag(("parallelism.no-enable-sequence-parallel",), "sequence_parallel", means=False),
        Flag(("parallelism.enable-sequence-parallel",), "sequence_parallel", truth, optional=True),
        Flag(("parallelism.pipeline-parallel-degree", "experimental.pipeline-parallel-degree"), "pp", count),
        Flag(("parallelism.pipeline-parallel-schedule", "experimental.pipeline-parallel-schedule"), "schedule", str),
        Flag(("parallelism.pipeline-parallel-microbatch-size",), "microbatch", count),
        Flag(("parallelism.pipeline-parallel-layers-per-stage",), "layers_per_stage", count),
        Flag(("parallelism.pipeline-parallel-first-stage-less-layers",), "first_stage_less", int),
        Flag(("parallelism.pipeline-parallel-last-stage-less-layers",), "last_stage_less", int),
        Flag(("parallelism.module-fqns-per-model-part",), "stages", _stages, many=True),
        Flag(("parallelism.context-parallel-degree", "experimental.context-parallel-degree"), "cp", count),
        Flag(("parallelism.expert-parallel-degree",), "ep", count),
        Flag(("parallelism.expert-tensor-parallel-degree",), "etp", count),
        Flag(("activation-checkpoint.mode",), "checkpointing", str),
        Flag(("activation-checkpoint.selective-ac-option",), "checkpointed", str),
        Flag(("compile.enable", "training.compile"), "compile", truth, optional=True),
        Flag(("compile.components",), "components", _listed, many=True),
        Flag(
            ("compile.enable-async-tensor-parallel", "parallelism.enable-async-tensor-parallel"),
            "asynchronous",
            truth,
            optional=True,
        ),
        Flag(("experimental.enable-async-tensor-parallel",), "asynchronous", truth, optional=True),
        Flag(("optimizer.name",), "optimizer", str),
        Flag(("model.converters",), "converters", _listed, many=True),
    ),
    not_priced={
        "optimizer.early-step-in-backward": "gradients that are released in the backward pass",
        "parallelism.context-parallel-rotate-method": "how keys and values go round the ring",
        "parallelism.context-parallel-load-balancer": "how the ring's work is shared out",
        "parallelism.disable-loss-parallel": "the loss over tp",
        "parallelism.enable-fsdp-symm-mem": "kernels of gathers",
        "parallelism.enable-compiled-autograd": "how layers are compiled",
        "parallelism.enable-approx-mid-stage": "stages of equal cost",
        "parallelism.spmd-backend": "how sharded tensors are made",
        "parallelism.pipeline-parallel-schedule-csv": "a schedule of one's own",
        "parallelism.pipeline-parallel-split-points": "borders of stages: give module_fqns_per_model_part",
        "experimental.pipeline-parallel-split-points": "borders of stages: give module_fqns_per_model_part",
        "training.disable-cuda-graphs": "launches of kernels, which are counted one by one",
        "training.dtype": "formats of weights and optimizer states",
        "training.mixed-precision-reduce": "the format in which gradients are summed",
        "compile.model": "how layers are compiled",
        "compile.loss": "how the loss is compiled",
    },
    switches=frozenset(
        ("training.disable-cuda-graphs", "parallelism.enable-fsdp-symm-mem", "parallelism.disable-loss-parallel")
    ),
    sections=_ENDS,
)
