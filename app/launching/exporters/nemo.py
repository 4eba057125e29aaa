"""NeMo 2: a Python script of one GPTConfig, MegatronStrategy and Trainer, started by torchrun.

A plan is put into Megatron-LM's flags, those into Megatron-Bridge's settings, and those into arguments
(`app.launching.flags.nemo`): all three train by Megatron-Core's records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from meshwright.app.launching.exporters.command import (
    chunks_a_rank,
    command_text,
    devices_per_node,
    node_assumptions,
    torchrun,
)
from meshwright.app.launching.exporters.export import Export
from meshwright.app.launching.exporters.implemented import stated_by
from meshwright.app.launching.exporters.megatron_bridge import flags_of, model_settings, settings_of_flags
from meshwright.app.launching.exporters.megatron_lm import environment, hyperparameter_notes, inexpressible, plan_words
from meshwright.app.launching.flags.nemo import argument_of
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import AttentionKernels, HostPath
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.decoders import DecoderShape, Positions, decoder_shape
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

VERSION = "2.5"
SCRIPT = "nemo_train.py"

Arguments = dict[str, str]
"""Arguments of one call, as Python writes them."""

_FORMATS = {
    DType.BF16: ("bf16-mixed", "torch.bfloat16"),
    DType.FP16: ("16-mixed", "torch.float16"),
    DType.FP32: ("32", "torch.float32"),
}
_TORCH = {"exp_avg_dtype": "torch", "exp_avg_sq_dtype": "torch", "activation_func": "torch.nn.functional"}
"""Arguments that are names in a module."""
_NAMES = {"bf16": "bfloat16", "fp8": "uint8"}
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")

_HEAD = '''"""A run of NeMo 2 as it was planned; data, learning rate and steps are stand-ins."""

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer
'''
_OVERLAP = "from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback\n"


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The script and torchrun over it; data and hyperparameters are stand-ins."""
    plan = pipeline_plan(answer)
    workload, shape = request.workload, decoder_shape(request.model)
    flags = tuple(flags_of(plan_words(plan, request, shape)))
    settings = dict([*settings_of_flags(flags), *model_settings(plan, workload, shape)])
    # Two records hold it.
    is_distributed = str(any(name == "use-distributed-optimizer" for name, _ in flags)).lower()
    settings |= dict.fromkeys(("optimizer.use_distributed_optimizer", "ddp.use_distributed_optimizer"), is_distributed)
    return Export(
        launcher=Launcher.NEMO,
        version=VERSION,
        command=command_text(environment=environment(plan), parts=[*torchrun(request, plan.devices), (SCRIPT,)]),
        files={SCRIPT: _script(_calls(settings, plan, request), settings["tokenizer.vocab_size"])},
        inexpressible=(*inexpressible(plan, workload, shape), *_lost(settings, workload, shape)),
        assumptions=(
            *node_assumptions(request, plan.devices),
            "run with NeMo 2.5, Megatron-Core and Transformer Engine, as in NVIDIA's container of them",
            "MockDataModule, NullTokenizer, lr and max_steps are stand-ins that make it start: put your own there",
            *hyperparameter_notes(request.model.hyperparameters, shape),
        ),
    )


def _calls(settings: Mapping[str, str], plan: PipelinePlan, request: TrainingRequest) -> dict[str, Arguments]:
    """Arguments by the section of their call."""
    workload = request.workload
    found: dict[str, Arguments] = {
        name: {} for name in ("model", "optimizer", "data", "ddp", "strategy", "precision", "overlap", "trainer")
    }
    for key, value in settings.items():
        section, _, name = (argument_of(key) or "").partition(".")
        if section:
            found[section][name] = _literal(name, value)
    if chunks_a_rank(plan) > 1:
        found["strategy"]["virtual_pipeline_model_parallel_size"] = str(chunks_a_rank(plan))
    precision, dtype = _FORMATS[workload.precision]
    in_16_bits = workload.precision is DType.BF16 and workload.gradient_dtype is DType.BF16
    found["precision"] |= {"precision": f'"{precision}"', "params_dtype": dtype, "pipeline_dtype": dtype}
    found["precision"] |= {"autocast_enabled": "False", "grad_reduce_in_fp32": str(not in_16_bits)}
    if found["overlap"]:
        # It sets these by itself unless it is told them.
        told = {name: found["ddp"].get(name, "False") for name in ("overlap_grad_reduce", "overlap_param_gather")}
        deferred = found["model"].pop("defer_embedding_wgrad_compute", "False")
        found["overlap"] |= {**told, "defer_embedding_wgrad_compute": deferred}
    nodes = devices_per_node(request, plan.devices)
    if len(set(nodes)) > 1:
        raise ExportError("nemo trains on nodes of equally many devices", given=", ".join(map(str, nodes)))
    found["trainer"] |= {"devices": str(nodes[0]), "num_nodes": str(len(nodes)), "accelerator": '"gpu"'}
    return found


def _literal(name: str, value: str) -> str:
    """The value of a setting as Python writes it."""
    if name in _TORCH:
        return f"{_TORCH[name]}.{_NAMES.get(value, value)}"
    if value in ("true", "false"):
        return value.capitalize()
    if value.startswith("["):
        members = ", ".join(_literal("", each) for each in value.strip("[]").split(","))
        return f"({members},)" if name == "window_size" else f"[{members}]"
    return value if _NUMBER.fullmatch(value) else '"' + value + '"'


def _script(calls: Mapping[str, Arguments], vocab: str) -> str:
    """The text of the script."""
    lines = [
        f"tokenizer = NullTokenizer(vocab_size={vocab})",
        *_call("config = llm.GPTConfig", calls["model"]),
        *_call("optimizer = OptimizerConfig", calls["optimizer"]),
        *_call("data = llm.MockDataModule", {"tokenizer": "tokenizer", **calls["data"]}),
        *_call("ddp = DistributedDataParallelConfig", calls["ddp"]),
        *_call("strategy = nl.MegatronStrategy", {**calls["strategy"], "ddp": "ddp"}),
        *_call("precision = nl.MegatronMixedPrecision", calls["precision"]),
        *(_call("overlap = MegatronCommOverlapCallback", calls["overlap"]) if calls["overlap"] else ()),
        *_call("trainer = nl.Trainer", {**calls["trainer"], **_trainer(bool(calls["overlap"]))}),
        *_call(
            "model = llm.GPTModel",
            {"config": "config", "optim": "nl.MegatronOptimizerModule(config=optimizer)", "tokenizer": "tokenizer"},
        ),
        "llm.pretrain(model=model, data=data, trainer=trainer)",
    ]
    body = "\n".join(f"    {line}" for line in lines)
    return f'{_HEAD}{_OVERLAP if calls["overlap"] else ""}\nif __name__ == "__main__":\n{body}\n'


def _trainer(overlaps: bool) -> Arguments:
    """Arguments of the trainer that no plan decides."""
    return {
        "strategy": "strategy",
        "plugins": "precision",
        **({"callbacks": "[overlap]"} if overlaps else {}),
        "limit_val_batches": "0.0",
        "num_sanity_val_steps": "0",
        "log_every_n_steps": "1",
        "use_distributed_sampler": "False",
        "enable_checkpointing": "False",
        "logger": "False",
    }


def _call(begin: str, arguments: Arguments) -> Iterator[str]:
    yield f"{begin}("
    yield from (f"    {name}={value}," for name, value in arguments.items())
    yield ")"


def _lost(settings: Mapping[str, str], workload: TrainingWorkload, shape: DecoderShape) -> Iterator[str]:
    stated = stated_by(workload, Launcher.NEMO)
    if stated.attention_kernels is AttentionKernels.UNFUSED:
        yield "implementation.attention_kernels: unfused is planned; no argument here says so: launched with fused kernels"
    if stated.host is HostPath.CUDA_GRAPHS and "model.cuda_graph_impl" in settings:
        yield "implementation.host: cuda-graphs is planned; NeMo captures them by arguments of its own: launched without"
    if workload.matmul is MatmulRecipe.NVFP4:
        yield "products in nvfp4: NeMo's MegatronMixedPrecision has no such format; launched without"
    if "model.rope_scaling" in settings:
        yield "rotary positions stretched by llama3: GPTConfig has no field for it; launched without"
    if shape.positions is Positions.LEARNED and shape.n_positions not in (None, workload.seq_len):
        yield f"{shape.n_positions} learned positions: GPTConfig learns as many as a sequence has, {workload.seq_len}"
