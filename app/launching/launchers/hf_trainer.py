"""Hugging Face's Trainer: the arguments of a script that reads TrainingArguments, here transformers' run_clm.py."""

from __future__ import annotations

import json
from typing import Any

from meshwright.app.launching.launchers.accelerate import read_by_trainer
from meshwright.app.launching.launchers.hugging_face import (
    DEEPSPEED_FILE,
    Backend,
    assumptions,
    backend_of,
    deepspeed_files,
    fsdp_keys,
    lost,
    synchronised,
    trainer_keys,
)
from meshwright.app.launching.parts.command import Words, command_text, flag, torchrun
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.served import checkpoint, checkpoint_assumption
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.solver.answer.pipeline_plan import pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import TrainingRequest

VERSION = "5.23.0"
SCRIPT = "run_clm.py"
FSDP_FILE = "fsdp_config.json"
DATASET = ("Salesforce/wikitext", "wikitext-103-raw-v1")
"""A stand-in."""


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The Trainer's arguments, the files that they name, and torchrun."""
    plan = pipeline_plan(answer)
    workload = request.workload
    backend = backend_of(plan)
    named: list[Words] = []
    files = deepspeed_files(plan, workload)
    if backend is Backend.FSDP:
        files[FSDP_FILE] = json.dumps({"version": 2} | fsdp_keys(plan), indent=2) + "\n"
        named = [(*flag("fsdp"), *flag("fsdp_config", FSDP_FILE))]
    if backend is Backend.DEEPSPEED:
        named = [flag("deepspeed", DEEPSPEED_FILE)]
    keys = trainer_keys(plan, workload) | synchronised(plan)
    parts = [
        *torchrun(request, plan.devices),
        (SCRIPT,),
        flag("model_name_or_path", checkpoint(answer.model)),
        (*flag("dataset_name", DATASET[0]), *flag("dataset_config_name", DATASET[1]), *flag("do_train")),
        flag("block_size", workload.seq_len),
        *(flag(name, _text(value)) for name, value in keys.items()),
        *named,
    ]
    return Export(
        launcher=Launcher.HF_TRAINER,
        version=VERSION,
        command=command_text(parts=parts),
        files=files,
        inexpressible=lost(plan, workload, Launcher.HF_TRAINER),
        assumptions=(
            checkpoint_assumption(answer.model),
            f"{SCRIPT} is the one of transformers' examples (pytorch/language-modeling), or a script of yours that reads the "
            "same arguments; dataset, learning rate and steps are stand-ins",
            *assumptions(plan, request),
        ),
    )


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


def read_run(start: Start) -> StatedTraining:
    """Return what a script over Hugging Face's Trainer states, started by torchrun or Python."""
    return read_by_trainer(start, Launcher.HF_TRAINER)
