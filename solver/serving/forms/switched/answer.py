"""From workers that switch layouts to the Plan that is handed out: the layout of answers, and that of prompts beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.costmodels.queueing.simulation.switched import pooled_switched
from meshwright.solver.answer.layouts import PromptPhase, Switched
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, SearchStats
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.calibrations import calibrations_used
from meshwright.solver.serving.forms.switched.engine import SwitchedEngine
from meshwright.solver.serving.forms.switched.evaluation import TwoLayouts
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.question import Found
from meshwright.solver.serving.workers.answer import (
    axes_of,
    decode_point,
    feasible_plan,
    prompt_point,
    prompt_stage_s,
    replicas_of,
    stages_of,
)


def switched_plan(
    request: ServingRequest,
    found: Found,
    *,
    evaluator: Evaluator,
    certificate: Certificate,
    stats: SearchStats,
    notes: Sequence[str],
) -> Plan:
    """The plan of workers that keep the promise."""
    engine = found.engine
    assert isinstance(engine, SwitchedEngine)
    plan = feasible_plan(
        request,
        found,
        evaluator=evaluator,
        certificate=certificate,
        stats=stats,
        notes=notes,
    )
    prompts = _of_prompts(found.measured, engine)
    points = prompt_point(prompts, evaluator), decode_point(found.measured, evaluator)
    stages = stages_of(prompts, prompt_stage_s(prompts, evaluator), first_rank=engine.layout.first_rank)
    answers = replicas_of(found, evaluator, first_rank=engine.layout.first_rank)
    answers = replace(answers, load=replace(answers.load, max_num_batched_tokens=engine.decode_step_tokens))
    assert plan.predicted is not None
    return replace(
        plan,
        layout=Switched(_prompts_of(found.measured, engine, evaluator, stages=stages), answers),
        calibration=calibrations_used(request, points),
        predicted=replace(
            plan.predicted,
            peak_memory_bytes=max(stage.memory.total_bytes for stage in (*answers.stages, *stages)),
        ),
    )


def _of_prompts(measured: Measured, engine: SwitchedEngine) -> Measured:
    """The worker while it computes prompts."""
    step_tokens = measured.candidate.step_tokens
    return replace(measured, candidate=Candidate(engine.prefill, step_tokens, engine.prompts_in_a_step(step_tokens)))


def _prompts_of(measured: Measured, engine: SwitchedEngine, evaluator: Evaluator, *, stages: tuple[Stage, ...]) -> PromptPhase:
    """Return the plan's part about prompts and changes; shares are those of one simulation under the worker's load."""
    runs = TwoLayouts(evaluator.asked).runs_of(measured.candidate, measured.share, requests=evaluator.traffic.requests)
    run, change = pooled_switched(runs), engine.change
    whole_s = run.prefill_s + run.decode_s + run.switching_s
    buffered = change.buffer_tokens * engine.host_token_bytes * engine.replicas_per_node
    step_tokens = measured.candidate.step_tokens
    return PromptPhase(
        axes=axes_of(engine.prefill.layout, measured.share.replicas),
        stages=stages,
        max_num_seqs=engine.prompts_in_a_step(step_tokens),
        max_num_batched_tokens=step_tokens,
        to_decode_bytes=engine.to_decode_bytes,
        to_prefill_bytes=engine.to_prefill_bytes,
        to_decode_s=change.to_decode_s,
        to_prefill_s=change.to_prefill_s,
        out_token_s=change.out_token_s,
        in_token_s=change.in_token_s,
        buffer_tokens=change.buffer_tokens,
        host_bytes=engine.host_weights_bytes + buffered,
        prefill_share=run.prefill_s / whole_s,
        switching_share=run.switching_s / whole_s,
        cycle_s=whole_s / max(1, run.phases),
    )
