"""The facts that launchers over Hugging Face Accelerate have in common: models of transformers, trained by PyTorch's DDP or
FSDP2, or by DeepSpeed's ZeRO; no pipeline, and whole layers on every rank.

Source: accelerate 1.15, parallelism_config.py, utils/fsdp_utils.py and utils/deepspeed.py; transformers 5.23, training_args.py.
"""

from __future__ import annotations

from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.solver.problem.launchers.trainer import HostState, Trainer

OVER_ACCELERATE = Trainer(
    implementation=implementation_profile("hf-trainer").implementation,
    max_zero_with_pipeline=0,
    context_parallel=False,
    sequence_parallel=False,
    replicates_kv_heads=False,
    ties_across_stages=False,
    schedules=frozenset(),
    tensor_parallel=False,
    # gradient_checkpointing, and FSDP's own activation_checkpointing: whole layers.
    selective=False,
    # FSDP2 over a mesh of dp_replicate_size x dp_shard_size.
    zero_within_groups=frozenset({2, 3}),
    # DeepSpeed's; its MiCS is nothing that Accelerate turns on.
    host_state=HostState.ZERO_OFFLOAD,
    offloads_within_groups=False,
    is_within_others=True,
)
