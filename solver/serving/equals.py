"""Serving plans that ranking can't tell from the answer, and of them those that differ most in what is uncertain.

A layout's throughput errs by a part that all layouts of a deployment share, which moves none before another, and by one of its
own. What a plan costs, in devices, money or energy, is so many devices for so many answers a second: it errs alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import AlsoTry, Equals
from meshwright.solver.problem.choices import Objective
from meshwright.solver.serving.promise.kept import KeptPlan

OWN_SPREAD = 0.094
"""Spread (natural logarithm) of measured over predicted throughput that each layout has of its own."""

BASIS = "2,018 pairs of measured serving layouts that competed, of 20 deployments"
"""Both made by benchmarks/decisions_serving.py (docs/decisions-serving.md)."""

WITHIN = math.expm1(math.sqrt(2.0) * OWN_SPREAD)

MOST_TO_TRY = 3
"""Plans that are named beside the best."""

_MORE = {
    Objective.DEVICES: "more devices",
    Objective.COST: "more money",
    Objective.ENERGY: "more energy",
    Objective.THROUGHPUT: "more time for as many answers",
}

_AS_GOOD = 5e-4
"""Shares below it are 0.0% in words."""


def equal_plans(objective: Objective, plan: Plan, own: KeptPlan | None, met: Iterable[KeptPlan]) -> Equals:
    """Return the class of a plan: of each name that was met the best that is within the noise. ``own`` is the plan as its
    search met it, None of a form that names none."""
    best, figures = plan.certificate.objective, plan.predicted
    assert best is not None and figures is not None, "a feasible plan"
    names: dict[str, KeptPlan] = {}
    for each in met:
        is_equal = each.objective <= best * (1.0 + WITHIN) and (own is None or each.name != own.name)
        if is_equal and (each.name not in names or _order(each) < _order(names[each.name])):
            names[each.name] = each
    chances = [each for each in (figures.chance_ttft_missed, figures.chance_tpot_missed) if each is not None]
    splits = math.inf if own is None else own.splits
    answer = KeptPlan(
        "",
        best,
        0 if own is None else own.splits,
        figures.ttft_p95_s or 0.0,
        figures.tpot_p95_s or 0.0,
        figures.peak_memory_bytes,
        max(chances) if chances else None,
    )
    plainest = min(names.values(), key=lambda each: (each.splits, _order(each)), default=None)
    return Equals(
        within=WITHIN,
        count=len(names) + 1,
        all_found=False,
        also_try=tuple(_also_try(objective, answer, each) for each in _most_different(answer, list(names.values()))),
        basis=BASIS,
        plainest=None if plainest is None or plainest.splits >= splits else _also_try(objective, answer, plainest),
    )


def _order(each: KeptPlan) -> tuple[object, ...]:
    return each.objective, each.missed or 0.0, each.name


def _most_different(answer: KeptPlan, others: Sequence[KeptPlan]) -> list[KeptPlan]:
    """Up to `MOST_TO_TRY` plans, each the one that differs most from those taken before it, the best among equals."""
    taken, left = [answer], sorted(others, key=_order)
    while left and len(taken) <= MOST_TO_TRY:
        farthest = max(left, key=lambda other: min(_apart(other, each) for each in taken))
        taken.append(farthest)
        left.remove(farthest)
    return taken[1:]


def _apart(one: KeptPlan, other: KeptPlan) -> float:
    """Return how differently two plans stand to what is promised: by chances to miss it, and by the times that they spend."""
    chances = abs((one.missed or 0.0) - (other.missed or 0.0))
    times = ((one.ttft_s, other.ttft_s), (one.tpot_s, other.tpot_s))
    return chances + OWN_SPREAD * sum(abs(math.log(a / b)) for a, b in times if a > 0.0 and b > 0.0)


def _also_try(objective: Objective, answer: KeptPlan, other: KeptPlan) -> AlsoTry:
    worse = other.objective / answer.objective - 1.0
    said = ["predicted as good" if abs(worse) < _AS_GOOD else f"predicted {worse:.1%} {_MORE[objective]}"]
    for name, own_s, other_s in (("TTFT", answer.ttft_s, other.ttft_s), ("TPOT", answer.tpot_s, other.tpot_s)):
        if own_s > 0.0 and other_s > 0.0:
            said.append(f"P95 {name} {other_s * 1e3:.4g} ms instead of {own_s * 1e3:.4g} ms")
    if other.missed is not None and answer.missed is not None:
        said.append(f"{other.missed:.1%} chance to miss a target instead of {answer.missed:.1%}")
    return AlsoTry(
        summary=other.name,
        step_time_s=None,
        peak_memory_bytes=other.peak_memory_bytes,
        chance_out_of_memory=None,
        differs="; ".join(said),
        objective=other.objective,
        chance_missed=other.missed,
    )
