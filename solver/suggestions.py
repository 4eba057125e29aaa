"""Changes of a request, each of which was solved: what would help where it has no plan, or make its plan better, with what each
reaches.

Whoever knows a kind of request lists its changes as ladders: changes of one thing, the smallest first. Of each ladder the first
that has a plan is suggested, or one that is better by `LEAST_GAIN`. Work is limited by counts, so the same request gets the
same suggestions on any machine.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, NodeType, part_of_node
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.hardware import node_types_by_name
from meshwright.solver.answer.cluster_time import in_model_time
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Suggestion
from meshwright.solver.control import Progress, Stop
from meshwright.solver.problem.choice import Form
from meshwright.solver.problem.request import Asked, PlanRequest
from meshwright.solver.problem.search import LEDGER, Search

# Changes that requests of any kind can have, and how they are put in words and in fields of the request document.

FEW = (1, 2, 3)
MORE_NODES = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)
"""Sizes of the first node group that are tried, over what it has, after a few nodes more."""

MOST_DEVICES = 1024
"""Devices that a small cluster is advised to grow to, at most: a larger one is another project, and its search takes long."""

MOST_LIFTED = 4
"""Restrictions that are lifted in turn, at most."""

DIGITS = 4
"""Significant digits of a target that is suggested."""


@dataclass(frozen=True, slots=True)
class RequestChange(Generic[Asked]):
    """A request with something changed: in words, and by fields of its document as JSON.

    ``part`` is the same request with a part of its space, which is searched before the whole is: its plan is one of the whole.
    ``is_met``: the search for a plan of the request has met one of the change.
    """

    words: str
    set: Mapping[str, str]
    request: Asked
    part: Asked | None = None
    is_met: bool = False


def beside(first: RequestChange[Asked], second: RequestChange[Asked]) -> RequestChange[Asked]:
    """Return both changes together; the second is one of the first's request."""
    return RequestChange(f"{first.words}, and {second.words}", {**first.set, **second.set}, second.request)


def searching(request: Asked, words: str, changes: Mapping[str, Any]) -> RequestChange[Asked]:
    """Return the request with other values of its search."""
    values = {f"search.{name}": json.dumps(value) for name, value in changes.items()}
    return RequestChange(words, values, replace(request, search=replace(request.search, **changes)))


def restrictions_lifted(request: Asked, forms: frozenset[Form]) -> list[Sequence[RequestChange[Asked]]]:
    """Return a ladder for each choice of plans of these forms that the request restricts to some of its values, where naming
    none allows all; at most MOST_LIFTED."""
    search, found = request.search, list[Sequence[RequestChange[Asked]]]()
    for name, entry in LEDGER.items():
        value = getattr(search, name)
        if entry.choice.forms & forms and isinstance(value, tuple) and value != entry.default:
            default = next(each.default for each in fields(Search) if each.name == name)
            found.append((searching(request, f"lift search.{name}", {name: default}),))
    return found[:MOST_LIFTED]


def more_devices(request: Asked, sizes: Iterable[int] = (), *, at_least: float = 0.0) -> tuple[RequestChange[Asked], ...]:
    """Return the ladder of the request on more devices of its first group, the fewest first: of these numbers if some are
    given, and of at least so many times what it has. Nodes are filled before others are opened."""
    cluster: Cluster = request.cluster
    first: NodeGroup = cluster.groups[0]
    whole: NodeType = whole_node(first.node)
    held: int = first.n_devices
    nodes: set[int] = {*(first.nodes + n for n in FEW), *(math.ceil(factor * first.nodes) for factor in MORE_NODES)}
    if whole is first.node:
        tried = set(sizes) or {n * whole.devices_per_node for n in nodes}
    else:
        tried = set(sizes) or {*(n * first.nodes for n in _filled(first)), *(n * whole.devices_per_node for n in nodes)}
    most = max(MORE_NODES[-1] * first.nodes * whole.devices_per_node, MOST_DEVICES)
    found = dict[int, RequestChange[Asked]]()
    for devices in sorted(size for size in tried if max(at_least * held, held + 1) <= size <= most):
        per_node = next((n for n in _filled(first) if n * first.nodes >= devices), whole.devices_per_node)
        group = replace(first, node=part_of_node(whole, per_node), nodes=max(first.nodes, math.ceil(devices / per_node)))
        if group.n_devices <= most:
            found[group.n_devices] = _on_group(request, group)
    return tuple(found.values())


def node_filled(request: Asked) -> tuple[RequestChange[Asked], ...]:
    """Return the ladder of the request on more devices of the nodes that its first group has."""
    first: NodeGroup = request.cluster.groups[0]
    return tuple(
        _on_group(request, replace(first, node=part_of_node(whole_node(first.node), devices))) for devices in _filled(first)
    )


def whole_node(node: NodeType) -> NodeType:
    """Return the catalogue's node that this one is a part of; the node itself where it is none."""
    whole = node_types_by_name().get(node.name)
    if whole is None or whole.device.name != node.device.name or whole.devices_per_node <= node.devices_per_node:
        return node
    scale = whole.devices_per_node / node.devices_per_node
    inter = replace(node.inter, bytes_per_s=node.inter.bytes_per_s * scale)
    return replace(node, devices_per_node=whole.devices_per_node, inter=inter, devices_per_host=whole.devices_per_host)


def _filled(group: NodeGroup) -> list[int]:
    """Devices that each node of a group may have instead: eighths of a whole node."""
    whole = whole_node(group.node).devices_per_node
    return sorted({size for part in range(1, 9) if (size := math.ceil(whole * part / 8)) > group.node.devices_per_node})


def _on_group(request: Asked, group: NodeGroup) -> RequestChange[Asked]:
    """The request with another first group, whose nodes have as many devices or more."""
    first: NodeGroup = request.cluster.groups[0]
    larger = replace(request, cluster=replace(request.cluster, groups=(group, *request.cluster.groups[1:])))
    name, per_node, before = group.node.name, group.node.devices_per_node, first.node.devices_per_node
    values = {"cluster.groups.0.nodes": json.dumps(group.nodes)} if group.nodes != first.nodes else {}
    if per_node == before:
        return RequestChange(f"{group.nodes} nodes of {name} instead of {first.nodes}", values, larger)
    values["cluster.groups.0.node.devices_per_node"] = json.dumps(per_node)
    values["cluster.groups.0.node.inter.bytes_per_s"] = json.dumps(group.node.inter.bytes_per_s)
    if group.node.devices_per_host != first.node.devices_per_host:
        values["cluster.groups.0.node.devices_per_host"] = json.dumps(group.node.devices_per_host)
    where = "one node" if group.nodes == 1 else f"{group.nodes} nodes"
    return RequestChange(f"{group.n_devices} devices of {where} of {name} instead of {first.n_devices}", values, larger)


def with_targets(request: Asked, targets: Mapping[str, float]) -> RequestChange[Asked]:
    """Return the request with other targets, by their names."""
    words = " and ".join(f"slo.{name}: {value:g}" for name, value in targets.items())
    values = {f"slo.{name}": json.dumps(value) for name, value in targets.items()}
    return RequestChange(words, values, replace(request, slo=replace(request.slo, **dict(targets))))


def rounded(value: float, *, up: bool, digits: int = DIGITS) -> float:
    """Return the value with few significant digits, never below it with ``up``, else never above."""
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return float(f"{(math.ceil(value / unit) if up else math.floor(value / unit)) * unit:.{digits}g}")


@dataclass(frozen=True, slots=True)
class AskBudget:
    """Times that searches may ask whether to stop: that of one change, those of one ladder, those of all ladders; and the
    suggestions with which no other ladder is begun, None where all are."""

    change: int
    ladder: int
    all: int
    enough: int | None = None


LEAST_GAIN = 0.01
"""The share of its objective that a change is to save of a request with a plan: less is lost in the noise of ranking."""

LEAST_SAID = 0.0005
"""Shares below it are 0.0% in words."""

TRAINING_WORK = AskBudget(change=16_000, ladder=28_000, all=48_000)
"""Once for each node of a search and part of one. Llama-3.1-70B takes 11,600 on three nodes of eight H100, and 13,800 on one of
eight A100 with the optimizer on the host."""

PART_WORK = 2_000
"""The same of a part of a training request's space, which is searched before the whole: Llama-3.1-405B with recomputed layers
takes 388 on twelve nodes of eight H100, 474 on sixteen."""

SERVING_WORK = AskBudget(change=60, ladder=90, all=300)
"""Once for each simulation, of ten thousand requests where it is not screened out; a simulation of many steps counts as several
(`solver.serving.promise.evaluation.STEPS_OF_A_LOOK`)."""

RESCUE_WORK = AskBudget(change=1_000, ladder=1_200, all=2_400, enough=3)
"""The same where a request has no plan: a search for one takes 400 to 900 of them. Three
suggestions are what 2,400 of them came to before searches ended with a plan that is good enough."""


DEVICE_MEMORY = "device_memory"
"""The constraint of a training request that lacks memory."""

WITHOUT_RECOMPUTING = 3 / 4
"""Time of a step over that of one whose layers run their forward pass twice: the backward pass has twice its products."""


class BoundedAsking:
    """A rule that ends a search when it was asked so often, or when the rule of the whole ends it.

    Of a search that tells it of its progress it also ends one that can meet no target any more, its bound above ``latest_s``,
    and one that has a plan within this share of its bound; where no bound is told, one that has decided everything, before it
    chooses among equals. Without ``within`` a search goes on to its best plan.
    """

    def __init__(self, stop: Stop, most: int, *, within: float | None = None, latest_s: float = math.inf):
        self._stop, self.left = stop, most
        self._within, self._latest_s, self._is_over = within, latest_s, False

    def __call__(self) -> bool:
        """Return True if the search is to stop now."""
        self.left -= 1
        return self._is_over or self.left < 0 or self._stop()

    def spend(self, work: float) -> None:
        """Count work that takes as long as so many looks."""
        self.left -= math.floor(work)

    def note(self, progress: Progress) -> None:
        """Take note of a moment of the search."""
        if self._is_over or self._within is None:
            return
        best, bound = progress.best, progress.bound
        is_last = progress.done >= progress.total
        is_near = best is not None and (is_last if bound is None else best <= bound * (1.0 + self._within))
        is_found = is_near and progress.incumbent is not None and progress.incumbent() is not None
        self._is_over = is_found or (bound is not None and bound > self._latest_s)


Solve = Callable[[PlanRequest, BoundedAsking], Plan]
"""What answers a changed request, and tells the rule that bounds its work of its progress."""


def solved_suggestions(
    ladders: Iterable[Iterable[RequestChange[Asked]]],
    solve: Solve,
    reached: Callable[[Plan], str],
    *,
    work: AskBudget,
    stop: Stop,
    better_than: Plan | None = None,
    within: float | None = None,
) -> tuple[Suggestion, ...]:
    """Return of each ladder the first change with a plan; ``reached`` says what a plan reaches. Changes that can't be planned
    at all, and those whose search ends undecided, are passed over, and where the request has a plan, ``better_than``, those
    whose plan is not better. A search ends with a plan ``within`` this share of its bound, None at the best."""

    def is_good(plan: Plan) -> bool:
        return gain_over(better_than, plan) >= (0.0 if better_than is None else LEAST_GAIN)

    def words(plan: Plan) -> str:
        return reached(plan) if better_than is None else f"{gain_over(better_than, plan):.1%} better: {reached(plan)}"

    found = _first_of_each(ladders, solve, is_good, work=work, stop=stop, within=within)
    return tuple(_suggestion(change, plan, words(plan)) for change, plan in itertools.islice(found, work.enough))


def surer_suggestions(
    own: Plan,
    surer: Sequence[RequestChange[Asked]],
    beside: Callable[[RequestChange[Asked]], Iterable[Sequence[RequestChange[Asked]]]],
    solve: Solve,
    reached: Callable[[Plan], str],
    *,
    work: AskBudget,
    stop: Stop,
) -> tuple[Suggestion, ...]:
    """Return what makes a tight plan surer: the first change of a ladder that has a plan, and of each ladder ``beside`` it the
    first whose plan is better than that one; where the ladder has none, the first of each beside its last change."""
    alone = next(iter(_first_of_each([surer], solve, lambda plan: gain_over(None, plan) == 0.0, work=work, stop=stop)), None)
    change, price = (surer[-1], None) if alone is None else alone

    def is_good(plan: Plan) -> bool:
        return gain_over(price, plan) >= (0.0 if price is None else LEAST_GAIN)

    def words(plan: Plan) -> str:
        gain = gain_over(own, plan)
        price = "as good" if abs(gain) < LEAST_SAID else f"{abs(gain):.1%} {'better' if gain > 0.0 else 'worse'}"
        return f"{price}: {reached(plan)}"

    others = _first_of_each(beside(change), solve, is_good, work=work, stop=stop)
    found = [*([] if alone is None else [alone]), *others]
    return tuple(_suggestion(change, plan, words(plan)) for change, plan in found)


def _suggestion(change: RequestChange[Asked], plan: Plan, words: str) -> Suggestion:
    assert plan.certificate.objective is not None, "a plan that was found"
    return Suggestion(change.words, change.set, words, plan.certificate.objective, plan.certificate.unit)


def _first_of_each(
    ladders: Iterable[Iterable[RequestChange[Asked]]],
    solve: Solve,
    is_good: Callable[[Plan], bool],
    *,
    work: AskBudget,
    stop: Stop,
    within: float | None = None,
) -> Iterator[tuple[RequestChange[Asked], Plan]]:
    """Yield of each ladder the first change whose plan is good, with that plan."""
    left = work.all
    for ladder in ladders:
        of_ladder = min(work.ladder, left)
        changes, known = _first_of_parts(ladder, solve, is_good, stop, within)
        for change in changes:
            if of_ladder <= 0 or stop():
                break
            counted = BoundedAsking(stop, min(work.change, of_ladder), within=within, latest_s=_latest_s(change.request))
            before = counted.left
            try:
                plan = solve(change.request, counted)
            except InvalidInputError:
                continue
            finally:
                taken = before - max(0, counted.left) + 1
                of_ladder, left = of_ladder - taken, left - taken
            if is_good(plan):
                known = (change, plan)
                break
        if known is not None:
            yield known


def _first_of_parts(
    ladder: Iterable[RequestChange[Asked]], solve: Solve, is_good: Callable[[Plan], bool], stop: Stop, within: float | None
) -> tuple[Iterable[RequestChange[Asked]], tuple[RequestChange[Asked], Plan] | None]:
    """Return the changes whose whole space is worth a search, and the last of them with a plan of its part if there is one.

    A part takes the least memory of its space, so what lacks memory there lacks it everywhere.
    """
    changes, late, left = list[RequestChange[Asked]](), list[RequestChange[Asked]](), iter(ladder)
    for change in left:
        if change.part is None:
            return itertools.chain(changes, (change,), left), None
        try:
            plan = solve(change.part, BoundedAsking(stop, PART_WORK, within=within))
        except InvalidInputError:
            changes.append(change)
            continue
        if is_good(plan):
            return [*changes, change], (change, plan)
        lacks_memory = plan.reason is not None and plan.reason.constraint == DEVICE_MEMORY
        if not lacks_memory:
            (late if _is_late(plan) else changes).append(change)
    # The largest of those that seem too small is tried where there are no others.
    return changes or late[-1:], None


def _is_late(plan: Plan) -> bool:
    """True where a part of a space, whose layers run their forward pass twice, is late, and would be without the second."""
    reason = plan.reason
    return reason is not None and reason.constraint.startswith("slo.") and reason.need * WITHOUT_RECOMPUTING > reason.have


def _latest_s(request: PlanRequest) -> float:
    """Seconds of a step, in the cost model's time, above which a training request has no plan; infinite of others."""
    return min(in_model_time(request).longest_steps_s.values(), default=math.inf)


def said_of_none(tried: Sequence[Plan], *, is_stopped: bool) -> str:
    """Return why no change is suggested, and what it would take; ``tried`` are the answers of those that were solved."""
    open_ones = sum(not plan.is_decided for plan in tried)
    if is_stopped:
        return f"a limit of the search ended it after {len(tried)} changes were tried: raise search.time_limit_s for advice"
    if open_ones:
        return (
            f"none of the {len(tried)} changes that were tried has a plan, {open_ones} of them undecided within the work that "
            "advice may take: ask for the change that you prefer as a request, whose search has no such limit"
        )
    return f"no single change helps ({len(tried)} were tried): change the load, the targets or the devices together"


def gain_over(own: Plan | None, other: Plan) -> float:
    """Return the share of a plan's objective that another saves: 0 for any plan over none, less for no plan or a worse one, or
    one whose objective is of another unit."""
    value = other.certificate.objective
    if not other.feasible or value is None:
        return -math.inf
    if own is None:
        return 0.0
    was = own.certificate.objective
    if was is None or own.certificate.unit != other.certificate.unit:
        return -math.inf
    return (was - value) / was
