"""Groups of measured plans, the rules that order them, and what comes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from meshwright.costmodels.model.memory_law import MemoryEvidence, MemoryLaw, MemoryOutcome, learned_law

TRIALS = (1, 2, 3, 5)
RISK = 0.05
SHUFFLES = 200


@dataclass(frozen=True)
class Plan:
    """A measured plan of a group beside what is predicted of it.

    fullness      predicted memory of the fullest device over what it has
    memory_ratio  measured over predicted peak, None where no peak was measured
    step_s        measured; None for a plan that ran out of memory
    shares        of the predicted step, by its parts
    """

    predicted_s: float
    fullness: float
    memory_ratio: float | None
    step_s: float | None
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class Group:
    """Plans that competed."""

    source: str
    name: str
    plans: tuple[Plan, ...]

    @property
    def best_s(self) -> float:
        """The step of the best plan that ran."""
        return min(plan.step_s for plan in self.plans if plan.step_s is not None)

    @property
    def has_crash(self) -> bool:
        """True if a plan ran out of memory."""
        return any(plan.step_s is None for plan in self.plans)


Rule = Callable[[Group, MemoryLaw], Iterator[Plan]]
"""Gives the plans of a group in the order in which they are run; it may look at a plan's outcome once it has given it."""


def fastest_that_fit(margin: float) -> Rule:
    """The rule that takes the predicted fastest of those that fit with a margin, then the others, the least full first."""

    def rule(group: Group, law: MemoryLaw) -> Iterator[Plan]:
        fits = [plan for plan in group.plans if plan.fullness * margin <= 1.0]
        others = [plan for plan in group.plans if plan not in fits]
        yield from sorted(fits, key=lambda plan: plan.predicted_s)
        yield from sorted(others, key=lambda plan: plan.fullness)

    return rule


def predicted_order(group: Group, law: MemoryLaw) -> Iterator[Plan]:
    """The rule that takes the predicted fastest, whether it fits or not."""
    yield from sorted(group.plans, key=lambda plan: plan.predicted_s)


def by_risk(group: Group, law: MemoryLaw) -> Iterator[Plan]:
    """Our rule: the predicted fastest of those whose chance to run out of memory is at most the risk, by a law that learns from
    each plan that has run; where none is left, the one with the smallest chance."""
    left, outcomes = list(group.plans), []
    while left:
        now = learned_law(law, outcomes, origin="runs of the group")
        chances = {id(plan): now.chance_to_exceed(plan.fullness * now.scale, 1.0) for plan in left}
        safe = [plan for plan in left if chances[id(plan)] <= RISK]
        chosen = min(safe, key=lambda p: p.predicted_s) if safe else min(left, key=lambda p: (chances[id(p)], p.predicted_s))
        yield chosen
        left.remove(chosen)
        outcomes.append(_outcome(chosen, law))


def _outcome(plan: Plan, law: MemoryLaw) -> MemoryOutcome:
    said = plan.fullness * law.scale
    if plan.step_s is None:
        return MemoryOutcome(MemoryEvidence.RAN_OUT, said, 1.0)
    if plan.memory_ratio is None:
        return MemoryOutcome(MemoryEvidence.FITTED, said, 1.0)
    return MemoryOutcome(MemoryEvidence.PEAK, said, plan.memory_ratio * plan.fullness)


@dataclass(frozen=True)
class Result:
    """The findings of a rule: crashes among the first k plans, and how much slower than the best the best found is, by k."""

    first_crashes: float
    first_regret: float
    regret: dict[int, float]
    crashes: dict[int, float]


def result_of(rule: Rule, groups: Sequence[Group], laws: dict[str, MemoryLaw]) -> Result:
    """Run a rule on every group with a law that has not seen the group's source."""
    orders = [(group, list(rule(group, laws[group.source]))) for group in groups]
    crashing = [order[0].step_s is None for group, order in orders if group.has_crash]
    first = [order[0].step_s / group.best_s - 1.0 for group, order in orders if order[0].step_s is not None]
    return Result(
        fmean(crashing) if crashing else 0.0,
        fmean(first),
        {k: fmean(best_found(group, order[:k]) for group, order in orders) for k in TRIALS},
        {k: fmean(sum(plan.step_s is None for plan in order[:k]) for _, order in orders) for k in TRIALS},
    )


def best_found(group: Group, tried: Sequence[Plan]) -> float:
    """Return how much slower than the group's best the best of the plans tried is; where none ran, as slow as its slowest."""
    ran = [plan.step_s for plan in tried if plan.step_s is not None]
    slowest = max(plan.step_s for plan in group.plans if plan.step_s is not None)
    return (min(ran) if ran else slowest) / group.best_s - 1.0


def random_result(groups: Sequence[Group], laws: dict[str, MemoryLaw]) -> Result:
    """The mean of many random orders."""
    results = []
    for seed in range(SHUFFLES):
        random = Random(seed)

        def rule(group: Group, law: MemoryLaw, random: Random = random) -> Iterator[Plan]:
            yield from random.sample(group.plans, len(group.plans))

        results.append(result_of(rule, groups, laws))
    return Result(
        fmean(each.first_crashes for each in results),
        fmean(each.first_regret for each in results),
        {k: fmean(each.regret[k] for each in results) for k in TRIALS},
        {k: fmean(each.crashes[k] for each in results) for k in TRIALS},
    )
