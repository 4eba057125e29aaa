"""Run by an interpreter that has vLLM: its own argument parser and engine configuration.

Reads a list of {"args", "model"}, "model" being a directory that holds nothing but a config.json.
"""

import json
import os
import sys

os.environ.update(VLLM_LOGGING_LEVEL="CRITICAL", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")

from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
answers = []
for case in json.loads(sys.argv[1]):
    try:
        args = EngineArgs.from_cli_args(parser.parse_args(["--model", case["model"], "--skip-tokenizer-init", *case["args"]]))
        config = args.create_engine_config()
    except (Exception, SystemExit) as error:
        answers.append({"error": f"{type(error).__name__}: {error}"})
        continue
    parallel, scheduler = config.parallel_config, config.scheduler_config
    answers.append(
        {
            "tp": parallel.tensor_parallel_size,
            "pp": parallel.pipeline_parallel_size,
            "dp": parallel.data_parallel_size,
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_model_len": config.model_config.max_model_len,
            "quantization": config.model_config.quantization,
            "cache_dtype": config.cache_config.cache_dtype,
        }
    )
print("ANSWER" + json.dumps(answers))
