"""Compares the search of plans of two kinds of workers with exhaustive enumeration on random requests of up to 32 devices.

Run from the root of the repository: python -m benchmarks.mixed_enumerable [first seed] [number of seeds]
Requests, simulations and batch limits are those of benchmarks/serving_enumerable.py, workers that do both phases alone. Every
pair of layouts and numbers of replicas is looked at; what a replica sustains is found by simulating the rate grid from the top.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace

from benchmarks.serving_enumerable import random_request, shorten_simulations
from meshwright.solver.answer.layouts import Kinds
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving import plan_serving
from meshwright.solver.verify.check import check
from tests.unit.solver.serving.kinds_enumeration import best_of_two_kinds, better

TOLERANCE = 1e-9


def main(first: int = 0, count: int = 10) -> int:
    """Prints how many requests agree, by kind of answer; 1 if one does not."""
    shorten_simulations()
    answers: Counter[str] = Counter()
    wrong, began_s = 0, time.process_time()
    for seed in range(first, first + count):
        request = random_request(seed)
        search = replace(request.search, modes=(ServingMode.AGGREGATED,))
        single = _planned(replace(request, search=search))
        mixed = replace(request, search=replace(search, worker_kinds=2))
        plan = _planned(mixed)
        best = better(mixed, single.certificate.objective, best_of_two_kinds(mixed))
        found = plan.certificate.objective
        agrees = found == best or (found is not None and best is not None and abs(found - best) <= TOLERANCE * best)
        if not agrees or check(plan, mixed):
            wrong += 1
            print(f"wrong: seed {seed}, found {found}, best {best}", flush=True)
        answers["none" if not plan.feasible else "two kinds" if isinstance(plan.layout, Kinds) else "one kind"] += 1
    print(f"{count - wrong} of {count} agree with enumeration, {time.process_time() - began_s:.0f} CPU s: {dict(answers)}")
    return 1 if wrong else 0


def _planned(request: ServingRequest) -> Plan:
    return plan_serving(request, stop=never_stop, progress=ignore_progress)


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:3])))
