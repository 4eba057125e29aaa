"""DeepSpeed: ds_config.json and the launcher's line.

A configuration file sets batch, ZeRO and AutoTP; pipeline stages and recomputation are set in the training script. Keys are
those of 0.9 to 0.19: deepspeed/runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.launching.launchers.trainer import TrainerRun, trainer_run
from meshwright.app.launching.parts.command import Words, command_text, devices_per_node, flag
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.flag import Flag, FlagTable, count, share, truth
from meshwright.app.launching.parts.implemented import not_as_stated
from meshwright.app.launching.parts.launch_files import by_usual_name, config_of, words_of_config
from meshwright.app.launching.parts.launchable import recompute_differs, recompute_mode
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import Loaders, StatedTraining
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Offload, Optimizer, Tier
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

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


# A plan as its command.

VERSION = "0.19.8"
CONFIG = "ds_config.json"
HOST_FILE = "hostfile"
SCRIPT = "train.py"
GB = 1e9
NVME_PATH = "/local_nvme"
"""Where the configuration expects the drives; a stand-in."""

_OPTIMIZER_SECTIONS: dict[Optimizer, dict[str, object]] = {
    Optimizer.ADAMW: {"type": "AdamW", "params": {"lr": 1e-4}},
    Optimizer.SGD_MOMENTUM: {"type": "SGD", "params": {"lr": 1e-4, "momentum": 0.9}},
    Optimizer.MUON: {"type": "Muon", "params": {"lr": 1e-4}},
}


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The configuration of batch, precision, ZeRO and tensor parallelism, and the line that starts a script with it."""
    plan = pipeline_plan(answer)
    workload = request.workload
    config = ds_config(plan, workload)
    return Export(
        launcher=Launcher.DEEPSPEED,
        version=VERSION,
        command=command_text(parts=_launch_words(request, plan.devices)),
        host_file=None if len(devices_per_node(request, plan.devices)) == 1 else HOST_FILE,
        files={CONFIG: json.dumps(config, indent=2) + "\n"},
        inexpressible=(
            *recompute_differs(plan),
            *_inexpressible(plan, request),
            *not_as_stated(workload, Launcher.DEEPSPEED, said=(), instead="the script decides, and is taken to run"),
        ),
        assumptions=_assumptions(plan, request),
    )


def ds_config(plan: PipelinePlan, workload: TrainingWorkload) -> dict[str, object]:
    """The configuration document.

    DeepSpeed stops unless train_batch_size = micro-batch x accumulation x ranks, and without a grid of the script's own it
    counts AutoTP's ranks as if each had data of its own: under AutoTP the field is left out.
    """
    axes, microbatch = plan.axes, plan.microbatch
    assert axes is not None and microbatch is not None
    auto_tp = axes.tp > 1 and axes.pp == 1
    config: dict[str, object] = {} if auto_tp else {"train_batch_size": workload.global_batch}
    config |= {
        "train_micro_batch_size_per_gpu": microbatch.size,
        "gradient_accumulation_steps": microbatch.count,
        "optimizer": _OPTIMIZER_SECTIONS[plan.trained_by(workload)],
        "zero_optimization": _zero_optimization(plan),
        "data_types": {"grad_accum_dtype": workload.gradient_dtype.value},
    }
    if workload.precision in (DType.BF16, DType.FP16):
        config[workload.precision.value] = {"enabled": True}
    if auto_tp:
        config["tensor_parallel"] = {"autotp_size": axes.tp, "vocab_parallel_lm_head": True}
    if axes.pp > 1:
        interval = 1 if recompute_mode(plan) is Recompute.FULL else 0
        config["pipeline"] = {"stages": axes.pp, "activation_checkpoint_interval": interval}
    return config


def _zero_optimization(plan: PipelinePlan) -> dict[str, object]:
    """ZeRO stage; weights and optimizer states on the host, of states a share under ZeRO-3 (Twin-Flow); MiCS where shards stay
    in groups."""
    stage = plan.stages[0]
    # What lies on the host belongs to a sharded optimizer, of one rank, too.
    zero_stage = max(stage.zero_stage, 1) if stage.offload.optimizer else stage.zero_stage
    found: dict[str, object] = {"stage": zero_stage, "overlap_comm": zero_stage >= 1}
    if stage.offload.optimizer:
        share = {"ratio": stage.offload.optimizer} if stage.offload.optimizer < 1 else {}
        found["offload_optimizer"] = {**_tier(stage.offload.optimizer_to, pipelined=("read", "write")), **share}
    if stage.offload.weights:
        found["offload_param"] = _tier(stage.offload.weights_to)
    if stage.shard_ranks is not None:
        found |= {"mics_shard_size": stage.shard_ranks, "mics_hierarchical_params_gather": False}
    return found


def _tier(tier: Tier, *, pipelined: tuple[str, ...] = ()) -> dict[str, object]:
    """Host memory, or drives, from which tiles come and to which they go while others are updated."""
    if tier is Tier.HOST:
        return {"device": "cpu", "pin_memory": True}
    return {"device": "nvme", "nvme_path": NVME_PATH, "pin_memory": True, **{f"pipeline_{way}": True for way in pipelined}}


def uniform_parts(n_layers: int, n_stages: int) -> tuple[int, ...]:
    """Layers of each stage under PipelineModule's partition_method "uniform": the first stages take one layer more."""
    each, rest = divmod(n_layers, n_stages)
    return tuple(each + (1 if stage < rest else 0) for stage in range(n_stages))


def _launch_words(request: TrainingRequest, n_devices: int) -> list[Words]:
    per_node = devices_per_node(request, n_devices)
    hosts: list[Words] = [] if len(per_node) == 1 else [flag("hostfile", HOST_FILE)]
    return [
        ("deepspeed",),
        *hosts,
        (*flag("num_nodes", len(per_node)), *flag("num_gpus", per_node[0])),
        (SCRIPT, *flag("deepspeed"), *flag("deepspeed_config", CONFIG)),
    ]


def _inexpressible(plan: PipelinePlan, request: TrainingRequest) -> tuple[str, ...]:
    axes, mode = plan.axes, recompute_mode(plan)
    assert axes is not None
    lost = []
    if request.workload.matmul is not MatmulRecipe.WORKING:
        lost.append(f"{request.workload.matmul.value} products: build the model of Transformer Engine's layers in the script")
    if request.workload.saved_activations is SavedFormat.FP8:
        lost.append("saved activations in fp8: build the model of layers that cast what they save in the script")
    if mode is Recompute.SELECTIVE:
        lost.append("selective recompute: DeepSpeed recomputes what the script wraps; wrap attention and norms in it")
    elif mode is Recompute.FULL and axes.pp == 1:
        lost.append("full recompute: no key turns it on; call model.gradient_checkpointing_enable() in the script")
    if axes.tp > 1 and axes.pp == 1:
        whole = (1 - 1 / axes.tp) * _embedding_bytes(request)
        lost.append(
            f"a vocabulary-parallel embedding: AutoTP keeps the table whole on every rank, {whole / GB:.2f} GB of weights more "
            "than planned"
        )
    if axes.pp > 1:
        lost += _pipeline_losses(plan, request)
    return tuple(lost)


def _pipeline_losses(plan: PipelinePlan, request: TrainingRequest) -> list[str]:
    axes = plan.axes
    assert axes is not None
    lost = [f"pipeline stages: the script must build PipelineModule(layers, num_stages={axes.pp})"]
    counts = tuple(sum(span.count for span in stage.blocks) for stage in plan.stages)
    if counts != uniform_parts(len(request.model.layers), axes.pp):
        borders = [sum(counts[:i]) for i in range(axes.pp + 1)]
        lost.append(
            f"stage borders: no partition_method gives {counts} layers; override PipelineModule._partition_layers with "
            f"parts {borders} (embedding and head count as layers)"
        )
    if not request.model.is_chain:
        order = [
            layer for stage in plan.stages for span in stage.blocks for layer in range(span.first, span.first + span.count)
        ]
        listed = "in the model's order" if order == sorted(order) else f"in the order {order}"
        lost.append(
            f"branches: give PipelineModule the layers {listed}; each must take and return a tuple of all tensors "
            "that later layers read"
        )
    if axes.tp > 1:
        lost.append(
            "tp beside pp: AutoTP does not reach into PipelineModule; its layers must be tensor-parallel themselves, under "
            f"topology=PipeModelDataParallelTopology(num_pp={axes.pp}, num_mp={axes.tp}, num_dp={axes.dp})"
        )
    return lost


def _embedding_bytes(request: TrainingRequest) -> float:
    """Weights of the token table and its kin, in the workload's number format."""
    elements = sum(
        weight.elements(request.model.dims)
        for block in request.model.blocks
        for operator in block.operators
        if operator.kind is OperatorKind.EMBEDDING
        for weight in operator.weights
    )
    return elements * request.workload.precision.size_bytes


def _global_batch(request: TrainingRequest) -> int:
    return request.workload.global_batch


def _assumptions(plan: PipelinePlan, request: TrainingRequest) -> tuple[str, ...]:
    said = [
        f"{SCRIPT} is your training script: it builds the model and calls deepspeed.initialize with the configuration",
        "the learning rate is a stand-in",
    ]
    per_node = devices_per_node(request, plan.devices)
    if len(per_node) > 1:
        said.append(f"{HOST_FILE} lists the nodes in the cluster's order, as 'host slots=devices'")
    if len(set(per_node)) > 1:
        said.append(f"nodes take part with {', '.join(str(n) for n in per_node)} devices: give these as slots, not num_gpus")
    if plan.axes.tp > 1 and plan.axes.pp == 1:
        said.append(
            f"train_batch_size is left out: DeepSpeed counts AutoTP's ranks in it, and prints {plan.axes.tp} times the real "
            f"{_global_batch(request)} sequences"
        )
    if plan.stages[0].offload.optimizer > plan.stages[0].offload.gradients:
        said.append("gradients of states on the host go there as well, which leaves more of the device free than planned")
    if plan.stages[0].offload.on_drives:
        said.append(f"{NVME_PATH} stands for where each node's drives are mounted, and an 'aio' section for their tuning")
    if plan.stages[0].shard_ranks is not None:
        said.append("MiCS: the script makes the model under deepspeed.zero.MiCS_Init")
    if plan.stages[0].zero_stage == 3 and plan.axes.tp > 1:
        said.append("AutoTP beside ZeRO-3 is supported from 0.19 on; its documentation still says ZeRO 0 to 2")
    return tuple(said)


# Its command in the words of plans.

_OPTIMIZERS = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam", "torch_adam"), Optimizer.ADAMW),
    **dict.fromkeys(("sgd",), Optimizer.SGD_MOMENTUM),
    **dict.fromkeys(("muon",), Optimizer.MUON),
}
_FORMATS = {
    **dict.fromkeys(("fp32", "float32"), DType.FP32),
    **dict.fromkeys(("bf16", "bfloat16"), DType.BF16),
    **dict.fromkeys(("fp16", "float16"), DType.FP16),
}
_TIERS = {"cpu": Tier.HOST, "nvme": Tier.NVME}


def read_run(start: Start) -> StatedTraining:
    """Return what a run of DeepSpeed states; raises InvalidInputError for a value that can't be."""
    trainer = trainer_run(start)
    document = start.document
    if document is None:
        if trainer.deepspeed_file is None:
            raise InvalidInputError(
                "the command names no configuration of DeepSpeed",
                allowed="--deepspeed_config ds_config.json, or --deepspeed ds_config.json of Hugging Face's Trainer",
            )
        document = deepspeed_config(trainer.deepspeed_file, start)
        found = stated_by_keys(document, trainer, start)
        return replace(found, notes=(*guessed(start, trainer.deepspeed_file), *found.notes))
    return stated_by_keys(document, trainer, start)


def deepspeed_config(named: str, start: Start) -> Mapping[str, Any]:
    """Return the configuration of a name; where it was not given, what a name that recipes share says.

    Raises InvalidInputError for another that was not given, or for one that can't be read.
    """
    by_name = by_usual_name(named)
    if start.files.named(named) is None and by_name is not None:
        on_host = {name.removesuffix("_device"): {"device": device} for name, device in (by_name.offloaded or {}).items()}
        return {"zero_optimization": {"stage": by_name.stage, **on_host}, "bf16": {"enabled": AUTO}}
    document = config_of(start.files.required(named, flag="--deepspeed"))
    if document is None:
        raise InvalidInputError("the configuration of DeepSpeed is no JSON", given=named)
    return document


def guessed(start: Start, *names: str | None) -> tuple[str, ...]:
    """Return a note of each file that was not given, and is taken to be what its name says."""
    return tuple(
        f"{name} was not given: it is taken to be what its name says; give it by --with"
        for name in names
        if name is not None and start.files.named(name) is None and by_usual_name(name) is not None
    )


def stated_by_keys(document: Mapping[str, Any], trainer: TrainerRun, start: Start) -> StatedTraining:
    """Return what a configuration states of a run, with the arguments of a trainer."""
    read = DEEPSPEED.read(words_of_config(document))
    keys = DeepSpeedKeys(**read.fields)
    tp = max(1, keys.tp or 1)
    pp = keys.stages or 1
    microbatch = keys.microbatch or trainer.microbatch
    accumulation = keys.accumulation or trainer.accumulation
    if keys.microbatch is None and keys.train_batch is None and microbatch is None and "microbatch" in read.fields:
        raise InvalidInputError(
            "the configuration leaves its micro-batch to the trainer, and no arguments of one were given",
            given="train_micro_batch_size_per_gpu: auto",
            remedy="give the script's command with --per_device_train_batch_size",
        )
    return StatedTraining(
        launcher=Launcher.DEEPSPEED if trainer.adapter is None else trainer.launcher,
        given=(*read.given, *trainer.given),
        environment=start.environment,
        notes=(*_notes(keys, trainer), *trainer.notes),
        not_counted=trainer.not_counted,
        problems=_problems(keys, microbatch, accumulation, start.world, tp * pp),
        model=trainer.arguments.model,
        world=start.world,
        tp=tp,
        pp=pp,
        cp=keys.sequence_ranks or 1,
        ulysses=keys.sequence_ranks or 1,
        schedule=None if pp == 1 else Schedule.ONE_F_ONE_B.value,
        microbatch=microbatch,
        # Of batch, micro-batch and accumulation any two say the third; without a batch it is one.
        accumulation=accumulation or (1 if keys.train_batch is None or microbatch is None else None),
        global_batch=keys.train_batch,
        seq_len=trainer.seq_len,
        zero_stage=keys.zero_stage or 0,
        shard_ranks=keys.shard_ranks if keys.shard_ranks is not None and keys.shard_ranks > 0 else None,
        recompute=Recompute.FULL if trainer.recomputes or (keys.recomputed or 0) > 0 else Recompute.NONE,
        offload=_offload(keys),
        workload=_workload(keys, trainer),
        loaders=loaders_of(trainer, Loaders.FIRST if keys.zero_stage == 3 else Loaders.EACH),
    )


def loaders_of(trainer: TrainerRun, of_checkpoint: Loaders) -> Loaders:
    """Return the ranks that read the checkpoint whose weights a trainer begins with; none where it names none, or reads it in
    four bits, which go to the device one by one.

    Under ZeRO-3 the first rank reads, as under FSDP where that is asked for: the others hold no weights until they have their
    share (transformers, modeling_utils.py, load_state_dict).
    """
    has_checkpoint = trainer.arguments.model is not None and not trainer.arguments.four_bits
    return of_checkpoint if has_checkpoint else Loaders.NONE


def _offload(keys: DeepSpeedKeys) -> Offload:
    to = keys.optimizer_to or ("cpu" if keys.all_offloaded else "none")
    weights = keys.weights_to or "none"
    for given in (to, weights):
        if given not in (*_TIERS, "none"):
            raise InvalidInputError("state can't be offloaded there", given=given, allowed="cpu, nvme, none")
    stage = keys.zero_stage or 0
    moved = 0.0 if to == "none" else (keys.optimizer_share or 1.0) if stage == 3 else 1.0
    # From ZeRO-2 up gradients go where the states go.
    return Offload(
        optimizer=moved,
        weights=0.0 if weights == "none" or stage < 3 else 1.0,
        gradients=moved if stage >= 2 else 0.0,
        optimizer_to=_TIERS.get(to, Tier.HOST),
        weights_to=_TIERS.get(weights, Tier.HOST),
    )


def _problems(
    keys: DeepSpeedKeys, microbatch: int | None, accumulation: int | None, world: int | None, ranks: int
) -> tuple[str, ...]:
    """Rules of DeepSpeedConfig that hold whatever the model is."""
    found = []
    stage = keys.zero_stage or 0
    if keys.bf16 and keys.fp16:
        found.append("bf16 and fp16 are both enabled")
    if (keys.optimizer_to or "none") != "none" and stage == 0:
        found.append("offload_optimizer needs zero_optimization.stage 1 or higher")
    if (keys.weights_to or "none") != "none" and stage < 3:
        found.append("offload_param needs zero_optimization.stage 3")
    sizes = (keys.train_batch, microbatch, accumulation)
    if None not in sizes and world is not None and world % ranks == 0:
        batch, of_one, times = (int(size or 0) for size in sizes)
        if batch != of_one * times * (world // ranks):
            found.append(
                f"train_batch_size {batch} is not {of_one} sequences x {times} micro-batches x {world // ranks} replicas"
            )
    return tuple(found)


def _notes(keys: DeepSpeedKeys, trainer: TrainerRun) -> tuple[str, ...]:
    if trainer.recomputes is None and keys.recomputed is None:
        return ("no layers are taken to be recomputed: the script decides, and nothing here says",)
    return ()


def _workload(keys: DeepSpeedKeys, trainer: TrainerRun) -> dict[str, Any]:
    """Fields of the request's workload."""
    named = (keys.optimizer or "adamw").casefold()
    optimizer = _OPTIMIZERS.get(named, trainer.optimizer if keys.optimizer is None else None)
    if optimizer is None:
        raise InvalidInputError("no cost model covers this optimizer", given=keys.optimizer, allowed="AdamW, SGD, Muon")
    bf16 = trainer.arguments.bf16 if keys.bf16 is None else keys.bf16
    fp16 = trainer.arguments.fp16 if keys.fp16 is None else keys.fp16
    precision = DType.BF16 if bf16 else DType.FP16 if fp16 else DType.FP32
    work: dict[str, Any] = {"precision": precision.value, "optimizer": (trainer.optimizer or optimizer).value}
    if keys.gradient_dtype is not None:
        if keys.gradient_dtype not in _FORMATS:
            raise InvalidInputError("gradients can't have this format", given=keys.gradient_dtype, allowed=", ".join(_FORMATS))
        work["gradient_dtype"] = _FORMATS[keys.gradient_dtype].value
    return work if trainer.adapter is None else work | {"adapter": trainer.adapter}
