"""Hugging Face Accelerate: accelerate.yaml, DeepSpeed's configuration where it runs the plan, and ``accelerate launch``."""

from __future__ import annotations

from meshwright.app.launching.exporters.command import command_text
from meshwright.app.launching.exporters.export import Export
from meshwright.app.launching.exporters.hugging_face import (
    ACCELERATE_VERSION,
    Backend,
    accelerate_files,
    accelerate_words,
    assumptions,
    backend_of,
    lost,
    recomputes,
)
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import TrainingRequest

VERSION = ACCELERATE_VERSION
SCRIPT = "train.py"


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The configuration of what shards, and the line that starts a script with it."""
    plan = pipeline_plan(answer)
    return Export(
        launcher=Launcher.ACCELERATE,
        version=VERSION,
        command=command_text(parts=[("accelerate", "launch"), accelerate_words(request, plan.devices), (SCRIPT,)]),
        files=accelerate_files(plan, request),
        inexpressible=(*lost(plan, request.workload, Launcher.ACCELERATE), *_checkpoints(plan)),
        assumptions=(*_of_the_script(plan), *assumptions(plan, request)),
    )


def _checkpoints(plan: PipelinePlan) -> tuple[str, ...]:
    if recomputes(plan) and backend_of(plan) is not Backend.FSDP:
        return ("full recompute: no key turns it on; call model.gradient_checkpointing_enable() in the script",)
    return ()


def _of_the_script(plan: PipelinePlan) -> tuple[str, ...]:
    microbatch = plan.microbatch
    assert microbatch is not None
    said = [
        f"{SCRIPT} is your training script: its Accelerator prepares model, optimizer and data, {microbatch.size} sequences a "
        f"batch on each device, and accumulates {microbatch.count} of them a step (gradient_accumulation_steps)"
    ]
    if microbatch.count > 1 and backend_of(plan) is Backend.FSDP:
        said.append(
            f"it makes GradientAccumulationPlugin(num_steps={microbatch.count}, sync_each_batch=True): without it FSDP2 keeps "
            "whole gradients on every device until the last micro-batch"
        )
    if backend_of(plan) is Backend.DEEPSPEED:
        said.append("it passes accelerate.utils.DummyOptim with the learning rate, as DeepSpeed makes the optimizer")
    return tuple(said)
