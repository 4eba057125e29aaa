"""Replicas on unequal node groups: whole replicas on each, and as many sequences of the batch for each as is best.

A step takes the longest of the pools' own steps, and the all-reduce of gradients between them behind it. What a pool takes for
a number of sequences is the optimum of an ordinary search on its own nodes. Shares are tried in the order of a forecast;
the search of a pool ends as soon as its bound passes the best plan so far, and what it proved serves all shares with it. Whose
fastest layouts exchange more than the least are searched again for those that exchange less, until none can be better. Where
time is limited no search takes more than half of what is left, so that a share with plans of all pools comes early.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.layouts import ByGroup
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import RunnerUp, Status
from meshwright.solver.control import OnProgress, Stop, part_of
from meshwright.solver.problem.choices import BatchShares, Gradients, Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.compute_bound import compute_bound_s
from meshwright.solver.training.forms.by_group.parts import group_exchange_s, joined_plan, least_exchange_s, pool_request
from meshwright.solver.training.forms.joint_certificate import instead_of, still_open, widened
from meshwright.solver.training.report.device_counts import require_whole_cluster
from meshwright.solver.training.report.plan_report import feasible_plan
from meshwright.solver.training.report.runners_up import MAX_RUNNERS_UP
from meshwright.solver.training.report.slo import slo_limit_s
from meshwright.solver.training.search.best_first import search
from meshwright.solver.training.search.partition import ParameterLimit
from meshwright.solver.training.search.search_result import RELATIVE_TIE, SearchResult

MAX_PARTS = 64
"""Parts of the batch that are dealt out to pools, at most: shares are whole parts."""

MAX_POOLS = 3
"""Node groups with replicas of their own, at most."""

_ROUNDING = 1e-12
"""Share of a number of parameters to which the largest that keeps a limit is found."""


def refuse_by_group(request: TrainingRequest) -> None:
    """Raise WorkloadError where replicas by node group are asked for and can't be."""
    if request.search.batch_shares is BatchShares.EVEN:
        return
    if request.search.space is not Space.FREE:
        raise WorkloadError(
            "no launcher runs replicas that differ", given="search.batch_shares: by_group", allowed="with search.space: free"
        )
    require_whole_cluster(request, "search.batch_shares")
    search = request.search
    if len(search.optimizers) > 1 or Gradients.RELEASED in search.gradients or any(search.offload_gradients):
        raise WorkloadError(
            "replicas of all node groups have one optimizer, and keep gradients until all are summed",
            given={
                "optimizers": [*search.optimizers],
                "gradients": [*search.gradients],
                "offload_gradients": [*search.offload_gradients],
            },
            allowed="at most one of search.optimizers, gradients kept, and offload_gradients 0",
        )
    if len(request.cluster.groups) > MAX_POOLS:
        raise WorkloadError(
            "too many node groups with replicas of their own",
            given=len(request.cluster.groups),
            allowed=f"at most {MAX_POOLS} with search.batch_shares: by_group",
        )


def part_sequences(global_batch: int) -> int:
    """Sequences of one part: the fewest that make at most `MAX_PARTS` equal parts of the batch."""
    return next(n for n in range(1, global_batch + 1) if global_batch % n == 0 and global_batch // n <= MAX_PARTS)


def best_by_group(request: TrainingRequest, given: Plan | None, *, stop: Stop, progress: OnProgress) -> Plan:
    """The better of ``given``, whose replicas share evenly, and the best plan with replicas by node group."""
    assert given is not None, "equal pipelines are searched first"
    workload = request.workload
    limit_s = min(slo_limit_s(request), given.certificate.objective or math.inf)
    pools = [_Pool(request, index, stop, progress) for index in range(len(request.cluster.groups))]
    part = part_sequences(workload.global_batch)
    best, bound = given, math.inf
    for shares in _in_order(pools, workload.global_batch // part):
        sequences = [part * share for share in shares]
        found, bound_s = _best_of(request, pools, sequences, limit_s)
        if found is not None:
            best, limit_s = found
        bound = min(bound, bound_s)
    if best is given and not given.feasible:
        # Nothing but a bound at the limit decides against every share.
        return still_open(given) if given.is_decided and bound < limit_s * (1 - RELATIVE_TIE) else given
    return _certified(request, best, given, min(bound, given.certificate.bound or math.inf), part)


def _best_of(
    request: TrainingRequest, pools: list[_Pool], sequences: list[int], limit_s: float
) -> tuple[tuple[Plan, float] | None, float]:
    """The best plan of these shares with its step time, if that is less than ``limit_s``, and a bound on all of them.

    The fastest layouts are joined first, then the fastest of those whose gradients take less to exchange, and so on.
    """
    best, bound = None, math.inf
    least_s, exchange_s = least_exchange_s(request), math.inf
    while least_s < exchange_s:
        lowest_s = _solve(pools, sequences, limit_s - least_s, below_s=exchange_s)
        plan = _joined(request, pools, sequences, below_s=exchange_s) if least_s + lowest_s < limit_s else None
        if plan is None:
            return best, min(bound, least_s + lowest_s)
        assert plan.predicted is not None and plan.predicted.step_time_s is not None
        assert isinstance(plan.layout, ByGroup)
        bound = min(bound, lowest_s + plan.layout.exchange_s)
        if plan.predicted.step_time_s < limit_s * (1 - RELATIVE_TIE):
            limit_s = plan.predicted.step_time_s
            best = plan, limit_s
        if plan.layout.exchange_s >= exchange_s:
            # A collective whose calibrated time falls where its bytes grow: what is not known is a gap.
            return best, min(bound, least_s + lowest_s)
        exchange_s = plan.layout.exchange_s
    return best, bound


def _certified(request: TrainingRequest, best: Plan, given: Plan, bound_s: float, part: int) -> Plan:
    """The best plan with a certificate of both kinds of plans, and the loser as a runner-up."""
    objective = None if best.predicted is None else best.predicted.step_time_s
    assert objective is not None
    # A search for plans over all groups that was stopped before it found one has proven nothing.
    bound_s = min(bound_s, objective) if given.is_decided else 0.0
    text = f"replicas by node group, free in each, shares of the batch in multiples of {part}"
    certificate = widened(given.certificate, objective, bound_s, by=text)
    if best is given:
        proven = certificate.status is Status.OPTIMAL
        why = f"no share of the batch {'takes' if proven else 'was found that takes'} less than {objective:.4g} s"
        loser = RunnerUp("replicas by node group", None, why)
        return replace(best, certificate=certificate, runners_up=(loser, *best.runners_up)[:MAX_RUNNERS_UP])
    best = replace(best, certificate=certificate, notes=(*best.notes, *_notes(request, best)))
    return instead_of(given, best, "the same replicas over all node groups")


def _notes(request: TrainingRequest, plan: Plan) -> Iterator[str]:
    layout = plan.layout
    assert isinstance(layout, ByGroup)
    for group, replicas in zip(request.cluster.groups, layout.groups, strict=True):
        taken = f"{replicas.sequences} of {request.workload.global_batch} sequences"
        yield f"replicas on {group.name} take {taken}, {replicas.step_time_s:.4g} s"
    yield (
        "axes, stages, shardings, microbatch and breakdown are those of the first group's replicas; gradients are summed "
        f"between groups when the slowest is done, {layout.exchange_s:.4g} s, which nothing hides"
    )


@dataclass
class _Proof:
    """The proof of a pool's time for a number of sequences: at least ``bound_s``, and the best plan if that was found."""

    bound_s: float = 0.0
    result: SearchResult | None = None


class _Pool:
    """One node group's replicas: the optimum of its own search, for every share of the batch that was asked about, of all
    layouts or of those whose exchange of gradients takes less than ``below_s``."""

    def __init__(self, request: TrainingRequest, index: int, stop: Stop, progress: OnProgress):
        self._request, self._index, self._stop, self._progress = request, index, stop, progress
        self._costs = TrainingCosts(pool_request(request, index, request.workload.global_batch))
        self._known: dict[tuple[int, float], _Proof] = {}
        parameters = {block.name: request.model.block_parameters(block.name) for block in request.model.blocks}
        self._parameters = np.array([parameters[name] for name in request.model.layers], np.float64)
        self._sequence_s = compute_bound_s(pool_request(request, index, 1))
        node, workload = request.cluster.groups[index], request.workload
        self.speed = node.n_devices * node.node.device.peak(workload.precision)

    def known_s(self, sequences: int, below_s: float) -> float:
        """Return the time of the pool that is proven so far."""
        return self._proof(sequences, below_s).bound_s

    def solve(self, sequences: int, limit_s: float, *, below_s: float) -> float:
        """The least time for so many sequences, or a lower bound that is at least ``limit_s``; less only when stopped."""
        known = self._proof(sequences, below_s)
        done = known.result is not None and known.result.best is not None
        if done or known.bound_s >= limit_s or self._stop():
            return known.bound_s
        costs = self._costs.with_batch(sequences)
        result = search(
            costs.request,
            costs,
            stop=part_of(self._stop, 0.5),
            progress=self._progress,
            limit=limit_s,
            holds=self._holds(below_s),
        )
        if result.best is not None:
            known.result = result
        # A search that ends without a plan has proven that there is none below its bound.
        known.bound_s = max(known.bound_s, math.inf if result.bound is None else result.bound)
        return known.bound_s

    def _holds(self, below_s: float) -> ParameterLimit | None:
        """The most parameters of a device whose exchange takes less than ``below_s``, up to rounding."""
        if math.isinf(below_s):
            return None
        group = self._request.cluster.groups[self._index]
        enough, too_many = 0.0, float(self._parameters.sum())
        if group_exchange_s(self._request, group, too_many) < below_s:
            return None
        while too_many - enough > _ROUNDING * too_many:
            middle = (enough + too_many) / 2.0
            if group_exchange_s(self._request, group, middle) < below_s:
                enough = middle
            else:
                too_many = middle
        return ParameterLimit(self._parameters, (1.0 - _ROUNDING) * enough)

    def _proof(self, sequences: int, below_s: float) -> _Proof:
        """Return the proof of a share: at first that no plan is faster than its FLOPs."""
        key = (sequences, below_s)
        if key not in self._known:
            self._known[key] = _Proof(bound_s=sequences * self._sequence_s)
        return self._known[key]

    def plan(self, sequences: int, below_s: float) -> Plan | None:
        """The best plan of a share, where its search has found one."""
        known = self._known.get((sequences, below_s))
        if known is None or known.result is None:
            return None
        costs = self._costs.with_batch(sequences)
        return feasible_plan(costs.request, costs, known.result)


def _joined(request: TrainingRequest, pools: list[_Pool], sequences: list[int], *, below_s: float) -> Plan | None:
    """The pools' best plans as one, where all have one."""
    found = [pool.plan(n, below_s) for pool, n in zip(pools, sequences, strict=True)]
    plans = [plan for plan in found if plan is not None]
    return joined_plan(request, plans) if len(plans) == len(pools) else None


def _solve(pools: list[_Pool], sequences: list[int], limit_s: float, *, below_s: float) -> float:
    """Lower bound on the longest of the pools' times with layouts whose exchange takes less than ``below_s``: exact where it
    is less than ``limit_s``; likely slowest first."""
    lowest_s = max(pool.known_s(n, below_s) for pool, n in zip(pools, sequences, strict=True))
    for pool, n in sorted(zip(pools, sequences, strict=True), key=lambda item: -item[1] / item[0].speed):
        if lowest_s >= limit_s:
            break
        lowest_s = max(lowest_s, pool.solve(n, limit_s, below_s=below_s))
    return lowest_s


def _in_order(pools: list[_Pool], parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to deal out the parts, at least one to each pool, those first whose slowest pool is fastest by peak FLOP/s."""
    ways = [
        tuple(b - a for a, b in itertools.pairwise((0, *cuts, parts)))
        for cuts in itertools.combinations(range(1, parts), len(pools) - 1)
    ]
    forecast = {way: max(share / pool.speed for share, pool in zip(way, pools, strict=True)) for way in ways}
    yield from sorted(ways, key=lambda way: (forecast[way], way))
