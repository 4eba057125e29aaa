"""Plans whose stages differ in degrees: each must be a good stage of a pipeline of its like, and together they must fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import DeviceRange, Microbatch, Stage
from meshwright.solver.problem.choices import Space, StageDegrees, TpOverlap
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.rules import devices_by_group, peak_violations
from meshwright.solver.verify.training.choice_rules import unlike_stage_violations
from meshwright.solver.verify.training.host import host_violations
from meshwright.solver.verify.training.layout import layout_violations, stage_ranks
from meshwright.solver.verify.training.memory import memory_violations, risk_violations
from meshwright.solver.verify.training.restrictions import restriction_violations
from meshwright.solver.verify.training.sharding import sharding_violations
from meshwright.solver.verify.training.times import pipeline_violations, stage_time_violations, whole_violations
from meshwright.solver.verify.violation import Counted, Rule, Violation


def stagewise_violations(plan: PipelinePlan, request: TrainingRequest, counted: Counted) -> tuple[Violation, ...]:
    """Rules of how stages go together, then of each stage among others like it, then of the step."""
    broken = counted.of(_asked_violations(plan, request)) or counted.of(_together_violations(plan, request))
    for rules in _OF_A_STAGE:
        if broken:
            return broken
        broken = counted.of(
            violation
            for index in range(len(plan.stages))
            for violation in rules(*_among_its_like(plan, request, index))
            if _concerns(violation, index)
        )
    peak = peak_violations(plan.predicted, plan.stages)
    whole = (peak, risk_violations(plan, request), pipeline_violations(plan, request), whole_violations(plan, request))
    return broken or counted.of(chain.from_iterable(whole))


_OF_A_STAGE = (
    layout_violations,
    sharding_violations,
    restriction_violations,
    memory_violations,
    host_violations,
    stage_time_violations,
)


def _asked_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    search = request.search
    if search.stage_degrees is not StageDegrees.ANY or search.space is not Space.FREE:
        yield Violation(Rule.SEARCH, "plan.stages", "stages with shardings of their own, which the request does not ask for")
    if not request.model.is_chain:
        yield Violation(Rule.SEARCH, "plan.stages", "stages that differ, of a model that branches")
    yield from unlike_stage_violations(plan)
    if plan.tp_overlap is not TpOverlap.EXPOSED:
        yield Violation(Rule.SEARCH, "plan.tp_overlap", "chunked products of stages that differ, which are not searched")
    if plan.schedule != "1f1b" or len(plan.stages) < 2:
        given = f"{plan.schedule}, {len(plan.stages)} stages; stages that differ are two or more under 1f1b"
        yield Violation(Rule.STAGES, "plan.stages", given)


def _together_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Every stage says all of itself, no device serves two, no border of a node or a node group cuts a stage, groups come one
    after another, and every micro-batch divides."""
    if plan.stages[0].axes != plan.axes:
        yield Violation(Rule.AXES, "plan.axes", f"{plan.axes}, the first stage has {plan.stages[0].axes}")
    sequences, cluster = plan.axes.dp * plan.microbatch.size, request.cluster
    used: set[int] = set()
    reached = 0
    for index, stage in enumerate(plan.stages):
        where, ranks = f"plan.stages[{index}]", stage_ranks(stage)
        if not stage.shardings or stage.sequence_parallel is None:
            yield Violation(Rule.SHARDING, where, "says not how its own operators and norms are sharded")
        if stage.axes.pp != len(plan.stages):
            yield Violation(Rule.AXES, f"{where}.axes", f"pp {stage.axes.pp} of {len(plan.stages)} stages")
        if sequences % stage.axes.dp:
            given = f"{sequences} sequences of a micro-batch do not divide by dp {stage.axes.dp}"
            yield Violation(Rule.BATCH, f"{where}.axes", given)
        if len(ranks) != _size(stage) or used & set(ranks) or ranks != list(range(ranks[0], ranks[0] + len(ranks))):
            given = f"{len(ranks)} devices, dp x tp x cp is {_size(stage)}; each once, in a row, and no other stage's"
            yield Violation(Rule.DEVICES, f"{where}.devices", given)
            continue
        used |= set(ranks)
        if max(ranks) >= cluster.n_devices:
            yield Violation(Rule.DEVICES, f"{where}.devices", f"rank {max(ranks)} of {cluster.n_devices} devices")
            continue
        held = devices_by_group(cluster, stage.devices)
        nodes = {cluster.node_of(rank) for rank in ranks}
        per_node = held[0][0].node.devices_per_node
        if len(held) > 1:
            given = f"ranks of {' and '.join(group.name for group, _ in held)}; a stage lies in one node group"
            yield Violation(Rule.DEVICES, f"{where}.devices", given)
        elif len(nodes) * per_node != len(ranks) and len(nodes) > 1:
            yield Violation(Rule.DEVICES, f"{where}.devices", f"{len(ranks)} devices on parts of {len(nodes)} nodes")
        place = cluster.groups.index(held[-1][0])
        if place < reached:
            given = f"back in {held[-1][0].name}, behind stages in {cluster.groups[reached].name}"
            yield Violation(Rule.DEVICES, f"{where}.devices", given)
        reached = max(reached, place)
    if plan.devices != len(used):
        yield Violation(Rule.DEVICES, "plan.devices", f"{plan.devices}, the stages hold {len(used)} devices")


def _among_its_like(plan: PipelinePlan, request: TrainingRequest, index: int) -> tuple[PipelinePlan, TrainingRequest]:
    """A plan all of whose stages have this one's degrees, in a row on as many nodes of its group as they take."""
    stage, own = plan.stages[index], _size(plan.stages[index])
    stages = tuple(
        replace(
            each,
            axes=stage.axes,
            devices=(DeviceRange(place * own, own),),
            zero_stage=stage.zero_stage,
            shard_ranks=stage.shard_ranks,
            offload=stage.offload,
            gradients=stage.gradients,
        )
        for place, each in enumerate(plan.stages)
    )
    ((group, _),) = devices_by_group(request.cluster, stage.devices)
    nodes = -(-len(stages) * own // group.node.devices_per_node)
    cluster = replace(request.cluster, groups=(replace(group, nodes=nodes),))
    pipelines = replace(
        plan.pipelines,
        axes=stage.axes,
        stages=stages,
        shardings=stage.shardings,
        sequence_parallel=bool(stage.sequence_parallel),
        microbatch=Microbatch(plan.axes.dp * plan.microbatch.size // stage.axes.dp, plan.microbatch.count),
    )
    like = replace(plan, pipelines=pipelines, devices=own * len(stages))
    return like, replace(request, cluster=cluster)


def _concerns(violation: Violation, index: int) -> bool:
    """Return True if a rule speaks of this stage or of the whole, not of the others in its likeness."""
    return not violation.where.startswith("plan.stages[") or violation.where.startswith(f"plan.stages[{index}]")


def _size(stage: Stage) -> int:
    return stage.axes.dp * stage.axes.tp * stage.axes.cp
