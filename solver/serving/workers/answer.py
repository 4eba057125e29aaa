"""From what the search found to the Plan that is handed out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.costmodels.queueing.analytic.percentiles import mean_kv_tokens
from meshwright.solver.answer.layouts import EngineLoad, Replicas
from meshwright.solver.answer.plan import FrontierPoint, Plan
from meshwright.solver.answer.predicted import Certificate, Predicted, Reason, RunnerUp, SearchStats, status_without_plan
from meshwright.solver.answer.stage import Axes, DeviceRange, Stage, StageMemory
from meshwright.solver.problem.choices import Objective, Recompute
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.calibrations import StepPhase, StepPoint, calibrations_used
from meshwright.solver.serving.engines.layouts import Layout
from meshwright.solver.serving.promise.candidates import Measured, room_note
from meshwright.solver.serving.promise.certificates import UNITS, energy_per_token_j, objective_of, proof
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import KeptPlan, kept_plan, with_latencies
from meshwright.solver.serving.promise.question import Cause, Found, Refused, ServingSearchResult, replica_count

_RUNNERS_UP = 5

_BEATEN = {
    Objective.DEVICES: "keeps the targets, but costs more",
    Objective.COST: "keeps the targets, but costs more",
    Objective.ENERGY: "keeps the targets, but takes more energy",
    Objective.THROUGHPUT: "sustains less",
}


def feasible_plan(
    request: ServingRequest,
    found: Found,
    *,
    evaluator: Evaluator,
    certificate: Certificate,
    stats: SearchStats,
    notes: Sequence[str],
) -> Plan:
    """The plan of a layout that keeps the promise."""
    memory = stage_memory_of(found.measured)
    decode, prompt = decode_point(found.measured, evaluator), prompt_point(found.measured, evaluator)
    tokens_per_s = found.requests_per_s * evaluator.output.mean
    energy_j = energy_per_token_j(found.measured, evaluator)
    predicted = Predicted(
        tokens_per_s=tokens_per_s,
        peak_memory_bytes=max(stage.total_bytes for stage in memory),
        cost_per_million_tokens=_cost_per_million_tokens(found, tokens_per_s),
        energy_per_token_j=energy_j,
        power_w=energy_j * tokens_per_s,
    )
    return Plan(
        kind="serving",
        feasible=True,
        certificate=certificate,
        devices=found.devices,
        search=stats,
        calibration=calibrations_used(request, (decode, prompt)),
        model=request.model.name,
        predicted=with_latencies(predicted, evaluator.promised, ttft=found.measured.ttft, tpot=found.measured.tpot),
        layout=replicas_of(found, evaluator, first_rank=found.engine.layout.first_rank),
        notes=(*notes, _room_note(found.measured, evaluator)),
    )


def replicas_of(found: Found, evaluator: Evaluator, *, first_rank: int) -> Replicas:
    """The layout of replicas that lie on devices from a rank."""
    step_s = decode_stage_s(found.measured, evaluator)
    return Replicas(
        axes=axes_of(found.engine.layout, found.replicas),
        stages=stages_of(found.measured, step_s, first_rank=first_rank),
        load=EngineLoad(
            replicas=found.replicas,
            max_num_seqs=found.measured.candidate.sequences,
            max_num_batched_tokens=found.measured.candidate.step_tokens,
            utilisation=found.measured.utilisation,
            prefill_time_s=evaluator.alone(found.engine, found.measured.candidate.step_tokens).ttft_s,
            decode_step_s=float(step_s.sum()),
            mean_batch=found.measured.mean_batch,
        ),
    )


def _room_note(measured: Measured, evaluator: Evaluator) -> str:
    load = None if evaluator.traffic.is_closed else measured.utilisation
    return room_note(evaluator.promised, ttft=measured.ttft, tpot=measured.tpot, load=load)


def infeasible_plan(
    request: ServingRequest, reason: Reason, stats: SearchStats, *, space: str, notes: Sequence[str] = ()
) -> Plan:
    """The answer that there is no plan in the request's space, and why."""
    return Plan(
        kind="serving",
        feasible=False,
        certificate=Certificate(status_without_plan(reason), None, None, None, UNITS[request.objective], proof(request, space)),
        devices=0,
        search=stats,
        calibration=(),
        model=request.model.name,
        reason=reason,
        notes=tuple(notes),
    )


def runners_up(request: ServingRequest, result: ServingSearchResult, evaluator: Evaluator) -> tuple[RunnerUp, ...]:
    """Layouts that were best for a while, and those that could not be at this rate; nearest first."""
    beaten = [
        RunnerUp(_summary(found), objective_of(request, found, evaluator), _figures(found.measured, _BEATEN[request.objective]))
        for found in result.beaten
    ]
    refused = [
        RunnerUp(refusal.engine.layout.name, refusal.objective_at_least, refusal.why)
        for refusal in result.refused
        if refusal.cause is Cause.RATE
    ]
    ordered = sorted((*beaten, *refused), key=lambda runner: (runner.objective, runner.summary))
    return tuple(ordered[:_RUNNERS_UP])


def kept_plans(
    request: ServingRequest, result: ServingSearchResult, evaluator: Evaluator, *, more: int = 0
) -> tuple[KeptPlan, ...]:
    """Return the plans of a search that keep the promise, the best one first; ``more`` is what their form counts as a split."""
    met = [*([result.best] if result.best else []), *result.equal, *result.beaten]
    return tuple(
        kept_plan(
            _summary(found),
            objective=objective_of(request, found, evaluator),
            splits=found.engine.layout.splits + more,
            promised=evaluator.promised,
            ttft=found.measured.ttft,
            tpot=found.measured.tpot,
            peak_memory_bytes=max(stage.total_bytes for stage in stage_memory_of(found.measured)),
        )
        for found in met
    )


def refusal_notes(refused: Sequence[Refused]) -> tuple[str, ...]:
    """Engines that can't serve the request at any rate: for each cause all of them, and the reason of the largest."""
    notes = []
    for cause in (Cause.MEMORY, Cause.ALONE):
        refusals = sorted((r for r in refused if r.cause is cause), key=lambda r: r.engine.key)
        if refusals:
            last = refusals[-1]
            names = _names([refusal.engine.layout for refusal in refusals])
            notes.append(f"Refused at any rate ({cause.value}): {names}; {last.engine.layout.name}: {last.why}")
    return tuple(notes)


def leftover_notes(request: ServingRequest, devices: int) -> tuple[str, ...]:
    """Devices that a plan for all of them leaves idle: no replica fits on them."""
    idle = request.cluster.n_devices - devices
    if request.objective is not Objective.THROUGHPUT or idle == 0:
        return ()
    return (f"{idle} of {request.cluster.n_devices} devices are left over: no further worker of this plan fits on them",)


def _names(layouts: Sequence[Layout]) -> str:
    """Layouts by the ranks of a stage, with their pipelines: "tp 1 with pp 2, 3, 4; tp 2 with pp 1"."""
    pipelines: dict[tuple[str, str], list[str]] = {}
    for layout in layouts:
        pipelines.setdefault((layout.group.name, replace(layout, pp=1).name), []).append(str(layout.pp))
    return "; ".join(f"{group}: {ranks} with pp {', '.join(pp)}" for (group, ranks), pp in pipelines.items())


def frontier(result: ServingSearchResult, evaluator: Evaluator) -> tuple[FrontierPoint, ...]:
    """Layouts found that no other beats in devices, tokens and memory at once."""
    points = [
        FrontierPoint(
            summary=_summary(found),
            devices=found.devices,
            tokens_per_s=found.requests_per_s * evaluator.output.mean,
            peak_memory_bytes=max(stage.total_bytes for stage in stage_memory_of(found.measured)),
        )
        for found in (*([result.best] if result.best else []), *result.beaten)
    ]
    kept = [p for p in points if not any(_dominates(q, p) for q in points)]
    return tuple(sorted(kept, key=lambda p: (p.devices, -p.tokens_per_s, p.summary)))


def _dominates(a: FrontierPoint, b: FrontierPoint) -> bool:
    better = (a.devices <= b.devices, a.tokens_per_s >= b.tokens_per_s, a.peak_memory_bytes <= b.peak_memory_bytes)
    return all(better) and (a.devices, a.tokens_per_s, a.peak_memory_bytes) != (b.devices, b.tokens_per_s, b.peak_memory_bytes)


def _summary(found: Found) -> str:
    return f"{replica_count(found.replicas)} of {found.engine.layout.name}"


def _figures(measured: Measured, lead: str) -> str:
    return f"{lead}: simulated P95 TTFT {measured.ttft.value * 1e3:.0f} ms, P95 TPOT {measured.tpot.value * 1e3:.1f} ms"


def axes_of(layout: Layout, replicas: int) -> Axes:
    """Degrees of replicas of a layout."""
    grid = layout.grid
    degrees = {"ep": grid.ep, "attention_dp": grid.attention_dp, "kvp": grid.kvp, "cp": grid.cp}
    return Axes(dp=replicas, tp=grid.tp, pp=layout.pp, **degrees)


def stage_memory_of(measured: Measured) -> list[StageMemory]:
    """Memory of each stage's fullest device."""
    candidate = measured.candidate
    engine = candidate.engine
    return [
        engine.stage_memory(stage, step_tokens=candidate.step_tokens, sequences=candidate.sequences) for stage in engine.needs
    ]


def stages_of(measured: Measured, times_s: np.ndarray, *, first_rank: int) -> tuple[Stage, ...]:
    """Stages of a measured engine whose replicas start at a rank, each with its steady time."""
    engine, replicas = measured.candidate.engine, measured.share.replicas
    memory = stage_memory_of(measured)
    return tuple(
        Stage(
            blocks=spans,
            devices=_devices(engine.layout, replicas, index, first_rank),
            axes=axes_of(engine.layout, replicas),
            recompute=Recompute.NONE,
            zero_stage=0,
            time_s=float(times_s[index]),
            extra_s=0.0,
            in_flight=1,
            memory=memory[index],
        )
        for index, spans in enumerate(engine.spans)
    )


def _devices(layout: Layout, replicas: int, stage: int, first_rank: int) -> tuple[DeviceRange, ...]:
    """Ranks of one stage in every replica; replicas of one stage lie next to each other and make one range."""
    ranks = layout.grid.ranks
    if layout.pp == 1:
        return (DeviceRange(first_rank, replicas * ranks),)
    firsts = (first_rank + replica * layout.devices + stage * ranks for replica in range(replicas))
    return tuple(DeviceRange(first, ranks) for first in firsts)


def decode_stage_s(measured: Measured, evaluator: Evaluator) -> np.ndarray:
    """[stage] time of a decode step at the mean batch."""
    engine = measured.candidate.engine
    batch = max(1.0, measured.mean_batch / engine.layout.pp)
    kv_tokens = mean_kv_tokens(evaluator.traffic.load_of(measured.share))
    return np.asarray(engine.times.decode_step_s(np.array([batch]), kv_tokens)[:, 0])


def prompt_stage_s(measured: Measured, evaluator: Evaluator) -> np.ndarray:
    """[stage] time of the mean prompt in one step, with nobody else in it."""
    nothing = np.zeros(1)
    prompt = min(evaluator.prompt.mean, float(measured.candidate.step_tokens))
    times = measured.candidate.engine.times
    return np.asarray(times.mixed_step_s(nothing, 1.0, prompt_tokens=nothing + prompt, prefix_tokens=nothing)[:, 0])


def _cost_per_million_tokens(found: Found, tokens_per_s: float) -> float | None:
    price = found.engine.layout.group.node.device.price_per_hour
    return None if price is None else found.devices * price / 3600.0 / tokens_per_s * 1e6


def decode_point(measured: Measured, evaluator: Evaluator) -> StepPoint:
    """A decode step at the mean batch."""
    layout = measured.candidate.engine.layout
    batch = max(1.0, measured.mean_batch / layout.pp)
    return StepPoint(layout, StepPhase.DECODE, batch, mean_kv_tokens(evaluator.traffic.load_of(measured.share)))


def prompt_point(measured: Measured, evaluator: Evaluator) -> StepPoint:
    """The mean prompt, or a step full of it."""
    tokens = min(evaluator.prompt.mean, float(measured.candidate.step_tokens))
    return StepPoint(measured.candidate.engine.layout, StepPhase.PROMPT, tokens)
