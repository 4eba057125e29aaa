"""Compares the search with exhaustive enumeration on thousands of random small requests.

Run from the root of the repository: python -m benchmarks.enumerable [first seed] [number of seeds]
With `ablations` as a third word each request is searched again without each of its choices in turn; with `objectives` requests
ask for the fewest devices, the least cost and the least energy instead. With `solvers` operators are sharded by each solver,
with `frontiers` those of one family of candidates of each request: a tenth of the time.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from benchmarks.enumerable_traits import chosen, opened
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, Status
from meshwright.solver.blocks.sharding_problem import n_objectives
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, OperatorSolver, Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.space.candidates import Candidate, families
from meshwright.solver.verify.check import check
from tests.unit.solver.training.ablations import ablations
from tests.unit.solver.training.enumerated import TOLERANCE, enumerated, is_the_best
from tests.unit.solver.training.full_space import full_request
from tests.unit.solver.training.objectives import least_of_each, request_with, with_slo

SOLVER_LIMIT_S = 60.0
"""CPU seconds for a request by one solver. A program is solved for each point of a frontier: encoder-decoders have hundreds."""


def main(first: int = 0, count: int = 1000) -> int:
    """Prints how many requests agree, by the schedule of the best plan and by what is special about it; 1 if one does not."""
    started_s = time.process_time()
    schedules: Counter[str] = Counter()
    traits: Counter[str] = Counter()
    wrong, n_plans = [], 0.0
    for seed in range(first, first + count):
        request = full_request(seed)
        every = enumerated(request)
        n_plans += every.n_plans
        plan = plan_training(request, stop=never_stop, progress=ignore_progress)
        if not is_the_best(plan, every) or check(plan, request) or not _is_predicted(plan, request):
            wrong.append(seed)
            print(f"seed {seed} does not agree", flush=True)
        schedules[
            "nothing fits"
            if record_of(plan).axes is None
            else f"{record_of(plan).schedule}{'' if record_of(plan).axes.pp > 1 else ' (no pipeline)'}"
        ] += 1
        traits.update(opened(request))
        traits.update(chosen(plan))
    seconds = time.process_time() - started_s
    print(f"{count - len(wrong)} of {count} agree with enumeration of {n_plans:.3g} plans, {seconds:.0f} CPU s")
    for kind, number in (*schedules.most_common(), *sorted(traits.items())):
        print(f"  {number:5} {kind}")
    if wrong:
        print("wrong:", wrong)
    return 1 if wrong else 0


def _is_predicted(plan: Plan, request: TrainingRequest) -> bool:
    """Return True if a plan, given to the same cost models, has the figures that it was found with."""
    return not plan.feasible or predict_training(request, plan).predicted == plan.predicted


def compare_ablations(first: int, count: int) -> int:
    """Prints how many searches without one of their choices find no better plan; 1 if one finds a better."""
    started_s = time.process_time()
    wrong, worse, searched = [], Counter[str](), Counter[str]()
    for seed in range(first, first + count):
        request = full_request(seed)
        whole = plan_training(request, stop=never_stop, progress=ignore_progress).certificate.objective
        for name, search in ablations(request):
            asked = replace(request, search=search)
            plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
            less = plan.certificate.objective
            searched[name] += 1
            if (less is not None and (whole is None or less < whole * (1 - TOLERANCE))) or check(plan, asked):
                wrong.append((seed, name))
            worse[name] += whole is not None and (less is None or less > whole * (1 + TOLERANCE))
    seconds, tried = time.process_time() - started_s, searched.total()
    print(f"{tried - len(wrong)} of {tried} ablations of {count} requests are no better, {seconds:.0f} CPU s")
    for name, number in searched.most_common():
        print(f"  {worse[name]:5} of {number:4} worse without {name}")
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
            if not _is_same(expected, found) or check(plan, asked):
                wrong.append((seed, objective.value))
    print(f"{count} requests, {feasible} of them feasible: {count - len({seed for seed, _ in wrong})} agree by every objective")
    print(f"{time.process_time() - started_s:.0f} CPU s", *(["wrong:", wrong] if wrong else []))
    return 1 if wrong else 0


def compare_solvers(first: int, count: int) -> int:
    """Prints how many of the requests with operators to shard, in the free space, have one objective by each solver; 1 if one
    has not. What a solver does not end in `SOLVER_LIMIT_S` is not compared, and counted apart."""
    started_s = time.process_time()
    wrong, sharded, unfinished = [], Counter[OperatorSolver](), []
    for seed in range(first, first + count):
        request = full_request(seed)
        if request.search.tp == (1,):
            # Operators have one strategy each.
            continue
        request = replace(request, search=replace(request.search, space=Space.FREE))
        expected, _ = _plan_by(OperatorSolver.ELIMINATION, request)
        if not expected.operator_solvers:
            continue
        for solver in (OperatorSolver.ELIMINATION, OperatorSolver.ILP, OperatorSolver.CP_SAT):
            found, is_accepted = _plan_by(solver, request, limit_s=SOLVER_LIMIT_S)
            if found.status in (Status.FEASIBLE, Status.UNDECIDED):
                unfinished.append((seed, solver.value))
                continue
            sharded.update(found.operator_solvers)
            if not _is_same(expected.objective, found.objective) or not is_accepted or found.operator_solvers != (solver,):
                wrong.append((seed, solver.value))
    agreeing = {solver.value: number - sum(by == solver.value for _, by in wrong) for solver, number in sharded.items()}
    print(f"of {count} requests, with one objective by each solver: {agreeing}, {time.process_time() - started_s:.0f} CPU s")
    if unfinished:
        print(f"not ended in {SOLVER_LIMIT_S:g} CPU s:", unfinished)
    if wrong:
        print("wrong:", wrong)
    return 1 if wrong else 0


def compare_frontiers(first: int, count: int) -> int:
    """Prints of how many requests with operators to shard the blocks of one family of candidates have the same frontier by each
    solver; 1 if one has not. That is all of a plan that depends on the solver. What takes longer than `SOLVER_LIMIT_S` is
    counted apart."""
    started_s = time.process_time()
    wrong, sharded, unfinished = [], Counter[OperatorSolver](), []
    for seed in range(first, first + count):
        request = full_request(seed)
        request = replace(request, search=replace(request.search, space=Space.FREE))
        split = [family for family in families(request) if family.mesh.tp > 1]
        if not split:
            continue
        candidate = next(random.Random(seed).choice(split).candidates())
        expected = _frontiers_by(OperatorSolver.ELIMINATION, request, candidate)
        if not expected or max(map(len, expected)) == 1:
            continue
        sharded[OperatorSolver.ELIMINATION] += 1
        for solver in (OperatorSolver.ILP, OperatorSolver.CP_SAT):
            found = _frontiers_by(solver, request, candidate)
            if found is None:
                unfinished.append((seed, solver.value))
                continue
            sharded[solver] += 1
            same = [
                len(a) == len(b) and np.allclose(a, b, rtol=TOLERANCE, atol=0.0) for a, b in zip(expected, found, strict=True)
            ]
            if not all(same):
                wrong.append((seed, solver.value))
    agreeing = {solver.value: number - sum(by == solver.value for _, by in wrong) for solver, number in sharded.items()}
    print(f"of {count} requests, with one frontier by each solver: {agreeing}, {time.process_time() - started_s:.0f} CPU s")
    print(f"not ended in {SOLVER_LIMIT_S:g} CPU s:", unfinished, "wrong:", wrong)
    return 1 if wrong else 0


def _frontiers_by(
    solver: OperatorSolver, request: TrainingRequest, candidate: Candidate
) -> list[npt.NDArray[np.float64]] | None:
    """Of each block the costs of its undominated shardings by a solver, sorted; none where a dim does not divide, None where
    it takes too long."""
    costs = TrainingCosts(replace(request, search=replace(request.search, operator_solver=solver)))
    kinds, until_s = costs.stage_kinds(candidate), time.process_time() + SOLVER_LIMIT_S
    made: list[npt.NDArray[np.float64]] = []
    with costs.stopped_by(lambda: time.process_time() > until_s) as unit:
        deciding = n_objectives(candidate.recompute)
        setting = costs.settings(candidate, kinds[0])[0]
        for block, choices in zip(costs.block_names, costs.combinations_of(candidate, kinds).of_blocks, strict=False):
            rows = np.array([costs.block_cost(block, setting, choice)[:deciding] for choice in choices])
            rows = rows[np.lexsort(rows.T[::-1])]
            # Shardings of one cost count once: a solver may keep one of them or all.
            again = np.isclose(rows[1:], rows[:-1], rtol=TOLERANCE, atol=0.0).all(axis=1)
            made.append(rows[np.concatenate(([True], ~again))])
    return None if unit.was_stopped else made


def _plan_by(solver: OperatorSolver, request: TrainingRequest, *, limit_s: float = math.inf) -> tuple[Certificate, bool]:
    """The certificate of a request whose operators are sharded by a solver, and whether the checker accepts the plan."""
    asked = replace(request, search=replace(request.search, operator_solver=solver))
    until_s = time.process_time() + limit_s
    plan = plan_training(asked, stop=lambda: time.process_time() > until_s, progress=ignore_progress)
    return plan.certificate, not check(plan, asked)


def _is_same(expected: float | None, found: float | None) -> bool:
    """Return True if two objectives are equal within the tolerance, or there is none of either."""
    if expected is None or found is None:
        return found == expected
    return abs(found - expected) <= TOLERANCE * expected


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:3]]
    modes = {
        "objectives": compare_objectives,
        "ablations": compare_ablations,
        "solvers": compare_solvers,
        "frontiers": compare_frontiers,
    }
    sys.exit(modes[sys.argv[3]](*given) if sys.argv[3:] else main(*given))
