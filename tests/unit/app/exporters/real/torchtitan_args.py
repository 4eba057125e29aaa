"""Run by an interpreter that has torchtitan: parses command lines with its ConfigManager and checks the mesh and the model.

Reads a list of {"args", "world"}; answers what each was understood as, or why it was refused.
"""

import json
import sys

import torch
from torchtitan.config.manager import ConfigManager
from torchtitan.distributed import ParallelDims


def parameters(model):
    """Number of parameters of a model that is built without memory."""
    with torch.device("meta"):
        built = model.build()
    return sum(each.numel() for each in built.parameters())


answers = []
for case in json.loads(sys.argv[1]):
    try:
        config = ConfigManager().parse_args(case["args"])
        dims = ParallelDims.from_config(config.parallelism, case["world"])
        model = config.model_spec.model
        model.update_from_config(config=config)
    except (Exception, SystemExit) as error:
        answers.append({"error": f"{type(error).__name__}: {error}"})
        continue
    attention = model.layers[0].attention
    answers.append(
        {
            "dims": [dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp, dims.pp],
            "stages": config.parallelism.module_fqns_per_model_part,
            "batch": [
                config.training.local_batch_size,
                config.training.global_batch_size,
                config.parallelism.pipeline_parallel_microbatch_size,
            ],
            "seq_len": config.training.seq_len,
            "sequence_parallel": config.parallelism.enable_sequence_parallel,
            "reshard": config.parallelism.fsdp_reshard_after_forward,
            "checkpoint": None if config.activation_checkpoint is None else type(config.activation_checkpoint).__qualname__,
            "cpu_offload": config.training.enable_cpu_offload,
            "compile": config.compile.enable,
            "asynchronous": config.compile.enable_async_tensor_parallel,
            "sizes": [
                len(model.layers),
                model.dim,
                attention.n_heads,
                attention.n_kv_heads or attention.n_heads,
                model.layers[0].feed_forward.w1.out_features,
                model.vocab_size,
            ],
            "parameters": parameters(model),
            "tied": model.enable_weight_tying,
        }
    )
print("ANSWER" + json.dumps(answers))
