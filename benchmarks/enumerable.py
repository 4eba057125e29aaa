"""Compares the search with exhaustive enumeration on thousands of random small requests.

Run from the root of the repository: python -m benchmarks.enumerable [first seed] [number of seeds]
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from solver.control import ignore_progress, never_stop
from solver.training.planner import plan_training
from solver.verify import check
from tests.solver.training.instances import random_request
from tests.solver.training.test_exhaustive import every_fitting_step_time

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


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
