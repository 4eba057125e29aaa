"""The load of serving workers: what they keep up with, and what requests wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import fmean

from meshwright.costmodels.serving.latency_law import ServingLaw, latency_law, learned_latencies
from meshwright.solver.answer.layouts import EngineLoad, Workers
from meshwright.solver.answer.plan import InteractivityPoint, Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.problem.choices import FrontierScope, ServingMode
from meshwright.solver.problem.launchers.servers import ENGINES
from meshwright.solver.problem.request import Length, ServingRequest, ServingWorkload
from meshwright.solver.problem.serving_load import ClosedArrivals, EmpiricalLength, FixedLength, LognormalLength, TraceArrivals
from meshwright.solver.verify.rules import devices_by_group
from meshwright.solver.verify.serving.degrees import stage_ranks
from meshwright.solver.verify.violation import Rule, Violation, agrees, at_most


def load_violations(
    load: EngineLoad, predicted: Predicted, request: ServingRequest, *, pools: bool = False
) -> Iterator[Violation]:
    """Load below what the workers keep up with, and percentiles within the targets."""
    # Clients of a closed loop wait for answers, so they may keep an engine full.
    may_be_full = isinstance(request.workload.arrivals, ClosedArrivals)
    if not (0.0 <= load.utilisation < 1.0 or (may_be_full and load.utilisation == 1.0)):
        given = f"{load.utilisation}, a stable queue is below 1"
        yield Violation(Rule.UTILISATION, "plan.serving.utilisation", given)
    if load.mean_batch > load.max_num_seqs:
        given = f"{load.mean_batch} requests at once, max_num_seqs is {load.max_num_seqs}"
        yield Violation(Rule.UTILISATION, "plan.serving.mean_batch", given)
    yield from promise_violations(predicted, request, pools=pools)


def promise_violations(predicted: Predicted, request: ServingRequest, *, pools: bool) -> Iterator[Violation]:
    """Percentiles within the targets with the confidence of the SLO, by the law of the engine's latencies, which is found and
    applied here anew. A plan of versions that promised nothing states medians alone."""
    slo, law = request.slo, law_of(request, pools=pools)
    for name, median_s, promised_s, time_law, limit_ms in (
        ("ttft", predicted.ttft_p95_s, predicted.ttft_promised_s, law.ttft, slo.p95_ttft_ms),
        ("tpot", predicted.tpot_p95_s, predicted.tpot_promised_s, law.tpot, slo.p95_tpot_ms),
    ):
        assert median_s is not None, "answer_violations asks for both percentiles"
        bound_s, where = median_s, f"plan.predicted.{name}_p95_s"
        if promised_s is not None:
            # Medians are (simulated + outside) x scale, and what is promised counts from no less than what was simulated.
            least_s = median_s * time_law.factor(slo.confidence) / time_law.scale
            bound_s, where = promised_s, f"plan.predicted.{name}_promised_s"
            if not at_most(least_s, promised_s):
                given = f"{promised_s} s; {slo.confidence} of measured times with this median stay below {least_s} s"
                yield Violation(Rule.SLO, where, given)
        if limit_ms is not None and not at_most(bound_s * 1e3, limit_ms):
            yield Violation(Rule.SLO, where, f"{bound_s * 1e3} ms, the SLO allows {limit_ms} ms")


def law_of(request: ServingRequest, *, pools: bool) -> ServingLaw:
    """Return the law of the latencies of a request's engine."""
    devices = [group.node.device for group in request.cluster.groups]
    learned = learned_latencies(request.calibrations)
    return latency_law(request.search.engine, pools=pools, devices=devices, learned=learned)


def mean_lengths(workload: ServingWorkload) -> tuple[float, float]:
    """Mean prompt and output in tokens."""
    if isinstance(workload.arrivals, TraceArrivals):
        return fmean(workload.arrivals.prompt_tokens), fmean(workload.arrivals.output_tokens)
    assert workload.prompt_tokens is not None and workload.output_tokens is not None
    return _mean(workload.prompt_tokens), _mean(workload.output_tokens)


def _mean(length: Length) -> float:
    match length:
        case FixedLength():
            return float(length.fixed)
        case EmpiricalLength():
            return fmean(length.empirical)
        case LognormalLength():
            return length.mean


# Throughput of a device against tokens per second of a user: points that none beats, and the plan's own figures.


def interactivity_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Rules of a serving plan's sweep over layouts and batch limits, where it has one."""
    drawn = plan.interactivity
    if drawn is None:
        return
    where = "plan.interactivity"
    if request.search.frontier is not FrontierScope.SWEPT:
        yield Violation(Rule.FRONTIER, where, "there is one, the request asks for none")
    assert plan.predicted is not None
    mean = plan.predicted.tokens_per_s / plan.devices
    if not agrees(drawn.plan_tokens_per_s_per_device, mean):
        given = f"{drawn.plan_tokens_per_s_per_device}, tokens/s over devices are {mean}"
        yield Violation(Rule.FRONTIER, f"{where}.plan_tokens_per_s_per_device", given)
    for index, (better, point) in enumerate(pairwise(drawn.points)):
        less = point.tokens_per_s_per_device < better.tokens_per_s_per_device
        if not (less and point.tokens_per_s_per_user > better.tokens_per_s_per_user):
            given = f"throughput must fall and tokens/s of a user rise from {better.summary!r} to {point.summary!r}"
            yield Violation(Rule.FRONTIER, f"{where}.points[{index + 1}]", given)
    for index, point in enumerate(drawn.points):
        for given in (*_shape_faults(point, request), *_rate_faults(point, request)):
            yield Violation(Rule.FRONTIER, f"{where}.points[{index}]", given)


def _shape_faults(point: InteractivityPoint, request: ServingRequest) -> Iterator[str]:
    """Yield the faults of a replica and its batch."""
    axes, search, prompts = point.axes, request.search, point.prefill
    taken = {point.group: point.workers * stage_ranks(axes) * axes.pp}
    if prompts is not None:
        of_prompts = prompts.workers * stage_ranks(prompts.axes) * prompts.axes.pp
        taken[prompts.group] = taken.get(prompts.group, 0) + of_prompts
        if ServingMode.DISAGGREGATED not in search.modes:
            yield "a pair of pools, the request allows none"
    elif point.workers != 1:
        yield f"{point.workers} replicas, a point is of one"
    if point.devices != sum(taken.values()):
        yield f"{point.devices} devices, the degrees make {sum(taken.values())}"
    for name, devices in taken.items():
        room = [group.n_devices for group in request.cluster.groups if group.name == name]
        if not room or devices > room[0]:
            yield f"{devices} devices of node group {name!r}, the cluster has {room[0] if room else 0}"
    groups = point.workers * axes.attention_dp
    if not at_most(point.batch, point.max_num_seqs * groups):
        yield f"a batch of {point.batch}, {groups} attention groups may run {point.max_num_seqs} sequences each"
    allowed = ((axes.tp, search.tp), (axes.pp, search.pp), (axes.ep, search.ep), (axes.kvp, search.kvp))
    for degree, degrees in (*allowed, (axes.attention_dp, search.attention_dp)):
        if degrees and degree not in degrees:
            yield f"a degree of {degree}, the search allows {degrees}"


def _rate_faults(point: InteractivityPoint, request: ServingRequest) -> Iterator[str]:
    """Little's law: of m output tokens all but the first are waited for, so that a batch of n sequences of u tokens/s each
    makes at most n u m / (m - 1). The mean of lognormal lengths is not known here: they are cut at a percentile."""
    if isinstance(request.workload.output_tokens, LognormalLength):
        return
    _, output = mean_lengths(request.workload)
    made, most = point.tokens_per_s_per_device * point.devices, point.batch * point.tokens_per_s_per_user * output
    if not at_most(made * (output - 1.0), most):
        yield f"{made} tokens/s of a batch of {point.batch} at {point.tokens_per_s_per_user} tokens/s each"


# Power of a serving plan's devices, and the energy of its tokens.


def power_violations(
    predicted: Predicted, pools: Iterable[Workers], request: ServingRequest, *, devices: int
) -> Iterator[Violation]:
    """The ``devices`` of all pools take at least their idle power and at most their full power, and tokens take what devices
    do."""
    watts, joules = predicted.power_w, predicted.energy_per_token_j
    if watts is None and joules is None:
        return
    if watts is None or joules is None:
        yield Violation(Rule.ENERGY, "plan.predicted", f"power_w {watts}, energy_per_token_j {joules}: they go together")
        return
    least, most = _power_range(devices, request, [listed for workers in pools for listed in workers.device_ranges])
    if not (at_most(least, watts) and at_most(watts, most)):
        yield Violation(Rule.ENERGY, "plan.predicted.power_w", f"{watts} W, the devices take {least} to {most} W")
    if not agrees(joules * predicted.tokens_per_s, watts):
        given = f"{joules} J, {watts} W make {predicted.tokens_per_s} tokens/s"
        yield Violation(Rule.ENERGY, "plan.predicted.energy_per_token_j", given)


def _power_range(devices: int, request: ServingRequest, listed: list[DeviceRange]) -> tuple[float, float]:
    """Idle and full power of all devices. Where a plan lists the devices of one replica, all may be the thriftiest or not."""
    groups = devices_by_group(request.cluster, listed)
    least = sum(count * group.node.device.idle_power_w for group, count in groups)
    most = sum(count * group.node.device.power_w for group, count in groups)
    unlisted = devices - sum(count for _, count in groups)
    least += unlisted * min(group.node.device.idle_power_w for group, _ in groups)
    most += unlisted * max(group.node.device.power_w for group, _ in groups)
    return least, most


# Rules of workers that verify drafted tokens.


def draft_bytes(request: ServingRequest) -> float:
    """Return the bytes that the draft takes of each device."""
    workload = request.workload
    return 0.0 if workload.speculation is None else workload.speculation.draft.memory_bytes


def proposed_tokens(workers: Workers, request: ServingRequest) -> int:
    """Tokens that the cache must take beside those of answers: the proposals of every sequence that may run."""
    speculation = request.workload.speculation
    return 0 if speculation is None else workers.max_num_seqs * speculation.draft_tokens


def speculation_violations(workers: Workers, request: ServingRequest) -> Iterator[Violation]:
    """No pipeline stages, no ranks that share prompts; a step has room for the last token of every sequence and its
    proposals."""
    speculation, axes = request.workload.speculation, workers.axes
    if speculation is None:
        return
    if axes.pp != 1:
        yield Violation(Rule.AXES, "plan.axes.pp", f"{axes.pp}; tokens are drafted without pipeline stages only")
    if axes.cp != 1:
        yield Violation(Rule.AXES, "plan.axes.cp", f"{axes.cp}; tokens are drafted without ranks that share prompts only")
    method = speculation.draft.method
    if method not in ENGINES[request.search.engine].drafts:
        given = f"{request.search.engine.value}, which has no drafts of the method {method.value}"
        yield Violation(Rule.LAUNCHER, "request.search.engine", given)
    needed = workers.max_num_seqs * (1 + speculation.draft_tokens)
    if needed > workers.max_num_batched_tokens:
        given = f"{workers.max_num_batched_tokens}; {workers.max_num_seqs} sequences verify {needed} tokens in a step"
        yield Violation(Rule.BATCH, "plan.serving.max_num_batched_tokens", given)
