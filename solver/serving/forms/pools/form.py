"""Prefill and decode pools, as a form of a serving plan: the search over them, and the plan that it makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush

import numpy as np

from meshwright.costmodels.errors import InfeasibleError, WorkloadError
from meshwright.costmodels.queueing.analytic.percentiles import most_running, rates_at
from meshwright.costmodels.queueing.load import Load
from meshwright.costmodels.queueing.simulation.disaggregated import DisaggregatedResult
from meshwright.costmodels.queueing.simulation.replica import LoadTimeline, timeline
from meshwright.solver.answer.layouts import Pools
from meshwright.solver.answer.plan import InteractivityPoint, Plan, PromptWorkers
from meshwright.solver.answer.predicted import Reason, RunnerUp, SearchStats
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.launchers.servers import CacheMoves
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals, PoissonArrivals
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import Layout, layouts, prefill_layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.forms.form import SHOWN, Asked, Earlier, Form, FormSearch, Misfit, beaten_of, floor_of
from meshwright.solver.serving.forms.pools.answer import (
    pools_certificate,
    pools_kept,
    pools_objective,
    pools_plan,
    pools_runner_up,
    predicted_certificate,
)
from meshwright.solver.serving.forms.pools.pools import (
    MeasuredPools,
    PhaseKind,
    PhaseWorkers,
    PlacedPools,
    PoolsSimulator,
    joined,
    phase_evaluator,
    placed,
)
from meshwright.solver.serving.forms.pools.search import Option, PoolsResult, PoolsSearch
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.certificates import energy_per_token_j, least_energy_per_token_j
from meshwright.solver.serving.promise.evaluation import Evaluator, SearchStoppedError
from meshwright.solver.serving.promise.promised import KeptPlan, promised_of
from meshwright.solver.serving.workers.answer import axes_of, leftover_notes
from meshwright.solver.serving.workers.given import candidate_of
from meshwright.solver.serving.workers.goodput import (
    RATE_GRID,
    SUSTAINED_STEPS,
    highest_kept,
    step_below,
    step_under,
    user_tokens_per_s,
)
from meshwright.solver.serving.workers.reasons import memory_shortfall, missed_figures
from meshwright.solver.serving.workers.simulation import INTERVALS, ServingSimulation, described

# The search over prefill and decode pools, and the plan that it makes.


# The pools that sustain the highest rate: prefill and decode workers on as many devices as there are.
#
# A rate is sustained when the promise is kept at it and at every lower rate of the grid, by both
# pools together, and by one worker of each phase at its share. So a rate that one worker misses
# bounds all pools it is part of, however large they are. Pools come by the rate that the analytic
# model expects of them; those that could beat the best are simulated only once a worker of each
# phase is known to keep its share of the next rate, simulated once for all pools and taken to hold
# for lower ones.

_Judge = Callable[[PoolsSearch, Option, Option, PoolsResult, int], MeasuredPools | None]
"""A function that measures two pools at a step of the rate grid that they are taken to keep; it returns None for other
steps."""


def largest_pools_goodput(search: PoolsSearch, *, above: float) -> PoolsResult:
    """The pools that sustain the highest load of the grid, if that is more than ``above`` and no less than was asked for.

    As for replicas: looked for first as if whatever is kept were sustained, and with the answer's own lower loads after.
    """
    workers = _OneWorker(search.prefill), _OneWorker(search.decode)
    result = _searched(search, workers, above, _kept)
    if result.stopped or result.best is None:
        return result
    try:
        if _is_sustained(search, result.best):
            return result
    except SearchStoppedError:
        result.stopped = True
        result.bound = math.inf
        return result
    return _searched(search, workers, above, _sustained)


@dataclass
class _OneWorker:
    """The steps of the rate grid that one worker of each engine of a phase keeps, as far as they are known.

    A step that one batch limit keeps is taken to be kept below too, and one that all miss refuses those above.
    """

    phase: PhaseWorkers
    _missed: dict[object, int] = field(default_factory=dict)
    _kept: dict[object, int] = field(default_factory=dict)

    @property
    def engines(self) -> list[Engine]:
        """Engines whose request alone meets the targets."""
        return [engine for engine in self.phase.engines if self.phase.usable(engine)]

    def ceiling(self, engine: Engine, workers: int) -> int:
        """The last step that so many workers together may keep."""
        if engine.key not in self._missed:
            evaluator = self.phase.evaluator
            bound = max(evaluator.rate_bound(candidate) for candidate in self.phase.usable(engine))
            self._missed[engine.key] = step_below(bound) + 1
        return step_under(workers * RATE_GRID ** self._missed[engine.key])

    def may_keep(self, engine: Engine, workers: int, step: int) -> bool:
        """Return True if one worker keeps its share of a step; simulated where it does not follow from what is known."""
        if self.ceiling(engine, workers) < step:
            return False
        each = step_below(RATE_GRID**step / workers)
        if each > self._kept.get(engine.key, each - 1):
            if not self.phase.keeps_any(engine, RATE_GRID**each):
                self._missed[engine.key] = each
                return False
            self._kept[engine.key] = each
        return True


def _searched(search: PoolsSearch, workers: tuple[_OneWorker, _OneWorker], above: float, judge: _Judge) -> PoolsResult:
    result = PoolsResult(bound=above)
    try:
        # Less than was asked for is no answer.
        lowest = step_under(search.question.load) + 1 if above == 0.0 else step_below(above) + 1
        for expected, prefill, decode in _splits(search, workers, lowest):
            next_step = lowest if result.best is None else step_below(result.best.load) + 1
            both = tuple(zip(workers, (prefill, decode), strict=True))
            if all(of.ceiling(option.engine, option.workers) >= next_step for of, option in both) and all(
                of.may_keep(option.engine, option.workers, next_step) for of, option in both
            ):
                ceiling = min(of.ceiling(option.engine, option.workers) for of, option in both)
                kept_at = partial(judge, search, prefill, decode, result)
                result.best = highest_kept(kept_at, next_step, min(expected, ceiling), ceiling) or result.best
        result.bound = above if result.best is None else result.best.load
    except SearchStoppedError:
        result.stopped = True
        result.bound = math.inf
    return result


def _splits(search: PoolsSearch, workers: tuple[_OneWorker, _OneWorker], lowest: int) -> Iterator[tuple[int, Option, Option]]:
    """Pools that use the cluster as far as it goes and that no bound keeps from a step, with the step that the analytic model
    expects of them; the highest first."""
    found = []
    rates = [{engine.key: of.phase.expected_rate(engine) for engine in of.engines} for of in workers]
    prefills, decodes = workers
    for p in prefills.engines:
        for p_workers in range(1, p.layout.most_replicas + 1):
            if prefills.ceiling(p, p_workers) < lowest:
                continue
            for d in decodes.engines:
                d_workers = _most_beside(p, p_workers, d) if joined(p.layout, d.layout, search.moves) else 0
                if d_workers and decodes.ceiling(d, d_workers) >= lowest:
                    expected = min(p_workers * rates[0][p.key], d_workers * rates[1][d.key])
                    step = step_below(expected) if expected > 0.0 else lowest
                    found.append(
                        (-expected, p.key, p_workers, d.key, step, Option(p, p_workers, 0.0), Option(d, d_workers, 0.0))
                    )
    for *_, step, prefill, decode in sorted(found, key=lambda entry: entry[:4]):
        yield step, prefill, decode


def _most_beside(p: Engine, p_workers: int, d: Engine) -> int:
    """The most decode workers that have room beside prefill workers."""
    most = d.layout.most_replicas
    if p.layout.group.name == d.layout.group.name:
        most = min(most, (p.layout.group.n_devices - p_workers * p.layout.devices) // d.layout.devices)
    return next((n for n in range(most, 0, -1) if placed(p.layout, p_workers, d.layout, n)), 0)


def _kept(search: PoolsSearch, prefill: Option, decode: Option, result: PoolsResult, step: int) -> MeasuredPools | None:
    return search.first_that_keeps([(prefill, decode)], RATE_GRID**step, result)


def _sustained(search: PoolsSearch, prefill: Option, decode: Option, result: PoolsResult, step: int) -> MeasuredPools | None:
    kept = _kept(search, prefill, decode, result, step)
    return kept if kept is not None and _is_sustained(search, kept) else None


def _is_sustained(search: PoolsSearch, kept: MeasuredPools) -> bool:
    """Return True if the pools with these batch limits, and each phase of them by itself, keep the promise at the lower rates
    of the grid too, down to half."""
    pools, step = kept.placed, step_below(kept.load)
    by_itself = search.prefill.sustains(pools.prefill, kept.load) and search.decode.sustains(pools.decode, kept.load)
    lower = (RATE_GRID ** (step - down) for down in range(1, SUSTAINED_STEPS + 1))
    return by_itself and all(search.simulator.measure(pools, load).keeps for load in lower)


# Pools of prefill and decode workers as points of throughput of a device against tokens per second of a user.
#
# They are rate-matched: decode workers' places never empty, and just so many prefill workers that
# they compute prompts as fast as these are answered. Of each decode worker and batch the numbers of
# workers that give most throughput a device are taken, any that the cluster has room for.


@dataclass(frozen=True, eq=False)
class _Worker:
    """A worker of a phase with its batch limits: requests that it serves a second, and output tokens/s of a user."""

    candidate: Candidate
    requests_per_s: float
    tokens_per_s_per_user: float = 0.0
    batch: float = 0.0

    @property
    def layout(self) -> Layout:
        """Its layout."""
        return self.candidate.engine.layout


def pools_points(
    evaluator: Evaluator, prefill: Sequence[Engine], decode: Sequence[Engine], load: Load, moves: CacheMoves | None
) -> Iterator[InteractivityPoint]:
    """Rate-matched pools: of workers alike in size those that serve most, to each user and batch."""
    prompts = _fastest([worker for engine in prefill for worker in _prompt_workers(evaluator, engine, load)])
    for answers in _undominated([worker for engine in decode for worker in _answer_workers(evaluator, engine, load)]):
        for computing in prompts:
            point = _matched(computing, answers, load) if joined(computing.layout, answers.layout, moves) else None
            if point is not None:
                yield point


def _prompt_workers(evaluator: Evaluator, engine: Engine, load: Load) -> Iterator[_Worker]:
    for candidate in {c.step_tokens: c for c in evaluator.candidates(engine)}.values():
        prompt_s = float(rates_at(engine.times, load, candidate.limits, np.ones(1)).prefill_s[0])
        yield _Worker(candidate, engine.layout.schedulers / prompt_s)


def _answer_workers(evaluator: Evaluator, engine: Engine, load: Load) -> Iterator[_Worker]:
    """Decode workers at every limit of sequences, with the smallest step that holds a token of each."""
    least = {c.sequences: c for c in sorted(evaluator.candidates(engine), key=lambda c: -c.step_tokens)}
    for candidate in least.values():
        size = float(most_running(load, candidate.limits))
        round_s = float(rates_at(engine.times, load, candidate.limits, np.array([size])).round_s[0])
        groups = engine.layout.schedulers
        yield _Worker(candidate, groups * size / ((load.output.mean - 1.0) * round_s), 1.0 / round_s, groups * size)


def _fastest(workers: list[_Worker]) -> list[_Worker]:
    """Of prefill workers on as many devices of a node group the fastest one."""
    best: dict[tuple[str, int], _Worker] = {}
    for worker in workers:
        key = (worker.layout.group.name, worker.layout.devices)
        if key not in best or worker.requests_per_s > best[key].requests_per_s:
            best[key] = worker
    return list(best.values())


def _undominated(workers: list[_Worker]) -> list[_Worker]:
    """Decode workers that no other on as many devices of the node group beats in requests and in tokens/s of a user."""
    kept: list[_Worker] = []
    fastest: dict[tuple[str, int], float] = {}
    for worker in sorted(workers, key=lambda w: (-w.requests_per_s, -w.tokens_per_s_per_user)):
        key = (worker.layout.group.name, worker.layout.devices)
        if worker.tokens_per_s_per_user > fastest.get(key, 0.0):
            fastest[key] = worker.tokens_per_s_per_user
            kept.append(worker)
    return kept


def _matched(prompts: _Worker, answers: _Worker, load: Load) -> InteractivityPoint | None:
    """The numbers of workers of most throughput a device; None where not even one decode worker can be kept busy."""
    p, d = prompts.layout, answers.layout
    decode = np.arange(1, d.most_replicas + 1)
    prefill = np.ceil(decode * answers.requests_per_s / prompts.requests_per_s * (1.0 - 1e-12)).astype(np.int64)
    devices = prefill * p.devices + decode * d.devices
    throughput = decode * answers.requests_per_s * load.output.mean / devices
    for index in np.argsort(-throughput, kind="stable"):
        workers, computing = int(decode[index]), int(prefill[index])
        if placed(p, computing, d, workers) is None:
            continue
        candidate, limits = answers.candidate, prompts.candidate
        return InteractivityPoint(
            summary=f"{computing} x {p.name} prefill + {workers} x {d.name} decode",
            group=d.group.name,
            axes=axes_of(d, 1),
            devices=int(devices[index]),
            batch=workers * answers.batch,
            max_num_seqs=candidate.sequences,
            max_num_batched_tokens=candidate.step_tokens,
            tokens_per_s_per_device=float(throughput[index]),
            tokens_per_s_per_user=answers.tokens_per_s_per_user,
            workers=workers,
            prefill=PromptWorkers(p.group.name, axes_of(p, 1), computing, limits.step_tokens),
        )
    return None


# The pools of prefill and decode workers that take the least energy for an output token.
#
# Workers of each phase come by their energy, as simulated by themselves, from below: a number of
# workers is simulated only once its bound is the least of what is left. Pools come by the sum of
# both, and are simulated together until one keeps the promise.


def least_energy_pools(search: PoolsSearch, *, below: float) -> PoolsResult:
    """The pools of least energy, if that is less than ``below``."""
    result = PoolsResult(bound=0.0)
    try:
        for energy_j, prefill, decode in _by_sum(_Workers(search.prefill), _Workers(search.decode)):
            if energy_j >= below:
                break
            result.bound = energy_j
            ranks = placed(*_place(prefill), *_place(decode))
            if ranks is None or not joined(_place(prefill)[0], _place(decode)[0], search.moves):
                continue
            result.considered += 1
            measured = search.simulator.measure(PlacedPools(prefill, decode, *ranks, energy_j), search.prefill.load)
            if measured.keeps:
                result.best = measured
                return result
            result.missed.append(measured)
        result.bound = below
    except SearchStoppedError:
        result.stopped = True
    return result


@dataclass
class _Workers:
    """Workers of a phase that keep its part of the promise, least energy first; found as they are asked for."""

    phase: PhaseWorkers

    def __post_init__(self) -> None:
        self._found: list[tuple[float, Measured]] = []
        self._rest = _by_energy(self.phase)

    def at(self, place: int) -> tuple[float, Measured] | None:
        """Those at a place; None beyond the last."""
        while len(self._found) <= place:
            following = next(self._rest, None)
            if following is None:
                return None
            self._found.append(following)
        return self._found[place]


def _by_energy(phase: PhaseWorkers) -> Iterator[tuple[float, Measured]]:
    """Every number of workers of every engine that keeps the phase's targets, by its energy."""
    ahead: list[tuple[float, int, tuple[object, ...], int, Engine, Measured | None]] = []
    for engine in phase.engines:
        for workers in range(1, engine.layout.most_replicas + 1):
            bound = _bound(phase, engine, workers)
            if bound < math.inf:
                ahead.append((bound, 0, engine.key, workers, engine, None))
    heapify(ahead)
    while ahead:
        energy_j, _, key, workers, engine, known = heappop(ahead)
        if known is not None:
            yield energy_j, known
            continue
        chosen = phase.choice(engine, workers)
        if chosen is not None:
            heappush(ahead, (phase.energy_per_token_j(chosen), 1, key, workers, engine, chosen))


def _bound(phase: PhaseWorkers, engine: Engine, workers: int) -> float:
    """Energy that no batch limits of so many workers are below; infinite where the load outruns them all."""
    share, evaluator = Share(phase.load, workers), phase.evaluator
    able = [candidate for candidate in phase.usable(engine) if evaluator.can_keep_up(candidate, share)]
    least = (least_energy_per_token_j(candidate, share, evaluator, output_tokens=phase.output_tokens) for candidate in able)
    return min(least, default=math.inf)


def _by_sum(prefill: _Workers, decode: _Workers) -> Iterator[tuple[float, Measured, Measured]]:
    """Workers of both phases by the sum of their energies, each phase looked at no further than sums ask for."""
    ahead: list[tuple[float, int, int]] = []

    def add(i: int, j: int) -> None:
        first, second = prefill.at(i), decode.at(j)
        if first is not None and second is not None:
            heappush(ahead, (first[0] + second[0], i, j))

    add(0, 0)
    while ahead:
        energy_j, i, j = heappop(ahead)
        first, second = prefill.at(i), decode.at(j)
        assert first is not None and second is not None, "both were found before"
        yield energy_j, first[1], second[1]
        add(i, j + 1)
        if j == 0:
            add(i + 1, 0)


def _place(workers: Measured) -> tuple[Layout, int]:
    return workers.candidate.engine.layout, workers.share.replicas


_WORTH_A_LOOK = 2.0
"""Plans of other forms are looked for up to so many times the cost of pools: runners-up, then."""


def search(asked: Asked) -> FormSearch | None:
    """Return the search over pools, None where the request does not allow them or no worker computes prompts."""
    if ServingMode.DISAGGREGATED not in asked.request.search.modes:
        return None
    prefill = _prefill_engines(asked)
    return SearchOfPools(asked, prefill) if prefill else None


def _prefill_engines(asked: Asked) -> list[Engine]:
    """Engines of prefill workers: those of all workers, and those whose ranks share prompts."""
    whole = {engine.key: engine for engine in _decode_engines(asked)}
    return [whole.get(layout.key) or asked.builder.engine(layout) for layout in prefill_layouts(asked.request)]


def _decode_engines(asked: Asked) -> list[Engine]:
    return [engine for engine in asked.question.engines if not engine.layout.repeats_answers]


class SearchOfPools(FormSearch):
    """Pools for one request: what was asked of them, and what was found."""

    def __init__(self, asked: Asked, prefill: list[Engine]):
        self._asked, self._request, self._evaluator = asked, asked.request, asked.question.evaluator
        self._prefill = prefill
        self._search = PoolsSearch(asked.request, asked.question, prefill_engines=prefill, stop=asked.stop)
        self._result = PoolsResult()

    @property
    def worth_a_look(self) -> float:
        """Return a multiple of the cost of the pools that the analytic model thinks cheapest."""
        if self._request.objective in (Objective.DEVICES, Objective.COST):
            return _WORTH_A_LOOK * self._search.incumbent_cost()
        return math.inf

    def search(self, earlier: Earlier) -> None:
        """Look for pools that are better than the best plan so far; of equals that one stays."""
        match self._request.objective:
            case Objective.THROUGHPUT:
                above = 0.0 if earlier.objective == math.inf else 1.0 / earlier.objective
                self._result = largest_pools_goodput(self._search, above=above)
            case Objective.ENERGY:
                self._result = least_energy_pools(self._search, below=earlier.objective)
            case _:
                self._result = self._search.cheapest(below=earlier.objective)
        self._evaluator.simulations += self._search.simulations

    @property
    def objective(self) -> float:
        """Return the objective of the best pools."""
        return math.inf if self._result.best is None else pools_objective(self._request, self._result.best)

    def kept(self) -> tuple[KeptPlan, ...]:
        """Return the best pools."""
        best = self._result.best
        if best is None or not self._asked.is_enough(best.load):
            return ()
        return (pools_kept(self._request, best),)

    @property
    def floor(self) -> float:
        """Return the bound of a stopped search: of goodputs, and below pools that were found, there is none."""
        if not self._result.stopped:
            return math.inf
        is_bounded = self._result.best is None and self._request.objective is not Objective.THROUGHPUT
        return self._result.bound if is_bounded else 0.0

    @property
    def is_undecided(self) -> bool:
        """Return True if the search was stopped."""
        return self._result.stopped

    @property
    def considered(self) -> int:
        """Return how many pools were looked at."""
        return self._result.considered

    def plan(self, others: Sequence[FormSearch], *, stats: SearchStats, notes: Sequence[str]) -> Plan | None:
        """The plan of the best pools."""
        best = self._result.best
        if best is None or not self._asked.is_enough(best.load):
            return None
        bound = 0.0 if self._result.stopped else min(self.objective, floor_of(others))
        plan = pools_plan(
            self._request,
            best,
            evaluator=self._evaluator,
            certificate=pools_certificate(self._request, best, bound=bound, space=self._asked.space),
            stats=stats,
            notes=(*notes, *leftover_notes(self._request, best.placed.devices)),
        )
        missed = [pools_runner_up(self._request, pools, "misses the targets") for pools in self._result.missed[-SHOWN:]]
        return replace(plan, runners_up=(*missed, *beaten_of(others, "is no better"))[:SHOWN])

    def beaten(self, why: str) -> tuple[RunnerUp, ...]:
        """Return the best pools."""
        best = self._result.best
        return () if best is None else (pools_runner_up(self._request, best, why),)

    def steady_points(self, load: Load) -> Iterator[InteractivityPoint]:
        """Yield rate-matched pools."""
        return pools_points(self._evaluator, self._prefill, _decode_engines(self._asked), load, self._search.moves)

    def user_tokens_per_s(self) -> float | None:
        """Return the tokens per second of a user of the best pools, whose batches wait for no prompts."""
        assert self._result.best is not None, "its plan is the answer"
        decode = self._result.best.placed.decode
        return user_tokens_per_s(decode, self._evaluator, phases=ServingMode.DISAGGREGATED)


# What is asked of the form.

# The cases in which prefill and decode pools are planned, and those in which they are refused.


def refuse(request: ServingRequest) -> None:
    """Refuse requests that ask for pools beside what they are not searched for. Raises WorkloadError."""
    if ServingMode.DISAGGREGATED not in request.search.modes:
        return
    arrivals = request.workload.arrivals
    if isinstance(arrivals, ClosedArrivals):
        raise WorkloadError(
            "clients in a closed loop are not simulated over prefill and decode pools",
            given=arrivals.process,
            allowed="poisson, gamma, trace; or search.modes [aggregated]",
        )
    if request.objective is Objective.THROUGHPUT and not isinstance(arrivals, PoissonArrivals):
        raise WorkloadError(
            "the goodput of prefill and decode pools is searched for Poisson arrivals only",
            given=arrivals.process,
            allowed="poisson; or search.modes [aggregated]; or another objective",
        )


def space(request: ServingRequest) -> str:
    """Return the words of a certificate on what the form adds to a request's space: none, its proof says it."""
    return ""


# A plan of two pools as it was given: predicted anew, or simulated.


def predict(request: ServingRequest, plan: Plan, layout: Pools) -> Plan | Misfit:
    """The plan's pools with every figure predicted anew; or the reason, when a pool does not fit in memory or
    a target is missed. Objective throughput: figures are at the plan's own rate, or at the request's where that is missed.

    Raises PlanFileError when the plan does not belong to the request.
    """
    given = GivenPools(request, layout)
    stats = SearchStats(candidates=1, evaluated=1, seconds=0.0)
    shortfall = given.memory_shortfall()
    if shortfall is not None:
        return Misfit(shortfall, stats)
    evaluator, loads = given.evaluator, [given.evaluator.traffic.load]
    if request.objective is Objective.THROUGHPUT and plan.predicted is not None:
        # Goodputs are rates of a grid; tokens per second have their rounding.
        claimed = RATE_GRID ** step_below(plan.predicted.tokens_per_s / evaluator.output.mean)
        loads.insert(0, max(loads[0], claimed))
    found = given.measured(loads[0])
    if not found.keeps and loads[-1] < loads[0]:
        found = given.measured(loads[-1])
    if not found.keeps:
        busy = max(found.placed.prefill.utilisation, found.placed.decode.utilisation)
        reason = missed_figures(evaluator.promised, ttft=found.ttft, tpot=found.tpot, utilisation=busy)
        return Misfit(reason, stats)
    certificate = predicted_certificate(request, found)
    return pools_plan(request, found, evaluator=evaluator, certificate=certificate, stats=stats, notes=())


class GivenPools:
    """The pools that a plan describes; raises PlanFileError when they are none of the request."""

    def __init__(self, request: ServingRequest, layout: Pools):
        self._request = request
        self.evaluator = Evaluator(request.workload, promised_of(request, pools=True), request.search.seed)
        self._phases = {kind: phase_evaluator(kind, request) for kind in PhaseKind}
        self._workers: dict[PhaseKind, tuple[Candidate, Share]] = {}
        self._firsts: dict[PhaseKind, int] = {}
        for kind, workers in ((PhaseKind.PREFILL, layout.prefill_workers), (PhaseKind.DECODE, layout.decode_workers)):
            among = prefill_layouts if kind is PhaseKind.PREFILL else layouts
            self._workers[kind] = candidate_of(request, workers, self._phases[kind], among=among)
            self._firsts[kind] = min(devices.first for devices in workers.device_ranges)

    def memory_shortfall(self) -> Reason | None:
        """Return the memory that a pool lacks to hold its longest request; None where both hold theirs."""
        for kind, (candidate, _) in self._workers.items():
            longest = self._phases[kind].longest_request
            if candidate.limits.kv_tokens < longest:
                limits = {"step_tokens": candidate.step_tokens, "sequences": candidate.sequences}
                return memory_shortfall(candidate.engine, **limits, tokens=longest)
        return None

    def measured(self, load: float) -> MeasuredPools:
        """Both pools simulated together under a load."""
        return PoolsSimulator(self._request.cluster, self.evaluator, self.evaluator.promised).measure(self._under(load), load)

    def simulated(self) -> DisaggregatedResult:
        """Both pools under the request's load, every request's times."""
        load = self.evaluator.traffic.load
        return PoolsSimulator(self._request.cluster, self.evaluator, self.evaluator.promised).run(self._under(load), load)

    def _under(self, load: float) -> PlacedPools:
        """The pools, each measured by itself under a load."""
        measured = [
            self._phases[kind].measure_fully(candidate, replace(share, load=load))
            for kind, (candidate, share) in self._workers.items()
        ]
        prefill, decode = measured
        output_tokens = self.evaluator.output.mean
        energy_j = sum(
            energy_per_token_j(found, self._phases[kind], output_tokens=output_tokens)
            for kind, found in ((PhaseKind.PREFILL, prefill), (PhaseKind.DECODE, decode))
        )
        return PlacedPools(prefill, decode, self._firsts[PhaseKind.PREFILL], self._firsts[PhaseKind.DECODE], energy_j)


# Two pools of a plan that was given, simulated together.


def simulate(request: ServingRequest, layout: Pools) -> ServingSimulation:
    """Both pools together. The timeline is of a mean decode worker: requests that wait are all those without a first token."""
    given = GivenPools(request, layout)
    shortfall = given.memory_shortfall()
    if shortfall is not None:
        raise InfeasibleError(f"the plan does not fit: {shortfall.message}")
    result = given.simulated()
    line, workers = timeline([result.whole], intervals=INTERVALS), len(result.decode)
    busy = timeline(result.decode, intervals=INTERVALS).busy
    per_worker = LoadTimeline(line.end_s, line.waiting / workers, line.decoding / workers, busy)
    return described(given.evaluator, result.whole, per_worker, alike=1)


FORM = Form("pools", Pools, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate)
