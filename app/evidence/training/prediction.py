"""The prediction of the cost models for a run: step time and memory of its own plan, from its inputs alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from statistics import fmean

from meshwright.app.evidence.training.cells import NotPredictedError, of_one_row
from meshwright.app.evidence.training.plans import given_plan
from meshwright.app.evidence.training.rows import Run
from meshwright.app.evidence.training.sources import Source
from meshwright.app.evidence.training.stated import MemoryCount, MemoryRank, UnstatedRecompute
from meshwright.costmodels.cluster.cluster import Cluster, Device, Link, NodeGroup, SustainedRates
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN, Certificate, SearchStats, Status
from meshwright.solver.blocks.sharding_problem import Criterion
from meshwright.solver.problem.carried_choices import StageChoices
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import (
    Decision,
    DecisionCost,
    Sharding,
    StageKind,
    StageSpan,
    evaluate_decision,
    time_breakdown,
)
from meshwright.solver.training.report.bands import (
    ASSUMED_FRAMEWORK,
    KNOWN_FRAMEWORK,
    StepTraits,
    has_untold_rates,
    step_time_bands,
    step_traits,
    unmeasured_kernels,
    unmeasured_wait_s,
)
from meshwright.solver.training.report.plan_report import axes_of, decided_plan
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.verify.check import check

# Constants that may be fitted to measured runs: rates that a device sustains, speeds of a cluster's links, laws of memory.


class Constant(StrEnum):
    """The constant that is fitted; each is a rate over that of the catalogue or of kernels timed alone.

    The host's speed in launching kernels is none of a chip: it is that of the software and its host (`solver.problem`'s
    implementation). Fitted by chip it explained toy models and made others worse that it had not seen.
    """

    MATRIX = "matrix"
    LOW_PRECISION_MATRIX = "low_precision_matrix"
    MEMORY = "memory"
    INTRA_NODE_LINK = "intra_node_link"
    INTER_NODE_LINK = "inter_node_link"


LINKS = (Constant.INTRA_NODE_LINK, Constant.INTER_NODE_LINK)
"""These are of a cluster; the others are of a chip, and shared by every source that uses it."""

ConstantOf = tuple[Constant, str]
"""A constant of a chip (`silicon_name`), or of a cluster (`cluster_name`)."""


@dataclass(frozen=True)
class Constants:
    """Fitted rates, 1 where nothing was fitted.

    memory   the law of memory in place of the profile's, None to leave that
    told     chips of the runs of the fit; those of others are expected. None where nothing was fitted
    """

    rates: Mapping[ConstantOf, float] = field(default_factory=dict)
    memory: MemoryLaw | None = None
    told: frozenset[str] | None = None

    def tells(self, cluster: Cluster) -> bool:
        """Return True if runs of the fit told the rates of every device of a cluster."""
        return self.told is not None and self.told >= {silicon_name(group.node.device) for group in cluster.groups}

    def rate(self, constant: Constant, owner: str) -> float:
        """Rate of one chip or cluster."""
        return self.rates.get((constant, owner), 1.0)

    def listed(self) -> list[tuple[Constant, str, float]]:
        """Every fitted rate, by what it is of."""
        found = [(constant, owner, rate) for (constant, owner), rate in self.rates.items()]
        return sorted(found, key=lambda item: (item[1], item[0].value))

    def scaled(self, constant: Constant, factor: float, owners: tuple[str, ...]) -> Constants:
        """These with one constant of all owners multiplied."""
        changed = {(constant, owner): self.rate(constant, owner) * factor for owner in owners}
        return replace(self, rates={**self.rates, **changed})


def cluster_name(run: Run) -> str:
    """The cluster of a run: a source's nodes of one GPU."""
    return f"{run.source}/{run.gpu}"


def silicon_name(device: Device) -> str:
    """The chip of a device: boards that differ only in memory are one, those under different power limits are not."""
    return f"{device.calibration}/{device.power_w:g}W"


def with_constants(request: TrainingRequest, name: str, constants: Constants) -> TrainingRequest:
    """The request with devices and links of its cluster at the given rates, in place of what the catalogue ships, and with the
    given law of memory."""
    cluster = replace(request.cluster, groups=tuple(_group(group, name, constants) for group in request.cluster.groups))
    if constants.memory is None:
        return replace(request, cluster=cluster)
    stated = request.workload.implementation or StatedImplementation()
    workload = replace(request.workload, implementation=replace(stated, memory=constants.memory))
    return replace(request, cluster=cluster, workload=workload)


def _group(group: NodeGroup, name: str, constants: Constants) -> NodeGroup:
    node = replace(
        group.node,
        device=_device(group.node.device, constants),
        intra=_link(group.node.intra, constants.rate(Constant.INTRA_NODE_LINK, name)),
        inter=_link(group.node.inter, constants.rate(Constant.INTER_NODE_LINK, name)),
    )
    return replace(group, node=node)


def _device(device: Device, constants: Constants) -> Device:
    rates = {constant.value: constants.rate(constant, silicon_name(device)) for constant in Constant if constant not in LINKS}
    return replace(device, sustained=SustainedRates(**rates))


def _link(link: Link, rate: float) -> Link:
    return replace(link, bytes_per_s=link.bytes_per_s * rate)


INCREASING = ("fine-grained", "selective", "full")
"""Recomputation of rows that do as much of it as they need, the least first."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted figures of a run; memory is on the device and in the units that its source reports.

    ``step_time_band_s`` holds 90% of measured steps of sources like this one, and ``traits`` and the error of
    ``unmeasured_kernels`` are what it depends on.
    """

    step_time_s: float
    peak_memory_gb: float
    fits: bool
    step_time_band_s: tuple[float, float] | None = None
    traits: StepTraits | None = None
    unmeasured_kernels: float = 0.0


@dataclass(frozen=True)
class CostedRun:
    """A run as its request, and its plan with all costs."""

    request: TrainingRequest
    costs: TrainingCosts
    decision: Decision
    cost: DecisionCost

    def plan(self) -> Plan:
        """The plan, as `meshwright predict` takes it."""
        certificate = Certificate(Status.FEASIBLE, self.cost.step_time_s, None, None, "s", GIVEN_PLAN)
        stats = SearchStats(1, 1, 0.0)
        return decided_plan(self.request, self.costs, self.decision, self.cost, certificate=certificate, stats=stats)


def predict_run(run: Run, constants: Constants | None = None) -> Prediction:
    """Step time and memory of a run's plan; raises NotPredictedError with the reason.

    ``constants`` take the place of the rates that the hardware catalogue ships, and of the profile's law of memory.
    """
    cost = costed_run(run, constants).cost
    return Prediction(cost.step_time_s, _shown_memory(cost, run.reading), _fits(cost))


def predict_run_with_band(run: Run, constants: Constants | None = None) -> Prediction:
    """The same with the band of the step time, which is wider where nothing is known of the source, and judged by the checker.

    Raises NotPredictedError for a prediction that the checker refuses, too.
    """
    costed = costed_run(run, constants)
    refused = refusal(costed)
    if refused is not None:
        raise NotPredictedError(refused)
    cost, decision = costed.cost, costed.decision
    kinds = costed.costs.stage_kinds(decision.candidate)
    tables = costed.costs.stage_tables(decision.candidate, decision.sharding, kinds)
    breakdown = time_breakdown(decision, cost, tables)
    mesh = decision.candidate.mesh
    wait_s = unmeasured_wait_s(costed.request.cluster, axes_of(mesh), breakdown, choices=mesh.choices)
    stage_times_s = [stage.time_s for stage in cost.stages]
    cluster = costed.request.cluster
    untold = has_untold_rates(cluster) if constants is None or constants.told is None else not constants.tells(cluster)
    traits = step_traits(costed.request.model, breakdown, stage_times_s, unmeasured_wait_s=wait_s, untold_rates=untold)
    model = ASSUMED_FRAMEWORK if run.reading.is_assumed else KNOWN_FRAMEWORK
    figures = {"step_time_s": cost.step_time_s, "tokens_per_s": 1.0, "mfu": 1.0}
    band = step_time_bands(costed.request, traits, **figures, model=model)["step_time_s"]
    shown = _shown_memory(cost, run.reading)
    kernels = unmeasured_kernels(costed.request)[1]
    return Prediction(cost.step_time_s, shown, _fits(cost), (band.low, band.high), traits, kernels)


def refusal(costed: CostedRun) -> str | None:
    """Why the checker refuses the prediction of a run, None where it does not. A run may need more memory than there is: its
    prediction says that it does not fit."""
    fits = _fits(costed.cost)
    broken = (each for each in check(costed.plan(), costed.request) if fits or not each.limit)
    first = next(broken, None)
    return None if first is None else f"the checker refuses the prediction: {first}"


def costed_run(run: Run, constants: Constants | None = None) -> CostedRun:
    """The request and the costed plan of a run, which recomputes where its source says that it does so to fit.

    Raises NotPredictedError with the reason where there is none.
    """
    with of_one_row():
        costed = _costed(run, constants)
        if _fits(costed.cost) or run.recompute or run.reading.unstated_recompute is UnstatedRecompute.NEVER:
            return costed
        recomputing = (_costed(replace(run, recompute=recompute), constants) for recompute in INCREASING)
        return next((each for each in recomputing if _fits(each.cost)), costed)


def _costed(run: Run, constants: Constants | None) -> CostedRun:
    plan = given_plan(run)
    request = plan.request if constants is None else with_constants(plan.request, cluster_name(run), constants)
    costs = _costs(request)
    candidate, kept_from = with_some_layers(plan.candidate, plan.stages, costs)
    kinds = costs.stage_kinds(candidate)
    sharding = fastest_sharding(costs, candidate, kinds)
    tables = costs.stage_tables(candidate, sharding, kinds)
    spans = launchers_spans(len(costs.model.layers), plan.candidate)
    decision = Decision(candidate, sharding, tuple(replace(span, kept_from=kept_from(span)) for span in spans))
    return CostedRun(request, costs, decision, evaluate_decision(decision, tables))


def with_some_layers(
    candidate: Candidate, stages: StageChoices, costs: TrainingCosts
) -> tuple[Candidate, Callable[[StageSpan], int | None]]:
    """A candidate of full recomputation that recomputes the first layers of each part alone, where ``stages`` say how many, and
    the layer of a part from which on nothing is recomputed, None where all is.

    Raises NotPredictedError where its schedule has no cost model of this.
    """
    first = costs.first_layers(stages)
    if first is None:
        return candidate, lambda _: None
    some_of = candidate.of_first_layers(first.number)
    if candidate.mesh.pp == 1:
        return (some_of if first.number < int(first.again.sum()) else candidate), lambda _: None
    schedule = candidate.pipelining
    if schedule.of_some_layers(candidate.mesh.pp) is None:
        raise NotPredictedError(f"{first.number} layers of each stage recomputed whole under {schedule.schedule.value}")
    return some_of, lambda span: first.end_in(span.first, span.last)


def launchers_spans(n_layers: int, candidate: Candidate) -> tuple[StageSpan, ...]:
    """Layers of each part of the model as launchers split them: evenly, the embedding with the first, the head with the last.

    Where the layers between do not divide, the first parts have one more.
    """
    parts, between = candidate.pipelining.n_parts(candidate.mesh.pp), n_layers - 2
    if parts == n_layers:
        # What is left when embedding and head count as layers (Megatron-LM's --account-for-embedding-in-pipeline-split).
        return tuple(StageSpan(layer, layer, candidate.recompute[0]) for layer in range(n_layers))
    if parts > between:
        raise NotPredictedError(f"{parts} stages of {between} layers")
    each, longer = divmod(between, parts)
    spans, first = [], 0
    for position in range(parts):
        last = first + each + (position < longer) - 1 + (position == 0) + (position == parts - 1)
        spans.append(StageSpan(first, last, candidate.recompute[0]))
        first = last + 1
    return tuple(spans)


@lru_cache(maxsize=64)
def _costs(request: TrainingRequest) -> TrainingCosts:
    return TrainingCosts(request)


def fastest_sharding(costs: TrainingCosts, candidate: Candidate, kinds: tuple[StageKind, ...]) -> Sharding:
    """Return the fastest sharding that the launcher can express: rows do not say more than tp and sequence parallelism.

    Raises NotPredictedError where there is none.
    """
    setting = costs.settings(candidate, kinds[0])[0]

    def seconds(sharding: Sharding) -> float:
        names = zip(costs.block_names, sharding, strict=True)
        return sum(float(costs.block_cost(name, setting, choice)[Criterion.TIME_S]) for name, choice in names)

    fastest = min(costs.shardings(candidate, kinds), key=seconds, default=None)
    if fastest is None:
        raise NotPredictedError(f"tp {candidate.mesh.tp} does not divide the model's dims")
    return fastest


def _fits(cost: DecisionCost) -> bool:
    return all(stage.need_bytes <= stage.capacity_bytes for stage in cost.stages)


def _shown_memory(cost: DecisionCost, source: Source) -> float:
    """Memory on the device and in the unit that the source reports."""
    allocated = [stage.need_bytes for stage in cost.stages]
    reserved = [stage.law.scale * stage.law.allocator * stage.need_bytes for stage in cost.stages]
    match source.memory_count:
        case MemoryCount.ALLOCATED:
            shown_by_rank = allocated
        case MemoryCount.RESERVED:
            shown_by_rank = reserved
        case MemoryCount.PROCESS:
            shown_by_rank = [stage.device_bytes for stage in cost.stages]
    match source.memory_rank:
        case MemoryRank.FULLEST:
            shown = max(shown_by_rank)
        case MemoryRank.FIRST_STAGE:
            shown = shown_by_rank[0]
        case MemoryRank.LAST_STAGE:
            shown = shown_by_rank[-1]
        case MemoryRank.MEAN:
            shown = fmean(shown_by_rank)
    return shown / source.memory_unit_bytes
