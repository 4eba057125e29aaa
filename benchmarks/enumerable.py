"""Compares the search with exhaustive enumeration on thousands of random small requests.

Run from the root of the repository: python -m benchmarks.enumerable [first seed] [number of seeds]
With `objectives` as a third word, requests ask for the fewest devices, the least cost and the least energy instead; with
`ablations` each is searched again without each of its choices in turn; with `memory` requests open what is closed unless asked
for (optimizers, released gradients, shares of all state on hosts and drives), and are searched again without each of these;
with `slices` their sequences may pass pipelines in token slices.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from solver.control import ignore_progress, never_stop
from solver.plan import Plan
from solver.request import Gradients, Objective, PlanRequest, Search
from solver.training.planner import plan_training
from solver.verify import check
from tests.solver.training.ablations import ablations, memory_ablations
from tests.solver.training.instances import memory_request, sliced_request, varied_request
from tests.solver.training.least_step import enumerated
from tests.solver.training.test_objectives import least_of_each, request_with, with_slo

TOLERANCE = 1e-9


def main(first: int = 0, count: int = 1000, *, draw: Callable[[int], PlanRequest] = varied_request) -> int:
    """Prints how many requests agree, by the schedule of the best plan; 1 if one does not."""
    started_s = time.process_time()
    schedules: Counter[str] = Counter()
    traits: Counter[str] = Counter()
    wrong, n_plans = [], 0
    for seed in range(first, first + count):
        request = draw(seed)
        every = enumerated(request)
        n_plans += every.n_plans
        plan = plan_training(request, stop=never_stop, progress=ignore_progress)
        found_s, best_s = plan.certificate.objective, every.least_s
        agrees = (found_s is None) == (best_s is None) and (
            best_s is None or found_s is None or abs(found_s - best_s) <= TOLERANCE * best_s
        )
        if not agrees or check(plan, request):
            wrong.append(seed)
        schedules[
            "nothing fits" if plan.axes is None else f"{plan.schedule}{'' if plan.axes.pp > 1 else ' (no pipeline)'}"
        ] += 1
        traits.update(_traits(plan, request))
    seconds = time.process_time() - started_s
    print(f"{count - len(wrong)} of {count} agree with enumeration of {n_plans} plans, {seconds:.0f} CPU s")
    for kind, number in (*schedules.most_common(), *traits.most_common()):
        print(f"  {number:5} {kind}")
    if wrong:
        print("wrong:", wrong)
    return 1 if wrong else 0


def _traits(plan: Plan, request: PlanRequest) -> Iterator[str]:
    """What is special about the best plan of a request."""
    if len(request.cluster.groups) > 1:
        yield "on mixed devices"
    if plan.axes is None:
        return
    axes, stages = plan.axes, plan.stages
    if any(degree & (degree - 1) for degree in (axes.dp, axes.tp, axes.pp, axes.cp, axes.ep)):
        yield "a degree that is no power of two"
    of_axes = {"cp": axes.cp, "exchanges of heads": axes.ulysses, "ep": axes.ep, "tp": axes.tp}
    yield from (f"with {name}" for name, degree in of_axes.items() if degree > 1)
    if plan.token_slices:
        yield f"in {len(plan.token_slices)} token slices"
    if axes.etp is not None:
        yield "whole experts beside tp"
    if plan.group_order:
        yield "another order of node groups"
    if any(stage.shard_ranks for stage in stages):
        yield "ZeRO-3 within groups"
    if any(stage.offload.optimizer for stage in stages):
        yield "optimizer states on the host"
    if any(stage.offload.activations for stage in stages):
        yield "activations on the host"
    if any(stage.offload.weights for stage in stages):
        yield "weights on the host or on drives"
    if any(stage.offload.gradients for stage in stages):
        yield "gradients on the host"
    if any(stage.offload.on_drives for stage in stages):
        yield "state on drives"
    if any(stage.gradients is Gradients.RELEASED for stage in stages):
        yield "gradients released"
    if plan.optimizer is not None:
        yield f"the optimizer {plan.optimizer.value}"


def compare_memory_choices(first: int, count: int) -> int:
    """Both comparisons, of enumeration and of ablations, on requests that open all memory choices; 1 if one is wrong."""
    wrong = main(first, count, draw=memory_request)
    return compare_ablations(first, count, draw=memory_request, without=memory_ablations) or wrong


def compare_ablations(
    first: int,
    count: int,
    *,
    draw: Callable[[int], PlanRequest] = varied_request,
    without: Callable[[PlanRequest], Iterable[tuple[str, Search]]] = ablations,
) -> int:
    """Prints how many searches without one of their choices find no better plan; 1 if one finds a better."""
    started_s = time.process_time()
    wrong, worse, tried = [], Counter[str](), 0
    for seed in range(first, first + count):
        request = draw(seed)
        whole = plan_training(request, stop=never_stop, progress=ignore_progress).certificate.objective
        for name, search in without(request):
            asked = replace(request, search=search)
            plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
            less = plan.certificate.objective
            tried += 1
            if (less is not None and (whole is None or less < whole * (1 - TOLERANCE))) or check(plan, asked):
                wrong.append((seed, name))
            worse[name] += whole is not None and (less is None or less > whole * (1 + TOLERANCE))
    seconds = time.process_time() - started_s
    print(f"{tried - len(wrong)} of {tried} ablations of {count} requests are no better, {seconds:.0f} CPU s")
    for name, number in worse.most_common():
        print(f"  {number:5} worse without {name}")
    if wrong:
        print("wrong:", wrong)
    return 1 if wrong else 0


def compare_objectives(first: int, count: int) -> int:
    """Prints how many requests have the least of each objective; 1 if one does not."""
    started_s = time.process_time()
    wrong, feasible = [], 0
    for seed in range(first, first + count):
        request = with_slo(request_with(seed, Objective.THROUGHPUT), seed)
        least = least_of_each(request)
        feasible += least[Objective.DEVICES] is not None
        for objective, expected in least.items():
            asked = replace(request, objective=objective)
            plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
            found = plan.certificate.objective
            same = found == expected if expected is None or found is None else abs(found - expected) <= TOLERANCE * expected
            if not same or check(plan, asked):
                wrong.append((seed, objective.value))
    print(f"{count} requests, {feasible} of them feasible: {count - len({seed for seed, _ in wrong})} agree by every objective")
    print(f"{time.process_time() - started_s:.0f} CPU s", *(["wrong:", wrong] if wrong else []))
    return 1 if wrong else 0


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:3]]
    modes = {"objectives": compare_objectives, "ablations": compare_ablations, "memory": compare_memory_choices}
    modes["slices"] = partial(main, draw=sliced_request)
    sys.exit(modes[sys.argv[3]](*given) if sys.argv[3:] else main(*given))
