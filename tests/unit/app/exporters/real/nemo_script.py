"""Run by an interpreter that has megatron-core: makes the records of NeMo's scripts, which are Megatron-Core's.

NeMo's package asks for kernels of a GPU when it is imported. Its strategy writes its own arguments into the model's record, its
plug-in the formats, and the record is checked again (nemo/lightning/_strategy_lib.py, set_model_parallel_attributes): so it is
done here. Reads a list of {"script": ...}; answers what the records hold.
"""

import ast
import dataclasses
import json
import sys

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig

OF_MODEL = {field.name for field in dataclasses.fields(TransformerConfig)}
OF_OPTIMIZER = {field.name for field in dataclasses.fields(OptimizerConfig)}


def calls(script):
    """The arguments of each call that are written out, by its name."""
    found = {}
    for call in (node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)):
        written = [each for each in call.keywords if not isinstance(each.value, (ast.Call, ast.Name))]
        written = [each for each in written if each.arg != "callbacks"]
        found[ast.unparse(call.func).rpartition(".")[2]] = {
            each.arg: eval(ast.unparse(each.value), {"torch": torch}) for each in written
        }
    return found


def check(script):
    said = calls(script)
    model = {name: value for name, value in said["GPTConfig"].items() if name in OF_MODEL}
    # Ranks without a process group; kernels that only Transformer Engine has.
    model.update(use_cpu_initialization=True, gradient_accumulation_fusion=False)
    model.update(apply_rope_fusion=False, persist_layer_norm=False)
    made, precision = TransformerConfig(**model), said["MegatronMixedPrecision"]
    for name, value in said["MegatronStrategy"].items():
        if name in OF_MODEL:
            setattr(made, name, value)
    made.params_dtype, made.pipeline_dtype = precision["params_dtype"], precision["pipeline_dtype"]
    made.bf16, made.fp16 = precision["precision"].startswith("bf16"), precision["precision"].startswith("16")
    made.__post_init__()
    DistributedDataParallelConfig(**said["DistributedDataParallelConfig"])
    strange = sorted(set(said["OptimizerConfig"]) - OF_OPTIMIZER)
    if strange:
        return {"error": f"OptimizerConfig has no {', '.join(strange)}"}
    degrees = (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
    )
    return {
        "said": {
            "layers": made.num_layers,
            "virtual": made.virtual_pipeline_model_parallel_size,
            "degrees": [getattr(made, name) for name in degrees],
            "recompute": made.recompute_granularity,
        }
    }


answers = []
for case in json.loads(sys.argv[1]):
    try:
        answers.append(check(case["script"]))
    except Exception as error:
        answers.append({"error": f"{type(error).__name__}: {error}"})
print("ANSWER" + json.dumps(answers))
