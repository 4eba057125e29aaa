"""The error of simulated latencies: where a measured time to first token, or per output token, lies by what is simulated.

A time takes what the simulation says and a constant of host and scheduling outside of it (front end, tokenizer, prompts that
meet one another), the whole times a lognormal error: ``(simulated + outside) x exp(error)``. The error has a part that all
points of an engine on a hardware share, which measured points of one's own tell, and one that each point has of its own.

Every law is of an engine and of what the request is, never of one plan, so a target of a measured time is a target of the
simulated one: search, bounds, certificate, checker and enumeration all compare with that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.from_runs import LATENCY, run_calibration
from meshwright.costmodels.calibration.kernel_file import borrowed_source, errors_of
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.serving.engine_profile import ENGINE_PROFILES, ServingEngine

_STANDARD = NormalDist()


@dataclass(frozen=True, slots=True)
class LatencyLaw:
    """The measured time of one kind over the simulated one.

    outside_s      host and scheduling, outside of what is simulated
    scale          median of measured over simulated with that: 1 until points of one's own tell
    shared_sigma   spread (natural logarithm) of what all points of an engine on a hardware share
    own_sigma      spread of what each point has of its own
    """

    outside_s: float
    scale: float
    shared_sigma: float
    own_sigma: float

    @property
    def log_sigma(self) -> float:
        """Spread of a point of which nothing was measured yet."""
        return math.hypot(self.shared_sigma, self.own_sigma)

    def factor(self, confidence: float) -> float:
        """Return how many times the simulated time with what is outside it a measured one takes at most with a chance."""
        return self.scale * math.exp(_STANDARD.inv_cdf(confidence) * self.log_sigma)

    def median_s(self, simulated_s: float) -> float:
        """Return the median of the measured time; a time that nobody waits, 0 or none at all, stays as it is."""
        return self.promised_s(simulated_s, 0.5)

    def promised_s(self, simulated_s: float, confidence: float) -> float:
        """Return the time that a measured one stays below with a chance."""
        if not simulated_s > 0.0:
            return simulated_s
        return (simulated_s + self.outside_s) * self.factor(confidence)

    def simulated_s(self, target_s: float, confidence: float) -> float:
        """Return the most that a simulated time may be so that the measured one keeps a target with a chance; below 0 where
        none may."""
        return target_s / self.factor(confidence) - self.outside_s

    def chance_above(self, simulated_s: float, target_s: float) -> float:
        """Return the chance that the measured time is above a target."""
        median_s = self.median_s(simulated_s)
        if not median_s > 0.0 or target_s == math.inf:
            return 0.0
        return 1.0 - _STANDARD.cdf(math.log(target_s / median_s) / self.log_sigma)


@dataclass(frozen=True, slots=True)
class ServingLaw:
    """The laws of both times of a request, the measured points of one's own that say so, and what the spread rests on."""

    ttft: LatencyLaw
    tpot: LatencyLaw
    basis: str
    runs: int = 0


_BASIS = "{points} measured points of {deployments} deployments, each left out of what it was predicted by"

BOTH_PHASES = ServingLaw(
    ttft=LatencyLaw(outside_s=0.0, scale=1.0, shared_sigma=0.198, own_sigma=0.339),
    tpot=LatencyLaw(outside_s=0.0, scale=1.0, shared_sigma=0.122, own_sigma=0.126),
    basis=_BASIS.format(points="1,708", deployments=23),
)
"""Workers that do both phases: the shared spread is the root mean square of the deployments' mean errors; the own one makes
nine of ten points, deployments counting alike, stay below what is promised at 0.9 (of the time to first token), or is the
median spread inside a deployment, which is more (per token). Made by benchmarks/decisions_serving.py."""

POOLS = ServingLaw(
    ttft=LatencyLaw(outside_s=0.0, scale=1.0, shared_sigma=0.327, own_sigma=0.575),
    tpot=LatencyLaw(outside_s=0.0, scale=1.0, shared_sigma=0.113, own_sigma=0.141),
    basis=_BASIS.format(points="183", deployments=7),
)
"""Prefill and decode pools, by the same rule."""


@dataclass(frozen=True, slots=True)
class OpenLoopLaw:
    """The law of requests that arrive by themselves: an error of step times, and one of first tokens beside it.

    Slower steps also bring the load nearer to what workers keep up with, where waits are many times as long. So what is
    promised is simulated: step times ``slowdown`` times as long, which is the same engine under as much more load, all times as
    much longer.

    step_sigma   spread (natural logarithm) of step times
    ttft_sigma   spread of first tokens with steps that take what is promised of them
    """

    step_sigma: float
    ttft_sigma: float
    basis: str

    def slowdown(self, confidence: float) -> float:
        """Return how many times as long steps take at most with a chance; no less than 1."""
        return max(1.0, math.exp(_STANDARD.inv_cdf(confidence) * self.step_sigma))

    def ttft_factor(self, confidence: float) -> float:
        """Return how many times as late first tokens are at most with a chance, steps taking what is promised of them."""
        return max(1.0, math.exp(_STANDARD.inv_cdf(confidence) * self.ttft_sigma))


_OPEN_BASIS = "35 open loops of 13 submitters of MLPerf Inference v5.1, each left out of what it was judged by"

OPEN_LOOPS: Mapping[Router, OpenLoopLaw] = {
    Router.RANDOM: OpenLoopLaw(step_sigma=0.176, ttft_sigma=0.181, basis=_OPEN_BASIS),
    Router.ROUND_ROBIN: OpenLoopLaw(step_sigma=0.169, ttft_sigma=0.345, basis=f"{_OPEN_BASIS}, taken as dealt out round robin"),
    Router.LEAST_LOADED: OpenLoopLaw(
        step_sigma=0.159, ttft_sigma=0.237, basis=f"{_OPEN_BASIS}, taken as given to the least loaded"
    ),
}
"""Workers that do both phases, by how requests reach them. Nine of ten rows below 0.9 of predicted capacity, submitters
counting alike, need no larger factor; the same of first tokens, where a worker gets up to 100 requests a second. No row says
how its requests were dealt: the same rows are predicted in each way. Made by benchmarks/serving_open_loops.py."""

OUTSIDE_SIGMA_S = 0.048
"""The spread of the best ``outside_s`` of deployments around their engine's (root mean square of 23)."""

HOST_STEP_SIGMA_S = 1.64e-3
"""The same of a time per output token: host time of a step beside that of the engine's profile."""


def latency_law(
    engine: ServingEngine, *, pools: bool, devices: Iterable[Device], learned: ServingLaw | None = None
) -> ServingLaw:
    """Return the law of an engine's latencies.

    ``devices`` are all that a plan may use: the points are of devices whose kernels were measured, so the 95th-percentile
    error of borrowed matrix products of the worst of them comes on top. ``learned`` replaces what both phases share.
    """
    law = POOLS if pools else BOTH_PHASES
    law = replace(law, ttft=replace(law.ttft, outside_s=ENGINE_PROFILES[engine].outside_s))
    if learned is not None:
        law = ServingLaw(_told(law.ttft, learned.ttft), _told(law.tpot, learned.tpot), learned.basis, learned.runs)
    borrowed = max((_borrowed_error(device) for device in devices), default=0.0)
    if borrowed == 0.0:
        return law
    sigma = math.log1p(borrowed) / _STANDARD.inv_cdf(0.95)
    basis = f"{law.basis}, and errors of borrowed kernels"
    return replace(law, ttft=_widened(law.ttft, sigma), tpot=_widened(law.tpot, sigma), basis=basis)


def learned_latencies(calibrations: Iterable[Calibration]) -> ServingLaw | None:
    """Return the laws that measured runs taught, among the calibrations of a request; None where none did."""
    learned = run_calibration(calibrations)
    if learned is None or LATENCY not in learned.document:
        return None
    told = learned.document[LATENCY]
    ttft, tpot = (
        LatencyLaw(law["outside_s"], law["scale"], law["shared_sigma"], law["own_sigma"])
        for law in (told["ttft"], told["tpot"])
    )
    runs = told["runs"]
    return ServingLaw(ttft, tpot, f"{runs} measured run{'' if runs == 1 else 's'} of this engine on this hardware", runs)


def _told(law: LatencyLaw, learned: LatencyLaw) -> LatencyLaw:
    """A law with what points of one's own tell of all points; what each has of its own stays that of its kind of plan."""
    return replace(learned, own_sigma=law.own_sigma)


def _widened(law: LatencyLaw, sigma: float) -> LatencyLaw:
    return replace(law, own_sigma=math.hypot(law.own_sigma, sigma))


def _borrowed_error(device: Device) -> float:
    if borrowed_source(device.calibration) is None:
        return 0.0
    return errors_of(device.calibration).matrix[1]
