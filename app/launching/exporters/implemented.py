"""The implementation that a request states, as flags of a launcher; and what of it a launcher can't be told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from meshwright.app.launching.exporters.command import Words, flag
from meshwright.app.launching.exporters.launchable import recompute_mode
from meshwright.app.launching.flags.megatron_lm import MEGATRON_LM
from meshwright.costmodels.model.implementation import (
    AttentionKernels,
    Dropout,
    GradientReduction,
    HeadGradients,
    HostPath,
    Implementation,
    LossKernels,
    VectorKernels,
)
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingWorkload

MEASURED = frozenset({"context_bytes", "memory"})
"""The fields that say what was measured of a process, which nothing turns on or off."""

_DROPOUT = 0.1
"""Default of --attention-dropout and --hidden-dropout: masks take the same memory at any rate above 0."""


def stated_by(workload: TrainingWorkload, launcher: Launcher) -> Implementation:
    """The implementation that the plan was priced with: the stated one, else the launcher's own."""
    own = TRAINERS[launcher].implementation
    return own if workload.implementation is None else workload.implementation.over(own)


def not_as_stated(workload: TrainingWorkload, launcher: Launcher, *, said: Iterable[str], instead: str) -> tuple[str, ...]:
    """Each field in which the launcher runs otherwise than stated, in words.

    said      fields that the launcher's command says, or says that it can't
    instead   what becomes of the others
    """
    own, stated = TRAINERS[launcher].implementation, stated_by(workload, launcher)
    lost = []
    for name in (field.name for field in fields(Implementation)):
        # The kernels of the loss are those of the layers unless stated.
        own_value, value = (getattr(each, "loss" if name == "stated_loss" else name) for each in (own, stated))
        if value != own_value and name not in MEASURED and name not in said:
            lost.append(f"implementation.{name}: {value.value} is planned; {instead} {own_value.value}")
    return tuple(lost)


def say(field: str, *values: object) -> Words:
    """Return a flag of Megatron-LM by the field that it says."""
    return flag(MEGATRON_LM.name(field), *values)


def megatron_dropout(workload: TrainingWorkload) -> Words:
    """Dropout of attention and of what layers add: none, unless masks were planned."""
    rate = _DROPOUT if stated_by(workload, Launcher.MEGATRON_LM).dropout is Dropout.MASKED else 0
    return (*say("attention_dropout", rate), *say("hidden_dropout", rate))


def megatron_words(plan: PipelinePlan, workload: TrainingWorkload, *, has_experts: bool) -> list[Words]:
    """Flags of Megatron-LM that make a stated implementation true."""
    stated = stated_by(workload, Launcher.MEGATRON_LM)
    words: list[Words] = []
    if stated.host is HostPath.CUDA_GRAPHS and _no_graphs(plan) is None:
        # Whole layers, but for experts: how many tokens each of them gets is known on the host first.
        scope = flag("cuda-graph-scope", "attn") if has_experts else ()
        words.append((*say("cuda_graph_impl", "transformer_engine"), *scope))
    if stated.attention_kernels is AttentionKernels.UNFUSED:
        words.append(say("attention_backend", "unfused"))
    if stated.loss is LossKernels.FUSED_IN_PARTS:
        words.append(say("cross_entropy_loss_fusion"))
    if stated.head_gradients is HeadGradients.DEFERRED and _defers(plan):
        words.append(say("defer_embedding_wgrad_compute"))
    return words


def megatron_overlaps(plan: PipelinePlan, workload: TrainingWorkload) -> tuple[tuple[Words, ...], tuple[Words, ...]]:
    """Flags by which the gradients of several ranks travel beside passes, and new weights of a sharded optimizer; without them
    they travel in one piece after the backward pass."""
    waits = stated_by(workload, Launcher.MEGATRON_LM).reduction is GradientReduction.AFTER_BACKWARD
    if waits and plan.stages[0].zero_stage < 2:
        return (), ()
    # Its FSDP sums gradients in every micro-batch, whatever is stated.
    return (say("overlap_grad_reduce"),), (flag("overlap-param-gather"),)


def megatron_lost(plan: PipelinePlan, workload: TrainingWorkload, *, has_experts: bool) -> tuple[str, ...]:
    """The parts of a stated implementation that Megatron-LM's flags don't say."""
    stated = stated_by(workload, Launcher.MEGATRON_LM)
    said = {"dropout"}
    if stated.reduction is GradientReduction.AFTER_BACKWARD:
        said.add("reduction")
    lost = []
    if stated.host is HostPath.CUDA_GRAPHS:
        said.add("host")
        why = _no_graphs(plan)
        if why is not None:
            lost.append(f"implementation.host: cuda-graphs is planned; layers are not captured beside {why}: launched without")
        elif has_experts:
            lost.append(
                "implementation.host: cuda-graphs is planned for whole layers; Megatron-Core captures attention alone where a "
                "layer has experts, whose kernels are launched one by one"
            )
    if stated.attention_kernels is AttentionKernels.UNFUSED:
        said.add("attention_kernels")
    if stated.loss is LossKernels.FUSED_IN_PARTS:
        said.add("stated_loss")
    if stated.head_gradients is HeadGradients.DEFERRED:
        said.add("head_gradients")
        if not _defers(plan):
            lost.append(
                "implementation.head_gradients: deferred is planned; --defer-embedding-wgrad-compute needs a pipeline and "
                "fused accumulation of gradients: launched without"
            )
    general = not_as_stated(workload, Launcher.MEGATRON_LM, said=said, instead="nothing says so, and Megatron-Core's own is")
    return (*lost, *general)


def _no_graphs(plan: PipelinePlan) -> str | None:
    """The part of a plan beside which layers are not captured (validate_args refuses full recompute with CUDA graphs)."""
    if recompute_mode(plan) is Recompute.FULL:
        return "full recompute"
    # Its FSDP gathers and frees a layer's weights around each pass: no graph finds them where they were.
    return "Megatron-FSDP" if plan.stages[0].zero_stage >= 2 else None


def _defers(plan: PipelinePlan) -> bool:
    """True if weight gradients of the head may wait (ModelParallelConfig asks for a pipeline and for fused accumulation, which
    Megatron-FSDP goes without)."""
    return plan.axes.pp > 1 and plan.stages[0].zero_stage < 2


def torchtitan_compiles(workload: TrainingWorkload) -> bool:
    """True if the stated layers are compiled."""
    return stated_by(workload, Launcher.TORCHTITAN).kernels is VectorKernels.COMPILED


def torchtitan_lost(plan: PipelinePlan, workload: TrainingWorkload) -> tuple[str, ...]:
    """The parts of a stated implementation that torchtitan's flags don't say."""
    stated = stated_by(workload, Launcher.TORCHTITAN)
    said = {"host"} if stated.host is HostPath.CUDA_GRAPHS else set()
    lost = []
    if said and plan.axes.pp > 1:
        lost.append("implementation.host: cuda-graphs is planned; torchtitan refuses them beside a pipeline: launched without")
    if torchtitan_compiles(workload):
        # --compile.enable compiles layers and loss.
        said |= {"kernels"} | ({"stated_loss"} if stated.loss is LossKernels.COMPILED else set())
        if stated.loss is not LossKernels.COMPILED:
            said.add("stated_loss")
            lost.append(f"implementation.stated_loss: {stated.loss.value} is planned; torchtitan compiles it with the layers")
    general = not_as_stated(workload, Launcher.TORCHTITAN, said=said, instead="no flag says so, and torchtitan's own is")
    return (*lost, *general)


def torchtitan_graphs(plan: PipelinePlan, workload: TrainingWorkload) -> tuple[str, ...]:
    """The graphs that torchtitan captures by itself, where the plan counts launches one by one."""
    if plan.axes.pp > 1 or stated_by(workload, Launcher.TORCHTITAN).host is HostPath.CUDA_GRAPHS:
        return ()
    return (
        "torchtitan captures the passes of a step in a CUDA graph unless --training.disable_cuda_graphs is given; the plan "
        "counts launches one by one: plan with implementation.host: cuda-graphs where layers are too small to hide them",
    )
