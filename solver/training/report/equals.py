"""Plans that ranking can't tell from the best one, and of them those that differ most in what is uncertain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.cluster.rank_runs import COMMUNICATING_ACTIVITY, COMPUTING_ACTIVITY
from meshwright.costmodels.memory.training_state import NOTHING_OFFLOADED
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import AlsoTry, Equals, TimeBreakdown
from meshwright.solver.problem.choices import Gradients, Recompute, TpOverlap
from meshwright.solver.problem.declared.expert_overlap import MECHANISM, ExpertOverlap
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import all_devices, time_breakdown
from meshwright.solver.training.search.best_first import SearchResult, Solved, decision_tables
from meshwright.solver.training.space.candidates import Candidate, away, summary

# The noise of ranking: how far the measured order of two plans may be from the predicted one.
#
# What two plans of one model and cluster share of a prediction's error moves neither before the
# other. Left are the errors of the parts of a step, in so far as the plans spend it differently,
# and what each plan has of its own: the logarithm of measured over predicted time is taken as a sum
# of errors of parts, each by its share of the step, and an own one, all of them normal.

Shares = tuple[float, ...]
"""Shares of a step, together 1, by the fields of `TimeBreakdown`."""


@dataclass(frozen=True, slots=True)
class RankingNoise:
    """Spreads (natural logarithm) of measured over predicted time among plans that compete.

    own     of what each plan has of its own
    part    of the error of a part of a step, compute or communication of a kind, which plans have by its share
    basis   where it was measured
    """

    own: float
    part: float
    basis: str

    @property
    def within(self) -> float:
        """The share of a step that two plans may differ by in truth where they are predicted alike and spend it alike."""
        return math.expm1(math.sqrt(2.0) * self.own)

    def spread(self, one: Shares, other: Shares) -> float:
        """Spread of the difference of two plans' errors."""
        return math.hypot(math.sqrt(2.0) * self.own, self.part * distance(one, other))

    def error(self, shares: Shares, of_parts: Sequence[float], own: float) -> float:
        """Return the error of a plan where standard normal errors of all parts and its own one have these values."""
        parts = math.fsum(share * drawn for share, drawn in zip(shares, of_parts, strict=True))
        return self.part * parts + self.own * own


RANKING_NOISE = RankingNoise(
    own=0.078,
    part=0.37,
    basis="pairs of measured plans that competed on one model and cluster, of 12 sources",
)
"""benchmarks/decisions.py fits it to 10,630 pairs of measured plans, every source as one (docs/decisions-accuracy.md)."""


def shares_of(breakdown: TimeBreakdown, weights: Sequence[float] | None = None) -> Shares:
    """Return the shares of a step that its parts take, or of another sum in which their seconds have these weights."""
    seconds = astuple(breakdown)
    parts = seconds if weights is None else [weight * each for weight, each in zip(weights, seconds, strict=True)]
    whole = math.fsum(parts)
    return tuple(part / whole for part in parts)


def distance(one: Shares, other: Shares) -> float:
    """Return how differently two plans spend their steps: the Euclidean distance of their shares, 0 to the root of 2."""
    return math.dist(one, other)


MOST_TO_TRY = 3
"""Plans that are named beside the best."""

_PARTS = {
    "compute_s": "compute",
    "recompute_s": "recomputation",
    "tp_comm_s": "tensor-parallel communication",
    "cp_comm_s": "context-parallel communication",
    "pp_comm_s": "pipeline sends",
    "dp_comm_s": "exposed gradient and weight communication",
    "bubble_s": "pipeline bubble",
    "optimizer_s": "the optimizer step",
    "ep_comm_s": "communication of experts",
    "offload_s": "exposed moves to the host",
}


COMPUTING = ("compute_s", "recompute_s", "optimizer_s")
IDLE = ("bubble_s",)
"""Parts of a step in which devices compute, and wait for one another; in all others they communicate."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """The figure by which plans are ranked: the word for more of it, what parts are shares of, and how many times its seconds
    each part of a step weighs in it."""

    more: str
    whole: str
    weights: tuple[float, ...]


STEP_TIME = Ranked("slower", "the step", (1.0,) * len(fields(TimeBreakdown)))


def energy_of(cluster: Cluster) -> Ranked:
    """Return the energy of a step on a cluster. It is a sum over the parts of a step, each with the power that it takes, so the
    errors of times are its errors too, each part's by its share of the energy; the power itself is what plans share."""
    devices = all_devices(cluster)
    idle_w = sum(number * device.idle_power_w for device, number in devices)
    active_w = sum(number * (device.power_w - device.idle_power_w) for device, number in devices)
    activity = dict.fromkeys(COMPUTING, COMPUTING_ACTIVITY) | dict.fromkeys(IDLE, 0.0)
    weights = (idle_w + active_w * activity.get(each.name, COMMUNICATING_ACTIVITY) for each in fields(TimeBreakdown))
    return Ranked("more energy", "the energy", tuple(weights))


@dataclass(frozen=True, slots=True)
class _Member:
    """A plan of the class, the shares of the parts of a step in what is ranked, and its chance to run out of memory."""

    solved: Solved
    shares: Shares
    chance: float


def equal_plans(
    costs: TrainingCosts, result: SearchResult, *, slowest_s: float = math.inf, ranked: Ranked = STEP_TIME
) -> Equals:
    """Return the class of the best plan of a search: of each kind the best that is within the noise and whose step takes no
    more than ``slowest_s``, which a target allows."""
    assert result.best is not None, "the class of a search that found a plan"
    limit = result.best.value * (1.0 + RANKING_NOISE.within)
    slowest_s = max(slowest_s, result.best.cost.step_time_s)
    kinds: dict[tuple[object, ...], Solved] = {}
    for solved in (result.best, *result.alternatives, *result.near):
        kind = solved.decision.candidate.kind
        is_equal = solved.value <= limit and solved.cost.step_time_s <= slowest_s
        if is_equal and (kind not in kinds or (solved.value, solved.sort_key) < _order(kinds[kind])):
            kinds[kind] = solved
    own = result.best.decision.candidate.kind
    others = [_member(costs, solved, ranked) for kind, solved in kinds.items() if kind != own]
    best = _member(costs, result.best, ranked)
    plain = _plainest(best, others)
    return Equals(
        within=RANKING_NOISE.within,
        count=len(kinds),
        all_found=result.all_near,
        also_try=tuple(_also_try(best, other, ranked) for other in _most_different(best, others)),
        basis=RANKING_NOISE.basis,
        plainest=None if plain is best else _plain_instead(best, plain, ranked),
    )


def equal_form(given: Plan, best: Plan, name: str) -> Equals | None:
    """Return the class of a plan of a wider form and of the one that it takes the place of, which is called ``name`` and is the
    plainer one; None where that is beyond the noise, or there is none."""
    own, other = best.predicted, given.predicted
    if not given.feasible or own is None or other is None or own.step_time_s is None or other.step_time_s is None:
        return None
    slower = other.step_time_s / own.step_time_s - 1.0
    if slower > RANKING_NOISE.within:
        return None
    risk, own_risk = other.chance_out_of_memory or 0.0, own.chance_out_of_memory or 0.0
    differs = f"predicted {slower:.1%} slower; {risk:.1%} chance to run out of memory instead of {own_risk:.1%}"
    plain = AlsoTry(name, other.step_time_s, other.peak_memory_bytes, risk, differs)
    return Equals(RANKING_NOISE.within, 2, False, (plain,), RANKING_NOISE.basis, plainest=plain)


def _order(solved: Solved) -> tuple[float, tuple[object, ...]]:
    return (solved.value, solved.sort_key)


def _member(costs: TrainingCosts, solved: Solved, ranked: Ranked) -> _Member:
    breakdown = time_breakdown(solved.decision, solved.cost, decision_tables(solved.decision, costs))
    chance = max(stage.law.chance_to_exceed(stage.device_bytes, stage.usable_bytes) for stage in solved.cost.stages)
    return _Member(solved, shares_of(breakdown, ranked.weights), chance)


def _plainest(best: _Member, others: Sequence[_Member]) -> _Member:
    """The plan with the fewest mechanisms, of as many the best and then the fastest."""
    return min((best, *others), key=lambda each: (len(mechanisms(each.solved.decision.candidate)), _order(each.solved)))


def _plain_instead(best: _Member, plain: _Member, ranked: Ranked) -> AlsoTry:
    """The plainest plan, with the mechanisms that it does without and those that it has instead."""
    own, others = (mechanisms(each.solved.decision.candidate) for each in (plain, best))
    without = ", ".join(word for word in others if word not in own)
    instead = ", ".join(word for word in own if word not in others)
    told = _also_try(best, plain, ranked)
    said = f"does without {without}" + (f"; uses {instead} instead" if instead else "")
    return replace(told, differs=f"{said}; {told.differs}")


def _most_different(best: _Member, others: Sequence[_Member]) -> list[_Member]:
    """Up to `MOST_TO_TRY` plans, each the one that differs most from those taken before it, the fastest among equals."""
    taken, left = [best], sorted(others, key=lambda other: _order(other.solved))
    while left and len(taken) <= MOST_TO_TRY:
        farthest = max(left, key=lambda other: min(_uncertain_apart(other, each) for each in taken))
        taken.append(farthest)
        left.remove(farthest)
    return taken[1:]


def _uncertain_apart(one: _Member, other: _Member) -> float:
    """The part of a step by which plans may differ that are predicted alike: by how they spend it, and by runs that end at
    once."""
    return RANKING_NOISE.part * distance(one.shares, other.shares) + abs(one.chance - other.chance)


def _also_try(best: _Member, other: _Member, ranked: Ranked) -> AlsoTry:
    return AlsoTry(
        summary=summary(other.solved.decision.candidate),
        step_time_s=other.solved.cost.step_time_s,
        peak_memory_bytes=other.solved.cost.peak_bytes,
        chance_out_of_memory=other.chance,
        differs=_difference(best, other, ranked),
    )


def _difference(best: _Member, other: _Member, ranked: Ranked) -> str:
    """The parts that are most unlike those of the best plan, one more and one less of, and the memory's risk."""
    names = [each.name for each in fields(TimeBreakdown)]
    apart = {name: theirs - own for name, own, theirs in zip(names, best.shares, other.shares, strict=True)}
    worse = other.solved.value / best.solved.value - 1.0
    more, less = max(apart, key=lambda name: apart[name]), min(apart, key=lambda name: apart[name])
    said = [f"predicted {worse:.1%} {ranked.more}"]
    for name in (more, less):
        place = names.index(name)
        if abs(apart[name]) >= 0.001:
            said.append(f"{_PARTS[name]} {other.shares[place]:.1%} of {ranked.whole} instead of {best.shares[place]:.1%}")
    said.append(f"{other.chance:.1%} chance to run out of memory instead of {best.chance:.1%}")
    return "; ".join(said)


# The mechanisms that a plan needs of its launcher beside copies of the whole model: what can be set up wrongly.


def mechanisms(candidate: Candidate) -> tuple[str, ...]:
    """Return the mechanisms of a candidate in words, each once. A plan of plain data parallelism has none.

    Sequence parallelism is not counted beside tensor parallelism, nor the number of micro-batches of a pipeline: they come with
    them. Degrees do not count either: tensor parallelism over two ranks is set up as over eight.
    """
    mesh, pipelining = candidate.mesh, candidate.pipelining
    slices = "slices of sequences" if pipelining.slices else None
    split = (
        ("tensor parallelism", mesh.tp > 1),
        ("pipeline parallelism", mesh.pp > 1),
        ("ring context parallelism", mesh.ring > 1 and not mesh.gathers_keys),
        ("exchange of heads", mesh.ulysses > 1),
        ("expert parallelism", mesh.ep > 1),
        ("whole experts on tensor ranks", mesh.expert_tp < mesh.tp),
        *((words, True) for words in mesh.choices.mechanisms),
        (f"the {pipelining.schedule.value} schedule", mesh.pp > 1 and pipelining.schedule is not Schedule.ONE_F_ONE_B),
        (slices or "", slices is not None),
    )
    state = (
        (f"ZeRO-{candidate.zero_stage}", candidate.zero_stage > 0),
        (f"groups of {candidate.shard_ranks} ranks that shard", candidate.shard_ranks is not None),
        (candidate.optimizer.value if candidate.optimizer else "", candidate.optimizer is not None),
        ("gradients released in the backward pass", candidate.gradients is Gradients.RELEASED),
        ("chunked products", candidate.tp_overlap is TpOverlap.CHUNKED),
        (MECHANISM, candidate.expert_overlap is ExpertOverlap.BATCH),
    )
    used = [words for words, is_used in (*split, *state) if is_used]
    if candidate.offload != NOTHING_OFFLOADED:
        used += away(candidate.offload)
    modes = [mode for mode in candidate.recompute if mode is not Recompute.NONE]
    used += candidate.choices.mechanisms
    if modes and not candidate.choices.recomputes_some:
        used.append("recomputation (" + "/".join(mode.value for mode in modes) + ")")
    return tuple(used)
