"""The price of running the first time: what `search.risk` costs seventeen requests, and random requests against enumeration.

Run from the root of the repository: python -m benchmarks.risk [number of random requests] [requests | enumeration]
Each of the seventeen, those of examples/ and of benchmarks/presets.py, is solved at the default risk and at 0.5, where the
median alone decides as it did before there was a risk. Random requests are those of the full space, each at a risk drawn
with it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from benchmarks.presets import REQUESTS
from meshwright.app.base.solving import solve_here
from meshwright.app.requests.files import read_request
from meshwright.costmodels.model.memory_law import DEFAULT_RISK, MAX_RISK
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify.check import check
from tests.unit.solver.training.enumerated import enumerated, is_the_best
from tests.unit.solver.training.full_space import full_request

EXAMPLES = Path("examples")
MOST_LOST = 0.025
"""Predicted time that the seventeen may lose on average: an aim of this project."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A request's best plans at the default risk and at the median."""

    name: str
    safe: Plan
    bold: Plan

    @property
    def lost(self) -> float:
        """Share of the predicted step that the risk costs."""
        assert self.safe.certificate.objective is not None and self.bold.certificate.objective is not None
        return self.safe.certificate.objective / self.bold.certificate.objective - 1.0


def named_requests() -> Iterator[tuple[str, TrainingRequest]]:
    """Yield the training requests of examples/ and of the presets' table, each with the default risk."""
    for path in sorted(EXAMPLES.glob("**/*.yaml")):
        if "locked" in path.parts or "ci" in path.parts:
            continue
        request = read_request(str(path))
        if isinstance(request, TrainingRequest):
            yield path.stem, request
    yield from ((shared.name, shared.request(None)) for shared in REQUESTS)


def priced(name: str, request: TrainingRequest) -> Priced:
    """Solve a request at both risks."""
    safe, bold = (solve_here(replace(request, search=replace(request.search, risk=risk))) for risk in (DEFAULT_RISK, MAX_RISK))
    return Priced(name, safe, bold)


def above_quantile(plan: Plan, risk: float) -> bool:
    """Return True if a plan may run out of memory with more than the chance that was asked for."""
    return plan.predicted is not None and (plan.predicted.chance_out_of_memory or 0.0) > risk * (1 + 1e-9)


def price_requests() -> int:
    """Print what the risk costs each request; 1 if the mean is above the aim or a plan above its quantile."""
    print("| request | s a step at risk 0.05 | chance to run out | at risk 0.5 | chance | lost |\n|---|---|---|---|---|---|")
    found, above = [], []
    for name, request in named_requests():
        each = priced(name, request)
        found.append(each)
        if above_quantile(each.safe, DEFAULT_RISK) or check(each.safe, request):
            above.append(name)
        print(f"| {name} | {_cells(each.safe)} | {_cells(each.bold)} | {each.lost:.1%} |", flush=True)
    lost = [each.lost for each in found]
    mean = fmean(lost)
    print(f"\n{len(lost)} requests: {mean:.2%} lost on average, {median(lost):.2%} at the median, {max(lost):.1%} at most")
    print(f"{len(above)} plans above their quantile or refused by the checker", *above)
    return int(mean > MOST_LOST or bool(above))


def _cells(plan: Plan) -> str:
    assert plan.predicted is not None and plan.predicted.step_time_s is not None, "all seventeen have plans"
    assert plan.predicted.chance_out_of_memory is not None, "a training plan states its chance to run out of memory"
    return f"{plan.predicted.step_time_s:.4g} | {plan.predicted.chance_out_of_memory:.1%}"


def compare_with_enumeration(count: int) -> int:
    """Print how many random requests agree with enumeration, by risk; 1 if one does not."""
    agree, drawn, feasible, wrong = Counter[float](), Counter[float](), Counter[float](), []
    for seed in range(count):
        request = full_request(seed)
        risk = request.search.risk
        plan = plan_training(request, stop=never_stop, progress=ignore_progress)
        drawn[risk] += 1
        feasible[risk] += plan.feasible
        if is_the_best(plan, enumerated(request)) and not check(plan, request) and not above_quantile(plan, risk):
            agree[risk] += 1
        else:
            wrong.append(seed)
    print("\n| risk | requests | with a plan | agree with enumeration |\n|---|---|---|---|")
    for risk, number in sorted(drawn.items()):
        print(f"| {risk:g} | {number} | {feasible[risk]} | {agree[risk]} |")
    print(f"{agree.total()} of {count} agree", *(["wrong:", wrong] if wrong else []))
    return int(bool(wrong))


def main(count: int, parts: tuple[str, ...]) -> int:
    """Run the parts asked for; 1 if one of them fails."""
    failed = price_requests() if "requests" in parts else 0
    return max(failed, compare_with_enumeration(count) if "enumeration" in parts else 0)


if __name__ == "__main__":
    words = sys.argv[2:] or ["requests", "enumeration"]
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 300, tuple(words)))
