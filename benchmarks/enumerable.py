"""Compares the search with exhaustive enumeration on thousands of random small requests.

Run from the root of the repository: python -m benchmarks.enumerable [first seed] [number of seeds]
With `objectives` as a third word, requests ask for the fewest devices, the least cost and the least energy instead.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace

from solver.control import ignore_progress, never_stop
from solver.request import Objective
from solver.training.planner import plan_training
from solver.verify import check
from tests.solver.training.instances import random_request
from tests.solver.training.test_exhaustive import every_fitting_step_time
from tests.solver.training.test_objectives import least_of_each, request_with, with_slo

TOLERANCE = 1e-9


def main(first: int = 0, count: int = 1000) -> int:
    """Prints how many requests agree, by the schedule of the best plan; 1 if one does not."""
    started_s = time.process_time()
    schedules: Counter[str] = Counter()
    wrong = []
    for seed in range(first, first + count):
        request = random_request(seed)
        best_s = min(every_fitting_step_time(request), default=None)
        plan = plan_training(request, stop=never_stop, progress=ignore_progress)
        found_s = plan.certificate.objective
        agrees = (found_s is None) == (best_s is None) and (
            best_s is None or found_s is None or abs(found_s - best_s) <= TOLERANCE * best_s
        )
        if not agrees or check(plan, request):
            wrong.append(seed)
        kind = "nothing fits" if plan.axes is None else f"{plan.schedule}{'' if plan.axes.pp > 1 else ' (no pipeline)'}"
        mixed = " on mixed devices" if len(request.cluster.groups) > 1 else ""
        schedules[kind + mixed] += 1
    print(f"{count - len(wrong)} of {count} agree with enumeration, {time.process_time() - started_s:.0f} CPU s")
    for kind, number in schedules.most_common():
        print(f"  {number:5} {kind}")
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
    sys.exit(compare_objectives(*given) if sys.argv[3:] == ["objectives"] else main(*given))
