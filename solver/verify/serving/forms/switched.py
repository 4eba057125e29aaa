"""Rules of serving plans whose workers switch layouts: both are plans on the same devices, and the host holds the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.answer.layouts import PromptPhase, Switched, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import Axes, Stage
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals, FixedLength, TraceArrivals
from meshwright.solver.verify.rules import (
    ModelSplit,
    Owned,
    band_violations,
    cost_violations,
    devices_by_group,
    owned_parameters,
    peak_violations,
)
from meshwright.solver.verify.serving.degrees import (
    kv_bytes_per_token,
    of_prompts,
    restriction_violations,
    shape_violations,
    stage_ranks,
)
from meshwright.solver.verify.serving.load import law_of, load_violations, mean_lengths, power_violations
from meshwright.solver.verify.serving.memory import memory_violations, serving_share
from meshwright.solver.verify.violation import Rule, Violation, at_most, placed_at

_HERE = "plan.switched"


def violations(plan: Plan, layout: Switched, request: ServingRequest) -> Iterator[Violation]:
    """Every rule of a plan whose workers compute prompts in one layout and answers in another."""
    prompts, answers, predicted = layout.prefill_workers, layout.decode_workers, plan.predicted
    assert predicted is not None, "answer_violations asks for it"
    shape = (
        *_asked_violations(request),
        *shape_violations(answers, request, devices=plan.devices),
        *placed_at(_HERE, shape_violations(prompts, request, devices=plan.devices)),
        *_degree_violations(prompts, answers),
    ) or tuple(_place_violations(prompts, answers, request))
    yield from shape
    if shape:
        return
    load = layout.answers.load
    yield from restriction_violations(answers.axes, request)
    yield from memory_violations(answers, request, mean_batch=load.mean_batch)
    yield from placed_at(_HERE, restriction_violations(prompts.axes, request))
    yield from placed_at(_HERE, memory_violations(prompts, of_prompts(request), mean_batch=0.0))
    yield from _host_violations(layout, request)
    yield from _change_violations(layout, request)
    yield from _share_violations(layout.prompts)
    yield from peak_violations(predicted, (*answers.stages, *prompts.stages))
    yield from load_violations(load, predicted, request)
    yield from _wait_violations(layout.prompts, predicted, request)
    yield from cost_violations(predicted, request, [(answers.stages, plan.devices)])
    yield from power_violations(predicted, [answers], request, devices=plan.devices)
    yield from band_violations(predicted)


def _asked_violations(request: ServingRequest) -> Iterator[Violation]:
    """The request allows such workers, and nothing that does not go with them."""
    workload = request.workload
    cached = isinstance(workload.arrivals, TraceArrivals) and bool(workload.arrivals.cached_tokens)
    states = [b.name for b in request.model.blocks if any(o.kind in _STATES for o in b.operators)]
    not_together = {
        "search.modes without switched": ServingMode.SWITCHED not in request.search.modes,
        "clients in a closed loop": isinstance(workload.arrivals, ClosedArrivals),
        "drafted tokens": workload.speculation is not None,
        "a prefix cache": workload.prefix_hit_ratio > 0.0 or workload.prefix_cache is not None or cached,
        f"recurrent states of {', '.join(states)}": bool(states),
    }
    given = [name for name, here in not_together.items() if here]
    if given:
        yield Violation(Rule.SEARCH, _HERE, f"layouts that switch do not go with {'; '.join(given)}")


_STATES = (OperatorKind.SCAN, OperatorKind.CONVOLUTION)


def _degree_violations(prompts: Workers, answers: Workers) -> Iterator[Violation]:
    """One attention group, whole caches and whole prompts in both layouts, which differ; at least one prompt in a step."""
    for where, axes in ((f"{_HERE}.axes", prompts.axes), ("plan.axes", answers.axes)):
        if (axes.attention_dp, axes.kvp, axes.cp) != (1, 1, 1):
            yield Violation(Rule.AXES, where, f"{axes}: attention_dp, kvp and cp are 1 where layouts switch")
    if replace(prompts.axes, dp=1) == replace(answers.axes, dp=1):
        yield Violation(Rule.AXES, f"{_HERE}.axes", f"{prompts.axes}: both layouts are one")
    per_slot = -(-prompts.max_num_seqs // prompts.axes.pp)
    if not 1 <= per_slot <= prompts.max_num_batched_tokens:
        given = f"{prompts.max_num_seqs} prompts at once, {prompts.max_num_batched_tokens} tokens a step"
        yield Violation(Rule.BATCH, f"{_HERE}.max_num_seqs", given)


def _place_violations(prompts: Workers, answers: Workers, request: ServingRequest) -> Iterator[Violation]:
    """Both layouts are on the same devices, those of a worker in one node."""
    ours, theirs = (_ranks(workers.stages) for workers in (prompts, answers))
    if ours != theirs:
        only = min(set(ours) ^ set(theirs))
        yield Violation(Rule.DEVICES, f"{_HERE}.stages", f"device {only} is in one of the layouts only")
        return
    size = stage_ranks(answers.axes) * answers.axes.pp
    for first in range(0, len(theirs), size):
        worker = theirs[first : first + size]
        if len({_node_of(request, rank) for rank in worker}) > 1:
            given = f"devices {worker[0]} to {worker[-1]} of a worker are in several nodes"
            yield Violation(Rule.DEVICES, "plan.stages", given)
            return


def _ranks(stages: tuple[Stage, ...]) -> list[int]:
    return sorted(rank for stage in stages for d in stage.devices for rank in range(d.first, d.first + d.count))


def _node_of(request: ServingRequest, rank: int) -> tuple[int, int]:
    """Node group and node of a rank."""
    first = 0
    for index, group in enumerate(request.cluster.groups):
        if rank < first + group.n_devices:
            return index, (rank - first) // group.node.devices_per_node
        first += group.n_devices
    raise ValueError(f"the cluster has no rank {rank}, which the shape rules look at first")


def _host_violations(layout: Switched, request: ServingRequest) -> Iterator[Violation]:
    """A node's memory holds the weights once, and the buffer of every worker that fits on it; each holds a mean prompt."""
    workload, prompts, answers = request.workload, layout.prompts, layout.decode_workers
    token_bytes = sum(kv_bytes_per_token(Axes(), request, stage) for stage in answers.stages)
    share = serving_share(Axes(), request)
    owned = sum(span.count * _owned(request, span.block, share).total for stage in answers.stages for span in stage.blocks)
    weights_bytes = owned * workload.weight_format.size_bytes
    size = stage_ranks(answers.axes) * answers.axes.pp
    for group, _ in devices_by_group(request.cluster, answers.device_ranges):
        workers = group.node.devices_per_node // size
        needed = weights_bytes + workers * prompts.buffer_tokens * token_bytes
        if not at_most(needed, prompts.host_bytes):
            given = f"{prompts.host_bytes} bytes claimed; weights and {workers} buffers take {needed}"
            yield Violation(Rule.HOST_BYTES, f"{_HERE}.host_bytes", given)
        if not at_most(prompts.host_bytes, group.node.host_memory_bytes):
            given = f"{prompts.host_bytes} bytes, a node has {group.node.host_memory_bytes}"
            yield Violation(Rule.HOST_MEMORY, f"{_HERE}.host_bytes", given)
    prompt, _ = mean_lengths(workload)
    if not at_most(prompt, prompts.buffer_tokens):
        yield Violation(Rule.HOST_MEMORY, f"{_HERE}.buffer_tokens", f"{prompts.buffer_tokens}, a mean prompt has {prompt}")


def _owned(request: ServingRequest, block: str, share: ModelSplit) -> Owned:
    return owned_parameters(request.model.block(block), share)


def _change_violations(layout: Switched, request: ServingRequest) -> Iterator[Violation]:
    """Devices load what they can't have kept, no faster than their link to the host; so do keys and values."""
    prompts, computes, answers = layout.prompts, layout.prefill_workers, layout.decode_workers
    groups = devices_by_group(request.cluster, answers.device_ranges)
    rates = [group.node.device.host_bytes_per_s for group, _ in groups]
    for name, old, new, claimed, claimed_s in (
        ("to_decode", computes, answers, prompts.to_decode_bytes, prompts.to_decode_s),
        ("to_prefill", answers, computes, prompts.to_prefill_bytes, prompts.to_prefill_s),
    ):
        least = _least_loaded_bytes(old, new, request)
        if not at_most(least, claimed):
            given = f"{claimed} bytes; a device lacks at least {least} of the new layout"
            yield Violation(Rule.WEIGHTS, f"{_HERE}.{name}_bytes", given)
        if not at_most(claimed / max(rates), claimed_s):
            given = f"{claimed_s} s; {claimed} bytes take {claimed / max(rates)} s over the link to the host"
            yield Violation(Rule.STAGE_TIME, f"{_HERE}.{name}_s", given)
    for name, workers, claimed_s in (("out", computes, prompts.out_token_s), ("in", answers, prompts.in_token_s)):
        moved = max(kv_bytes_per_token(workers.axes, request, stage) for stage in workers.stages)
        if not at_most(moved / max(rates), claimed_s):
            given = f"{claimed_s} s; {moved} bytes of a token take {moved / max(rates)} s over the link to the host"
            yield Violation(Rule.STAGE_TIME, f"{_HERE}.{name}_token_s", given)


def _least_loaded_bytes(old: Workers, new: Workers, request: ServingRequest) -> float:
    """Return the bytes that the device that lacks most must load: of layers that it had no more stays than the smaller of both
    shares."""
    workload = request.workload
    shares = [serving_share(workers.axes, request) for workers in (old, new)]
    least = 0.0
    for stage, before in ((n, o) for n in new.stages for o in old.stages if set(_ranks((n,))) & set(_ranks((o,)))):
        had = {layer for span in before.blocks for layer in range(span.first, span.first + span.count)}
        lacking = 0.0
        for span in stage.blocks:
            kept = sum(layer in had for layer in range(span.first, span.first + span.count))
            was, becomes = (_owned(request, span.block, share).total for share in shares)
            lacking += span.count * becomes - kept * min(was, becomes)
        least = max(least, lacking * workload.weight_format.size_bytes)
    return least


def _share_violations(prompts: PromptPhase) -> Iterator[Violation]:
    """Shares of time are shares, and changes take no more of a cycle than two do."""
    shares = prompts.prefill_share, prompts.switching_share
    if min(shares) < 0.0 or not at_most(sum(shares), 1.0):
        yield Violation(Rule.UTILISATION, f"{_HERE}.prefill_share", f"{shares} of the time: they add up to at most 1")
    both_s = prompts.to_decode_s + prompts.to_prefill_s
    if not at_most(prompts.switching_share * prompts.cycle_s, both_s):
        given = f"{prompts.switching_share} of {prompts.cycle_s} s; two changes take {both_s} s"
        yield Violation(Rule.UTILISATION, f"{_HERE}.switching_share", given)


def _wait_violations(prompts: PromptPhase, predicted: Predicted, request: ServingRequest) -> Iterator[Violation]:
    """Between first and second token lie a change of layout and two ways of the prompt's keys and values."""
    workload = request.workload
    assert predicted.tpot_p95_s is not None, "answer_violations asks for it"
    prompt, output = workload.prompt_tokens, workload.output_tokens
    if not (isinstance(prompt, FixedLength) and isinstance(output, FixedLength)) or output.fixed < 2:
        return
    waited_s = prompts.to_decode_s + prompt.fixed * (prompts.out_token_s + prompts.in_token_s)
    each_s = law_of(request, pools=False).tpot.median_s(waited_s / (output.fixed - 1))
    if not at_most(each_s, predicted.tpot_p95_s):
        given = f"{predicted.tpot_p95_s} s; {waited_s} s of waiting over {output.fixed - 1} tokens"
        yield Violation(Rule.STAGE_TIME, "plan.predicted.tpot_p95_s", given)
