"""Axolotl: one YAML file of model, batch, sequence and what shards, and torchrun.

Keys are those of axolotl/utils/schemas/config.py and fsdp.py.
"""

from __future__ import annotations

from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.launchers.accelerate import read_by_trainer
from meshwright.app.launching.launchers.hugging_face import (
    DEEPSPEED_FILE,
    LEARNING_RATE,
    OUTPUT,
    STEPS,
    Backend,
    adapter_keys,
    assumptions,
    backend_of,
    deepspeed_files,
    fsdp_keys,
    lost,
    recomputes,
    shard_degrees,
    synchronised,
)
from meshwright.app.launching.parts.command import command_text, torchrun
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.served import checkpoint, checkpoint_assumption
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.costmodels.model.adapter import AdapterKind, BaseFormat
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

VERSION = "0.19.0"
CONFIG = "axolotl.yaml"
DATASET = {"path": "HuggingFaceFW/fineweb-edu", "name": "sample-10BT", "type": "completion"}
"""A stand-in."""


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The configuration, DeepSpeed's where it runs the plan, and torchrun over Axolotl's trainer."""
    plan = pipeline_plan(answer)
    workload = request.workload
    parts = [*torchrun(request, plan.devices), ("-m", "axolotl.cli.train", CONFIG)]
    return Export(
        launcher=Launcher.AXOLOTL,
        version=VERSION,
        command=command_text(parts=parts),
        files={CONFIG: yaml_text(_config(answer.model, plan, workload)), **deepspeed_files(plan, workload)},
        inexpressible=lost(plan, workload, Launcher.AXOLOTL),
        assumptions=(
            checkpoint_assumption(answer.model),
            "dataset, learning rate and steps are stand-ins",
            *assumptions(plan, request),
        ),
    )


def _config(model: str, plan: PipelinePlan, workload: TrainingWorkload) -> dict[str, Any]:
    backend = backend_of(plan)
    microbatch = plan.microbatch
    assert microbatch is not None
    config: dict[str, Any] = {
        "base_model": checkpoint(model),
        "datasets": [dict(DATASET)],
        "sequence_len": workload.seq_len,
        "sample_packing": workload.lengths is None or workload.documents is not None,
        "pad_to_sequence_len": True,
        "flash_attention": True,
        "micro_batch_size": microbatch.size,
        "gradient_accumulation_steps": microbatch.count,
        "max_steps": STEPS,
        "optimizer": "adamw_torch",
        "learning_rate": LEARNING_RATE,
        "lr_scheduler": "cosine",
        "bf16": workload.precision is DType.BF16,
        "fp16": workload.precision is DType.FP16,
        "gradient_checkpointing": recomputes(plan) and backend is not Backend.FSDP,
        "output_dir": OUTPUT,
        **synchronised(plan),
    }
    if workload.adapter is not None:
        packed = workload.adapter.base_format is BaseFormat.NF4
        config |= {"adapter": "qlora" if packed else "lora", **adapter_keys(workload.adapter)}
        config |= {"peft_use_dora": True} if workload.adapter.kind is AdapterKind.DORA else {}
    if backend is Backend.FSDP:
        copies, ranks = shard_degrees(plan)
        config |= {"fsdp_version": 2, "fsdp_config": fsdp_keys(plan)}
        if copies > 1:
            config |= {"dp_replicate_size": copies, "dp_shard_size": ranks}
    if backend is Backend.DEEPSPEED:
        config["deepspeed"] = DEEPSPEED_FILE
    return config


def read_run(start: Start) -> StatedTraining:
    """Return what a file of Axolotl states."""
    return read_by_trainer(start, Launcher.AXOLOTL)
