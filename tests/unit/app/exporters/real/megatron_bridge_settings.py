"""Run by an interpreter that has hydra-core, megatron-core and Megatron-Bridge's wheel: reads settings as its script does.

Hydra's own grammar reads them. The records of Megatron-Bridge ask for Transformer Engine when they are imported, so the fields
that they add are read from their source; those that they inherit are megatron-core's, whose TransformerConfig is made of the
model's. Reads a list of {"settings": [...]}; answers what the model's record holds.
"""

import ast
import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig

BRIDGE = Path(importlib.util.find_spec("megatron.bridge").submodule_search_locations[0])
# Records of Megatron-LM's own training package, from which those of the wheel's later releases inherit.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FUNCTIONS = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}


def annotated(file, record):
    """The fields that a record's source declares."""
    tree = ast.parse((BRIDGE / file).read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == record)
    return {node.target.id for node in found.body if isinstance(node, ast.AnnAssign)}


def inherited(record):
    return {field.name for field in dataclasses.fields(record)}


CONFIG = "training/config.py"
KNOWN = {
    "model": inherited(TransformerConfig) | annotated("models/gpt_provider.py", "GPTModelProvider"),
    "ddp": inherited(DistributedDataParallelConfig),
    "optimizer": inherited(OptimizerConfig),
    "train": annotated(CONFIG, "TrainingConfig"),
    "dist": annotated(CONFIG, "DistributedInitConfig"),
    "scheduler": annotated(CONFIG, "SchedulerConfig"),
    "checkpoint": annotated(CONFIG, "CheckpointConfig"),
    "tokenizer": annotated("training/tokenizers/config.py", "TokenizerConfig"),
    # Its length is a property of that release and a field of the next.
    "dataset": {"seq_length"},
}


def check(settings):
    values = {}
    for override in OverridesParser.create().parse_overrides(settings):
        section, _, name = override.key_or_group.partition(".")
        if name and name not in KNOWN[section]:
            return {"error": f"{section} has no field {name}"}
        if not name and name not in annotated(CONFIG, "ConfigContainer") and section != "mixed_precision":
            return {"error": f"there is no section {section}"}
        values.setdefault(section, {})[name] = override.value()
    own = inherited(TransformerConfig)
    model = {name: value for name, value in values["model"].items() if name in own}
    for name in ("params_dtype", "pipeline_dtype"):
        model[name] = DTYPES[model[name]]
    model["activation_func"] = FUNCTIONS.get(model["activation_func"], torch.nn.functional.relu)
    # Ranks without a process group; kernels that only Transformer Engine has.
    model.update(use_cpu_initialization=True, gradient_accumulation_fusion=False, tp_comm_overlap=False)
    model.update(apply_rope_fusion=False, persist_layer_norm=False)
    made = TransformerConfig(**model)
    said = {
        "layers": made.num_layers,
        "virtual": made.virtual_pipeline_model_parallel_size,
        "degrees": [
            made.tensor_model_parallel_size,
            made.pipeline_model_parallel_size,
            made.context_parallel_size,
            made.expert_model_parallel_size,
        ],
        "recompute": made.recompute_granularity,
        "batch": [values["train"]["micro_batch_size"], values["train"]["global_batch_size"]],
        "distributed": values["ddp"]["use_distributed_optimizer"],
    }
    return {"said": said}


answers = []
for case in json.loads(sys.argv[1]):
    try:
        answers.append(check(case["settings"]))
    except Exception as error:
        answers.append({"error": f"{type(error).__name__}: {error}"})
print("ANSWER" + json.dumps(answers))
