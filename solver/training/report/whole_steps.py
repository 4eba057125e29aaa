"""The error of whole steps: how far a measured step may lie from the predicted one, by what the step is made of.

Errors of single kernels do not add up to that of a step: overlap, the host, networks that nobody measured and what frameworks
do besides are in it too. So the model is fitted to whole measured steps, each predicted by constants that were fitted to other
sources (`benchmarks/accuracy.py`). The logarithm of measured over predicted time spreads in proportion to a scale, linear in
the traits of the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from meshwright.costmodels.cluster.cluster import TIMED_ALONE, UNTOLD_RATES, Cluster
from meshwright.solver.answer.predicted import TimeBreakdown
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.training.space.meshes import numbers_of_experts

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
    return any(group.node.device.sustained in (TIMED_ALONE, UNTOLD_RATES) for group in cluster.groups)


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
    base=0.061,
    small=0.074,
    communication=0.0,
    experts=0.286,
    network=1.077,
    chip=0.055,
    below=2.333,
    above=3.296,
    basis="90% of measured steps of sources that the fit had not seen",
)
"""Of plans whose framework is known: the request states its implementation, or the launcher is that of the plan."""

ASSUMED_FRAMEWORK = StepErrorModel(
    base=0.198,
    small=0.0,
    communication=0.0,
    experts=0.0,
    network=1.650,
    chip=0.084,
    below=6.036,
    above=2.488,
    basis="90% of measured steps of sources that the fit had not seen, whose framework was assumed",
)
"""Of rows of which nothing is known but their columns."""
