"""Rules of serving plans of several kinds of workers: each is a plan by itself on devices of its own, and shares sum to 1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from meshwright.solver.answer.layouts import Kinds, WorkerKind, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals, EmpiricalLength, FixedLength
from meshwright.solver.verify.rules import band_violations, devices_by_group
from meshwright.solver.verify.serving.degrees import stage_ranks
from meshwright.solver.verify.serving.forms.replicas import replica_violations
from meshwright.solver.verify.serving.load import mean_lengths
from meshwright.solver.verify.violation import Rule, Violation, agrees, at_most, placed_at


def violations(plan: Plan, layout: Kinds, request: ServingRequest) -> Iterator[Violation]:
    """Every rule of a plan of several kinds: of shares and devices, then of each kind, then of the whole."""
    broken = (*_sharing_violations(layout.kinds, request), *_place_violations(plan, layout.kinds, request))
    if not broken:
        broken = tuple(
            violation
            for index, kind in enumerate(layout.kinds)
            for violation in placed_at(
                f"plan.kinds[{index}]",
                replica_violations(kind.replicas, kind.predicted, request, devices=kind.devices),
            )
        )
    yield from broken or (*_taken_violations(layout.kinds, request), *_whole_violations(plan, layout.kinds, request))


def _sharing_violations(kinds: Sequence[WorkerKind], request: ServingRequest) -> Iterator[Violation]:
    """As many kinds as the request allows, which take all arrivals, each its share of them."""
    allowed, workload = request.search.worker_kinds, request.workload
    if not 2 <= len(kinds) <= allowed:
        yield Violation(Rule.SEARCH, "plan.kinds", f"{len(kinds)} kinds of workers, the request allows {allowed}")
    if isinstance(workload.arrivals, ClosedArrivals):
        yield Violation(Rule.SEARCH, "plan.kinds", "clients in a closed loop are not shared by several kinds of workers")
        return
    whole = math.fsum(kind.share for kind in kinds)
    if not agrees(whole, 1.0):
        yield Violation(Rule.BATCH, "plan.kinds", f"shares of the arrivals sum to {whole}")
    for index, kind in enumerate(kinds):
        if not 0.0 < kind.share < 1.0:
            yield Violation(Rule.BATCH, f"plan.kinds[{index}].share", f"{kind.share}, a share is above 0 and below 1")


def _taken_violations(kinds: Sequence[WorkerKind], request: ServingRequest) -> Iterator[Violation]:
    """All kinds together take what arrives, each its share, and make the tokens of that."""
    workload = request.workload
    if isinstance(workload.arrivals, ClosedArrivals):
        return
    total, asked = math.fsum(kind.requests_per_s for kind in kinds), workload.arrivals.requests_per_s
    enough = at_most(asked, total) if request.objective is Objective.THROUGHPUT else agrees(asked, total)
    if not enough:
        yield Violation(Rule.TOKENS, "plan.kinds", f"{total} requests/s are taken, {asked} arrive")
    for index, kind in enumerate(kinds):
        if not agrees(kind.requests_per_s, kind.share * total):
            given = f"{kind.requests_per_s}, its share {kind.share} of {total} makes {kind.share * total}"
            yield Violation(Rule.TOKENS, f"plan.kinds[{index}].requests_per_s", given)
        if not isinstance(workload.output_tokens, FixedLength | EmpiricalLength):
            continue
        made = kind.requests_per_s * mean_lengths(workload)[1]
        if not agrees(kind.predicted.tokens_per_s, made):
            given = f"{kind.predicted.tokens_per_s}, its requests have {made} tokens a second"
            yield Violation(Rule.TOKENS, f"plan.kinds[{index}].predicted.tokens_per_s", given)


def _place_violations(plan: Plan, kinds: Sequence[WorkerKind], request: ServingRequest) -> Iterator[Violation]:
    """Every replica's devices are listed, none twice, those of a kind in one node group; no stage straddles nodes."""
    if plan.devices != sum(kind.devices for kind in kinds):
        yield Violation(Rule.DEVICES, "plan.devices", f"{plan.devices}, the kinds have {[k.devices for k in kinds]}")
    taken: set[int] = set()
    for index, kind in enumerate(kinds):
        where, ranges = f"plan.kinds[{index}].stages", kind.replicas.workers.device_ranges
        listed = [rank for d in ranges for rank in range(d.first, d.first + d.count)]
        if len(listed) != kind.devices:
            yield Violation(Rule.DEVICES, where, f"{len(listed)} devices, all {kind.devices} must be listed")
        twice = taken.intersection(listed)
        if twice or len(set(listed)) != len(listed):
            yield Violation(Rule.DEVICES, where, f"device {min(twice, default=-1)} is used twice")
        taken.update(listed)
        groups = devices_by_group(request.cluster, ranges)
        if len(groups) != 1 or groups[0][1] != len(listed):
            yield Violation(Rule.DEVICES, where, f"on {[group.name for group, _ in groups]}; a kind lies on one node group")
            continue
        yield from _straddling_violations(kind.replicas.workers, request, where)


def _straddling_violations(workers: Workers, request: ServingRequest, where: str) -> Iterator[Violation]:
    ranks = stage_ranks(workers.axes)
    first = 0
    for group in request.cluster.groups:
        per_node = group.node.devices_per_node
        for devices in workers.device_ranges:
            for start in range(devices.first, devices.first + devices.count, max(1, ranks)):
                inside = first <= start < first + group.n_devices
                offset = (start - first) % per_node
                if inside and (offset + ranks > per_node if ranks <= per_node else offset != 0):
                    given = f"{ranks} ranks from {start}: a stage fills part of a node of {per_node} devices, or whole nodes"
                    yield Violation(Rule.DEVICES, where, given)
        first += group.n_devices


def _whole_violations(plan: Plan, kinds: Sequence[WorkerKind], request: ServingRequest) -> Iterator[Violation]:
    """Figures of all kinds add up; a percentile of all requests lies between those of the kinds."""
    assert plan.predicted is not None
    whole, parts = plan.predicted, [kind.predicted for kind in kinds]
    tokens_per_s = math.fsum(part.tokens_per_s for part in parts)
    if not agrees(whole.tokens_per_s, tokens_per_s):
        yield Violation(Rule.TOKENS, "plan.predicted.tokens_per_s", f"{whole.tokens_per_s}, the kinds make {tokens_per_s}")
    peak = max(part.peak_memory_bytes for part in parts)
    if not agrees(whole.peak_memory_bytes, peak):
        yield Violation(
            Rule.PEAK_MEMORY, "plan.predicted.peak_memory_bytes", f"{whole.peak_memory_bytes}, the kinds need {peak}"
        )
    for name in ("ttft_p95_s", "tpot_p95_s"):
        own, of_kinds = getattr(whole, name), [getattr(part, name) or 0.0 for part in parts]
        if own is None or not (at_most(min(of_kinds), own) and at_most(own, max(of_kinds))):
            yield Violation(Rule.SLO, f"plan.predicted.{name}", f"{own} s, the kinds' own are {of_kinds}")
    yield from _sum_violations(whole, parts)
    yield from _objective_violations(plan, kinds, request)
    yield from band_violations(whole)


def _sum_violations(whole: Predicted, parts: list[Predicted]) -> Iterator[Violation]:
    """Power of all kinds, and what their tokens cost in joules and money."""
    watts = [part.power_w for part in parts]
    if whole.power_w is not None and whole.energy_per_token_j is not None and None not in watts:
        total = math.fsum(w or 0.0 for w in watts)
        if not (agrees(whole.power_w, total) and agrees(whole.energy_per_token_j * whole.tokens_per_s, total)):
            given = f"{whole.power_w} W and {whole.energy_per_token_j} J, the kinds take {total} W"
            yield Violation(Rule.ENERGY, "plan.predicted.power_w", given)
    if whole.cost_per_million_tokens is not None:
        costs = [(part.cost_per_million_tokens or 0.0) * part.tokens_per_s for part in parts]
        expected = math.fsum(costs) / whole.tokens_per_s
        if not agrees(whole.cost_per_million_tokens, expected):
            given = f"{whole.cost_per_million_tokens}, the kinds' make {expected}"
            yield Violation(Rule.COST, "plan.predicted.cost_per_million_tokens", given)


def _objective_violations(plan: Plan, kinds: Sequence[WorkerKind], request: ServingRequest) -> Iterator[Violation]:
    """The certificate's objective, from rates and prices."""
    certificate = plan.certificate
    if certificate.unit == "s/request":
        expected = 1.0 / math.fsum(kind.requests_per_s for kind in kinds)
    elif certificate.unit == "USD/h":
        groups = devices_by_group(request.cluster, (d for kind in kinds for d in kind.replicas.workers.device_ranges))
        expected = sum(count * (group.node.device.price_per_hour or 0.0) for group, count in groups)
    else:
        return
    if certificate.objective is None or not agrees(certificate.objective, expected):
        given = f"{certificate.objective} {certificate.unit}, the kinds make {expected}"
        yield Violation(Rule.CERTIFICATE, "plan.certificate.objective", given)
