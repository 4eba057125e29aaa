"""Rules of serving plans of two pools: each pool is a plan of its own, and the two share a cluster and a load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.solver.answer.plan import Plan, PrefillPool
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import FixedLength, TraceArrivals
from meshwright.solver.verify.numbers import agrees, at_most
from meshwright.solver.verify.serving.kinds import mixture_violations
from meshwright.solver.verify.serving.power import power_violations
from meshwright.solver.verify.serving.replicas import (
    aggregated_violations,
    kv_bytes_per_token,
    load_violations,
    mean_lengths,
    pool_memory_violations,
    pool_shape_violations,
    shared_prompt_violations,
    stage_ranks,
    whole_prompt_violations,
)
from meshwright.solver.verify.serving.speculation import speculation_violations
from meshwright.solver.verify.training.layout import devices_by_group
from meshwright.solver.verify.training.memory import peak_violations
from meshwright.solver.verify.training.times import band_violations
from meshwright.solver.verify.violation import Rule, Violation

_S_PER_HOUR = 3600.0


def serving_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Every rule of a serving plan: of workers that do both phases, of several kinds of them, or of two pools."""
    if plan.kinds:
        yield from mixture_violations(plan, request)
        return
    if plan.prefill is None:
        yield from aggregated_violations(plan, request)
        return
    pool = plan.prefill
    prefill_request, decode_request = of_prompts(request), _of_answers(request)
    prefill, decode = _prefill_view(plan, pool), _decode_view(plan, pool)
    shape = (
        *speculation_violations(plan, request),
        *whole_prompt_violations(decode),
        *_at_prefill(_allowed_sharing_violations(pool, request)),
        *_at_prefill(shared_prompt_violations(prefill, request)),
        *_at_prefill(pool_shape_violations(prefill, prefill_request)),
        *pool_shape_violations(decode, decode_request),
        *_sharing_violations(plan, pool, request),
    )
    yield from shape
    if shape:
        return
    yield from _at_prefill(pool_memory_violations(prefill, prefill_request))
    yield from pool_memory_violations(decode, decode_request)
    yield from peak_violations(plan)
    yield from load_violations(decode, request)
    if not 0.0 <= pool.utilisation < 1.0:
        yield Violation(Rule.UTILISATION, "plan.prefill.utilisation", f"{pool.utilisation}, a stable queue is below 1")
    yield from _transfer_violations(decode, pool, request)
    yield from _cost_violations(plan, pool, request)
    yield from power_violations(plan, request)
    yield from band_violations(plan)


def of_prompts(request: ServingRequest) -> ServingRequest:
    """The request as prefill workers see it: each prompt is answered with one token."""
    workload = request.workload
    if isinstance(workload.arrivals, TraceArrivals):
        single = replace(workload.arrivals, output_tokens=(1,) * len(workload.arrivals.times_s))
        return replace(request, workload=replace(workload, arrivals=single))
    return replace(request, workload=replace(workload, output_tokens=FixedLength(1)))


def _of_answers(request: ServingRequest) -> ServingRequest:
    """The request as decode workers see it: prompts come whole from the prefill workers, nothing of them is shared."""
    return replace(request, workload=request.workload.without_prefix_cache())


def _pool_devices(pool: PrefillPool) -> int:
    axes = pool.axes
    return pool.workers * stage_ranks(axes) * axes.pp


def _allowed_sharing_violations(pool: PrefillPool, request: ServingRequest) -> Iterator[Violation]:
    if request.search.cp and pool.axes.cp not in request.search.cp:
        yield Violation(Rule.SEARCH, "plan.axes.cp", f"{pool.axes.cp}, the request allows {request.search.cp}")


def _prefill_view(plan: Plan, pool: PrefillPool) -> Plan:
    """The prefill pool as a plan of its own."""
    assert plan.serving is not None
    layout = replace(
        plan.serving,
        replicas=pool.workers,
        max_num_seqs=pool.max_num_seqs,
        max_num_batched_tokens=pool.max_num_batched_tokens,
        mean_batch=0.0,
    )
    return replace(plan, axes=pool.axes, stages=pool.stages, serving=layout, devices=_pool_devices(pool), prefill=None)


def _decode_view(plan: Plan, pool: PrefillPool) -> Plan:
    """The decode pool as a plan of its own."""
    return replace(plan, devices=plan.devices - _pool_devices(pool), prefill=None)


def _at_prefill(violations: Iterator[Violation]) -> Iterator[Violation]:
    """Violations placed at the prefill pool."""
    for violation in violations:
        yield replace(violation, where=violation.where.replace("plan.", "plan.prefill.", 1))


def _sharing_violations(plan: Plan, pool: PrefillPool, request: ServingRequest) -> Iterator[Violation]:
    """The request allows pools, they use no device twice, and the cluster has them all."""
    if ServingMode.DISAGGREGATED not in request.search.modes:
        yield Violation(Rule.SEARCH, "plan.prefill", "a prefill pool, the request allows aggregated plans only")
    if plan.devices > request.cluster.n_devices:
        yield Violation(Rule.DEVICES, "plan.devices", f"{plan.devices}, the cluster has {request.cluster.n_devices}")
    ours = {rank for stage in pool.stages for d in stage.devices for rank in range(d.first, d.first + d.count)}
    theirs = {rank for stage in plan.stages for d in stage.devices for rank in range(d.first, d.first + d.count)}
    if ours & theirs:
        yield Violation(Rule.DEVICES, "plan.prefill.stages", f"device {min(ours & theirs)} is in both pools")


def _transfer_violations(decode: Plan, pool: PrefillPool, request: ServingRequest) -> Iterator[Violation]:
    """Keys and values of a mean prompt take at least their time over the fastest links that the workers have."""
    assert decode.axes is not None
    prompt, _ = mean_lengths(request.workload)
    per_rank = sum(kv_bytes_per_token(decode, request, stage) for stage in decode.stages)
    moved = prompt * per_rank * decode.axes.tp * decode.axes.kvp
    ranks = pool.axes.tp * pool.axes.kvp * pool.axes.pp
    links = [
        max(group.node.intra.bytes_per_s, group.node.inter.bytes_per_s)
        for group, _ in devices_by_group(request.cluster, (d for stage in pool.stages for d in stage.devices))
    ]
    least_s = moved / (ranks * max(links))
    if not at_most(least_s, pool.transfer_s):
        given = f"{pool.transfer_s} s; {moved:.0f} bytes over {ranks} links take {least_s} s"
        yield Violation(Rule.STAGE_TIME, "plan.prefill.transfer_s", given)


def _cost_violations(plan: Plan, pool: PrefillPool, request: ServingRequest) -> Iterator[Violation]:
    """Price of the devices of both pools over the tokens they make."""
    assert plan.predicted is not None
    claimed = plan.predicted.cost_per_million_tokens
    if claimed is None:
        return
    per_hour = 0.0
    for stages, devices in ((pool.stages, _pool_devices(pool)), (plan.stages, plan.devices - _pool_devices(pool))):
        groups = devices_by_group(request.cluster, (d for stage in stages for d in stage.devices))
        prices = [group.node.device.price_per_hour for group, _ in groups]
        if any(price is None for price in prices):
            yield Violation(Rule.COST, "plan.predicted.cost_per_million_tokens", "a device in use has no known price")
            return
        # A pool may list the devices of one worker; the others are like it.
        copies = devices / sum(count for _, count in groups)
        per_hour += copies * sum(count * (price or 0.0) for (_, count), price in zip(groups, prices, strict=True))
    expected = per_hour / _S_PER_HOUR / plan.predicted.tokens_per_s * 1e6
    if not agrees(claimed, expected):
        yield Violation(Rule.COST, "plan.predicted.cost_per_million_tokens", f"{claimed}, prices make {expected}")
