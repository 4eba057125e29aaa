"""Run by an interpreter that has DeepSpeed: reads a list of {"config", "dp"}, says what its own parser makes of each.

One process plays rank 0 of a world of eight on PyTorch's fake process group.
"""

import json
import sys

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
import deepspeed.comm  # noqa: E402
import deepspeed.ops  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum  # noqa: E402

# Nothing is sent here, and an operator takes a minute to build; a build that is killed makes the next one wait for good.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.comm.init_distributed(dist_backend="fake")


class Grid:
    """The grid that PipelineModule passes on."""

    def __init__(self, dp):
        self.dp = dp

    def get_data_parallel_world_size(self):
        return self.dp


answers = []
for case in json.loads(sys.argv[1]):
    try:
        config = DeepSpeedConfig(case["config"], mpu=None if case["dp"] is None else Grid(case["dp"]))
    except Exception as error:
        answers.append({"error": f"{type(error).__name__}: {error}"})
        continue
    answers.append(
        {
            "batch": [
                config.train_batch_size,
                config.train_micro_batch_size_per_gpu,
                config.gradient_accumulation_steps,
            ],
            "zero_stage": config.zero_optimization_stage,
            "offload": [
                "none" if part is None else OffloadDeviceEnum(part.device).value
                for part in (config.zero_config.offload_optimizer, config.zero_config.offload_param)
            ],
            "bf16": config.bfloat16_config.enabled,
            "tp": config.tensor_parallel_config.autotp_size,
            "grad_accum_dtype": config.grad_accum_dtype,
        }
    )
print("ANSWER" + json.dumps(answers))
