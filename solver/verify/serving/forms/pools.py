"""Rules of serving plans of a prefill and a decode pool: each is a plan of its own, and they share a cluster and a load."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.solver.answer.layouts import Pools, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.choices import ServingMode, Space
from meshwright.solver.problem.launchers.servers import SERVERS
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.rules import band_violations, cost_violations, devices_by_group, peak_violations
from meshwright.solver.verify.serving.degrees import (
    devices_of,
    kv_bytes_per_token,
    of_answers,
    of_prompts,
    restriction_violations,
    shape_violations,
    shared_prompt_violations,
    whole_prompt_violations,
)
from meshwright.solver.verify.serving.load import load_violations, mean_lengths, power_violations, speculation_violations
from meshwright.solver.verify.serving.memory import memory_violations
from meshwright.solver.verify.violation import Rule, Violation, at_most, placed_at

_PREFILL = "plan.prefill"


def violations(plan: Plan, layout: Pools, request: ServingRequest) -> Iterator[Violation]:
    """Every rule of a plan of a prefill pool and a decode pool."""
    prefill_request, decode_request = of_prompts(request), of_answers(request)
    prefill, decode, predicted = layout.prefill_workers, layout.decode_workers, plan.predicted
    assert predicted is not None, "answer_violations asks for it"
    of_prefill = devices_of(prefill)
    shape = (
        *whole_prompt_violations(decode.axes),
        *placed_at(_PREFILL, _allowed_sharing_violations(prefill, request)),
        *placed_at(_PREFILL, shared_prompt_violations(prefill, request)),
        *placed_at(_PREFILL, shape_violations(prefill, prefill_request, devices=of_prefill)),
        *shape_violations(decode, decode_request, devices=plan.devices - of_prefill),
        *_sharing_violations(plan, layout, request),
        *_joining_violations(layout, request),
    )
    yield from shape
    if shape:
        return
    # Engines load the draft on both sides, so that caches of the same layers meet.
    yield from placed_at(_PREFILL, speculation_violations(prefill, request))
    yield from speculation_violations(decode, request)
    yield from placed_at(_PREFILL, restriction_violations(prefill.axes, prefill_request))
    yield from placed_at(_PREFILL, memory_violations(prefill, prefill_request, mean_batch=0.0))
    yield from restriction_violations(decode.axes, decode_request)
    yield from memory_violations(decode, decode_request, mean_batch=layout.decode.load.mean_batch)
    yield from peak_violations(predicted, (*decode.stages, *prefill.stages))
    yield from load_violations(layout.decode.load, predicted, request, pools=True)
    if not 0.0 <= layout.prefill.utilisation < 1.0:
        given = f"{layout.prefill.utilisation}, a stable queue is below 1"
        yield Violation(Rule.UTILISATION, f"{_PREFILL}.utilisation", given)
    yield from _transfer_violations(layout, request)
    yield from _cost_violations(plan, predicted, layout, request)
    yield from power_violations(predicted, (decode, prefill), request, devices=plan.devices)
    yield from band_violations(predicted)


def _allowed_sharing_violations(prefill: Workers, request: ServingRequest) -> Iterator[Violation]:
    if request.search.cp and prefill.axes.cp not in request.search.cp:
        yield Violation(Rule.SEARCH, "plan.axes.cp", f"{prefill.axes.cp}, the request allows {request.search.cp}")


def _sharing_violations(plan: Plan, layout: Pools, request: ServingRequest) -> Iterator[Violation]:
    """The request allows pools, they use no device twice, and the cluster has them all."""
    if ServingMode.DISAGGREGATED not in request.search.modes:
        yield Violation(Rule.SEARCH, _PREFILL, "a prefill pool, the request allows aggregated plans only")
    if plan.devices > request.cluster.n_devices:
        yield Violation(Rule.DEVICES, "plan.devices", f"{plan.devices}, the cluster has {request.cluster.n_devices}")
    both = _ranks(layout.prefill_workers) & _ranks(layout.decode_workers)
    if both:
        yield Violation(Rule.DEVICES, f"{_PREFILL}.stages", f"device {min(both)} is in both pools")


def _joining_violations(layout: Pools, request: ServingRequest) -> Iterator[Violation]:
    """The named launcher moves caches between servers of these degrees.

    vLLM's NixlConnector between tensor-parallel servers, to as many ranks as there are or a multiple; SGLang's receivers map
    ranks whose numbers divide, of as many pipeline stages or to one.
    """
    launcher = request.search.launcher
    if request.search.space is not Space.LAUNCHABLE or launcher not in SERVERS:
        return
    moves = SERVERS[launcher].cache_moves
    if moves is None:
        yield Violation(Rule.LAUNCHER, _PREFILL, f"{launcher.value} has no pools")
        return
    sender, receiver = layout.prefill_workers.axes, layout.decode_workers.axes
    for where, axes in ((_PREFILL, sender), ("plan", receiver)):
        others = {"pp": axes.pp, "attention_dp": axes.attention_dp, "kvp": axes.kvp, "cp": axes.cp}
        used = ", ".join(f"{name} {degree}" for name, degree in others.items() if degree > 1)
        if moves.of_tp_alone and used:
            given = f"{used}; {launcher.value} moves caches between tensor-parallel servers only"
            yield Violation(Rule.LAUNCHER, f"{where}.axes", given)
    if moves.stages_alike and receiver.pp > 1 and receiver.pp != sender.pp:
        given = f"{receiver.pp} beside prefill servers of {sender.pp}; {launcher.value} moves caches to as many, or one"
        yield Violation(Rule.LAUNCHER, "plan.axes.pp", given)
    wider, narrower = max(sender.tp, receiver.tp), min(sender.tp, receiver.tp)
    if wider % narrower or (receiver.tp < sender.tp and not moves.to_fewer_ranks):
        to = "a multiple of their ranks, or a part" if moves.to_fewer_ranks else "a multiple of their ranks"
        given = f"{receiver.tp} beside prefill servers of {sender.tp}; {launcher.value} moves caches to {to}"
        yield Violation(Rule.LAUNCHER, "plan.axes.tp", given)


def _ranks(workers: Workers) -> set[int]:
    return {rank for d in workers.device_ranges for rank in range(d.first, d.first + d.count)}


def _transfer_violations(layout: Pools, request: ServingRequest) -> Iterator[Violation]:
    """Keys and values of a mean prompt take at least their time over the fastest links that the workers have."""
    sender, receiver = layout.prefill_workers, layout.decode_workers.axes
    prompt, _ = mean_lengths(request.workload)
    per_rank = sum(kv_bytes_per_token(receiver, request, stage) for stage in layout.decode_workers.stages)
    moved = prompt * per_rank * receiver.tp * receiver.kvp
    ranks = sender.axes.tp * sender.axes.kvp * sender.axes.pp
    links = [
        max(group.node.intra.bytes_per_s, group.node.inter.bytes_per_s)
        for group, _ in devices_by_group(request.cluster, sender.device_ranges)
    ]
    least_s = moved / (ranks * max(links))
    if not at_most(least_s, layout.prefill.transfer_s):
        given = f"{layout.prefill.transfer_s} s; {moved:.0f} bytes over {ranks} links take {least_s} s"
        yield Violation(Rule.STAGE_TIME, f"{_PREFILL}.transfer_s", given)


def _cost_violations(plan: Plan, predicted: Predicted, layout: Pools, request: ServingRequest) -> Iterator[Violation]:
    """Price of the devices of both pools over the tokens they make."""
    prefill, decode = layout.prefill_workers, layout.decode_workers
    of_prefill = devices_of(prefill)
    used = ((prefill.stages, of_prefill), (decode.stages, plan.devices - of_prefill))
    yield from cost_violations(predicted, request, used)
