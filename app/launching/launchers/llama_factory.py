"""LLaMA-Factory: its YAML file, started by torchrun, or by Accelerate where FSDP2 shards.

Keys are those of llamafactory/hparams.
"""

from __future__ import annotations

from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.launchers.accelerate import read_by_trainer
from meshwright.app.launching.launchers.hugging_face import (
    DEEPSPEED_FILE,
    Backend,
    accelerate_files,
    accelerate_words,
    assumptions,
    backend_of,
    deepspeed_files,
    lost,
    recomputes,
    synchronised,
    trainer_keys,
)
from meshwright.app.launching.parts.command import command_text, torchrun
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.served import checkpoint, checkpoint_assumption
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.costmodels.model.adapter import Adapter, AdapterKind, BaseFormat
from meshwright.solver.answer.pipeline_plan import pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import TrainingRequest

VERSION = "0.9.5"
CONFIG = "llama_factory.yaml"
DATASET = "c4_demo"
"""A stand-in of LLaMA-Factory's own list."""
_STARTED = ("-m", "llamafactory.launcher", CONFIG)


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The configuration, what shards, and the line that starts LLaMA-Factory's own entry of each process."""
    plan = pipeline_plan(answer)
    workload = request.workload
    backend = backend_of(plan)
    keys = trainer_keys(plan, workload)
    # Its own switch of checkpoints is on unless it is turned off; FSDP's recomputes under FSDP.
    checkpoints = keys.pop("gradient_checkpointing")
    config = {
        "model_name_or_path": checkpoint(answer.model),
        "stage": "pt",
        "do_train": True,
        **_trained(workload.adapter),
        "dataset": DATASET,
        "cutoff_len": workload.seq_len,
        "packing": True,
        "disable_gradient_checkpointing": not (checkpoints and recomputes(plan)),
        **keys,
        **synchronised(plan),
        **({"deepspeed": DEEPSPEED_FILE} if backend is Backend.DEEPSPEED else {}),
    }
    if backend is Backend.FSDP:
        parts = [("accelerate", "launch"), accelerate_words(request, plan.devices), _STARTED]
        files = accelerate_files(plan, request)
    else:
        parts, files = [*torchrun(request, plan.devices), _STARTED], deepspeed_files(plan, workload)
    return Export(
        launcher=Launcher.LLAMA_FACTORY,
        version=VERSION,
        command=command_text(parts=parts),
        files={CONFIG: yaml_text(config), **files},
        inexpressible=lost(plan, workload, Launcher.LLAMA_FACTORY),
        assumptions=(
            checkpoint_assumption(answer.model),
            "dataset, learning rate and steps are stand-ins; the stage is pretraining (pt): supervised fine-tuning (sft) also "
            "needs a template",
            *assumptions(plan, request),
        ),
    )


def _trained(adapter: Adapter | None) -> dict[str, Any]:
    """Return the keys of what is trained: all weights, or adapters beside frozen ones."""
    if adapter is None:
        return {"finetuning_type": "full"}
    keys: dict[str, Any] = {
        "finetuning_type": "lora",
        "lora_rank": adapter.rank,
        "lora_alpha": 2 * adapter.rank,
        "lora_dropout": 0.0,
        "lora_target": ",".join(target.value for target in adapter.targets),
    }
    if adapter.kind is AdapterKind.DORA:
        keys["use_dora"] = True
    if adapter.base_format is BaseFormat.INT8:
        keys["quantization_bit"] = 8
    if adapter.base_format is BaseFormat.NF4:
        keys |= {"quantization_bit": 4, "quantization_type": "nf4", "double_quantization": True}
    return keys


def read_run(start: Start) -> StatedTraining:
    """Return what a file of LLaMA-Factory, or its arguments, state."""
    return read_by_trainer(start, Launcher.LLAMA_FACTORY)
