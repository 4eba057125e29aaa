"""Several kinds of workers, as a form of a serving plan: the search over them, and the plan that it makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.load import WeightedObservations, mixture_mean, mixture_percentile
from meshwright.solver.answer.layouts import Kinds, WorkerKind
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason, SearchStats
from meshwright.solver.problem.choices import FrontierScope, Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import PoissonArrivals, ScheduleArrivals
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import stage_width
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.forms.form import SHOWN, Asked, Earlier, Form, FormSearch, beaten_of, floor_of
from meshwright.solver.serving.forms.kinds.answer import (
    KindMeasured,
    first_ranks,
    given_kinds,
    kind_requests,
    kinds_objective,
    kinds_plan,
    predict,
    token_parts,
)
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.certificates import bounded_certificate, proof
from meshwright.solver.serving.promise.evaluation import SearchStoppedError
from meshwright.solver.serving.promise.question import Question, Refused, replica_count, usable_candidates
from meshwright.solver.serving.workers.answer import leftover_notes
from meshwright.solver.serving.workers.cheapest import Roomiest
from meshwright.solver.serving.workers.goodput import (
    LEAST_RATE_SHARE,
    RATE_GRID,
    Judge,
    expected_rate,
    is_sustained,
    keeping_at,
    replica_goodput,
    step_below,
    step_under,
    sustaining_at,
)
from meshwright.solver.serving.workers.reasons import why_infeasible
from meshwright.solver.serving.workers.simulation import (
    PROBABILITIES,
    SPREAD,
    Distribution,
    KindSimulation,
    ServingSimulation,
    described,
    missed_targets,
    simulated_replicas,
    whole_requests,
)

# The search over several kinds of workers, and the plan that it makes.


# The numbers of replicas of each layout on each node group, when a plan may have several kinds: an exact knapsack.
#
# On a node group kinds lie one after another, widest stages first, each from a multiple of its width, so that no stage leaves
# its node. A table over the group's devices, layout by layout, has the highest rate of so many kinds on so many devices; fronts
# of cost and rate of the groups are joined into that of the cluster.

_KNAPSACK_ROUNDING = 1e-12
"""Relative difference of two rates, or costs, that is rounding alone."""


@dataclass(frozen=True, slots=True)
class Item:
    """Replicas of a layout.

    place            in the list of layouts, which also settles ties
    group            node group
    devices, width   of a replica, and after how many of them it may start
    counts           allowed numbers of replicas, ascending
    rate             requests per second that each bears
    """

    place: int
    group: str
    devices: int
    width: int
    counts: tuple[int, ...]
    rate: float


@dataclass(frozen=True, slots=True)
class Room:
    """Devices of a node group, and what each costs."""

    devices: int
    unit_cost: float


@dataclass(frozen=True, slots=True)
class Mix:
    """Numbers of replicas by the places of their layouts, in the order in which they lie; the rate and cost of all."""

    parts: tuple[tuple[int, int], ...]
    rate: float
    cost: float


def fastest_mix(items: Sequence[Item], rooms: Mapping[str, Room], kinds: range) -> Mix | None:
    """The highest rate of so many kinds; of equal rates the cheapest, then fewest kinds. None where so many do not fit."""
    fronts = _cluster_fronts(items, rooms, kinds[-1], enough=math.inf)
    lasts = [fronts[k][-1] for k in kinds if fronts[k]]
    top = max((mix.rate for mix in lasts), default=0.0)
    equals = [mix for mix in lasts if mix.rate >= top * (1.0 - _KNAPSACK_ROUNDING)]
    return min(equals, key=lambda mix: (mix.cost, len(mix.parts), mix.parts), default=None)


def cheapest_mix(items: Sequence[Item], rooms: Mapping[str, Room], kinds: range, *, rate: float) -> Mix | None:
    """The least cost of so many kinds that bear a rate; of equal costs fewest kinds, then the highest rate. None
    where none bear it."""
    enough = rate * (1.0 - _KNAPSACK_ROUNDING)
    fronts = _cluster_fronts(items, rooms, kinds[-1], enough=enough)
    firsts = [next((mix for mix in fronts[k] if mix.rate >= enough), None) for k in kinds]
    found = [mix for mix in firsts if mix is not None]
    least = min((mix.cost for mix in found), default=0.0)
    equals = [mix for mix in found if mix.cost <= least * (1.0 + _KNAPSACK_ROUNDING)]
    return min(equals, key=lambda mix: (len(mix.parts), -mix.rate, mix.parts), default=None)


def _cluster_fronts(items: Sequence[Item], rooms: Mapping[str, Room], kinds: int, *, enough: float) -> list[list[Mix]]:
    """[kinds] mixes of exactly so many kinds that no other beats in cost and rate, by cost."""
    joined: list[list[Mix]] = [[Mix((), 0.0, 0.0)], *([] for _ in range(kinds))]
    for name, room in rooms.items():
        own = _group_fronts([item for item in items if item.group == name], room, kinds)
        joined = [
            _front([mix for k in range(total + 1) for mix in _joined(joined[k], own[total - k])], enough)
            for total in range(kinds + 1)
        ]
    return joined


def _joined(left: list[Mix], right: list[Mix]) -> list[Mix]:
    """All pairs of two fronts that no other pair of them beats."""
    if not left or not right:
        return []
    costs = np.add.outer([mix.cost for mix in left], [mix.cost for mix in right]).ravel()
    rates = np.add.outer([mix.rate for mix in left], [mix.rate for mix in right]).ravel()
    order = np.lexsort((-rates, costs))
    tops = np.maximum.accumulate(rates[order])
    kept = order[np.concatenate([[True], tops[1:] > tops[:-1]])]
    pairs = [divmod(int(at), len(right)) for at in kept]
    return [
        Mix((*left[a].parts, *right[b].parts), float(rates[at]), float(costs[at]))
        for at, (a, b) in zip(kept, pairs, strict=True)
    ]


def _front(mixes: list[Mix], enough: float) -> list[Mix]:
    """Mixes that no other beats in cost and rate, by cost, up to the first that bears enough."""
    kept: list[Mix] = []
    for mix in sorted(mixes, key=lambda mix: (mix.cost, -mix.rate, mix.parts)):
        if kept and kept[-1].rate >= enough:
            break
        if not kept or mix.rate > kept[-1].rate * (1.0 + _KNAPSACK_ROUNDING):
            kept.append(mix)
    return kept


def _group_fronts(items: Sequence[Item], room: Room, kinds: int) -> list[list[Mix]]:
    """[kinds] the fronts of one node group."""
    ordered = sorted(items, key=lambda item: (-item.width, item.place))
    best = np.full((kinds + 1, room.devices + 1), -math.inf)
    best[0, 0] = 0.0
    chosen = []
    for item in ordered:
        before, counts = best.copy(), np.zeros(best.shape, dtype=np.int64)
        for count in item.counts:
            if count * item.devices <= room.devices:
                _put(item, count, before, best, counts)
        chosen.append(counts)
    fronts: list[list[Mix]] = []
    for k in range(kinds + 1):
        reachable = np.flatnonzero(best[k] > -math.inf)
        mixes = [Mix(_parts(ordered, chosen, k, int(u)), float(best[k, u]), int(u) * room.unit_cost) for u in reachable]
        fronts.append(_front(mixes, math.inf))
    return fronts


def _put(
    item: Item, count: int, before: npt.NDArray[np.float64], best: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]
) -> None:
    """So many replicas behind whatever ends at a multiple of their width, where that is better."""
    taken = count * item.devices
    starts = np.arange(0, best.shape[1] - taken, item.width)
    with_it = before[:-1, starts] + count * item.rate
    better = with_it > best[1:, starts + taken] * (1.0 + _KNAPSACK_ROUNDING)
    for k, place in zip(*np.nonzero(better), strict=True):
        best[k + 1, starts[place] + taken] = with_it[k, place]
        counts[k + 1, starts[place] + taken] = count


def _parts(ordered: Sequence[Item], chosen: list[npt.NDArray[np.int64]], kinds: int, end: int) -> tuple[tuple[int, int], ...]:
    """The replicas behind an entry of the table, in the order in which they lie."""
    parts: list[tuple[int, int]] = []
    for item, counts in zip(reversed(ordered), reversed(chosen), strict=True):
        count = int(counts[kinds, end])
        if count:
            parts.append((item.place, count))
            kinds, end = kinds - 1, end - count * item.devices
    return tuple(reversed(parts))


# Plans of several kinds of workers: which layouts, how many replicas of each, and which share of the arrivals each takes.
#
# A mix keeps the promise when every kind keeps it by itself at its share: then at most 5% of any
# kind's requests are late, and so of all. Requests are drawn at random by share, so that each
# replica sees Poisson arrivals, and one replica's sustained rate, on the rate grid, says what any
# number of them bears. The best mix is then a knapsack, solved exactly. Rates are found only where
# they matter: a knapsack over what bounds and simulations leave each layout picks those to look at,
# each of them at the step at which its mix would just beat the best so far, until the mix that it
# picks is known.

_GUESSES = 8
"""Mixes that are looked at because the analytic model expects most of them, before bounds lead the search."""

_DOUBT = 1.1
"""Ratio of a rate that is taken to be missed to the one that the analytic model expects, which knows it to a tenth."""

_ROUNDING = 1e-9
"""Relative difference of two objectives that is rounding alone."""


@dataclass(frozen=True, eq=False)
class KindFound:
    """Replicas of one kind under their load, as simulated by themselves, and the share of the arrivals that they take."""

    measured: Measured
    share: float


@dataclass
class MixResult:
    """The best mix if it beats what was asked, the proven bound of the objective over all mixes, and how many batch limits
    were in the space. ``stopped``: the caller ended the search first."""

    best: Mix | None = None
    bound: float = math.inf
    considered: int = 0
    stopped: bool = False


class MixSearch:
    """Searches mixes of workers for one question."""

    def __init__(self, request: ServingRequest, question: Question):
        self._request, self._question = request, question
        self._goodput = request.objective is Objective.THROUGHPUT
        prices = {group.name: group.node.device.price_per_hour or 0.0 for group in request.cluster.groups}
        by_money = request.objective is Objective.COST
        self._rooms = {g.name: Room(g.n_devices, prices[g.name] if by_money else 1.0) for g in request.cluster.groups}
        self._rates = [_ReplicaRate(question, engine) for engine in question.engines]

    def search(self, *, below: float) -> MixResult:
        """The mix of least objective (seconds a request of a goodput, devices, or USD/h) that is less than ``below``; of a
        goodput by a step of the rate grid, which is all that tells goodputs of one kind apart."""
        whole, below = below, self._threshold(below)
        result = MixResult(considered=sum(len(rate.usable) for rate in self._rates))
        try:
            for _ in range(_GUESSES):
                mix = self._optimum(lambda rate: rate.expected)
                if mix is None or self._is_known(mix):
                    break
                for place, _ in mix.parts:
                    if not self._rates[place].is_known:
                        self._rates[place].find()
            if mix is not None and self._is_confirmed(mix) and self.objective(mix) < below * (1.0 - _ROUNDING):
                result.best, below = mix, self.objective(mix)
            while (mix := self._optimum(lambda rate: rate.at_most)) is not None:
                if self.objective(mix) >= below * (1.0 - _ROUNDING):
                    break
                if not self._is_known(mix):
                    place, replicas = max(mix.parts, key=self._hope)
                    per_device = self._known_per_device(self._rates[place].engine)
                    self._rates[place].look(self._needed_step(mix, place, replicas, below), per_device=per_device)
                elif self._is_confirmed(mix):
                    result.best, below = mix, self.objective(mix)
                    break
        except SearchStoppedError:
            result.stopped = True
            mix = self._optimum(lambda rate: rate.at_most)
        beaten = result.best is not None or result.stopped
        result.bound = self.objective(mix) if beaten and mix is not None else math.inf
        result.bound = min(whole, result.bound)
        return result

    def _threshold(self, objective: float) -> float:
        """Return the value that an objective must be less than to be better than a plan of one kind."""
        if not self._goodput or objective == math.inf:
            return objective
        return 1.0 / RATE_GRID ** (step_below(1.0 / objective) + 1) * (1.0 + 2.0 * _ROUNDING)

    def settled(self, result: MixResult, *, below: float) -> tuple[KindFound, ...]:
        """The kinds of the best mix under their loads, each with its roomiest batch limits; empty where none beats ``below``.

        A kind that misses at its share of the load, which need not be on the rate grid, gives up a step of its rate, and the
        best mix is looked for again.
        """
        below = self._threshold(below)
        while result.best is not None and self.objective(result.best) < below * (1.0 - _ROUNDING):
            kinds = [self._kind(result.best, *part) for part in result.best.parts]
            found = tuple(kind for kind in kinds if kind is not None)
            if len(found) == len(kinds):
                return found
            for (place, _), kind in zip(result.best.parts, kinds, strict=True):
                if kind is None:
                    self._rates[place].give_up_a_step()
            result.best = self._optimum(lambda rate: rate.known)
        result.best = None
        return ()

    def objective(self, mix: Mix) -> float:
        """The figure that the request's objective minimises."""
        return 1.0 / mix.rate if self._goodput else mix.cost

    def engine(self, place: int) -> Engine:
        """The engine at a place of the list."""
        return self._rates[place].engine

    def _optimum(self, rate_of: Callable[[_ReplicaRate], float]) -> Mix | None:
        items = []
        for place, rate in enumerate(self._rates):
            layout, each = rate.engine.layout, rate_of(rate)
            counts = tuple(self._question.counts(rate.engine, 1, layout.most_replicas))
            if counts and each > 0.0:
                items.append(Item(place, layout.group.name, layout.devices, stage_width(layout), counts, each))
        kinds = range(2, self._request.search.worker_kinds + 1)
        if self._goodput:
            return fastest_mix(items, self._rooms, kinds)
        return cheapest_mix(items, self._rooms, kinds, rate=self._question.load)

    def _is_known(self, mix: Mix) -> bool:
        return all(self._rates[place].is_known for place, _ in mix.parts)

    def _is_confirmed(self, mix: Mix) -> bool:
        """Return True if all rates of a mix are known and sustained."""
        confirmed = [self._rates[place].confirm() for place, _ in mix.parts] if self._is_known(mix) else [False]
        return all(confirmed)

    def _hope(self, part: tuple[int, int]) -> float:
        """Return the excess of the rate that replicas are taken to bear over the expected one; negative where their rate is
        known."""
        rate = self._rates[part[0]]
        return -1.0 if rate.is_known else part[1] * (rate.at_most - rate.expected)

    def _known_per_device(self, engine: Engine) -> float:
        """The highest known rate of a device in an engine's node group."""
        here = [rate for rate in self._rates if rate.engine.layout.group.name == engine.layout.group.name]
        return max((rate.known / rate.engine.layout.devices for rate in here), default=0.0)

    def _needed_step(self, mix: Mix, place: int, replicas: int, below: float) -> int:
        """The step of one replica at which a mix would still beat ``below``, the others being what they are taken to be."""
        rate = self._rates[place]
        enough = 1.0 / below if self._goodput else self._question.load
        least = rate.at_most - (mix.rate - enough) / replicas
        if least <= 0.0:
            return rate.least_step
        return min(rate.most_step, 1 + (step_below(least) if self._goodput else step_under(least)))

    def _kind(self, mix: Mix, place: int, replicas: int) -> KindFound | None:
        """One kind of a mix under its load, with the roomiest batch limits; None where it misses a target."""
        rate, question = self._rates[place], self._question
        share = replicas * rate.known / mix.rate
        load = Share((mix.rate if self._goodput else question.load) * share, replicas)
        kept = question.evaluator.measure(rate.candidate, load)
        if not kept.keeps:
            return None
        roomiest = Roomiest(question.evaluator, kept, self._counts)
        roomiest.look_at(rate.usable, load)
        assert roomiest.best is not None, "it began with one that keeps the targets"
        return KindFound(roomiest.best, share)

    def _counts(self, kept: Measured) -> bool:
        """Return True if batch limits that keep the targets at a load may take the place of those whose rate is known: of a
        goodput each replica sustains its rate."""
        return not self._goodput or is_sustained(self._question, replace(kept, share=Share(kept.share.each)))


@dataclass
class _ReplicaRate:
    """The rate that one replica of an engine sustains, in steps of the rate grid, as far as it is known."""

    question: Question
    engine: Engine
    usable: list[Candidate] = field(default_factory=list)
    least_step: int = 0
    most_step: int = 0
    _found: tuple[Candidate, int] | None = None
    _expected: float | None = None
    _confirmed: bool = False

    def __post_init__(self) -> None:
        usable = usable_candidates(self.question.evaluator, self.engine)
        if not isinstance(usable, Refused):
            self.usable = usable
            self.least_step = self.most_step = step_below(self.question.evaluator.best_rate_bound(self.engine))
            self.least_step += math.floor(math.log(LEAST_RATE_SHARE) / math.log(RATE_GRID))

    @property
    def is_known(self) -> bool:
        """True if the rate is exact."""
        return self._found is not None

    @property
    def known(self) -> float:
        """The rate where it is exact; 0 where it is not."""
        return 0.0 if self._found is None else RATE_GRID ** self._found[1]

    @property
    def candidate(self) -> Candidate:
        """The batch limits that sustain the rate."""
        assert self._found is not None
        return self._found[0]

    @property
    def at_most(self) -> float:
        """The rate, or what bounds and simulations leave of it."""
        if not self.usable or self.most_step < self.least_step:
            return 0.0
        return RATE_GRID**self.most_step if self._found is None else self.known

    @property
    def expected(self) -> float:
        """The rate, or what the analytic model thinks of it."""
        if self._found is not None or not self.usable:
            return self.known
        if self._expected is None:
            self._expected = expected_rate(self.question.evaluator, self.usable)
        return min(self._expected, self.at_most)

    def look(self, needed: int, *, per_device: float) -> None:
        """Find the rate if it is at least that of a step, or learn that it is less than it could be.

        Looked at first is the highest step that there is reason to think is missed: that at which the layout does as much
        for a device as the best known, ``per_device``, or one above what the analytic model expects.
        """
        guesses = [rate for rate in (per_device * self.engine.layout.devices, self.expected * _DOUBT) if rate > 0.0]
        steps = [step for step in (step_below(rate) + 1 for rate in guesses) if needed < step < self.most_step]
        step = max(steps, default=needed if self.expected > 0.0 else (needed + self.most_step + 1) // 2)
        if not self._find(keeping_at, lowest=step, expected=step):
            self.most_step = step - 1

    def find(self) -> None:
        """Find the rate, wherever it is."""
        expected = step_below(self.expected) if self.expected > 0.0 else self.least_step
        if not self._find(keeping_at, lowest=self.least_step, expected=expected):
            self.most_step = self.least_step - 1

    def confirm(self) -> bool:
        """Confirm the rate. Return True if it is kept at the lower steps too; where it is not, the highest at which it is takes
        its place."""
        if self._confirmed:
            return True
        assert self._found is not None
        candidate, step = self._found
        kept = self.question.evaluator.measure(candidate, Share(RATE_GRID**step))
        self._confirmed = True
        if is_sustained(self.question, kept):
            return True
        self._found, self.most_step = None, step
        if not self._find(sustaining_at, lowest=self.least_step, expected=step):
            self.most_step = self.least_step - 1
        return False

    def _find(self, judge: Judge, *, lowest: int, expected: int) -> bool:
        found = replica_goodput(self.question, self.engine, judge, lowest=lowest, expected=expected)
        if found is not None:
            self._found = found.measured.candidate, step_below(found.load)
        return found is not None

    def give_up_a_step(self) -> None:
        """Take the rate to be the step below."""
        assert self._found is not None
        self._found = self._found[0], self._found[1] - 1


def search(asked: Asked) -> FormSearch | None:
    """Return the search over several kinds of workers, None where the request allows one."""
    return KindsSearch(asked) if asked.request.search.worker_kinds > 1 else None


class KindsSearch(FormSearch):
    """Several kinds of workers for one request: what was asked of them, and what was found."""

    def __init__(self, asked: Asked):
        self._asked, self._request, self._question = asked, asked.request, asked.question
        self._search = MixSearch(asked.request, asked.question)
        self._result = MixResult()
        self._below = math.inf

    def search(self, earlier: Earlier) -> None:
        """Look for a mix that is better than every plan of one kind; of equals that stays."""
        self._below = earlier.objective
        self._result = self._search.search(below=earlier.objective)

    @property
    def objective(self) -> float:
        """Return the objective of the best mix, before it is confirmed."""
        return math.inf if self._result.best is None else self._search.objective(self._result.best)

    @property
    def floor(self) -> float:
        """Return the bound of the search, below which a mix that was not confirmed may be."""
        return self._result.bound

    @property
    def is_undecided(self) -> bool:
        """Return True if the search was stopped before its bound refused all mixes."""
        return self._result.stopped and self._result.bound < math.inf

    def plan(self, others: Sequence[FormSearch], *, stats: SearchStats, notes: Sequence[str]) -> Plan | None:
        """The plan of the best mix, which is confirmed by simulation; its candidates are counted where it is the answer."""
        kinds = self._search.settled(self._result, below=self._below)
        measured = [kind.measured for kind in kinds]
        total = math.fsum(each.share.load for each in measured)
        if not kinds or total < self._question.load * (1.0 - 1e-9):
            return None
        objective, bound = kinds_objective(self._request, measured), min(self._result.bound, floor_of(others))
        devices = sum(each.share.replicas * each.candidate.engine.layout.devices for each in measured)
        plan = kinds_plan(
            self._request,
            self._with_requests(kinds),
            certificate=bounded_certificate(self._request, objective, bound, proof(self._request, self._asked.space)),
            stats=replace(stats, candidates=stats.candidates + self._result.considered),
            notes=(*notes, *leftover_notes(self._request, devices)),
        )
        return replace(plan, runners_up=beaten_of(others, "keeps the targets, but a mix is better")[:SHOWN])

    def why_infeasible(self) -> Reason | None:
        """Return why no plan of one kind keeps a load, and how much several kinds do."""
        reason = why_infeasible(self._question)
        if reason.constraint != "requests_per_s":
            return reason
        search = MixSearch(replace(self._request, objective=Objective.THROUGHPUT), self._question)
        mix = search.search(below=math.inf).best
        if mix is None or mix.rate <= reason.have:
            return reason
        message = (
            f"all devices together keep the targets up to {mix.rate:.3g} requests/s ({self._described(mix)}), "
            f"{self._question.load:g} are asked for"
        )
        need = max(reason.need, math.nextafter(mix.rate, math.inf))
        return replace(reason, need=need, have=mix.rate, message=message)

    def _described(self, mix: Mix) -> str:
        named = [(self._search.engine(place).layout.name, replicas) for place, replicas in mix.parts]
        return " beside ".join(f"{replica_count(replicas)} of {name}" for name, replicas in named)

    def _with_requests(self, kinds: Sequence[KindFound]) -> list[KindMeasured]:
        loads = [kind.measured.share.load for kind in kinds]
        asked = kind_requests(self._request, [kind.share for kind in kinds], loads)
        firsts = first_ranks([kind.measured for kind in kinds])
        return [
            KindMeasured(own, self._question.evaluator, kind.measured, kind.share, first)
            for kind, own, first in zip(kinds, asked, firsts, strict=True)
        ]


# What is asked of the form.

# The cases in which several kinds of workers are planned, and those in which they are refused.


def refuse(request: ServingRequest) -> None:
    """Refuse requests that ask for several kinds of workers beside what these are not searched for. Raises WorkloadError."""
    search, workload = request.search, request.workload
    if search.worker_kinds == 1:
        return
    refused = (
        (not isinstance(workload.arrivals, PoissonArrivals | ScheduleArrivals), workload.arrivals.process, "poisson, schedule"),
        (request.objective is Objective.ENERGY, "objective energy", "devices, cost, throughput"),
        (ServingMode.AGGREGATED not in search.modes, "search.modes [disaggregated]", "search.modes with aggregated"),
        (search.frontier is FrontierScope.SWEPT, "search.frontier swept", FrontierScope.VISITED.value),
    )
    for is_so, given, allowed in refused:
        if is_so:
            raise WorkloadError(
                "plans of several kinds of workers are not searched for this",
                given=given,
                allowed=f"{allowed}; or search.worker_kinds 1",
            )


_SPACE = (
    "; up to {kinds} kinds of workers at once, each of which keeps the targets by itself at its share of the arrivals, drawn "
    "at random, its replicas at rates of a grid of 1% that one of them sustains (simulated down to half); kinds of a node "
    "group lie one after another, widest stages first, and the best numbers of replicas are those of an exact knapsack"
)


def space(request: ServingRequest) -> str:
    """Return the words of a certificate on what the form adds to a request's space."""
    return _SPACE.format(kinds=request.search.worker_kinds) if request.search.worker_kinds > 1 else ""


def simulate(request: ServingRequest, layout: Kinds) -> ServingSimulation:
    """Each kind by itself, and percentiles of all requests: those of a kind count by its share."""
    ran, kinds = [], []
    for kind, own in given_kinds(request, layout):
        evaluator, whole, line, alike = simulated_replicas(own, kind.replicas)
        ran.append((kind.share, whole))
        kinds.append(KindSimulation(_name(kind, own), kind.share, described(evaluator, whole, line, alike=alike)))
    first = [WeightedObservations(share, run.ttft_s) for share, run in ran]
    last, later = [WeightedObservations(share, run.end_to_end_s) for share, run in ran], token_parts(ran)
    law = evaluator.promised.law
    ttft, tpot = _of_all(first).measured(law.ttft), _of_all(later).measured(law.tpot) if later else None
    of_kinds = [kind.simulated for kind in kinds]
    replicas = [kind.replicas.load.replicas for kind in layout.kinds]
    return ServingSimulation(
        requests=sum(each.requests for each in of_kinds),
        counted=sum(each.counted for each in of_kinds),
        requests_per_s=sum(each.requests_per_s for each in of_kinds),
        output_tokens_per_s=sum(each.output_tokens_per_s for each in of_kinds),
        ttft=ttft,
        tpot=tpot,
        end_to_end=_of_all(last).measured(whole_requests(law)),
        timeline=None,
        busy=float(np.average([each.busy for each in of_kinds], weights=[kind.devices for kind in layout.kinds])),
        mean_batch=float(np.average([each.mean_batch for each in of_kinds], weights=replicas)),
        peak_running=max(each.peak_running for each in of_kinds),
        evictions=sum(each.evictions for each in of_kinds),
        missed=missed_targets(evaluator.promised, ttft, tpot),
        kinds=tuple(kinds),
    )


def _name(kind: WorkerKind, own: ServingRequest) -> str:
    """Words for a kind: "4 x tp 4 x pp 2 on new", the name of its node group last."""
    axes = kind.replicas.axes
    degrees = {"tp": axes.tp, "kvp": axes.kvp, "attention dp": axes.attention_dp, "ep": axes.ep, "pp": axes.pp}
    said = " x ".join(f"{n} {d}" for n, d in degrees.items() if d > 1 or n == "tp")
    first = kind.replicas.stages[0].devices[0].first
    return f"{kind.replicas.load.replicas} x {said} on {own.cluster.group_of(first).name}"


def _of_all(parts: list[WeightedObservations]) -> Distribution:
    spread_s = tuple(mixture_percentile(parts, percent / 100).value for percent in SPREAD)
    return Distribution(mixture_mean(parts), tuple(mixture_percentile(parts, p) for p in PROBABILITIES), spread_s)


FORM = Form("kinds", Kinds, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate)
