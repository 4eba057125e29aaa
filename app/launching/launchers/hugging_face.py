"""The parts that launchers over Hugging Face Accelerate share: the back end of a plan, its configuration, and what is lost.

Keys are those of accelerate 1.15 (commands/launch.py, commands/config/config_args.py, utils/dataclasses.py) and transformers
5.23 (training_args.py).
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.launchers.deepspeed import NVME_PATH, ds_config
from meshwright.app.launching.parts.command import PORT, ShellVariable, Words, devices_per_node, flag, node_assumptions
from meshwright.app.launching.parts.implemented import not_as_stated
from meshwright.app.launching.parts.launchable import recompute_mode
from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE
from meshwright.costmodels.model.adapter import Adapter, BaseFormat
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

ACCELERATE_VERSION = "1.15.0"
ACCELERATE_FILE = "accelerate.yaml"
DEEPSPEED_FILE = "ds_config.json"

STEPS = 1000
LEARNING_RATE = 1e-5
OUTPUT = "out"
"""Stand-ins: no plan decides them."""

SYNC_EACH_BATCH = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
"""Gradients are scattered in every micro-batch. Else FSDP2 sums whole gradients on every rank until the last one
(Accelerator.no_sync, set_requires_gradient_sync)."""


class Backend(StrEnum):
    """The engine that shards training state, by Accelerate's names (DistributedType)."""

    NONE = "NO"
    DDP = "MULTI_GPU"
    FSDP = "FSDP"
    DEEPSPEED = "DEEPSPEED"


def backend_of(plan: PipelinePlan) -> Backend:
    """Return what runs a plan: DeepSpeed for ZeRO-1, which FSDP2 has not, and for state on the host; FSDP2 for ZeRO-2 and 3."""
    stage = plan.stages[0]
    if not stage.offload.is_nothing:
        return Backend.DEEPSPEED
    if plan.devices == 1:
        return Backend.NONE
    return {0: Backend.DDP, 1: Backend.DEEPSPEED}.get(stage.zero_stage, Backend.FSDP)


def shard_degrees(plan: PipelinePlan) -> tuple[int, int]:
    """Copies of what is sharded, and ranks that share each."""
    shard_ranks = plan.stages[0].shard_ranks or plan.axes.dp
    return plan.axes.dp // shard_ranks, shard_ranks


def recomputes(plan: PipelinePlan) -> bool:
    """Return True if layers are recomputed."""
    return recompute_mode(plan) is Recompute.FULL


def fsdp_keys(plan: PipelinePlan) -> dict[str, Any]:
    """Return FSDP2's settings by their names without a prefix: weights are kept after the forward pass under ZeRO-2."""
    return {
        "reshard_after_forward": plan.stages[0].zero_stage == 3,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "activation_checkpointing": recomputes(plan),
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def mixed_precision(workload: TrainingWorkload) -> str:
    """Return Accelerate's name of the working format."""
    return workload.precision.value if workload.precision in (DType.BF16, DType.FP16) else "no"


def accelerate_config(plan: PipelinePlan, request: TrainingRequest) -> dict[str, Any]:
    """The document that ``accelerate launch --config_file`` reads. DeepSpeed's number format is in its own file, beside which
    Accelerate refuses another."""
    backend = backend_of(plan)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": backend.value,
        "num_machines": len(devices_per_node(request, plan.devices)),
        "num_processes": plan.devices,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "use_cpu": False,
    }
    if backend is not Backend.DEEPSPEED:
        config["mixed_precision"] = mixed_precision(request.workload)
    if backend is Backend.FSDP:
        config["fsdp_config"] = {"fsdp_version": 2} | {f"fsdp_{name}": value for name, value in fsdp_keys(plan).items()}
        copies, ranks = shard_degrees(plan)
        if copies > 1:
            config["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": copies,
                "parallelism_config_dp_shard_size": ranks,
            }
    if backend is Backend.DEEPSPEED:
        config["deepspeed_config"] = {
            "deepspeed_config_file": DEEPSPEED_FILE,
            "deepspeed_multinode_launcher": "standard",
            "zero3_init_flag": plan.stages[0].zero_stage == 3,
        }
    return config


def deepspeed_config(plan: PipelinePlan, workload: TrainingWorkload) -> dict[str, Any]:
    """DeepSpeed's document, learning rate and clipping left to the trainer ("auto")."""
    config = ds_config(plan, workload)
    auto = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
    config |= {"optimizer": {"type": "AdamW", "params": auto}, "gradient_clipping": "auto"}
    zero = config["zero_optimization"]
    if isinstance(zero, dict) and zero["stage"] == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return config


def deepspeed_files(plan: PipelinePlan, workload: TrainingWorkload) -> dict[str, str]:
    """DeepSpeed's configuration by its file's name, of a plan that it runs."""
    if backend_of(plan) is not Backend.DEEPSPEED:
        return {}
    return {DEEPSPEED_FILE: json.dumps(deepspeed_config(plan, workload), indent=2) + "\n"}


def accelerate_files(plan: PipelinePlan, request: TrainingRequest) -> dict[str, str]:
    """Accelerate's configuration, and DeepSpeed's where it has one, by their files' names."""
    return {ACCELERATE_FILE: yaml_text(accelerate_config(plan, request)), **deepspeed_files(plan, request.workload)}


def accelerate_words(request: TrainingRequest, n_devices: int, *, name: str = "config_file") -> Words:
    """Return the options of ``accelerate launch``: its file, under the flag's ``name``, and which node this is.

    It gives each node the number of all processes over that of nodes, so one with another number says so as if all had it.
    """
    config = flag(name, ACCELERATE_FILE)
    per_node = devices_per_node(request, n_devices)
    if len(per_node) == 1:
        return config
    uneven = flag("num_processes", ShellVariable(f"((DEVICES * {len(per_node)}))")) if len(set(per_node)) > 1 else ()
    return (
        *config,
        *uneven,
        *flag("machine_rank", ShellVariable("NODE_RANK")),
        *flag("main_process_ip", ShellVariable("MASTER_ADDR")),
        *flag("main_process_port", PORT),
    )


def trainer_keys(plan: PipelinePlan, workload: TrainingWorkload) -> dict[str, Any]:
    """The arguments of transformers' Trainer that a plan decides, and stand-ins for what its start asks for.

    Under FSDP its own checkpointing recomputes layers; the Trainer's would do it again.
    """
    backend = backend_of(plan)
    microbatch = plan.microbatch
    assert microbatch is not None
    keys: dict[str, Any] = {
        "per_device_train_batch_size": microbatch.size,
        "gradient_accumulation_steps": microbatch.count,
        "gradient_checkpointing": recomputes(plan) and backend is not Backend.FSDP,
        "bf16": workload.precision is DType.BF16,
        "fp16": workload.precision is DType.FP16,
        "optim": "adamw_torch",
        "learning_rate": LEARNING_RATE,
        "max_steps": STEPS,
        "output_dir": OUTPUT,
    }
    return keys


_LOADED = {BaseFormat.NF4: "load_in_4bit", BaseFormat.INT8: "load_in_8bit"}


def adapter_keys(adapter: Adapter) -> dict[str, Any]:
    """Return rank, scale and dropout of adapters, by the names that TRL and Axolotl share."""
    return {
        "lora_r": adapter.rank,
        "lora_alpha": 2 * adapter.rank,
        "lora_dropout": 0.0,
        "lora_target_modules": [target.value for target in adapter.targets],
        **({_LOADED[adapter.base_format]: True} if adapter.base_format in _LOADED else {}),
    }


def synchronised(plan: PipelinePlan) -> dict[str, Any]:
    """The argument that keeps gradients sharded between micro-batches, where FSDP2 accumulates several."""
    assert plan.microbatch is not None
    return {"accelerator_config": SYNC_EACH_BATCH} if backend_of(plan) is Backend.FSDP and plan.microbatch.count > 1 else {}


def lost(plan: PipelinePlan, workload: TrainingWorkload, launcher: Launcher) -> tuple[str, ...]:
    """Return what of a plan these launchers do otherwise."""
    said = []
    if backend_of(plan) is Backend.FSDP and mixed_precision(workload) != "no" and workload.gradient_dtype is DType.FP32:
        name = workload.precision.value
        said.append(
            f"fp32 gradients: Accelerate has FSDP2 reduce them in {name}, half the bytes planned, and keeps them in fp32"
        )
    if workload.matmul is not MatmulRecipe.WORKING:
        said.append(f"{workload.matmul.value} products: name the recipe in the script (mixed_precision fp8 and its backend)")
    if workload.saved_activations is SavedFormat.FP8:
        said.append("saved activations in fp8: PyTorch keeps them in 16 bits, which takes more memory than planned")
    stated = not_as_stated(workload, launcher, said=(), instead="the script decides, and is taken to run")
    return (*said, *stated)


SHARDED_IN_FOUR_BITS = (
    "weights of four bits lie in the working format's storage (bnb_4bit_quant_storage), without which they are no shards; the "
    "constants of their blocks count as shards, too"
)


def assumptions(plan: PipelinePlan, request: TrainingRequest) -> tuple[str, ...]:
    """Return what is taken for granted of the nodes, the state and drives."""
    said = list(node_assumptions(request, plan.devices))
    workload = request.workload
    if workload.documents is not None:
        said.append(
            "documents are packed whole, the longest first, and those longer than a sequence are cut off; planned are documents"
            " laid end to end and cut where a sequence is full, with a little less attention and no padding"
        )
    if workload.adapter is not None:
        said.append(
            "modules have the names of Llama's; lora_alpha, twice the rank, is a stand-in, and there is no dropout; adapters "
            "are kept in fp32 (PEFT's autocast_adapter_dtype)"
        )
        if workload.adapter.base_format is BaseFormat.NF4 and plan.stages[0].zero_stage == MAX_ZERO_STAGE:
            said.append(SHARDED_IN_FOUR_BITS)
    elif workload.precision is not DType.FP32 and backend_of(plan) is not Backend.DEEPSPEED:
        said.append(
            f"weights are kept in fp32, and computed with in {workload.precision.value}: 16 bytes a parameter where 18 are "
            "planned"
        )
    stage = plan.stages[0]
    if stage.offload.on_drives:
        said.append(f"{NVME_PATH} stands for where each node's drives are mounted, and an 'aio' section for their tuning")
    if stage.offload.optimizer > stage.offload.gradients:
        said.append("gradients of states on the host go there as well, which leaves more of the device free than planned")
    return tuple(said)
