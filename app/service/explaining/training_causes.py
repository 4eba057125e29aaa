"""The causes of slow steps: changes of a training request, its command or its devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.base.solving import predict_here
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.service.explaining.causes import (
    CLOCK_CHECK,
    LINKS_CHECK,
    NETWORK_CHECK,
    Extent,
    SpeedCause,
    links_extent,
    links_said,
    network_extent,
    network_said,
    slower_links,
    slower_network,
    with_nodes,
    words,
)
from meshwright.app.service.explaining.training_plan import broken_rules, microbatch_of, training_plan, world_of
from meshwright.costmodels.cluster.cluster import Cluster, Device, part_of_node
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.costmodels.model.experts import BALANCED, PowerLawRouting
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import (
    AttentionKernels,
    GradientReduction,
    HostPath,
    Implementation,
    TensorOverlap,
    VectorKernels,
)
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.choices import Recompute, TpOverlap
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.training.space.implementation import as_implemented, implementation_of


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """A training command under one change; ``plan`` is None where the command itself is changed, and ``counted`` the share of
    its tokens that the measurement counts."""

    request: TrainingRequest
    stated: StatedTraining
    plan: Plan | None
    counted: float = 1.0

    def predicted(self) -> Predicted | None:
        """Return its figures, None where it would not fit; raises InvalidInputError where it can't be."""
        if self.plan is None and broken_rules(self.request, self.stated):
            return None
        plan = predict_here(self.request, self.plan or training_plan(self.request, self.stated))
        if plan.predicted is None or (plan.reason is not None and plan.reason.unit == "bytes"):
            return None
        return replace(plan.predicted, tokens_per_s=self.counted * plan.predicted.tokens_per_s)

    @property
    def implementation(self) -> Implementation:
        """How the command's framework runs it."""
        return implementation_of(self.request.workload, self.request.search)

    @property
    def world(self) -> int:
        """Ranks of the command."""
        return world_of(self.request, self.stated)

    @property
    def replicas(self) -> int:
        """Replicas of the model."""
        return self.world // (self.stated.tp * self.stated.pp * self.stated.cp)

    @property
    def spans_nodes(self) -> bool:
        """True if the ranks lie on several nodes."""
        return self.world > self.request.cluster.groups[0].node.devices_per_node

    def on(self, cluster: Cluster) -> TrainingCase:
        """Return the same on another cluster."""
        return replace(self, request=replace(self.request, cluster=cluster))

    def at(self, workload: TrainingWorkload) -> TrainingCase:
        """Return the same at another workload."""
        return replace(self, request=replace(self.request, workload=workload))

    def said(self, **changes: Any) -> TrainingCase:
        """Return the case of a command that says otherwise."""
        return replace(self, stated=replace(self.stated, **changes), plan=None)

    def run(self, **changes: Any) -> TrainingCase:
        """Return the same of a framework that runs it otherwise."""
        stated = self.request.workload.implementation or StatedImplementation()
        workload = replace(self.request.workload, implementation=replace(stated, **changes))
        model, workload = as_implemented(self.request.model, workload, self.request.search)
        # Operators that are not those of the plan are sharded anew.
        plan = self.plan if model == self.request.model else None
        return replace(self, request=replace(self.request, model=model, workload=workload), plan=plan)


Change = Callable[[TrainingCase, float], TrainingCase | None]


def _where(applies: Callable[[TrainingCase], bool], change: Callable[[TrainingCase], TrainingCase]) -> Change:
    """The change of cases to which it applies."""
    return lambda case, _: change(case) if applies(case) else None


def _on_devices(case: TrainingCase, **factors: float) -> TrainingCase:
    """The case on devices whose sustained rates are divided."""

    def slower(device: Device) -> Device:
        rates = {name: getattr(device.sustained, name) / factor for name, factor in factors.items()}
        return replace(device, sustained=replace(device.sustained, **rates))

    return case.on(with_nodes(case.request.cluster, lambda node: replace(node, device=slower(node.device))))


def _network(case: TrainingCase, factor: float) -> TrainingCase | None:
    return case.on(slower_network(case.request.cluster, factor)) if case.spans_nodes else None


def _links(case: TrainingCase, factor: float) -> TrainingCase | None:
    return case.on(slower_links(case.request.cluster, factor)) if case.world > 1 else None


def _apart(case: TrainingCase) -> TrainingCase:
    """The case whose neighbouring ranks lie on different nodes: each device is one, with its share of the network."""
    cluster = case.request.cluster
    groups = tuple(replace(group, node=part_of_node(group.node, 1), nodes=group.n_devices) for group in cluster.groups)
    return case.on(replace(cluster, groups=groups))


def _other_order(case: TrainingCase) -> TrainingCase:
    return case.said(mesh=next(case.stated.mesh.others))


def _experts(case: TrainingCase, factor: float) -> TrainingCase | None:
    work = case.request.workload
    if EXPERTS not in case.request.model.dims or case.stated.ep == 1 or work.experts != BALANCED:
        return None
    return case.at(replace(work, experts=PowerLawRouting("power_law", factor - 1.0)))


CAUSES: tuple[SpeedCause[TrainingCase], ...] = (
    SpeedCause(
        "network",
        _network,
        lambda case, factor: network_said(case.request.cluster, factor),
        NETWORK_CHECK,
        lambda case: network_extent(case.request.cluster),
    ),
    SpeedCause(
        "gradients-after-backward",
        _where(
            lambda c: c.replicas > 1 and c.implementation.reduction is GradientReduction.OVERLAPPED,
            lambda c: c.run(reduction=GradientReduction.AFTER_BACKWARD),
        ),
        words("gradients travel after the backward pass, not under it"),
        "torch.profiler: does the last NCCL kernel of a step run alone? Megatron-LM: --overlap-grad-reduce",
    ),
    SpeedCause(
        "gradients-in-fp32",
        _where(
            lambda c: c.replicas > 1 and c.implementation.reduction is not GradientReduction.IN_FP32_AFTER_BACKWARD,
            lambda c: c.run(reduction=GradientReduction.IN_FP32_AFTER_BACKWARD),
        ),
        words("gradients are all-reduced in fp32 after the backward pass"),
        "torch.profiler: bytes and type of the all-reduce at the end of a step (f32); the optimizer's own option for its type",
    ),
    SpeedCause(
        "tensor-parallel-exposed",
        _where(
            lambda c: c.stated.tp > 1 and c.implementation.tensor_overlap is not TensorOverlap.NONE,
            lambda c: replace(c.run(tensor_overlap=TensorOverlap.NONE).said(tp_overlap=TpOverlap.EXPOSED)),
        ),
        words("sums over tensor-parallel ranks do not hide under weight gradients"),
        "CUDA_DEVICE_MAX_CONNECTIONS=1 is set before Hopper; torch.profiler: all-reduce and products side by side",
    ),
    SpeedCause(
        "tensor-parallel-over-nodes",
        _where(lambda c: c.spans_nodes and c.stated.tp * c.stated.cp > 1, _apart),
        words("neighbouring ranks lie on different nodes, tensor-parallel groups among them"),
        "print RANK and hostname: ranks 0 to 7 on one node? srun --distribution=block, torchrun's --node-rank, MASTER_ADDR",
    ),
    SpeedCause(
        "rank-order",
        _where(lambda c: c.replicas > 1 and c.stated.pp > 1, _other_order),
        words("ranks of a stage and of a replica lie the other way about"),
        "print the ranks of the data-parallel and pipeline groups; Megatron-LM: --use-tp-pp-dp-mapping",
    ),
    SpeedCause(
        "recomputes-all",
        _where(lambda c: c.stated.recompute is not Recompute.FULL, lambda c: c.said(recompute=Recompute.FULL)),
        words("all layers are recomputed"),
        "memory in use (nvidia-smi) well under the predicted peak; gradient_checkpointing or recompute in the log's arguments",
    ),
    SpeedCause(
        "recomputes-nothing",
        _where(lambda c: c.stated.recompute is not Recompute.NONE, lambda c: c.said(recompute=Recompute.NONE)),
        words("nothing is recomputed"),
        "memory in use (nvidia-smi) well over the predicted peak; gradient_checkpointing or recompute in the log's arguments",
    ),
    SpeedCause(
        "attention-unfused",
        _where(
            lambda c: c.implementation.attention_kernels is AttentionKernels.FUSED and c.stated.cp == 1,
            lambda c: c.run(attention_kernels=AttentionKernels.STEP_BY_STEP),
        ),
        words("attention runs without a fused kernel"),
        "torch.profiler: flash or cudnn in the names of attention kernels, or softmax between two products? NVTE_DEBUG=1",
    ),
    SpeedCause(
        "kernels-unfused",
        _where(lambda c: c.implementation.kernels is not VectorKernels.EAGER, lambda c: c.run(kernels=VectorKernels.EAGER)),
        words("norms, activations and rotary embeddings run as many small kernels"),
        "torch.profiler: many elementwise_kernel between products; is Apex, Transformer Engine or torch.compile in use?",
    ),
    SpeedCause(
        "no-cuda-graphs",
        _where(lambda c: c.implementation.host is HostPath.CUDA_GRAPHS, lambda c: c.run(host=HostPath.MEGATRON_CORE)),
        words("layers are launched kernel by kernel, not as CUDA graphs"),
        "torch.profiler: cudaGraphLaunch, or a cudaLaunchKernel for each kernel?",
    ),
    SpeedCause(
        "in-fp32",
        _where(
            lambda c: c.request.workload.precision is not DType.FP32 and c.request.workload.matmul is MatmulRecipe.WORKING,
            lambda c: c.at(replace(c.request.workload, precision=DType.FP32)),
        ),
        words("products compute in fp32: mixed precision is not on"),
        "print a parameter's dtype and torch.is_autocast_enabled(); kernel names with s16816 or bf16, not sgemm or tf32",
    ),
    SpeedCause(
        "low-precision-off",
        _where(
            lambda c: c.request.workload.matmul is not MatmulRecipe.WORKING,
            lambda c: c.at(replace(c.request.workload, matmul=MatmulRecipe.WORKING)),
        ),
        words("products compute in 16 bits: low precision is not on"),
        "torch.profiler: e4m3 or fp8 in the names of matrix products",
    ),
    SpeedCause(
        "small-microbatch",
        _where(
            lambda c: microbatch_of(c.request, c.stated) > 1,
            lambda c: c.said(microbatch=1, accumulation=None),
        ),
        words("micro-batches are of one sequence"),
        "the micro-batch and the accumulation steps that the log prints at its start",
    ),
    SpeedCause(
        "half-the-devices",
        _where(
            lambda c: c.replicas % 2 == 0,
            lambda c: c.said(world=c.world // 2, data_parallel=None, accumulation=None, shard_ranks=None),
        ),
        words("half of the devices take part"),
        "the world size that the log prints at its start; nvidia-smi on each node: are all devices busy?",
    ),
    SpeedCause(
        "counts-one-device",
        _where(lambda c: c.world > 1, lambda c: replace(c, counted=1.0 / c.world)),
        words("the figure is of one device, not of all"),
        "the log's own unit: tokens a second of a device, or of all? Then add /gpu to the figure",
    ),
    SpeedCause(
        "clocks",
        lambda case, factor: _on_devices(case, matrix=factor, low_precision_matrix=factor),
        words("devices multiply {} times slower: clocks are down, or others share them"),
        CLOCK_CHECK,
        # From boost down to base clocks, 1980 and 1590 MHz of an H100 SXM; a slowdown by heat halves them or more.
        lambda _: Extent(4.0, 1.05, 2.0),
    ),
    SpeedCause(
        "links",
        _links,
        lambda case, factor: links_said(case.request.cluster, factor),
        LINKS_CHECK,
        lambda case: links_extent(case.request.cluster),
    ),
    SpeedCause(
        "host",
        lambda case, factor: _on_devices(case, host=factor),
        words("hosts launch kernels {} times slower: few cores a process, debugging or profiling on, slow Python"),
        "torch.profiler: gaps between kernels while cudaLaunchKernel runs; taskset -p and top: cores of a process",
        # Hosts of one class differ by 2; a process with one core for its threads, or a debug build, is slower by more.
        lambda _: Extent(10.0, 1.5, 4.0),
    ),
    SpeedCause(
        "experts-uneven",
        _experts,
        lambda _, factor: f"tokens spread unevenly over experts, as a power law of exponent {factor - 1.0:.2g}",
        "tokens of each expert in the log (Megatron-LM: --moe-per-layer-logging); auxiliary loss",
        # Exponents of published routers lie below 1.
        lambda _: Extent(3.0, 1.1, 2.0),
    ),
)
"""Every cause, the likelier first of those that one figure can't tell apart."""
