"""Why layouts of a serving request are not its plan: the constraint that each misses by most, and by how much.

A layout is judged with as many replicas as cost no more than the plan, at the plan's load; where the plan is a goodput, with
all devices at the next rate of the grid; where there is no plan, with all devices at the load that was asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.queueing.simulation.replica import pooled
from meshwright.costmodels.units import STRICT_RECORD
from meshwright.solver.answer.layouts import Kinds, WorkerKind
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import SEQUENCES, STEP_TOKENS, Layout, worker_layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.planning import require_servable
from meshwright.solver.serving.promise.candidates import P95, Candidate, Measured
from meshwright.solver.serving.promise.certificates import UNITS
from meshwright.solver.serving.promise.evaluation import SCREENING_REQUESTS, Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.promise.question import Cause, Question, Refused, measurements, replica_count, usable_candidates
from meshwright.solver.serving.workers.cheapest import least_energy
from meshwright.solver.serving.workers.given import is_in_layout, is_layout_of
from meshwright.solver.serving.workers.goodput import RATE_GRID, step_below
from meshwright.solver.serving.workers.reasons import late_alone, memory_shortfall, missed_targets

EVERY_LAYOUT = "layouts"
"""The name that stands for all layouts."""

BASIS = (
    "workers that do both phases, as many as cost no more than the plan (goodput or no plan: all that fit), each layout with "
    "the batch limits that come nearest to the targets; figures are upper 95% confidence limits of simulations"
)


class Excluded(StrEnum):
    """The reason that keeps a layout from being the plan."""

    NOTHING = "nothing"
    """It is the plan's own."""
    OBJECTIVE = "objective"
    """It keeps the targets, and is no better than the plan; or one replica alone costs more."""
    TTFT = "p95_ttft"
    TPOT = "p95_tpot"
    LOAD = "load"
    MEMORY = "memory"
    SEARCH = "search"
    """It keeps the targets: the search was stopped before it got there, or its modes leave it out."""


_ADDED_UP = (Objective.COST, Objective.ENERGY)
"""Objectives whose unit figures are in; goodput is explained in devices."""

_OF_CONSTRAINT = {"p95_ttft": Excluded.TTFT, "p95_tpot": Excluded.TPOT, "memory": Excluded.MEMORY}


@dataclass(frozen=True, slots=True)
class LayoutExplanation:
    """A layout beside the plan: ``need`` is what it would take in ``unit``, ``have`` what is allowed or there is.

    devices       of one replica, in node group ``group``
    replicas      that it was judged with; 0 where one costs more than the plan
    max_num_seqs, max_num_batched_tokens   the batch limits that come nearest, None where none were simulated
    """

    __pydantic_config__ = STRICT_RECORD

    group: str
    layout: str
    devices: int
    replicas: int
    excluded_by: Excluded
    why: str
    need: float | None = None
    have: float | None = None
    unit: str = ""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    basis: str = BASIS

    @property
    def excess(self) -> float:
        """By which share of what is allowed the layout misses its constraint."""
        return math.inf if self.need is None or not self.have else self.need / self.have - 1.0


def named_layouts(request: ServingRequest, name: str) -> list[Layout]:
    """The request's layouts of a name such as "tp 4 x pp 2", in every node group; all of them for EVERY_LAYOUT.

    Raises PlanFileError with the list of names for a name that is none.
    """
    require_servable(request)
    every = list(worker_layouts(request))
    found = [layout for layout in every if name == EVERY_LAYOUT or _plain(layout.name) == _plain(name)]
    if not found:
        names = dict.fromkeys(layout.name for layout in every)
        raise PlanFileError(
            "the request has no layout of this name", given=name, allowed=", ".join((f"{EVERY_LAYOUT} (all of them)", *names))
        )
    return found


def explain_layouts(request: ServingRequest, plan: Plan, name: str) -> tuple[LayoutExplanation, ...]:
    """Why the layouts of a name are not the plan: the plan's own first, then those that come nearest.

    Raises PlanFileError for a name that no layout has.
    """
    judge = _Judge(request, plan)
    rows = [judge.explanation(layout) for layout in named_layouts(request, name)]
    order = list(Excluded)
    return tuple(sorted(rows, key=lambda row: (order.index(_rank(row)), row.excess, row.group, row.layout)))


def _rank(row: LayoutExplanation) -> Excluded:
    """Both targets are one rank: nearest first."""
    return Excluded.TTFT if row.excluded_by is Excluded.TPOT else row.excluded_by


def _plain(name: str) -> str:
    return name.replace(" ", "").lower()


class _Judge:
    """Judges layouts beside one plan."""

    def __init__(self, request: ServingRequest, plan: Plan):
        self._request, self._plan = request, plan
        self._evaluator = Evaluator(request.workload, promised_of(request), request.search.seed)
        self._builder = EngineBuilder(request, sequence_tokens=self._evaluator.longest_request)
        self._load, self._budget = self._evaluator.traffic.load, math.inf
        if request.objective in (Objective.DEVICES, Objective.COST):
            self._budget = plan.certificate.objective or math.inf
        elif request.objective is Objective.THROUGHPUT and plan.predicted is not None and not self._evaluator.traffic.is_closed:
            goodput = plan.predicted.tokens_per_s / self._evaluator.output.mean
            self._load = RATE_GRID ** (step_below(goodput) + 1)

    def explanation(self, layout: Layout) -> LayoutExplanation:
        """The verdict on one layout."""
        own = self._own_kind(layout)
        if own is not None:
            share = f"one of the plan's kinds, {own.share:.1%} of arrivals"
            return self._row(layout, own.replicas.load.replicas, Excluded.NOTHING, share)
        cost = layout.devices * self._unit_cost(layout)
        most = layout.most_replicas if self._budget == math.inf else min(layout.most_replicas, int(self._budget / cost + 1e-9))
        allowed = [n for n in self._request.search.dp or range(1, most + 1) if n <= most]
        if not allowed:
            why = f"one replica of {layout.devices} devices costs {cost:g} {self._unit}, the plan {self._budget:g}"
            return self._row(layout, 0, Excluded.OBJECTIVE, why, need=cost, have=self._budget, unit=self._unit)
        return self._judged(self._builder.engine(layout), max(allowed), max(allowed) * cost)

    def _own_kind(self, layout: Layout) -> WorkerKind | None:
        """Return the one of the plan's several kinds of workers that has a layout."""
        match self._plan.layout:
            case Kinds() as several:
                return next((kind for kind in several.kinds if is_in_layout(kind.replicas, layout)), None)
            case _:
                return None

    @property
    def _unit(self) -> str:
        return UNITS[self._request.objective] if self._request.objective in _ADDED_UP else UNITS[Objective.DEVICES]

    def _energy_j(self, engine: Engine) -> float:
        """Energy of an output token, with the number of replicas and the batch limits that take least."""
        question = Question(
            engines=(engine,),
            evaluator=self._evaluator,
            load=self._load,
            replicas=self._request.search.dp,
        )
        return least_energy(question).bound

    def _unit_cost(self, layout: Layout) -> float:
        return (layout.group.node.device.price_per_hour or 0.0) if self._request.objective is Objective.COST else 1.0

    def _judged(self, engine: Engine, replicas: int, cost: float) -> LayoutExplanation:
        layout, evaluator = engine.layout, self._evaluator
        usable = usable_candidates(evaluator, engine)
        if isinstance(usable, Refused):
            return self._refused(layout, replicas, self._at_any_rate(engine, usable))
        share = Share(self._load, replicas)
        seen = list(measurements(evaluator, usable, share))
        if not seen:
            return self._refused(layout, replicas, self._outrun(engine, replicas))
        keeping = next((measured for measured in seen if measured.keeps), None)
        if keeping is not None:
            if is_layout_of(self._plan, layout):
                return self._row(layout, replicas, Excluded.NOTHING, "the plan's own", limits=keeping.candidate)
            kept = f"keeps the targets with {replica_count(replicas)}"
            if ServingMode.AGGREGATED not in self._request.search.modes:
                why = f"{kept}; search.modes leaves out workers that do both phases in one layout"
                return self._row(layout, replicas, Excluded.SEARCH, why, limits=keeping.candidate)
            if not self._plan.feasible:
                why = f"{kept}; the search was stopped before it got there"
                return self._row(layout, replicas, Excluded.SEARCH, why, limits=keeping.candidate)
            budget = self._budget
            if self._request.objective is Objective.ENERGY:
                kept, cost, budget = "keeps the targets", self._energy_j(engine), self._plan.certificate.objective or math.inf
            why = f"{kept}, at {cost:.6g} {self._unit} no better than the plan"
            return self._row(
                layout,
                replicas,
                Excluded.OBJECTIVE,
                why,
                need=cost,
                have=budget,
                unit=self._unit,
                limits=keeping.candidate,
            )
        nearest = evaluator.measure_fully(min(seen, key=self._strain).candidate, share)
        if nearest.keeps:
            why = "keeps the targets in a long simulation, but not in the short one before it"
            return self._row(layout, replicas, Excluded.LOAD, why, limits=nearest.candidate)
        return self._refused(layout, replicas, missed_targets(evaluator, nearest), limits=nearest.candidate)

    def _at_any_rate(self, engine: Engine, refused: Refused) -> Reason:
        if refused.cause is Cause.MEMORY:
            tokens = self._evaluator.longest_request
            return memory_shortfall(engine, step_tokens=STEP_TOKENS[0], sequences=SEQUENCES[0], tokens=tokens)
        late = late_alone(self._evaluator, [engine])
        assert late is not None, "a request alone is too slow"
        return late

    def _outrun(self, engine: Engine, replicas: int) -> Reason:
        """Arrivals that no schedule keeps up with."""
        have = replicas * self._evaluator.best_rate_bound(engine)
        message = (
            f"{replica_count(replicas)} answer at most {have:.3g} requests/s, whatever the schedule; {self._load:.3g} arrive"
        )
        return Reason("requests_per_s", self._load, have, "requests/s", message)

    def _strain(self, seen: Measured) -> float:
        """The larger ratio of percentile to target in a short simulation to its end."""
        evaluator = self._evaluator
        result = pooled(evaluator.simulations_of(seen.candidate, seen.share, requests=SCREENING_REQUESTS))
        ratios = evaluator.promised.shares(ttft_s=result.ttft(P95).value, tpot_s=result.tpot(P95).value)
        return max((ratio for ratio in ratios if not math.isnan(ratio)), default=0.0)

    def _refused(self, layout: Layout, replicas: int, reason: Reason, *, limits: Candidate | None = None) -> LayoutExplanation:
        excluded = _OF_CONSTRAINT.get(reason.constraint, Excluded.LOAD)
        return self._row(
            layout, replicas, excluded, reason.message, need=reason.need, have=reason.have, unit=reason.unit, limits=limits
        )

    def _row(
        self,
        layout: Layout,
        replicas: int,
        excluded: Excluded,
        why: str,
        *,
        need: float | None = None,
        have: float | None = None,
        unit: str = "",
        limits: Candidate | None = None,
    ) -> LayoutExplanation:
        return LayoutExplanation(
            group=layout.group.name,
            layout=layout.name,
            devices=layout.devices,
            replicas=replicas,
            excluded_by=excluded,
            why=why,
            need=need,
            have=have,
            unit=unit,
            max_num_seqs=None if limits is None else limits.sequences,
            max_num_batched_tokens=None if limits is None else limits.step_tokens,
        )
