"""TRL: the configuration of ``trl sft``, and Accelerate's beside it."""

from __future__ import annotations

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.launchers.accelerate import read_by_trainer
from meshwright.app.launching.launchers.hugging_face import (
    accelerate_files,
    accelerate_words,
    adapter_keys,
    assumptions,
    lost,
    mixed_precision,
    synchronised,
    trainer_keys,
)
from meshwright.app.launching.parts.command import command_text, flag
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.served import checkpoint, checkpoint_assumption
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.costmodels.model.adapter import AdapterKind, BaseFormat
from meshwright.solver.answer.pipeline_plan import pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import TrainingRequest

VERSION = "1.16.0"
CONFIG = "sft.yaml"
DATASET = "trl-lib/Capybara"
"""A stand-in."""


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The trainer's arguments in a file, Accelerate's configuration, and the line that starts both."""
    plan = pipeline_plan(answer)
    workload = request.workload
    keys = {
        "model_name_or_path": checkpoint(answer.model),
        "dataset_name": DATASET,
        "max_length": workload.seq_len,
        # Sequences are as long as they may be, as planned.
        "packing": True,
        **trainer_keys(plan, workload),
        **synchronised(plan),
    }
    if workload.adapter is not None:
        keys |= {"use_peft": True, **adapter_keys(workload.adapter)}
        if mixed_precision(workload) != "no":
            keys["dtype"] = {"bf16": "bfloat16", "fp16": "float16"}[mixed_precision(workload)]
        if workload.adapter.kind is AdapterKind.DORA:
            keys["use_dora"] = True
        if workload.adapter.base_format is BaseFormat.NF4:
            keys |= {"bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True}
    if workload.documents is not None:
        # The kernels that keep attention within documents.
        keys |= {"packing_strategy": "bfd", "attn_implementation": "flash_attention_2"}
    launched = accelerate_words(request, plan.devices, name="accelerate_config")
    return Export(
        launcher=Launcher.TRL,
        version=VERSION,
        command=command_text(parts=[("trl", "sft", *flag("config", CONFIG)), launched]),
        files={**accelerate_files(plan, request), CONFIG: yaml_text(keys)},
        inexpressible=lost(plan, workload, Launcher.TRL),
        assumptions=(
            checkpoint_assumption(answer.model),
            "dataset, learning rate and steps are stand-ins; other trainers (trl dpo, ...) take the same keys, and more memory",
            *assumptions(plan, request),
        ),
    )


def read_run(start: Start) -> StatedTraining:
    """Return what ``trl sft`` and its like state: their arguments, and Accelerate's beside them."""
    return read_by_trainer(start, Launcher.TRL)
