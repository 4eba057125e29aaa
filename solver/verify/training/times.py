"""Times of stages and of the step, and the figures that follow from them: tokens, MFU, cost, SLO."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

from meshwright.costmodels.cluster.cluster import NodeGroup
from meshwright.costmodels.model.dims import BATCH, EXPERT_LATENT, HIDDEN, SEQ, TOP_K
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import DeviceRange, LayerSpan, Stage
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.documents import counted_flops, least_slowest
from meshwright.solver.verify.rules import band_violations, cost_violations, devices_by_group, picked_dims
from meshwright.solver.verify.training.choice_rules import gathered_bytes, gathers_keys
from meshwright.solver.verify.training.schedule import (
    BACKWARD_OVER_FORWARD,
    alone_share,
    copies,
    is_extended,
    reading,
    waiting,
)
from meshwright.solver.verify.training.token_slices import slice_flops
from meshwright.solver.verify.violation import Rule, Violation, agrees, at_most

_EXTENSION = 1e-3
"""Relative error of extending the wait of a memory-saving schedule over more micro-batches than its program is run for."""


_CELL_ERROR = 0.9
"""Least part of the wait for documents that is found on cells of tokens: moments are within 5% of those token by token."""


def time_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Stage times that no device can reach, the step time of the schedule, and every figure that follows from it."""
    yield from stage_time_violations(plan, request)
    yield from pipeline_violations(plan, request)
    yield from whole_violations(plan, request)


def whole_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Every figure that follows from the step time and the devices in use."""
    yield from _breakdown_violations(plan)
    yield from _document_violations(plan, request)
    yield from _exchange_violations(plan, request)
    yield from _throughput_violations(plan, request)
    yield from cost_violations(plan.predicted, request, [(plan.stages, plan.devices)])
    yield from _energy_violations(plan, request)
    yield from band_violations(plan.predicted)
    yield from _slo_violations(plan, request)


def stage_time_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """A micro-batch can't pass a stage faster than its model FLOPs at the peak of the stage's devices, and the keys and values
    that ranks gather before attention over the fastest link."""
    yield from _slice_time_violations(plan, request)
    for index, stage in enumerate(plan.stages):
        # Frozen weights have no gradients: half of the backward pass's products.
        backward = BACKWARD_OVER_FORWARD if request.workload.adapter is None else BACKWARD_OVER_FORWARD / 2
        flops = (1 + backward) * sum(_forward_flops(request, span, sequences=plan.microbatch.size) for span in stage.blocks)
        computes_s = flops / copies(plan) / (_fastest_flops(request, stage.devices) / plan.axes.dp)
        computes_s += sum(_least_gathers_s(plan, request, span) for span in stage.blocks) / copies(plan)
        exchanges_s = _least_exchanges_s(plan, request, stage)
        least_s = max(exchanges_s, computes_s + alone_share(plan) * exchanges_s)
        if not at_most(least_s, stage.time_s):
            gathers = " and gathers of keys" * gathers_keys(plan)
            given = f"{stage.time_s} s a micro-batch; its FLOPs and exchanges{gathers} take {least_s} s at the devices' peak"
            yield Violation(Rule.STAGE_TIME, f"plan.stages[{index}].time_s", given)
        yield from _sending_violations(plan, request, index, computing_s=computes_s)


def _sending_violations(plan: PipelinePlan, request: TrainingRequest, index: int, *, computing_s: float) -> Iterator[Violation]:
    """Only schedules that take micro-batches on early, as eager-1F1B, send beside their passes. There a stage takes what is
    longer of both, hides the other, and each micro-batch waits for both, whose sends take no less than the residual stream
    twice over the fastest link."""
    stage, where = plan.stages[index], f"plan.stages[{index}].hidden_s"
    if not reading(plan).takes_on_early:
        if stage.hidden_s:
            yield Violation(Rule.STAGE_TIME, where, f"{stage.hidden_s} s; {plan.schedule} sends nothing beside a stage's time")
        return
    if not at_most(stage.hidden_s, stage.time_s):
        yield Violation(Rule.STAGE_TIME, where, f"{stage.hidden_s} s, beside a stage of {stage.time_s} s")
    sends_s = _least_sends_s(plan, request)
    if not at_most(computing_s + sends_s, stage.time_s + stage.hidden_s):
        given = f"{stage.hidden_s} s beside {stage.time_s} s; FLOPs take {computing_s} s or more, sends {sends_s} s"
        yield Violation(Rule.STAGE_TIME, where, given)


def _exchange_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Exchanges of tokens with experts on other ranks show in all passes that run beside none of another micro-batch."""
    if plan.breakdown is None:
        return
    of_stage = min(_least_exchanges_s(plan, request, stage) for stage in plan.stages)
    least_s = plan.microbatch.count * alone_share(plan) * of_stage
    if not at_most(least_s, plan.breakdown.ep_comm_s):
        given = f"{plan.breakdown.ep_comm_s} s; what nothing runs beside takes {least_s} s over the fastest link"
        yield Violation(Rule.BREAKDOWN, "plan.breakdown.ep_comm_s", given)


def _least_exchanges_s(plan: PipelinePlan, request: TrainingRequest, stage: Stage) -> float:
    """A micro-batch's rows to experts and back, and their gradients, over the fastest link: a copy for each expert that is
    elsewhere, or one for each place with some of them, to which half of the tokens are sent at least."""
    axes, workload, dims = plan.axes, request.workload, request.model.dims
    if axes.ep == 1:
        return 0.0
    layers = sum(
        span.count
        for span in stage.blocks
        if any(picked_dims(operator) for operator in request.model.block(span.block).operators)
    )
    sent = dims.get(TOP_K, 1) * (axes.ep - 1) / axes.ep if workload.dispatch == "copies" else 0.5
    elements = plan.microbatch.size * workload.seq_len / (axes.cp * axes.tp) * sent * dims.get(EXPERT_LATENT, dims[HIDDEN])
    working = workload.precision.size_bytes
    there = 1 if workload.dispatch_format == "fp8" else working
    links = (link for group in request.cluster.groups for link in (group.node.intra, group.node.inter))
    return 2.0 * layers / copies(plan) * elements * (there + working) / max(link.bytes_per_s for link in links)


def _least_sends_s(plan: PipelinePlan, request: TrainingRequest) -> float:
    """A rank's part of a micro-batch's stream over both borders of its stage, each at once in both directions."""
    rows = plan.microbatch.size * (request.workload.seq_len // plan.axes.cp)
    sent = rows * request.model.dims[HIDDEN] * request.workload.precision.size_bytes / plan.axes.tp
    return 2.0 * sent / _fastest_link(request)


def _least_gathers_s(plan: PipelinePlan, request: TrainingRequest, span: LayerSpan) -> float:
    """Of keys and values forward and backward, and of their gradients: what other ranks have, or are given."""
    others = 1.0 - plan.axes.ulysses / plan.axes.cp
    return 3.0 * others * span.count * sum(gathered_bytes(plan, request, span.block)) / _fastest_link(request)


def _fastest_link(request: TrainingRequest) -> float:
    return max(link.bytes_per_s for group in request.cluster.groups for link in (group.node.intra, group.node.inter))


def _slice_time_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Nor can a token slice pass all stages faster than its own model FLOPs, where these have one kind of device."""
    peaks = {_fastest_flops(request, stage.devices) / plan.axes.dp for stage in plan.stages}
    if not plan.token_slices or len(peaks) > 1:
        return
    whole_s, flops_per_s = sum(stage.time_s for stage in plan.stages), peaks.pop()
    for index, (each, flops) in enumerate(zip(plan.token_slices, slice_flops(plan, request), strict=True)):
        for name, share, passes in (("forward", each.forward, 1), ("backward", each.backward, BACKWARD_OVER_FORWARD)):
            if not at_most(passes * flops / flops_per_s, share * whole_s):
                given = f"{share * whole_s} s; its FLOPs alone take {passes * flops / flops_per_s} s at the devices' peak"
                yield Violation(Rule.STAGE_TIME, f"plan.token_slices[{index}].{name}", given)


def pipeline_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """T = m max t + w (sum t - max t) + max_i(d_i - w sum_{j<i} t_j): that of 1F1B (DESIGN level 3, Mist) with the wait of
    the schedule on equal ranks, w times that of 1F1B, by its program. What a stage hides is in the sums, not in max t."""
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    step_s = plan.predicted.step_time_s
    times = [stage.time_s for stage in plan.stages]
    ways = [stage.time_s + stage.hidden_s for stage in plan.stages]
    waits = waiting(plan, request)
    late = max(stage.extra_s - waits * sum(ways[:index]) for index, stage in enumerate(plan.stages))
    expected = plan.microbatch.count * max(times) + waits * (sum(ways) - max(times)) + late
    if not (abs(step_s - expected) <= _EXTENSION * step_s if is_extended(plan) else agrees(step_s, expected)):
        yield Violation(Rule.STEP_TIME, "plan.predicted.step_time_s", f"{step_s} s, the stages make {expected} s")


def _breakdown_violations(plan: PipelinePlan) -> Iterator[Violation]:
    assert plan.predicted is not None and plan.predicted.step_time_s is not None and plan.breakdown is not None
    step_s = plan.predicted.step_time_s
    parts = sum(getattr(plan.breakdown, field.name) for field in dataclasses.fields(plan.breakdown))
    if not agrees(step_s, parts):
        yield Violation(Rule.BREAKDOWN, "plan.breakdown", f"the parts add up to {parts} s, the step takes {step_s} s")


def _document_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Ranks wait for the one with the most attention, no less than its FLOPs above the mean take at the peak."""
    slowest = least_slowest(plan, request)
    if slowest == 1.0 or plan.breakdown is None:
        return
    sizes = {**request.model.dims, BATCH: plan.microbatch.size, SEQ: request.workload.seq_len}
    least_s = math.inf
    for stage in plan.stages:
        flops = sum(
            span.count * counted_flops(operator, sizes, request.workload)
            for span in stage.blocks
            for operator in request.model.block(span.block).operators
            if operator.kind is OperatorKind.ATTENTION
        )
        of_stage = (1 + BACKWARD_OVER_FORWARD) * flops / copies(plan)
        least_s = min(least_s, of_stage / (_fastest_flops(request, stage.devices) / plan.axes.dp))
    wait_s = _CELL_ERROR * plan.microbatch.count * (slowest - 1) * least_s
    if not at_most(wait_s, plan.breakdown.dp_comm_s):
        given = f"{plan.breakdown.dp_comm_s} s; ranks wait {wait_s} s or more for the one with the longest documents"
        yield Violation(Rule.BREAKDOWN, "plan.breakdown.dp_comm_s", given)


def _throughput_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    workload, predicted = request.workload, plan.predicted
    assert predicted is not None and predicted.step_time_s is not None
    tokens_per_s = workload.global_batch * workload.seq_len / predicted.step_time_s
    if not agrees(predicted.tokens_per_s, tokens_per_s):
        given = f"{predicted.tokens_per_s}, the step time makes {tokens_per_s}"
        yield Violation(Rule.TOKENS, "plan.predicted.tokens_per_s", given)
    # Layers are those of the model: the rules of the layout say that the stages hold them.
    spans = [LayerSpan(run.block, 0, run.repeat) for run in request.model.chain]
    forward = sum(_forward_flops(request, span, sequences=workload.global_batch) for span in spans)
    peak = _peak_flops(request, (devices for stage in plan.stages for devices in stage.devices))
    mfu = (1 + BACKWARD_OVER_FORWARD) * forward / (predicted.step_time_s * peak)
    if predicted.mfu is None or not agrees(predicted.mfu, mfu):
        yield Violation(Rule.MFU, "plan.predicted.mfu", f"{predicted.mfu}, model FLOPs and step time make {mfu}")


def _energy_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Devices in use take at least their idle power, and at most their full power, for the whole step."""
    predicted = plan.predicted
    assert predicted is not None and predicted.step_time_s is not None
    if predicted.energy_per_step_j is None:
        return
    groups = _devices_of(plan, request)
    least = sum(count * group.node.device.idle_power_w for group, count in groups) * predicted.step_time_s
    most = sum(count * group.node.device.power_w for group, count in groups) * predicted.step_time_s
    if not (at_most(least, predicted.energy_per_step_j) and at_most(predicted.energy_per_step_j, most)):
        given = f"{predicted.energy_per_step_j} J, the devices take {least} to {most} J"
        yield Violation(Rule.ENERGY, "plan.predicted.energy_per_step_j", given)


def _slo_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    predicted, slo = plan.predicted, request.slo
    assert predicted is not None and predicted.step_time_s is not None
    if slo.max_step_time_s is not None and not at_most(predicted.step_time_s, slo.max_step_time_s):
        given = f"{predicted.step_time_s} s, the SLO allows {slo.max_step_time_s} s"
        yield Violation(Rule.SLO, "plan.predicted.step_time_s", given, limit="slo.max_step_time_s")
    if slo.min_tokens_per_s is not None and not at_most(slo.min_tokens_per_s, predicted.tokens_per_s):
        given = f"{predicted.tokens_per_s}, the SLO asks for {slo.min_tokens_per_s}"
        yield Violation(Rule.SLO, "plan.predicted.tokens_per_s", given, limit="slo.min_tokens_per_s")
    most = slo.max_cost_per_million_tokens
    if most is not None:
        prices = [(n, group.node.device.price_per_hour or math.inf) for group, n in _devices_of(plan, request)]
        cost = sum(n * price for n, price in prices) / 3600.0 / predicted.tokens_per_s * 1e6
        if not at_most(cost, most):
            given = f"{cost} USD per million tokens, the SLO allows {most}"
            yield Violation(Rule.SLO, "plan.predicted.tokens_per_s", given, limit="slo.max_cost_per_million_tokens")


def _devices_of(plan: PipelinePlan, request: TrainingRequest) -> list[tuple[NodeGroup, int]]:
    return devices_by_group(request.cluster, (devices for stage in plan.stages for devices in stage.devices))


def _forward_flops(request: TrainingRequest, span: LayerSpan, *, sequences: int) -> float:
    sizes = {**request.model.dims, BATCH: sequences, SEQ: request.workload.seq_len}
    operators = request.model.block(span.block).operators
    return span.count * sum(counted_flops(operator, sizes, request.workload) for operator in operators)


def _peak_flops(request: TrainingRequest, ranges: Iterable[DeviceRange]) -> float:
    """Dense peak of all these devices together in the workload's number format."""
    precision = request.workload.precision
    return sum(count * group.node.device.peak(precision) for group, count in devices_by_group(request.cluster, ranges))


def _fastest_flops(request: TrainingRequest, ranges: Iterable[DeviceRange]) -> float:
    """The same in the fastest format that any product runs in."""
    workload = request.workload
    formats = {workload.precision, workload.matmul.dtype or workload.precision}
    groups = devices_by_group(request.cluster, ranges)
    return sum(count * max(group.node.device.peak(dtype) for dtype in formats) for group, count in groups)
