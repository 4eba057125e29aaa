"""PyTorch alone: a file that trains the model as the plan says, and the plan's choices beside it.

The file is the same for every plan; what differs is in plan.json. It is of PyTorch 2.13: fully_shard, parallelize_module and
torch.distributed.pipelining.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from meshwright.app.launching.parts.command import (
    ModelPart,
    command_text,
    model_parts,
    node_assumptions,
    parts_of_ranks,
    torchrun,
)
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.implemented import not_as_stated
from meshwright.app.launching.parts.launchable import recompute_differs, recompute_mode
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.pipeline import PipelineRuntime, Schedule, names_in
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.graph import Hyperparameters, ModelGraph, RotaryScaling, RotaryScalingKind
from meshwright.solver.problem.launchers.decoders import DecoderShape, decoder_shape, is_layer
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

VERSION = "2.13.0"
SCRIPT = "train.py"
PLAN_FILE = "plan.json"
LEARNING_RATE = 1e-5
"""A stand-in."""
_BASE = 10_000.0
"""Base of the rotary frequencies where the model's source states none (Su et al. 2021, section 3.2.2)."""
_EPSILON = 1e-5
"""The addend to the variance in norms where the model's source states none: PyTorch's default of LayerNorm."""


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The program, the plan's choices, and torchrun; raises ExportError for a model that is no plain decoder."""
    plan = pipeline_plan(answer)
    workload, graph = request.workload, request.model
    shape = decoder_shape(graph)
    return Export(
        launcher=Launcher.PYTORCH,
        version=VERSION,
        command=command_text(parts=[*torchrun(request, plan.devices), (SCRIPT,)]),
        files={
            SCRIPT: files(__package__).joinpath("pytorch_train.txt").read_text(encoding="utf-8"),
            PLAN_FILE: json.dumps(_choices(plan, request, shape), indent=2) + "\n",
        },
        inexpressible=(*recompute_differs(plan), *_inexpressible(plan, workload, graph.hyperparameters)),
        assumptions=(
            *node_assumptions(request, plan.devices),
            "tokens are random unless --data names a file of int32 tokens, and weights unless --checkpoint names a folder of "
            "safetensors; the learning rate is a stand-in",
            *_stated_nowhere(graph.hyperparameters),
            *_weights(workload),
        ),
    )


def _choices(plan: PipelinePlan, request: TrainingRequest, shape: DecoderShape) -> dict[str, Any]:
    axes, microbatch, workload = plan.axes, plan.microbatch, request.workload
    assert axes is not None and microbatch is not None
    stage = plan.stages[0]
    stated = request.model.hyperparameters or Hyperparameters()
    sizes = {name: getattr(shape, name) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")}
    return {
        "model": {
            **sizes,
            **{name: getattr(shape, name) for name in ("qkv_bias", "qk_norm", "tied")},
            "norm_epsilon": stated.norm_epsilon or _EPSILON,
            "rotary_base": stated.rotary_base or _BASE,
            "rotary_scaling": _scaling(stated.rotary_scaling),
        },
        "axes": {"dp": axes.dp, "tp": axes.tp, "pp": axes.pp},
        "zero_stage": stage.zero_stage,
        "shard_ranks": stage.shard_ranks,
        "offload": bool(stage.offload.weights),
        "recompute": recompute_mode(plan) is Recompute.FULL,
        "sequence_parallel": plan.sequence_parallel,
        "precision": workload.precision.value,
        "gradients": workload.gradient_dtype.value,
        "optimizer": plan.trained_by(workload).value,
        "learning_rate": LEARNING_RATE,
        "seq_len": workload.seq_len,
        "global_batch": workload.global_batch,
        "microbatch": {"size": microbatch.size, "count": microbatch.count},
        "schedule": names_in(PipelineRuntime.PYTORCH)[Schedule(plan.schedule)],
        "parts": _parts(plan, request.model),
        "parts_of_rank": [list(parts) for parts in parts_of_ranks(plan)],
    }


def _parts(plan: PipelinePlan, graph: ModelGraph) -> list[dict[str, Any]]:
    """Layers of each model part, from the first to behind the last, and which ends of the model it has."""
    parts, layer = [], 0
    for part in model_parts(plan):
        count = sum(span.count for span in part if is_layer(graph.block(span.block)))
        parts.append(
            {
                "layers": [layer, layer + count],
                "embedding": _has(OperatorKind.EMBEDDING, part, graph),
                "head": _has(OperatorKind.LOSS, part, graph),
            }
        )
        layer += count
    return parts


def _has(kind: OperatorKind, part: ModelPart, graph: ModelGraph) -> bool:
    return any(operator.kind is kind for span in part for operator in graph.block(span.block).operators)


def _scaling(scaling: RotaryScaling | None) -> dict[str, float] | None:
    """llama3's rule, where all of it is stated."""
    if scaling is None or scaling.kind is not RotaryScalingKind.LLAMA3:
        return None
    found = {name: getattr(scaling, name) for name in ("factor", "original_positions", "low_frequency", "high_frequency")}
    return None if None in found.values() else found


def _stated_nowhere(stated: Hyperparameters | None) -> tuple[str, ...]:
    said = stated or Hyperparameters()
    missing = [
        name for name, value in (("rotary_base", said.rotary_base), ("norm_epsilon", said.norm_epsilon)) if value is None
    ]
    return (f"the request does not state the model's {' and '.join(missing)}: check plan.json",) if missing else ()


def _weights(workload: TrainingWorkload) -> tuple[str, ...]:
    if workload.precision is DType.FP32:
        return ()
    return ("weights are kept in fp32, with bf16 copies while a layer runs: 16 bytes a parameter where 18 are planned",)


def _inexpressible(plan: PipelinePlan, workload: TrainingWorkload, stated: Hyperparameters | None) -> tuple[str, ...]:
    lost = []
    if plan.stages[0].zero_stage == 1:
        lost.append("ZeRO-1: FSDP shards gradients with the optimizer state; launched as ZeRO-2, which takes less memory")
    if plan.axes.pp > 1 and plan.stages[0].zero_stage >= 2 and plan.axes.dp > 1:
        lost.append(
            "gradients scattered in every micro-batch: torch.distributed.pipelining scatters them once a step, and a device "
            "holds whole gradients of its stage until then"
        )
    if stated is not None and stated.rotary_scaling is not None and _scaling(stated.rotary_scaling) is None:
        lost.append(f"rotary positions stretched by {stated.rotary_scaling.kind.value}: the program does not stretch them")
    if workload.matmul is not MatmulRecipe.WORKING:
        lost.append(f"{workload.matmul.value} products: the program's are {workload.precision.value}")
    if workload.saved_activations is SavedFormat.FP8:
        lost.append("saved activations in fp8: PyTorch keeps them in 16 bits, which takes more memory than planned")
    return (*lost, *not_as_stated(workload, Launcher.PYTORCH, said=(), instead="the program runs"))
