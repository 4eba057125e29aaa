"""The basis of a training prediction: the calibrations used, and bands from measured errors of whole steps and kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from meshwright.costmodels.calibration.kernel_file import MEASURED
from meshwright.costmodels.calibration.kernels import KernelError, KernelKind, VectorKernel
from meshwright.costmodels.cluster.cluster import TIMED_ALONE, UNTOLD_RATES, Cluster, Device
from meshwright.costmodels.kernels.compute import kernel_error
from meshwright.costmodels.kernels.operator_time import operator_time
from meshwright.costmodels.model.adapter import BaseFormat
from meshwright.costmodels.model.dims import BATCH, HEAD_DIM, SEQ
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.answer.cluster_time import networks_between, networks_used
from meshwright.solver.answer.predicted import Band, CalibrationUse, TimeBreakdown
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.carried_choices import MeshChoices
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.space.meshes import Mesh, numbers_of_experts

# The error of whole steps: how far a measured step may lie from the predicted one, by what the step is made of.
#
# Errors of single kernels do not add up to that of a step: overlap, the host, networks that nobody
# measured and what frameworks do besides are in it too. So the model is fitted to whole measured
# steps, each predicted by constants that were fitted to other sources (`benchmarks/accuracy.py`).
# The logarithm of measured over predicted time spreads in proportion to a scale, linear in the
# traits of the step.

SMALL_LAYER_S = 0.008
"""Seconds of a layer, forward and backward, at which half of a step's scale for small layers counts: hosts launch a layer's
kernels in 4 to 8 ms."""


NORMAL_P95 = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class StepTraits:
    """The traits of a step that its error depends on.

    small           nearly 1 where layers are so short that the host decides, nearly 0 where the device does
    communication   share of the step in which devices wait for one another's data
    experts         1 for a model with routed experts, else 0
    network         share of the step in which devices wait for networks between nodes that nobody measured, times the spread of
                    the logarithm of the speed of networks of their kind
    chip            1 where no training run told the rates that a device sustains, else 0
    """

    small: float
    communication: float
    experts: float
    network: float = 0.0
    chip: float = 0.0


def has_untold_rates(cluster: Cluster) -> bool:
    """Return True if no training run told the rates that some device sustains: neither catalogue nor request has any."""
    return any(_is_untold(group.node.device) for group in cluster.groups)


def _is_untold(device: Device) -> bool:
    return device.sustained in (TIMED_ALONE, UNTOLD_RATES)


def step_traits(
    model: ModelGraph,
    breakdown: TimeBreakdown,
    stage_times_s: Sequence[float],
    *,
    unmeasured_wait_s: float = 0.0,
    untold_rates: bool = False,
) -> StepTraits:
    """Traits of a step whose pipeline ranks take ``stage_times_s`` for a micro-batch, forward and backward, and that waits
    ``unmeasured_wait_s`` for unmeasured networks, weighted by their spread."""
    sent_s = breakdown.tp_comm_s + breakdown.cp_comm_s + breakdown.pp_comm_s + breakdown.dp_comm_s + breakdown.ep_comm_s
    here_s = breakdown.compute_s + breakdown.recompute_s + breakdown.optimizer_s + breakdown.offload_s
    step_s = here_s + breakdown.bubble_s + sent_s
    layer_s = max(stage_times_s) * len(stage_times_s) / len(model.layers)
    return StepTraits(
        small=1.0 / (1.0 + (layer_s / SMALL_LAYER_S) ** 2),
        communication=sent_s / step_s,
        experts=float(bool(numbers_of_experts(model))),
        network=unmeasured_wait_s / step_s,
        chip=float(untold_rates),
    )


@dataclass(frozen=True, slots=True)
class StepErrorModel:
    """Scale of the error by traits, and how many scales below and above the predicted time 90% of measured steps lie.

    base, small, communication, experts, network, chip   scale of every step, and what full traits add
    below, above   scales to the ends of a band that holds 90% of the steps of one more source
    basis          where it was measured
    """

    base: float
    small: float
    communication: float
    experts: float
    below: float
    above: float
    basis: str
    network: float = 0.0
    chip: float = 0.0

    def scale(self, traits: StepTraits) -> float:
        """Scale of the logarithm of measured over predicted time."""
        added = self.small * traits.small + self.communication * traits.communication + self.experts * traits.experts
        return self.base + added + self.network * traits.network + self.chip * traits.chip

    def factors(self, traits: StepTraits, *, kernels: float = 0.0) -> tuple[float, float]:
        """Measured over predicted time at the ends of the band. ``kernels`` is the relative error of kernels that the model's
        steps did not have: those of a device without measurements of its own. What unmeasured networks between nodes leave open
        comes on top in the same way, unless the scale has a share of it."""
        scale, more = self.scale(traits), math.log1p(kernels)
        network = 0.0 if self.network else NORMAL_P95 * traits.network
        return math.exp(-math.hypot(self.below * scale, more, network)), math.exp(math.hypot(self.above * scale, more, network))


KNOWN_FRAMEWORK = StepErrorModel(
    base=0.088,
    small=0.0,
    communication=0.0,
    experts=0.298,
    network=0.412,
    chip=0.045,
    below=2.407,
    above=2.457,
    basis="90% of measured steps of sources that the fit had not seen",
)
"""Of plans whose framework is known: the request states its implementation, or the launcher is that of the plan."""

ASSUMED_FRAMEWORK = StepErrorModel(
    base=0.107,
    small=0.0,
    communication=0.0,
    experts=0.318,
    network=0.303,
    chip=0.040,
    below=2.641,
    above=3.060,
    basis="90% of measured steps of sources that the fit had not seen, whose framework was assumed",
)
"""Of rows of which nothing is known but their columns."""


@dataclass(frozen=True, slots=True)
class KernelTimeShare:
    """A kind of kernel that the model runs: its share of the compute time of a micro-batch, and its error."""

    kind: KernelKind | VectorKernel
    share: float
    error: KernelError


def calibrations_used(request: TrainingRequest) -> tuple[CalibrationUse, ...]:
    """Each device's kernel calibration with its error, one entry a kind of kernel, the most used first; and networks between
    nodes."""
    kernels = tuple(
        CalibrationUse(
            id=f"{device.calibration}/{used.kind.value}",
            device=device.name,
            median_error=used.error.median,
            p95_error=used.error.p95,
            basis=f"{used.share:.0%} of compute; {used.error.basis}",
        )
        for device in _devices(request)
        for used in kernel_shares(request, device)
    )
    return (*kernels, *networks_used(request.cluster))


def step_time_bands(
    request: TrainingRequest,
    traits: StepTraits,
    *,
    step_time_s: float,
    tokens_per_s: float,
    mfu: float,
    model: StepErrorModel = KNOWN_FRAMEWORK,
) -> Mapping[str, Band]:
    """Bands in which 90% of measured steps are expected, of the step time and of the figures that follow from it.

    Errors of kernels are inside the error of whole steps, which has been measured on devices with kernels of their own. Where
    a device borrows a calibration, or has one from its data sheet, the 95th-percentile errors of its kernels, weighted by
    their share of compute, come on top.
    """
    device, error = unmeasured_kernels(request)
    low, high = model.factors(traits, kernels=error)
    basis = model.basis if device is None else f"{model.basis}, and errors of kernels that were not measured on {device}"
    return {
        "step_time_s": Band(step_time_s * low, step_time_s * high, basis),
        "tokens_per_s": Band(tokens_per_s / high, tokens_per_s / low, basis),
        "mfu": Band(mfu / high, mfu / low, basis),
    }


def plan_bands(
    request: TrainingRequest,
    axes: Axes,
    breakdown: TimeBreakdown,
    stage_times_s: Sequence[float],
    *,
    choices: MeshChoices,
    step_time_s: float,
    tokens_per_s: float,
    mfu: float,
    exchange_s: float = 0.0,
) -> Mapping[str, Band]:
    """The same of a plan's step, with the traits that it has; ``exchange_s`` of it groups of nodes exchange gradients."""
    wait_s = unmeasured_wait_s(request.cluster, axes, breakdown, choices=choices)
    traits = step_traits(
        request.model,
        breakdown,
        stage_times_s,
        unmeasured_wait_s=wait_s + widest_spread(request.cluster) * exchange_s,
        untold_rates=has_untold_rates(request.cluster),
    )
    bands = step_time_bands(request, traits, step_time_s=step_time_s, tokens_per_s=tokens_per_s, mfu=mfu)
    unlike = ", ".join(unlike_measured(request, axes, breakdown))
    if not unlike:
        return bands
    return {name: replace(band, basis=f"{band.basis}; no run was measured with {unlike}") for name, band in bands.items()}


MOST_MEASURED = {"devices": 12_288, "tokens in a sequence": 131_072, "tp": 16, "pp": 64, "cp": 8, "ep": 64}
"""The most of each in the 2,751 measured steps that bands are fitted to (`benchmarks/accuracy.py`)."""


def unlike_measured(request: TrainingRequest, axes: Axes, breakdown: TimeBreakdown) -> tuple[str, ...]:
    """Return in words what a plan has that no measured step had, so that bands can't be known to hold for it."""
    used = {
        "devices": request.cluster.n_devices,
        "tokens in a sequence": request.workload.seq_len,
        **{axis: getattr(axes, axis) for axis in ("tp", "pp", "cp", "ep")},
    }
    found = [f"{used[name]:,} {name} (at most {most:,})" for name, most in MOST_MEASURED.items() if used[name] > most]
    devices = _devices(request)
    found += [f"the rates of {device.name}" for device in devices if _is_untold(device)]
    found += ["devices of several kinds"] if len(devices) > 1 else []
    found += ["state or activations on hosts"] if breakdown.offload_s > 0.0 else []
    adapter = request.workload.adapter
    if adapter is not None:
        found += ["adapters in a model with experts"] if numbers_of_experts(request.model) else []
        found += [f"frozen weights in {adapter.base_format.value}"] if adapter.base_format is not BaseFormat.WORKING else []
    return tuple(found)


def unmeasured_kernels(request: TrainingRequest) -> tuple[str | None, float]:
    """The device whose kernels were not measured on it and err most, with their 95th-percentile errors weighted by their share
    of compute; None and 0 where all devices have measurements of their own."""
    errors = {
        device.name: sum(used.share * used.error.p95 for used in kernel_shares(request, device))
        for device in _devices(request)
        if device.calibration not in MEASURED
    }
    widest = max(errors, key=lambda name: (errors[name], name), default=None)
    return widest, 0.0 if widest is None else errors[widest]


def kernel_shares(request: TrainingRequest, device: Device) -> list[KernelTimeShare]:
    """Kinds of kernels by their share of one unsharded sequence's compute on a device, largest first."""
    workload, model = request.workload, request.model
    sizes = {**model.dims, BATCH: 1, SEQ: workload.seq_len}
    seconds: dict[KernelKind | VectorKernel, float] = {}
    for run in model.chain:
        for operator in model.block(run.block).operators:
            time = operator_time(operator, sizes, device=device, dtype=workload.precision, documents=workload.documents)
            parts: dict[KernelKind | VectorKernel, float]
            if operator.kind is OperatorKind.ATTENTION:
                parts = {KernelKind.PREFILL_ATTENTION: time.forward_s, KernelKind.ATTENTION_BACKWARD: time.backward_s}
            else:
                kind = KernelKind.GEMM if operator.kind is OperatorKind.MATMUL else VectorKernel.STREAM
                parts = {kind: time.forward_s + time.backward_s}
            for kind, part_s in parts.items():
                seconds[kind] = seconds.get(kind, 0.0) + run.repeat * part_s
    total = sum(seconds.values())
    head_dim = model.dims.get(HEAD_DIM, 128)
    return [
        KernelTimeShare(kind, part_s / total, kernel_error(device, workload.precision, kind, head_dim=head_dim))
        for kind, part_s in sorted(seconds.items(), key=lambda item: (-item[1], item[0].value))
    ]


def _devices(request: TrainingRequest) -> list[Device]:
    by_name = {group.node.device.name: group.node.device for group in request.cluster.groups}
    return [by_name[name] for name in sorted(by_name)]


# The time that a training step waits for networks between nodes that nobody measured.


def unmeasured_wait_s(cluster: Cluster, axes: Axes, breakdown: TimeBreakdown, *, choices: MeshChoices) -> float:
    """Seconds of a step that devices wait for networks between nodes, times the widest spread among those of the cluster that
    nobody measured; 0 where all were measured. An axis leaves a node where it and the axes inside it have more ranks than the
    smallest node."""
    spread = widest_spread(cluster)
    if spread == 0.0:
        return 0.0
    per_node = min(group.node.devices_per_node for group in cluster.groups)
    mesh = Mesh(dp=axes.dp, pp=axes.pp, tp=axes.tp, cp=axes.cp, ep=axes.ep, etp=axes.etp or None, choices=choices)
    waits_s: list[float] = [getattr(breakdown, f"{sent}_comm_s") for sent, ranks in mesh.spans.items() if ranks > per_node]
    return spread * sum(waits_s)


def widest_spread(cluster: Cluster) -> float:
    """The widest spread of the logarithm of a network's share of line rate, among unmeasured networks that join the nodes."""
    return max((network.log_sigma for network in networks_between(cluster).values() if not network.is_measured), default=0.0)
