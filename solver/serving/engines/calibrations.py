"""The calibrations that a serving prediction rests on: the kernels of a decode step and of a prompt, their shares and
errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from meshwright.costmodels.calibration.from_runs import run_calibration
from meshwright.costmodels.calibration.kernels import KernelError, KernelKind
from meshwright.costmodels.kernels.compute import kernel_error
from meshwright.costmodels.kernels.operator_time import vector_kernel
from meshwright.costmodels.model.dims import VOCAB
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.model.split_dims import is_expert_step, is_routed
from meshwright.costmodels.network.collectives import collective_error
from meshwright.costmodels.serving.attention import (
    decode_s,
    latent_cache,
    latent_decode_error,
    latent_expansion,
    latent_prefill_error,
    prefill_s_per_pair,
)
from meshwright.costmodels.serving.experts import expert_curve, routed_experts_s
from meshwright.costmodels.serving.latency_law import learned_latencies
from meshwright.costmodels.serving.operators import ServedOn, TokenSplit, head_s, operator_s, partial_sums_s, stage_ranks
from meshwright.solver.answer.cluster_time import networks_used
from meshwright.solver.answer.predicted import CalibrationUse
from meshwright.solver.problem.request import ServingRequest, ServingWorkload
from meshwright.solver.serving.engines.layouts import Layout, serving_precision


class StepPhase(StrEnum):
    """The phase of a step: one token of each sequence, or a prompt."""

    DECODE = "decode"
    PROMPT = "prompt"


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A step of one attention group: ``tokens`` of it are sequences that hold ``kv_tokens`` each, or those of one prompt."""

    layout: Layout
    phase: StepPhase
    tokens: float
    kv_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelShare:
    """A kind of kernel: its share of a step's time on the device, and its error."""

    kind: str
    share: float
    error: KernelError


def calibrations_used(request: ServingRequest, points: Sequence[StepPoint]) -> tuple[CalibrationUse, ...]:
    """Calibrations behind some steps, one entry a device and kind of kernel, the most used first; and networks between nodes
    where a step waits for them."""
    found: dict[tuple[str, str], list[tuple[StepPhase, KernelShare]]] = {}
    names: dict[str, str] = {}
    for point in points:
        device = point.layout.group.node.device
        names[device.calibration] = device.name
        for used in kernel_shares(request, point):
            found.setdefault((device.calibration, used.kind), []).append((point.phase, used))
    uses = [
        CalibrationUse(
            id=f"{key}/{kind}",
            device=names[key],
            median_error=entries[0][1].error.median,
            p95_error=entries[0][1].error.p95,
            basis=", ".join(f"{used.share:.0%} of a {phase.value} step" for phase, used in entries)
            + f"; {entries[0][1].error.basis}",
        )
        for (key, kind), entries in found.items()
    ]
    weight = {f"{key}/{kind}": max(used.share for _, used in entries) for (key, kind), entries in found.items()}
    ordered = sorted(uses, key=lambda use: (-weight[use.id], use.id))
    spans = (stage_ranks(request.cluster, each.layout.grid, first=each.layout.first_rank).stage.spans_nodes for each in points)
    return (*ordered, *(networks_used(request.cluster) if any(spans) else ()), *_learned_from_runs(request))


def _learned_from_runs(request: ServingRequest) -> Iterator[CalibrationUse]:
    """The calibration that measured runs taught, if any, with the error of the time per token that is left."""
    calibration, law = run_calibration(request.calibrations), learned_latencies(request.calibrations)
    if calibration is None or law is None:
        return
    told = (
        f"P95 {name} is {each.scale:.3f} x what is simulated and {1e3 * each.outside_s:.1f} ms"
        for name, each in (("TTFT", law.ttft), ("TPOT", law.tpot))
    )
    yield CalibrationUse(
        id=calibration.name,
        device=str(calibration.document["cluster"]),
        median_error=law.tpot.factor(0.75) / law.tpot.scale - 1.0,
        p95_error=law.tpot.factor(0.95) / law.tpot.scale - 1.0,
        basis=f"{', '.join(told)}, by {law.basis}",
    )


def kernel_shares(request: ServingRequest, point: StepPoint) -> list[KernelShare]:
    """Kinds of kernels of a step by their share of its time on the device, largest first; the host is not in it."""
    layout, speculation = point.layout, request.workload.speculation
    on = ServedOn(
        dims=request.model.dims,
        device=layout.group.node.device,
        ranks=stage_ranks(request.cluster, layout.grid, first=layout.first_rank),
        precision=serving_precision(request.workload),
        engine=request.search.engine,
        query_tokens=speculation.query_tokens if speculation is not None and point.phase is StepPhase.DECODE else 1,
        split=TokenSplit.REPEATED if point.phase is StepPhase.DECODE else TokenSplit.SHARED,
    )
    seconds: dict[str, float] = {}
    errors: dict[str, KernelError] = {}
    for run in request.model.chain:
        for kind, error, part_s in _parts(request.model.block(run.block).operators, on, point, request.workload):
            seconds[kind] = seconds.get(kind, 0.0) + run.repeat * part_s
            errors[kind] = error
    total = sum(seconds.values())
    ordered = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return [KernelShare(kind, part_s / total, errors[kind]) for kind, part_s in ordered if part_s > 0.0]


def _parts(
    operators: Sequence[Operator], on: ServedOn, point: StepPoint, workload: ServingWorkload
) -> Iterator[tuple[str, KernelError, float]]:
    """(kind, error, seconds) of every kernel of a block."""
    tokens = np.array([max(1.0, point.tokens) * on.query_tokens])
    heads = tokens if point.phase is StepPhase.DECODE else np.ones(1)
    if point.phase is StepPhase.PROMPT:
        tokens = on.own_tokens(tokens)
    routed = [operator for operator in operators if is_routed(operator)]
    if routed:
        weights = on.precision.of(routed[0])
        fitted, _ = expert_curve(on.device, weights, on.engine)
        part_s = routed_experts_s(routed, on, workload.experts, tokens)
        yield f"experts/{weights.value}", fitted.error, float(part_s[0])
    for operator in operators:
        if is_expert_step(operator) or operator.kind is OperatorKind.LOSS:
            continue
        if operator.kind is OperatorKind.ATTENTION:
            yield _attention(operator, operators, on, point)
            continue
        if operator.kind is OperatorKind.MATMUL:
            dtype = on.precision.of(operator).computed_in(on.device)
            kind, error = f"gemm/{dtype.value}", kernel_error(on.device, dtype, KernelKind.GEMM)
            part_s = head_s(operator, on, heads) if VOCAB in operator.dims else operator_s(operator, on, tokens)
        else:
            vector = vector_kernel(operator)
            dtype = on.precision.activations
            kind, error = f"{vector.value}/{dtype.value}", kernel_error(on.device, dtype, vector)
            part_s = operator_s(operator, on, tokens)
        yield kind, error, float(part_s[0])
        added_s = float(partial_sums_s(operator, on, tokens)[0])
        if added_s > 0.0:
            yield "collectives", collective_error(on.ranks.dense), added_s


def _attention(
    operator: Operator, operators: Sequence[Operator], on: ServedOn, point: StepPoint
) -> tuple[str, KernelError, float]:
    head_dim = on.dims[operator.inputs[0].dims[-1]]
    if point.phase is StepPhase.PROMPT:
        dtype = on.precision.activations
        query, expansion = np.array([max(1.0, point.tokens)]), latent_expansion(operators)
        per_pair, fixed_s = prefill_s_per_pair(operator, on, expansion=expansion, query=query, prefix=np.zeros(1))
        seconds = fixed_s + float(per_pair[0, 0]) * point.tokens * (point.tokens + 1.0) / 2.0
        if expansion is not None:
            return f"latent_prefill/{on.precision.kv.value}", latent_prefill_error(on.device, on.precision.kv), seconds
        error = kernel_error(on.device, dtype, KernelKind.PREFILL_ATTENTION, head_dim=head_dim)
        return f"{KernelKind.PREFILL_ATTENTION.value}/{dtype.value}", error, seconds
    latent = latent_cache(operators, on.dims)
    sequences, kv_tokens = np.array([max(1.0, point.tokens)]), np.array([max(1.0, point.kv_tokens)])
    seconds = float(decode_s(operator, on, latent=latent, sequences=sequences, kv_tokens=kv_tokens)[0, 0])
    cache = on.precision.kv
    if latent is not None:
        return f"latent_decode/{cache.value}", latent_decode_error(on.device, cache), seconds
    error = kernel_error(on.device, cache, KernelKind.DECODE_ATTENTION, head_dim=head_dim)
    return f"{KernelKind.DECODE_ATTENTION.value}/{cache.value}", error, seconds
