"""Training plans that also choose how many devices to use: the fewest that meet the SLO, the cheapest or the least energy;
and the frontier of plans that no other beats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from meshwright.costmodels.cluster.cluster import Cluster, Device, NodeGroup, part_of_node, price_per_hour
from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.plan import FrontierPoint
from meshwright.solver.answer.predicted import Certificate, RunnerUp, Status
from meshwright.solver.answer.timed_words import TimedFigure, TimedWords, step_seconds
from meshwright.solver.control import OnProgress, Stop
from meshwright.solver.problem.choices import FrontierScope, Objective
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import (
    DecisionCost,
    all_devices,
    evaluate_decision,
    step_energy_j,
)
from meshwright.solver.training.search.aims import Aim, LeastEnergy, LeastStepTime, aim_of
from meshwright.solver.training.search.best_first import SearchResult, Solved, decision_tables, search
from meshwright.solver.training.space.adapters import suits_nodes
from meshwright.solver.training.space.candidates import summary

SECONDS_PER_HOUR = 3600.0

UNITS = {Objective.DEVICES: "devices", Objective.COST: "USD per step", Objective.ENERGY: "J per step"}
"""The unit of each objective that chooses a part of the cluster."""

MAX_OTHER_SIZES = 2
"""Other sizes that are named as runners-up."""


@dataclass(frozen=True)
class TriedSize:
    """The search of one part of the cluster: its best plan and what that is worth, or why there is none of interest."""

    n_devices: int
    value: float
    best: Costed | None
    why_none: str

    def runner_up(self, winner: float, unit: str) -> RunnerUp:
        """Why this size was not chosen."""
        name = "1 device" if self.n_devices == 1 else f"{self.n_devices:,} devices"
        if self.best is None:
            return RunnerUp(name, None, self.why_none)
        step_s = self.best.solved.cost.step_time_s
        why = TimedWords(f"{self.value / winner - 1:.1%} more {unit} (", step_seconds(step_s, ".3g"), " s a step)")
        return RunnerUp(f"{name}: {summary(self.best.solved.decision.candidate)}", self.value, why)


@dataclass(frozen=True)
class SizedResult:
    """The best part of the cluster with its search, the certificate of the choice of size, and the other sizes' plans."""

    request: TrainingRequest
    costs: TrainingCosts
    result: SearchResult
    certificate: Certificate
    others: tuple[Costed, ...]
    runners_up: tuple[RunnerUp, ...]

    def revalued(self, rival: RunnerUp) -> RunnerUp:
        """A runner-up of this size's own search, in the unit of the objective."""
        return rival if rival.objective is None else replace(rival, objective=_value(self.request, rival.objective))


def require_whole_cluster(request: TrainingRequest, option: str) -> None:
    """Raise WorkloadError where an option of the search that goes with all devices meets an objective that chooses a part."""
    if request.objective in UNITS:
        raise WorkloadError(
            f"{option} goes with plans for the whole cluster",
            given=request.objective.value,
            allowed="throughput or step_time; the others choose how many devices to use themselves",
        )


def search_sizes(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> SizedResult | None:
    """The part of the cluster that is best by ``request.objective``; None when no part meets the SLO.

    Sizes are whole nodes from one upwards, and equal parts of one node, in the order of their devices; each is searched
    for plans within the SLO that are worth less than the best so far. Raises WorkloadError for a cluster of several node
    groups, or for the objective cost without a price.
    """
    if request.objective is Objective.COST:
        _require_price(request)
    best: tuple[TrainingRequest, TrainingCosts, SearchResult] | None = None
    best_value, proven = math.inf, True
    tried: list[TriedSize] = []
    for part in cluster_parts(request.cluster):
        if not suits_nodes(part, request.search):
            continue
        sized = replace(request, cluster=part)
        costs = TrainingCosts(sized)
        by_energy = request.objective is Objective.ENERGY
        limit = best_value if by_energy else min(request.longest_step_s, _step_limit_s(sized, best_value))
        aim = aim_of(costs)
        result = search(sized, costs, aim=aim, stop=stop, progress=progress, limit=limit)
        proven = proven and (result.complete or (result.bound is not None and result.bound > limit))
        found = result.best
        value = math.inf if found is None or found.value > limit else _value(sized, found.value)
        costed = None if found is None or math.isinf(value) else Costed(sized, costs, found)
        tried.append(TriedSize(part.n_devices, value, costed, _why_none(sized, result.bound, best_value)))
        if value < best_value:
            best_value, best = value, (sized, costs, result)
        if request.objective is Objective.DEVICES and best is not None:
            break
    if best is None:
        return None
    sized, costs, result = best
    lost = [size for size in tried if size.n_devices != sized.cluster.n_devices]
    unit = UNITS[request.objective]
    return SizedResult(
        sized,
        costs,
        result,
        _certificate(unit, best_value, proven=proven),
        others=tuple(size.best for size in lost if size.best is not None),
        runners_up=tuple(size.runner_up(best_value, unit) for size in _nearest(lost)),
    )


def _nearest(lost: list[TriedSize]) -> list[TriedSize]:
    """The sizes that came nearest: by what they are worth, then, where nothing met the SLO, the largest."""
    solved = sorted((size for size in lost if size.best is not None), key=lambda size: (size.value, size.n_devices))
    refused = sorted((size for size in lost if size.best is None), key=lambda size: -size.n_devices)
    return (solved + refused)[:MAX_OTHER_SIZES]


def _why_none(sized: TrainingRequest, bound: float | None, best_value: float) -> str:
    """Why a size has no plan of interest: ``bound`` is that of its search, ``best_value`` what other sizes are worth."""
    if bound is None or math.isinf(bound):
        return "nothing fits, or nothing that meets the SLO"
    if math.isinf(best_value):
        expected, promised = step_seconds(bound), step_seconds(bound, promised=True)
        confidence = f" s with slo.confidence {sized.slo.confidence:g}"
        return TimedWords("no plan meets the SLO: each takes ", expected, " s a step or more, up to ", promised, confidence)
    if sized.objective is Objective.DEVICES:
        return f"no plan is worth less than {sized.cluster.n_devices} {UNITS[sized.objective]}"
    # Dollars and joules of a step grow with its seconds.
    return TimedWords("no plan is worth less than ", TimedFigure(_value(sized, bound), ".4g"), f" {UNITS[sized.objective]}")


def cluster_parts(cluster: Cluster) -> Iterator[Cluster]:
    """1, 2, 4 ... devices of one node with their share of its network, then whole nodes one by one.

    Raises WorkloadError for a cluster of several groups: which of them to leave out is a question of its own.
    """
    if len(cluster.groups) != 1:
        raise WorkloadError(
            "choosing the number of devices needs a cluster of one node group",
            given=f"{len(cluster.groups)} groups",
            remedy="plan for each group by itself, or use the objective throughput",
        )
    group = cluster.groups[0]
    whole = group.node.devices_per_node
    for n in range(1, whole):
        if whole % n == 0:
            yield replace(cluster, groups=(NodeGroup(group.name, part_of_node(group.node, n), 1),))
    for nodes in range(1, group.nodes + 1):
        yield replace(cluster, groups=(replace(group, nodes=nodes),))


def _require_price(request: TrainingRequest) -> None:
    device = request.cluster.groups[0].node.device
    if device.price_per_hour is None:
        raise WorkloadError(
            "the objective cost needs a price of the device",
            given=device.name,
            remedy="describe the node inline with device.price_per_hour, or use the objective devices",
        )


def _value(sized: TrainingRequest, found: float) -> float:
    """Return the worth of a plan, in devices, USD a step or J a step; ``found`` is what the search of its size minimised."""
    if sized.objective is Objective.DEVICES:
        return float(sized.cluster.n_devices)
    if sized.objective is Objective.COST:
        return found * (sized.cluster.price_per_hour or 0.0) / SECONDS_PER_HOUR
    return found


def _step_limit_s(sized: TrainingRequest, best_value: float) -> float:
    """The longest step that is cheaper than the best so far."""
    a_second = _value(sized, 1.0)
    return best_value / a_second if sized.objective is Objective.COST and a_second else math.inf


def unproven(request: TrainingRequest, value: float) -> Certificate:
    """The certificate of a part of the cluster that was chosen among some plans only."""
    return _certificate(UNITS[request.objective], value, proven=False)


def _certificate(unit: str, value: float, *, proven: bool) -> Certificate:
    """A choice of size is proven when the search of every size before it was; otherwise only one device is certain."""
    bound = value if proven else (1.0 if unit == UNITS[Objective.DEVICES] else 0.0)
    return Certificate(
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        objective=value,
        bound=bound,
        gap=(value - bound) / value,
        unit=unit,
        space="equal parts of one node and whole nodes of the cluster, each with its own training space"
        + ("; of each candidate the stages that are fastest" if unit == UNITS[Objective.ENERGY] else ""),
    )


# A sweep for the frontier: for each number of devices the fastest plans by how much memory they leave, and the thriftiest.
#
# Each point is the proven best of its own search: fastest on so many devices among plans that leave that share of memory free,
# or least energy on so many devices. Cost follows from both. Between two shares, or two numbers of devices, may lie others.

RESERVE_STEP = 0.05
"""Shares of memory between two points of a sweep."""


def swept_plans(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> tuple[Costed, ...]:
    """Plans within the SLO for the frontier; none unless the request asks for a sweep. What is found before ``stop`` stays."""
    if request.search.frontier is not FrontierScope.SWEPT:
        return ()
    return tuple(
        found
        for part in swept_parts(request.cluster)
        if suits_nodes(part, request.search)
        for found in _of_part(replace(request, cluster=part), stop, progress)
    )


def swept_parts(cluster: Cluster) -> Iterator[Cluster]:
    """Parts of one, two, four ... devices or nodes, and the whole; of a cluster of several node groups the whole alone."""
    if len(cluster.groups) > 1:
        yield cluster
        return
    for part in cluster_parts(cluster):
        nodes, whole = part.groups[0].nodes, part.n_devices == cluster.n_devices
        if whole or nodes & (nodes - 1) == 0:
            yield part


def _of_part(request: TrainingRequest, stop: Stop, progress: OnProgress) -> Iterator[Costed]:
    """The plan of least energy, then the fastest plan, the fastest that leaves more memory, and so on."""
    costs = TrainingCosts(request)
    thrifty = _best(costs, LeastEnergy(request, costs, slowest_s=request.longest_step_s), math.inf, stop, progress)
    if thrifty is not None:
        yield Costed(request, costs, thrifty)
    reserve = request.cluster.memory_reserve
    while reserve < 1.0 and not stop():
        tighter = costs.with_memory_reserve(reserve)
        found = _best(tighter, LeastStepTime(tighter), request.longest_step_s, stop, progress)
        if found is None:
            return
        tables = decision_tables(found.decision, costs)
        solved = replace(found, cost=evaluate_decision(found.decision, tables))
        yield Costed(request, costs, solved)
        reserve = request.cluster.memory_reserve + RESERVE_STEP + _free_share(solved.cost, request)


def _best(costs: TrainingCosts, aim: Aim, limit: float, stop: Stop, progress: OnProgress) -> Solved | None:
    found = search(costs.request, costs, aim=aim, stop=stop, progress=progress, limit=limit).best
    return None if found is None or found.value > limit else found


def _free_share(cost: DecisionCost, request: TrainingRequest) -> float:
    """Share of the fullest device's memory that a plan leaves at the quantile asked for, beside what is reserved."""
    taken = max(stage.law.margin(request.search.risk) * stage.device_bytes / stage.usable_bytes for stage in cost.stages)
    return (1.0 - request.cluster.memory_reserve) * (1.0 - taken)


# The plans that no other beats in throughput, memory headroom, devices, cost and energy at once.

TIE = 1e-9
"""Figures closer than this, relatively, count as equal."""


@dataclass(frozen=True)
class Costed:
    """A plan with the request, its part of the cluster, that it was found for."""

    request: TrainingRequest
    costs: TrainingCosts
    solved: Solved


def headroom_bytes(cost: DecisionCost) -> float:
    """Return the memory that the fullest device has left, in bytes that its driver counts."""
    return max(0.0, min(stage.usable_bytes - stage.device_bytes for stage in cost.stages))


def frontier(best: Costed, others: Iterable[Costed]) -> tuple[FrontierPoint, ...]:
    """The best plan, and of the others those that no plan beats in every respect; fewest devices and fastest first."""
    first = _point(best)
    kept = [first]
    points = [_point(other) for other in others]
    for point in sorted(points, key=lambda p: (-p.tokens_per_s, p.devices, p.summary)):
        if not any(at_least_as_good(known, point) for known in kept):
            kept = [known for known in kept if known is first or not at_least_as_good(point, known)]
            kept.append(point)
    return tuple(sorted(kept, key=lambda p: (p.devices, -p.tokens_per_s, p.summary)))


def at_least_as_good(a: FrontierPoint, b: FrontierPoint) -> bool:
    """Return True if no figure of ``a`` is worse than that of ``b``."""
    return all(_at_most(mine, theirs) for mine, theirs in zip(_losses(a), _losses(b), strict=True))


def _losses(point: FrontierPoint) -> tuple[float, ...]:
    """Figures of which less is better. Those that are unknown are unknown of all plans of a request."""
    return (
        -point.tokens_per_s,
        -(point.memory_headroom_bytes or 0.0),
        float(point.devices),
        point.cost_per_million_tokens or 0.0,
        point.energy_per_step_j or 0.0,
    )


def _at_most(a: float, b: float) -> bool:
    return a <= b + TIE * abs(b)


def _point(costed: Costed) -> FrontierPoint:
    request, solved = costed.request, costed.solved
    workload, candidate = request.workload, solved.decision.candidate
    tables = decision_tables(solved.decision, costed.costs)
    tokens_per_s = workload.global_batch * workload.seq_len / solved.cost.step_time_s
    return FrontierPoint(
        summary=summary(candidate),
        devices=candidate.mesh.stage_devices * candidate.mesh.pp,
        tokens_per_s=tokens_per_s,
        peak_memory_bytes=solved.cost.peak_bytes,
        memory_headroom_bytes=headroom_bytes(solved.cost),
        cost_per_million_tokens=cost_per_million_tokens(all_devices(request.cluster), tokens_per_s),
        energy_per_step_j=step_energy_j(request.cluster, solved.decision, solved.cost, tables),
    )


def cost_per_million_tokens(devices: Iterable[tuple[Device, int]], tokens_per_s: float) -> float | None:
    """USD of so many devices of each kind; None where one has no price."""
    per_hour = price_per_hour(devices)
    return None if per_hour is None else per_hour / 3600.0 / tokens_per_s * 1e6
