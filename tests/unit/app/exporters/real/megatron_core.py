"""Run by an interpreter that has megatron-core: builds the model that the arguments name, one rank at a time.

The wheel has no argument parser, so flags are matched by name with the fields of its configuration records, as its
own parser does. Reads a list of {"flags": {flag: [values]}, "ranks": [...]}; answers parameters on each rank.
"""

import dataclasses
import json
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

# Flags of megatron/training/arguments.py that are no field of a record of megatron-core, or are spelled otherwise there.
SCRIPT_FLAGS = {
    "seq-length",
    "max-position-embeddings",
    "group-query-attention",
    "position-embedding-type",
    "swiglu",
    "squared-relu",
    "disable-bias-linear",
    "untie-embeddings-and-output-weights",
    "mock-data",
    "tokenizer-type",
    "vocab-size",
    "make-vocab-size-divisible-by",
    "micro-batch-size",
    "global-batch-size",
    "train-iters",
    "ckpt-format",
    "no-gradient-accumulation-fusion",
    "grad-reduce-in-bf16",
    "use-tp-pp-dp-mapping",
    "norm-epsilon",
    "rotary-base",
    "rotary-percent",
    "use-rope-scaling",
    "rope-scaling-factor",
}
# Renamed by core_transformer_config_from_args.
RENAMED = {"num-query-groups": "num_query_groups"}


def fields_of(record):
    return {field.name: field for field in dataclasses.fields(record)}


def value_of(field, values):
    if not values:
        return True
    if "List" in str(field.type):
        return values
    kind = {int: int, float: float}.get(field.type)
    if kind is None:
        kind = int if "int" in str(field.type) else float if "float" in str(field.type) else str
    return kind(values[0])


def check(case):
    known = {**fields_of(OptimizerConfig), **fields_of(DistributedDataParallelConfig), **fields_of(TransformerConfig)}
    flags = case["flags"]
    strange = [name for name in flags if name.replace("-", "_") not in known and name not in SCRIPT_FLAGS]
    if strange:
        return {"error": f"no record has fields for {strange}"}
    transformer = fields_of(TransformerConfig)
    config = {
        name.replace("-", "_"): value_of(transformer[name.replace("-", "_")], values)
        for name, values in flags.items()
        if name.replace("-", "_") in transformer
    }
    # Sequence-parallel norms need Transformer Engine; weights are the same without. So is the rest for a local build.
    config.update(sequence_parallel=False, use_cpu_initialization=True, persist_layer_norm=False, apply_rope_fusion=False)
    config.update(
        gradient_accumulation_fusion=False, bias_dropout_fusion=False, add_bias_linear="disable-bias-linear" not in flags
    )
    config.update(pipeline_dtype=torch.bfloat16, params_dtype=torch.bfloat16)
    # The local attention has no context parallelism; weights are the same.
    cp = config.pop("context_parallel_size", 1)
    config.pop("cp_comm_type", None)
    if "swiglu" in flags:
        config.update(activation_func=torch.nn.functional.silu, gated_linear_unit=True)
    tp, pp = config["tensor_model_parallel_size"], config["pipeline_model_parallel_size"]
    multiple = int(flags["make-vocab-size-divisible-by"][0]) * tp
    vocab = -(-(int(flags["vocab-size"][0]) + 1) // multiple) * multiple
    # As megatron/training/initialize.py names it.
    order = "tp-cp-ep-pp-dp" if "use-tp-pp-dp-mapping" in flags else "tp-cp-ep-dp-pp"
    counts = []
    for rank in case["ranks"]:
        dist.init_process_group("fake", rank=rank, world_size=case["world"], store=FakeStore())
        parallel_state.initialize_model_parallel(
            *(tp, pp), context_parallel_size=cp, order=order, create_gloo_process_groups=False
        )
        try:
            model_config = TransformerConfig(**config)
            with torch.device("meta"):
                model = GPTModel(
                    config=model_config,
                    transformer_layer_spec=get_gpt_layer_local_spec(
                        qk_layernorm="qk-layernorm" in flags, normalization=config["normalization"]
                    ),
                    vocab_size=vocab,
                    max_sequence_length=int(flags["max-position-embeddings"][0]),
                    pre_process=parallel_state.is_pipeline_first_stage(),
                    post_process=parallel_state.is_pipeline_last_stage(),
                    share_embeddings_and_output_weights="untie-embeddings-and-output-weights" not in flags,
                    position_embedding_type=flags["position-embedding-type"][0],
                )
            counts.append(sum(parameter.numel() for parameter in model.parameters()))
        finally:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
    return {"parameters": counts}


# Nothing is computed, so a tied head's copy may stay where it is instead of moving to a GPU that is not there.
torch.cuda.current_device = lambda: 0
torch.Tensor.cuda = lambda tensor, *_: tensor
answers = []
for case in json.loads(sys.argv[1]):
    try:
        answers.append(check(case))
    except Exception as error:
        answers.append({"error": f"{type(error).__name__}: {error}"})
print("ANSWER" + json.dumps(answers))
