"""Plans to run one after another: an order that leaves the least regret after each trial, and what each outcome would tell.

The search finds plans that leave more and more memory free, those that ranking can't tell from the best, and the best of
meshes that lost. Which of them is really the fastest that starts is not known: memory has a shift that all runs on a cluster
share, every plan has something of its own in memory and time, and parts of a step have errors that plans share by how they
spend it (`ranking_noise`). The order is greedy over scenarios of these: each trial is the one that lowers most what the best
plan found so far is expected to take, among those that start well enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

import numpy as np

from meshwright.costmodels.model.memory_law import MemoryEvidence, MemoryLaw, MemoryOutcome, learned_law
from meshwright.solver.answer.layouts import ByGroup, Stagewise, Uniform
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, SearchStats, Status
from meshwright.solver.answer.stage import Stage
from meshwright.solver.control import OnProgress, Stop
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import evaluate_decision
from meshwright.solver.training.report.equals import RANKING_NOISE, Shares, shares_of
from meshwright.solver.training.report.plan_report import decided_plan
from meshwright.solver.training.search.aims import LeastStepTime
from meshwright.solver.training.search.best_first import Solved, decision_tables, search
from meshwright.solver.training.space.implementation import implementation_of

MOST_TRIALS = 8
MORE_RESERVES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.45)
"""Shares of memory that plans leave free beside the user's own reserve: the fastest of each is a candidate."""

SCENARIOS = 400

_STANDARD = NormalDist()


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan to run.

    chance_out_of_memory  before any other trial has run
    expected_regret       of the best plan found after this trial and those before it, over the best of all
    tells                 what each outcome would say of the others
    """

    plan: Plan
    chance_out_of_memory: float
    expected_regret: float
    tells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A plan that may be tried: its step, the median memory of its fullest device over what may be used, its parts' shares."""

    plan: Plan
    step_s: float
    fullness: float
    shares: Shares


def training_trials(request: TrainingRequest, plan: Plan, *, most: int, stop: Stop, progress: OnProgress) -> tuple[Trial, ...]:
    """Return at most ``most`` trials for the plan of a request, in the order in which to run them."""
    candidates = _candidates(request, plan, stop=stop, progress=progress)
    law, risk = law_of_memory(request), request.search.risk
    chances = [law.chance_to_exceed(each.fullness * law.scale, 1.0) for each in candidates]
    scenarios = list(_scenarios(candidates, law, seed=request.search.seed))
    slowest = max(each.step_s for each in candidates)
    ideal = fmean(min([*(s for s in scenario if s is not None), slowest]) for scenario in scenarios)
    chosen: list[int] = []
    found = [slowest] * len(scenarios)
    trials: list[Trial] = []
    while len(chosen) < min(most, len(candidates)):
        left = [index for index in range(len(candidates)) if index not in chosen]
        safe = [index for index in left if chances[index] <= request.search.risk] or [
            min(left, key=lambda index: chances[index])
        ]
        taken = min(safe, key=lambda index: (fmean(_after(found, scenarios, index)), candidates[index].step_s, index))
        chosen.append(taken)
        found = list(_after(found, scenarios, taken))
        others = [candidates[index] for index in left if index != taken]
        trials.append(
            Trial(
                candidates[taken].plan,
                chances[taken],
                max(0.0, fmean(found) / ideal - 1.0),
                _tells(candidates[taken], others, law, risk),
            )
        )
    return tuple(trials)


def law_of_memory(request: TrainingRequest) -> MemoryLaw:
    """Return the law that the search keeps plans within, after the runs that the request knows of, around what is predicted."""
    # Predicted memory has the law's scale in it already.
    return replace(implementation_of(request.workload, request.search).memory, scale=1.0)


def _candidates(request: TrainingRequest, plan: Plan, *, stop: Stop, progress: OnProgress) -> list[_Candidate]:
    """The plan, and others of equal pipelines: the fastest that leave more memory, and the best of other meshes."""
    found: dict[tuple[object, ...], _Candidate] = {}
    _add(found, plan, request)
    costs = TrainingCosts(request)
    for more in MORE_RESERVES:
        reserve = request.cluster.memory_reserve + more
        if reserve >= 1.0 or stop():
            break
        tighter, reach = costs.with_memory_reserve(reserve), RANKING_NOISE.within
        result = search(tighter.request, tighter, aim=LeastStepTime(tighter), stop=stop, progress=progress, reach=reach)
        for solved in [result.best, *result.alternatives, *result.near]:
            if solved is not None:
                _add(found, _plan_of(solved, request, costs), request)
    return list(found.values())


def _plan_of(solved: Solved, request: TrainingRequest, costs: TrainingCosts) -> Plan:
    cost = evaluate_decision(solved.decision, decision_tables(solved.decision, costs))
    certificate = Certificate(Status.FEASIBLE, cost.step_time_s, None, None, "s", "a trial: other plans may be faster")
    stats = SearchStats(1, 1, 0.0)
    return decided_plan(request, costs, solved.decision, cost, certificate=certificate, stats=stats)


def _add(found: dict[tuple[object, ...], _Candidate], plan: Plan, request: TrainingRequest) -> None:
    """Add a plan unless a faster one of its kind is there."""
    predicted, breakdown = plan.predicted, placement_of(plan).breakdown
    assert predicted is not None and predicted.step_time_s is not None and breakdown is not None, "a feasible training plan"
    fullness = max(stage.memory.total_bytes / stage.memory.capacity_bytes for stage in _stages(plan))
    candidate = _Candidate(plan, predicted.step_time_s, fullness, shares_of(breakdown))
    key = (*_kind(plan), candidate.fullness * law_of_memory(request).margin(request.search.risk) <= 1.0)
    if key not in found or candidate.step_s < found[key].step_s:
        found[key] = candidate


def _stages(plan: Plan) -> tuple[Stage, ...]:
    """Return the stages of all pipelines of a training plan."""
    match plan.layout:
        case Uniform(pipelines) | Stagewise(pipelines):
            return pipelines.stages
        case ByGroup(groups):
            return tuple(stage for replicas in groups for stage in replicas.pipelines.stages)
        case _:
            raise AssertionError("a trial is a plan of stages")


def _kind(plan: Plan) -> tuple[object, ...]:
    """The choices by which plans differ enough for a trial: of plans that differ in less, the fastest stands for all."""
    if not isinstance(plan.layout, Uniform):
        return (plan.layout,)
    pipelines = plan.layout.pipelines
    recomputed = tuple(dict.fromkeys(stage.recompute for stage in pipelines.stages))
    return (pipelines.axes, pipelines.schedule, pipelines.microbatch, recomputed, pipelines.stages[0].zero_stage)


def _scenarios(candidates: Sequence[_Candidate], law: MemoryLaw, *, seed: int) -> Iterator[tuple[float | None, ...]]:
    """Yield the times of all plans in worlds that may be; None where a plan runs out of memory."""
    # Uniform doubles of PCG64 are the same bits on every machine.
    random = np.random.Generator(np.random.PCG64(seed))

    def drawn() -> float:
        return _STANDARD.inv_cdf(min(max(float(random.random()), 1e-12), 1.0 - 1e-12))

    for _ in range(SCENARIOS):
        shift = math.log(law.scale) + law.shared_sigma * drawn()
        of_parts = [drawn() for _ in candidates[0].shares]
        world: list[float | None] = []
        for each in candidates:
            memory = math.log(each.fullness) + shift + law.own_sigma * drawn()
            noise = RANKING_NOISE.error(each.shares, of_parts, drawn())
            world.append(None if memory > 0.0 else each.step_s * math.exp(noise))
        yield tuple(world)


def _after(found: Sequence[float], scenarios: Sequence[tuple[float | None, ...]], index: int) -> Iterator[float]:
    """The best found in each scenario after one more trial."""
    for best, scenario in zip(found, scenarios, strict=True):
        step_s = scenario[index]
        yield best if step_s is None else min(best, step_s)


def _tells(taken: _Candidate, others: Sequence[_Candidate], law: MemoryLaw, risk: float) -> tuple[str, ...]:
    """Sentences on what the outcomes of a trial would say of the others."""
    said = taken.fullness * law.scale
    peak = learned_law(law, [MemoryOutcome(MemoryEvidence.PEAK, said, said)], origin="")
    ran_out = learned_law(law, [MemoryOutcome(MemoryEvidence.RAN_OUT, said, 1.0)], origin="")
    safe = sum(each.fullness * law.scale * law.margin(risk) <= 1.0 for each in others)
    still = sum(each.fullness * ran_out.scale * ran_out.margin(risk) <= 1.0 for each in others)
    return (
        f"its peak tells the memory of the others to {peak.margin(risk) - 1:.0%} instead of {law.margin(risk) - 1:.0%}",
        f"if it runs out of memory, {still} of the other {len(others)} plans are still safe to try, {safe} are now",
    )
