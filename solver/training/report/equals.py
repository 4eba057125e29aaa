"""Plans that ranking can't tell from the best one, and of them those that differ most in what is uncertain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import AlsoTry, Equals, TimeBreakdown
from meshwright.solver.training.costs.breakdown import time_breakdown
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.report.ranking_noise import RANKING_NOISE, Shares, distance, shares_of
from meshwright.solver.training.search.best_first import decision_tables
from meshwright.solver.training.search.search_result import SearchResult, Solved
from meshwright.solver.training.space.candidate_names import summary
from meshwright.solver.training.space.mechanisms import mechanisms

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


@dataclass(frozen=True, slots=True)
class _Member:
    """A plan of the class, its parts of a step, and its chance to run out of memory."""

    solved: Solved
    shares: Shares
    chance: float


def equal_plans(costs: TrainingCosts, result: SearchResult, *, slowest_s: float = math.inf) -> Equals:
    """Return the class of the best plan of a search for the fastest: of each kind the fastest that is within the noise and
    takes no more than ``slowest_s``, which a target allows."""
    assert result.best is not None, "the class of a search that found a plan"
    limit = min(result.best.value * (1.0 + RANKING_NOISE.within), max(slowest_s, result.best.value))
    kinds: dict[tuple[object, ...], Solved] = {}
    for solved in (result.best, *result.alternatives, *result.near):
        kind = solved.decision.candidate.kind
        if solved.value <= limit and (kind not in kinds or (solved.value, solved.sort_key) < _order(kinds[kind])):
            kinds[kind] = solved
    others = [_member(costs, solved) for kind, solved in kinds.items() if kind != result.best.decision.candidate.kind]
    best = _member(costs, result.best)
    plain = _plainest(best, others)
    return Equals(
        within=RANKING_NOISE.within,
        count=len(kinds),
        all_found=result.all_near,
        also_try=tuple(_also_try(best, other) for other in _most_different(best, others)),
        basis=RANKING_NOISE.basis,
        plainest=None if plain is best else _plain_instead(best, plain),
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


def _member(costs: TrainingCosts, solved: Solved) -> _Member:
    breakdown = time_breakdown(solved.decision, solved.cost, decision_tables(solved.decision, costs))
    chance = max(stage.law.chance_to_exceed(stage.device_bytes, stage.usable_bytes) for stage in solved.cost.stages)
    return _Member(solved, shares_of(breakdown), chance)


def _plainest(best: _Member, others: Sequence[_Member]) -> _Member:
    """The plan with the fewest mechanisms, of as many the best and then the fastest."""
    return min((best, *others), key=lambda each: (len(mechanisms(each.solved.decision.candidate)), _order(each.solved)))


def _plain_instead(best: _Member, plain: _Member) -> AlsoTry:
    """The plainest plan, with the mechanisms that it does without and those that it has instead."""
    own, others = (mechanisms(each.solved.decision.candidate) for each in (plain, best))
    without = ", ".join(word for word in others if word not in own)
    instead = ", ".join(word for word in own if word not in others)
    told = _also_try(best, plain)
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


def _also_try(best: _Member, other: _Member) -> AlsoTry:
    return AlsoTry(
        summary=summary(other.solved.decision.candidate),
        step_time_s=other.solved.cost.step_time_s,
        peak_memory_bytes=other.solved.cost.peak_bytes,
        chance_out_of_memory=other.chance,
        differs=_difference(best, other),
    )


def _difference(best: _Member, other: _Member) -> str:
    """The parts of the step that are most unlike those of the best plan, one more and one less of, and the memory's risk."""
    names = [each.name for each in fields(TimeBreakdown)]
    apart = {name: theirs - own for name, own, theirs in zip(names, best.shares, other.shares, strict=True)}
    slower = other.solved.value / best.solved.value - 1.0
    more, less = max(apart, key=lambda name: apart[name]), min(apart, key=lambda name: apart[name])
    said = [f"predicted {slower:.1%} slower"]
    for name in (more, less):
        place = names.index(name)
        if abs(apart[name]) >= 0.001:
            said.append(f"{_PARTS[name]} {other.shares[place]:.1%} of the step instead of {best.shares[place]:.1%}")
    said.append(f"{other.chance:.1%} chance to run out of memory instead of {best.chance:.1%}")
    return "; ".join(said)
