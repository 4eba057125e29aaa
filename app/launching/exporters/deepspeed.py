"""DeepSpeed: ds_config.json and the launcher's line.

A configuration file sets batch, ZeRO and AutoTP; pipeline stages and recomputation are set in the training script.
"""

from __future__ import annotations

import json

from meshwright.app.launching.exporters.command import Words, command_text, devices_per_node, flag
from meshwright.app.launching.exporters.export import Export
from meshwright.app.launching.exporters.implemented import not_as_stated
from meshwright.app.launching.exporters.launchable import recompute_differs, recompute_mode
from meshwright.costmodels.memory.training_state import Optimizer, Tier
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

VERSION = "0.19.8"
CONFIG = "ds_config.json"
HOST_FILE = "hostfile"
SCRIPT = "train.py"
GB = 1e9
NVME_PATH = "/local_nvme"
"""Where the configuration expects the drives; a stand-in."""

_OPTIMIZERS: dict[Optimizer, dict[str, object]] = {
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
        "optimizer": _OPTIMIZERS[plan.trained_by(workload)],
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
