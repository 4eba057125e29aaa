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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup
from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.solver.answer.layouts import ByGroup, GroupReplicas, Pipelines
from meshwright.solver.answer.pipeline_plan import pipelines_of, placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, Predicted, RunnerUp, Status
from meshwright.solver.answer.stage import DeviceRange, Stage
from meshwright.solver.answer.timed_words import TimedWords, step_seconds
from meshwright.solver.control import OnProgress, Stop, ignore_progress, never_stop, part_of
from meshwright.solver.problem.choices import BatchShares, FrontierScope, Gradients, GroupOrder, Objective, Space
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import Slo, TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import compute_bound_s
from meshwright.solver.training.forms.uniform.prediction import judged, predict_pipelines
from meshwright.solver.training.report.bands import calibrations_used, plan_bands
from meshwright.solver.training.report.device_counts import (
    cost_per_million_tokens,
    require_whole_cluster,
)
from meshwright.solver.training.report.plan_report import (
    MAX_RUNNERS_UP,
    feasible_plan,
    instead_of,
    slo_reason,
    still_open,
    widened,
)
from meshwright.solver.training.search.best_first import RELATIVE_TIE, SearchResult, search
from meshwright.solver.training.search.partition import ParameterLimit

# Plans whose node groups have replicas of their own: taken apart into a plan for each group, and put together again.
#
# Replicas on unequal devices need not be alike: each group's run their own pipelines over their
# share of the batch, and gradients are exchanged layer by layer between whatever devices hold a
# layer (Oobleck, Jang et al., SOSP'23, section 4.1.2, for pipelines of different lengths; shares of
# the batch as in Metis, Um et al., ATC'24, section 3.4).


@dataclass(frozen=True)
class GroupPart:
    """The pipelines of one node group's replicas, ranks from 0, and the request that they answer."""

    pipelines: Pipelines
    request: TrainingRequest


def check_groups(request: TrainingRequest, layout: ByGroup) -> None:
    """Raise PlanFileError unless the plan has replicas for each node group, whose shares make up the batch."""
    own = [group.name for group in request.cluster.groups]
    named = [replicas.group for replicas in layout.groups[1:]]
    if named != own[1:]:
        raise PlanFileError(
            "the plan's pools are not the cluster's node groups behind the first, in order",
            given=", ".join(named),
            allowed=", ".join(own[1:]),
        )
    taken = [replicas.sequences for replicas in layout.groups]
    if min(taken) < 1 or sum(taken) != request.workload.global_batch:
        raise PlanFileError(
            "the pools' shares do not make up the global batch", given=taken, allowed=str(request.workload.global_batch)
        )


def pool_request(request: TrainingRequest, index: int, sequences: int) -> TrainingRequest:
    """Return the request for the replicas of one node group: their share of the batch on their own nodes."""
    before = sum(group.nodes for group in request.cluster.groups[:index])
    leaf = request.cluster.nodes_per_leaf
    return replace(
        request,
        cluster=replace(
            request.cluster,
            groups=(request.cluster.groups[index],),
            # Leaves are counted from the first node; a group that begins inside one is taken to have none.
            nodes_per_leaf=leaf if leaf is not None and before % leaf == 0 else None,
        ),
        workload=replace(request.workload, global_batch=sequences),
        slo=Slo(),
        objective=Objective.STEP_TIME,
        search=replace(
            request.search,
            batch_shares=BatchShares.EVEN,
            group_order=GroupOrder.GIVEN,
            idle_groups=(),
            frontier=FrontierScope.VISITED,
        ),
    )


def exchange_s(request: TrainingRequest, pools: Sequence[Sequence[Stage]]) -> float:
    """Time of summing gradients between pools, each of which is given by its stages.

    Every device of a stage has summed its part of the stage's gradients inside its pool, and all-reduces it with its
    counterparts; the pool with the longest such message decides, each device having its share of its node's network.
    """
    groups = request.cluster.groups
    return max(
        group_exchange_s(request, group, max(_stage_parameters(request.model, stage) / _devices(stage) for stage in stages))
        for group, stages in zip(groups, pools, strict=True)
    )


def least_exchange_s(request: TrainingRequest) -> float:
    """The same if every pool's devices had equal parts of all gradients: no layout has less."""
    parameters = request.model.parameters()
    return max(group_exchange_s(request, group, parameters / group.n_devices) for group in request.cluster.groups)


def group_exchange_s(request: TrainingRequest, group: NodeGroup, parameters: float) -> float:
    """Seconds of an all-reduce of so many parameters' gradients on each device of a group with one of each other group."""
    cluster, node = request.cluster, group.node
    link = GroupTopology(
        n=len(cluster.groups),
        ranks_per_node=1,
        intra=node.intra,
        inter_bytes_per_s=node.inter.bytes_per_s / node.devices_per_node / cluster.oversubscription,
        inter_latency_s=node.inter.latency_s,
        calibration=node.device.calibration,
        network=node.network,
    )
    return float(collective_s(Collective.ALL_REDUCE, parameters * request.workload.gradient_dtype.size_bytes, link))


def _stage_parameters(model: ModelGraph, stage: Stage) -> int:
    """Parameters of a stage's layers, whole; those of tied weights where their owner is."""
    return sum(span.count * model.block_parameters(span.block) for span in stage.blocks)


def _devices(stage: Stage) -> int:
    return sum(devices.count for devices in stage.devices)


def joined_plan(request: TrainingRequest, plans: Sequence[Plan]) -> Plan:
    """One plan of the pools' plans, first group first, with figures of the whole; all else is the first's."""
    workload = request.workload
    steps = [_step_s(plan) for plan in plans]
    gradients_s = exchange_s(request, [pipelines_of(plan).stages for plan in plans])
    step_s = max(steps) + gradients_s
    tokens_per_s = workload.global_batch * workload.seq_len / step_s
    devices = [(group.node.device, plan.devices) for group, plan in zip(request.cluster.groups, plans, strict=True)]
    peak = sum(number * device.peak(workload.precision) for device, number in devices)
    mfu = sum(
        _mfu(plan) * own_s * number * device.peak(workload.precision)
        for plan, own_s, (device, number) in zip(plans, steps, devices, strict=True)
    ) / (step_s * peak)
    first, placement = plans[0], placement_of(plans[0])
    breakdown = placement.breakdown
    assert breakdown is not None
    predicted = [plan.predicted for plan in plans if plan.predicted is not None]
    pipelines = pipelines_of(first)
    return replace(
        first,
        devices=sum(plan.devices for plan in plans),
        calibration=calibrations_used(request),
        predicted=Predicted(
            tokens_per_s=tokens_per_s,
            peak_memory_bytes=max(each.peak_memory_bytes for each in predicted),
            peak_memory_p95_bytes=max(each.peak_memory_p95_bytes or 0.0 for each in predicted),
            chance_out_of_memory=max(each.chance_out_of_memory or 0.0 for each in predicted),
            step_time_s=step_s,
            mfu=mfu,
            cost_per_million_tokens=cost_per_million_tokens(devices, tokens_per_s),
            energy_per_step_j=_energy_j(request.cluster, plans, step_s),
            bands=plan_bands(
                request,
                pipelines.axes,
                breakdown,
                [stage.time_s for stage in pipelines.stages],
                choices=pipelines,
                exchange_s=gradients_s,
                step_time_s=step_s,
                tokens_per_s=tokens_per_s,
                mfu=mfu,
            ),
        ),
        layout=ByGroup(
            groups=tuple(
                _replicas(plan, request.cluster.groups, place) if place else _first_replicas(plan)
                for place, plan in enumerate(plans)
            ),
            exchange_s=gradients_s,
            placement=replace(
                placement,
                breakdown=replace(
                    breakdown,
                    bubble_s=breakdown.bubble_s + max(steps) - steps[0],
                    dp_comm_s=breakdown.dp_comm_s + gradients_s,
                ),
            ),
        ),
        runners_up=(),
        frontier=(),
    )


def _energy_j(cluster: Cluster, plans: Sequence[Plan], step_s: float) -> float:
    """Energy of the pools' own steps, and idle power while they wait for the slowest and for gradients."""
    total = 0.0
    for plan, group in zip(plans, cluster.groups, strict=True):
        assert plan.predicted is not None and plan.predicted.energy_per_step_j is not None
        total += plan.predicted.energy_per_step_j
        total += plan.devices * group.node.device.idle_power_w * (step_s - _step_s(plan))
    return total


def _first_replicas(plan: Plan) -> GroupReplicas:
    # Documents do not name the first group: it is the cluster's.
    return GroupReplicas("", _sequences(plan), _step_s(plan), pipelines_of(plan))


def _replicas(plan: Plan, groups: Sequence[NodeGroup], place: int) -> GroupReplicas:
    """The replicas of a group that lies behind others, on its devices of the whole cluster."""
    pipelines, first = pipelines_of(plan), sum(each.n_devices for each in groups[:place])
    # Documents have no token slices of these replicas.
    moved = replace(pipelines, stages=tuple(_moved(stage, first) for stage in pipelines.stages), token_slices=())
    return GroupReplicas(groups[place].name, _sequences(plan), _step_s(plan), moved)


def parts_of(request: TrainingRequest, layout: ByGroup) -> tuple[GroupPart, ...]:
    """Each group's replicas by themselves, in order."""
    parts, first = [], 0
    for index, (replicas, group) in enumerate(zip(layout.groups, request.cluster.groups, strict=True)):
        stages = tuple(_moved(stage, -first) for stage in replicas.pipelines.stages)
        pipelines = replace(replicas.pipelines, stages=stages)
        parts.append(GroupPart(pipelines, pool_request(request, index, replicas.sequences)))
        first += group.n_devices
    return tuple(parts)


def _moved(stage: Stage, by: int) -> Stage:
    return replace(stage, devices=tuple(DeviceRange(devices.first + by, devices.count) for devices in stage.devices))


def _sequences(plan: Plan) -> int:
    pipelines = pipelines_of(plan)
    return pipelines.axes.dp * pipelines.microbatch.size * pipelines.microbatch.count


def _step_s(plan: Plan) -> float:
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    return plan.predicted.step_time_s


def _mfu(plan: Plan) -> float:
    assert plan.predicted is not None and plan.predicted.mfu is not None
    return plan.predicted.mfu


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


class ByGroupSearch:
    """Searches replicas by node group; what its pools have proven is known to a search that is begun again."""

    def __init__(self, request: TrainingRequest):
        self._request = request
        self._pools = [_Pool(request, index) for index in range(len(request.cluster.groups))]

    def __call__(self, given: Plan | None, *, stop: Stop, progress: OnProgress) -> Plan:
        """The better of ``given``, whose replicas share evenly, and the best plan with replicas by node group."""
        assert given is not None, "equal pipelines are searched first"
        for pool in self._pools:
            pool.stop, pool.progress = stop, progress
        return _best_by_group(self._request, self._pools, given)


def _best_by_group(request: TrainingRequest, pools: list[_Pool], given: Plan) -> Plan:
    workload = request.workload
    limit_s = min(request.longest_step_s, given.certificate.objective or math.inf)
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
        found = "takes" if proven else "was found that takes"
        why = TimedWords(f"no share of the batch {found} less than ", step_seconds(objective), " s")
        loser = RunnerUp("replicas by node group", None, why)
        return replace(best, certificate=certificate, runners_up=(loser, *best.runners_up)[:MAX_RUNNERS_UP])
    best = replace(best, certificate=certificate, notes=(*best.notes, *_notes(request, best)))
    return instead_of(given, best, "the same replicas over all node groups")


def _notes(request: TrainingRequest, plan: Plan) -> Iterator[str]:
    layout = plan.layout
    assert isinstance(layout, ByGroup)
    for group, replicas in zip(request.cluster.groups, layout.groups, strict=True):
        taken = f"{replicas.sequences} of {request.workload.global_batch} sequences"
        yield TimedWords(f"replicas on {group.name} take {taken}, ", step_seconds(replicas.step_time_s), " s")
    yield TimedWords(
        "axes, stages, shardings, microbatch and breakdown are those of the first group's replicas; gradients are summed "
        "between groups when the slowest is done, ",
        step_seconds(layout.exchange_s),
        " s, which nothing hides",
    )


@dataclass
class _Proof:
    """The proof of a pool's time for a number of sequences: at least ``bound_s``, and the best plan if that was found."""

    bound_s: float = 0.0
    result: SearchResult | None = None


class _Pool:
    """One node group's replicas: the optimum of its own search, for every share of the batch that was asked about, of all
    layouts or of those whose exchange of gradients takes less than ``below_s``. Its searches heed ``stop``."""

    def __init__(self, request: TrainingRequest, index: int):
        self._request, self._index = request, index
        self.stop: Stop = never_stop
        self.progress: OnProgress = ignore_progress
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
        if done or known.bound_s >= limit_s or self.stop():
            return known.bound_s
        costs = self._costs.with_batch(sequences)
        result = search(
            costs.request,
            costs,
            stop=part_of(self.stop, 0.5),
            progress=self.progress,
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


# Predicts given plans whose node groups have replicas of their own.


def predict_by_group(request: TrainingRequest, layout: ByGroup) -> Plan:
    """Each group's replicas predicted by themselves, then the whole; infeasible, with the reason, where they exceed memory or
    the whole the SLO.

    Raises PlanFileError where they do not belong to the request.
    """
    check_groups(request, layout)
    plans = [predict_pipelines(part.request, part.pipelines, layout.placement) for part in parts_of(request, layout)]
    joined = joined_plan(request, plans)
    assert joined.predicted is not None and joined.predicted.step_time_s is not None
    step_s = joined.predicted.step_time_s
    certificate = Certificate(Status.FEASIBLE, step_s, None, None, "s", plans[0].certificate.space)
    reason = next((each.reason for each in plans if each.reason is not None), None) or slo_reason(request, step_s)
    return judged(replace(joined, feasible=True, certificate=certificate, reason=None), reason)
