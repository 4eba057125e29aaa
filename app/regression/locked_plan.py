"""A plan as a lock holds it: what it was planned from, its figures and its structure, rounded and sealed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from meshwright.app.base.figures import axes, counted, number_range
from meshwright.app.regression.inputs import Value, plan_inputs, short_hash
from meshwright.costmodels.units import STRICT_RECORD
from meshwright.solver.answer.arrangement import unusual_choices
from meshwright.solver.answer.layouts import ByGroup, GroupReplicas, Layout, OfWorkers, Pipelines, Replicas, Stagewise, Workers
from meshwright.solver.answer.pipeline_plan import leading_pipelines, placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import OperatorSharding, Stage
from meshwright.solver.problem.choices import TpOverlap

DIGITS = 6
"""Significant digits of a locked figure: far finer than any tolerance, far coarser than how the last bits of a sum fall
on different processors."""
LEAST_TIME_S = 1e-9
"""Times below this are the rounding error of a difference, and are locked as 0."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The layout of the model in a plan, in words; what does not go with the workload is None or empty."""

    __pydantic_config__ = STRICT_RECORD

    axes: str | None
    schedule: str | None
    microbatch: str | None
    sequence_parallel: str | None
    serving: str | None
    shardings: tuple[str, ...]
    stages: tuple[str, ...]
    prefill: str | None = None
    prefill_stages: tuple[str, ...] = ()
    tp_overlap: str | None = None
    worker_kinds: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    stage_shardings: tuple[str, ...] = ()
    choices: Mapping[str, str] | None = None


WRITTEN_WHERE_SET = ("groups", "stage_shardings", "choices")
"""Fields of a structure that a lock has only where they say something: locks of before have none of them."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a request is infeasible: the constraint, in its unit."""

    __pydantic_config__ = STRICT_RECORD

    constraint: str
    need: float
    have: float
    unit: str


@dataclass(frozen=True, slots=True)
class LockedPlan:
    """A plan in a lock.

    digest     of the request
    inputs     flat fields that the plan depends on
    figures    what is compared: tokens_per_s, step_time_s, ttft_p95_s, tpot_p95_s, cost_per_million_tokens,
               memory_headroom_bytes, gap, devices; those that the plan has
    times_s    where the time goes, to explain a change
    seal       hash of all the rest: shows an edit by hand
    """

    __pydantic_config__ = STRICT_RECORD

    digest: str
    feasible: bool
    status: str
    inputs: Mapping[str, Value]
    figures: Mapping[str, float]
    times_s: Mapping[str, float]
    shortfall: Shortfall | None
    structure: Structure
    seal: str = ""

    @property
    def is_sealed(self) -> bool:
        """True if the entry is as it was written."""
        return self.seal == seal_of(self)


def locked_plan(plan: Plan, digest: str, request: Mapping[str, Any]) -> LockedPlan:
    """The entry of a plan, of the digest and the resolved document of its request."""
    entry = LockedPlan(
        digest=digest,
        feasible=plan.feasible,
        status=plan.certificate.status.value,
        inputs=plan_inputs(request),
        figures=_figures(plan),
        times_s=_times(plan),
        shortfall=_shortfall(plan),
        structure=structure_of(plan),
    )
    return replace(entry, seal=seal_of(entry))


def seal_of(entry: LockedPlan) -> str:
    """Hash of everything that is set in an entry but its seal; 8 and 8.0 are one number.

    What is not set is left out, so that a field which a later version adds does not break the seals of before.
    """
    content = asdict(replace(entry, seal=""))
    return short_hash(_normalised(content))


def rounded(value: float) -> float:
    """The value to six significant digits, a whole one as an integer."""
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


def _normalised(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _normalised(item) for name, item in value.items() if item is not None and item != ()}
    if isinstance(value, list | tuple):
        return [_normalised(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _figures(plan: Plan) -> dict[str, float]:
    found: dict[str, float | None] = {"devices": plan.devices, "gap": plan.certificate.gap}
    if plan.predicted is not None and plan.feasible:
        predicted = plan.predicted
        found |= {
            "tokens_per_s": predicted.tokens_per_s,
            "step_time_s": predicted.step_time_s,
            "ttft_p95_s": predicted.ttft_p95_s,
            "tpot_p95_s": predicted.tpot_p95_s,
            "cost_per_million_tokens": predicted.cost_per_million_tokens,
            "memory_headroom_bytes": min(stage.memory.capacity_bytes - stage.memory.total_bytes for stage in _all_stages(plan)),
        }
    return {name: rounded(value) for name, value in found.items() if value is not None}


def _times(plan: Plan) -> dict[str, float]:
    if not plan.feasible:
        return {}
    found: dict[str, float] = {}
    breakdown = placement_of(plan).breakdown
    if breakdown is not None:
        found = asdict(breakdown)
    elif (answering := _answering(plan)) is not None:
        found = {"prefill_s": answering.load.prefill_time_s, "decode_step_s": answering.load.decode_step_s}
    return {name: rounded(value) if value >= LEAST_TIME_S else 0 for name, value in found.items()}


def _shortfall(plan: Plan) -> Shortfall | None:
    reason = plan.reason
    if reason is None:
        return None
    return Shortfall(reason.constraint, rounded(reason.need), rounded(reason.have), reason.unit)


def structure_of(plan: Plan) -> Structure:
    """Return the layout of the model in a plan, in words."""
    answering = _answering(plan)
    training = leading_pipelines(plan)
    shown = training if answering is None else answering
    return Structure(
        axes=None if shown is None else axes(shown.axes),
        schedule=None if training is None else _schedule(training),
        microbatch=None if training is None else _microbatches(training),
        sequence_parallel=None if training is None else "yes" if training.sequence_parallel else "no",
        serving=_serving(plan),
        shardings=() if training is None else _shardings(training.shardings),
        stages=() if shown is None else tuple(map(_stage, shown.stages)),
        prefill=_prefill(plan),
        prefill_stages=() if (prompting := _prompting(plan)) is None else tuple(map(_stage, prompting.stages)),
        tp_overlap=None if training is None or training.tp_overlap is TpOverlap.EXPOSED else training.tp_overlap.value,
        worker_kinds=_kinds(plan),
        groups=_groups(plan.layout),
        stage_shardings=_stage_shardings(plan.layout),
        choices=unusual_choices(plan.layout) or None,
    )


def _microbatches(pipelines: Pipelines) -> str:
    return f"{pipelines.microbatch.count} of {counted(pipelines.microbatch.size, 'sequence')}"


def _shardings(shardings: Iterable[OperatorSharding]) -> tuple[str, ...]:
    """Return the operators that are sharded, and how."""
    return tuple(f"{s.block}/{s.operator}: {s.strategy}" for s in shardings if s.strategy != "replicate")


def _groups(layout: Layout | None) -> tuple[str, ...]:
    """Each node group's share of the batch and pipelines, where replicas lie on one group each."""
    return tuple(_group(group) for group in layout.groups) if isinstance(layout, ByGroup) else ()


def _group(group: GroupReplicas) -> str:
    given = group.pipelines
    split = "sequence parallel, " if given.sequence_parallel else ""
    stages = "; ".join(_stage(stage) for stage in given.stages)
    shardings = short_hash([[s.block, s.operator, s.strategy] for s in given.shardings])
    return (
        f"{group.group or 'first group'}: {counted(group.sequences, 'sequence')}, {axes(given.axes)}, {given.schedule}, "
        f"{_microbatches(given)}, {split}shardings {shardings}: {stages}"
    )


def _stage_shardings(layout: Layout | None) -> tuple[str, ...]:
    """Return the operators that are sharded in each stage, where stages differ."""
    if not isinstance(layout, Stagewise):
        return ()
    return tuple(
        f"stage {index}: {'sequence parallel' if stage.sequence_parallel else 'whole sequences'}, "
        + ", ".join(_shardings(stage.shardings))
        for index, stage in enumerate(layout.pipelines.stages)
    )


def _schedule(pipelines: Pipelines) -> str:
    if not pipelines.token_slices:
        return pipelines.schedule
    return f"{pipelines.schedule}, slices of {', '.join(str(each.tokens) for each in pipelines.token_slices)} tokens"


def _all_stages(plan: Plan) -> Iterable[Stage]:
    if isinstance(plan.layout, OfWorkers):
        return (stage for workers in plan.layout.all_workers for stage in workers.stages)
    pipelines = leading_pipelines(plan)
    return () if pipelines is None else pipelines.stages


def _answering(plan: Plan) -> Replicas | None:
    """Workers that answer, where a serving plan has one kind of them."""
    return plan.layout.answering if isinstance(plan.layout, OfWorkers) else None


def _prompting(plan: Plan) -> Workers | None:
    """Prefill workers, or workers in their layout of prompts where layouts switch."""
    return plan.layout.prompting if isinstance(plan.layout, OfWorkers) else None


def _serving(plan: Plan) -> str | None:
    answering = _answering(plan)
    return None if answering is None else _limits(counted(answering.load.replicas, "replica"), answering.workers)


def _prefill(plan: Plan) -> str | None:
    workers = _prompting(plan)
    if workers is None:
        return None
    answering = _answering(plan)
    whose = counted(workers.count, "worker")
    if answering is not None and _ranks(workers) == _ranks(answering.workers):
        whose = "the same workers"
    return _limits(f"{whose} of {axes(workers.axes)}", workers)


def _ranks(workers: Workers) -> set[int]:
    return {rank for devices in workers.device_ranges for rank in range(devices.first, devices.first + devices.count)}


def _limits(whose: str, workers: Workers) -> str:
    return f"{whose}, at most {counted(workers.max_num_seqs, 'sequence')} and {workers.max_num_batched_tokens:,} tokens a step"


def _kinds(plan: Plan) -> tuple[str, ...]:
    """Workers that the fields of answers and prompts do not show, each with its share of the arrivals where it has one."""
    if not isinstance(plan.layout, OfWorkers):
        return ()
    answering = _answering(plan)
    shown = (None if answering is None else answering.workers, _prompting(plan))
    kinds = [workers for workers in plan.layout.all_workers if workers not in shown]
    shares = plan.layout.shares or [None] * len(kinds)
    return tuple(_kind(workers, share) for workers, share in zip(kinds, shares, strict=True))


def _kind(workers: Workers, share: float | None) -> str:
    """A kind of workers: its share of the arrivals, to a thousandth, its layout and its devices."""
    stages = "; ".join(_stage(stage) for stage in workers.stages)
    taken = "" if share is None else f"{share:.1%} of arrivals, "
    return f"{taken}{axes(workers.axes)}, {_limits(counted(workers.count, 'replica'), workers)}: {stages}"


def _stage(stage: Stage) -> str:
    layers = ", ".join(f"{span.block} {_span(span.first, span.count)}" for span in stage.blocks)
    ranks = ", ".join(_span(devices.first, devices.count) for devices in stage.devices)
    return (
        f"{layers} on ranks {ranks}: {axes(stage.axes)}, recompute {stage.recompute}{stage.of_layers}, ZeRO {stage.zero_stage}"
    )


def _span(first: int, count: int) -> str:
    return number_range((first, first + count - 1) if count > 1 else (first,))
