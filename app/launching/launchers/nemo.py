"""NeMo 2: a Python script of one GPTConfig, MegatronStrategy and Trainer, started by torchrun; read by its calls, never run.

A plan is put into Megatron-LM's flags, those into Megatron-Bridge's settings, and those into arguments: all three train by
Megatron-Core's records. Sources: nemo/lightning/pytorch (strategies/megatron_strategy.py, plugins/mixed_precision.py,
callbacks) and nemo/collections/llm/gpt (model/base.py, data/mock.py) of 2.5.0.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from meshwright.app.launching.launchers.megatron_bridge import flags_of, model_settings, settings_of_flags
from meshwright.app.launching.launchers.megatron_core import environment, hyperparameter_notes, inexpressible, plan_words
from meshwright.app.launching.launchers.megatron_lm import MegatronFlags, stated_by_flags
from meshwright.app.launching.launchers.recipes import MEGATRON_BRIDGE
from meshwright.app.launching.parts.command import chunks_a_rank, command_text, devices_per_node, node_assumptions, torchrun
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.flag import Flag, FlagTable, count, truth
from meshwright.app.launching.parts.implemented import stated_by
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.costmodels.errors import ExportError, InvalidInputError
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import AttentionKernels, HostPath
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.decoders import DecoderShape, Positions, decoder_shape
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

CALLS: Mapping[str, str] = {
    "GPTConfig": "model",
    "MegatronStrategy": "strategy",
    "DistributedDataParallelConfig": "ddp",
    "OptimizerConfig": "optimizer",
    "MegatronMixedPrecision": "precision",
    "MegatronCommOverlapCallback": "overlap",
    "MockDataModule": "data",
    "PreTrainingDataModule": "data",
    "FineTuningDataModule": "data",
    "Trainer": "trainer",
}
"""Names of calls, with the sections under which their arguments are read."""

_OF_STRATEGY = frozenset(
    (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
        *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel"),
        "pipeline_model_parallel_layout",
    )
)
_MOVED: Mapping[str, str] = {
    "dataset.seq_length": "data.seq_length",
    "train.micro_batch_size": "data.micro_batch_size",
    "train.global_batch_size": "data.global_batch_size",
    "train.train_iters": "trainer.max_steps",
    "dist.use_tp_pp_dp_mapping": "strategy.use_tp_pp_dp_mapping",
    "ddp.num_distributed_optimizer_instances": "strategy.num_distributed_optimizer_instances",
    "ddp.grad_reduce_in_fp32": "precision.grad_reduce_in_fp32",
    "model.fp8": "precision.fp8",
    "model.fp8_recipe": "precision.fp8_recipe",
    "model.tp_comm_overlap": "overlap.tp_comm_overlap",
}
_UNSAID = frozenset(
    (
        *("model.bf16", "model.fp16", "model.fp4", "model.cuda_graph_impl", "model.hierarchical_context_parallel_sizes"),
        *("model.moe_layer_freq", "ddp.use_megatron_fsdp", "ddp.data_parallel_sharding_strategy"),
        *("model.rope_scaling", "model.rope_scaling_factor", "model.fp4_recipe", "model.cuda_graph_scope"),
        *("model.use_te_rng_tracker", "tokenizer.vocab_size", "checkpoint.ckpt_format"),
    )
)
"""Settings that no argument of a call here says."""


def argument_of(key: str) -> str | None:
    """Return the section and the argument that say a setting of Megatron-Bridge; None where none does."""
    if key in _UNSAID:
        return None
    section, _, name = key.partition(".")
    return f"strategy.{name}" if section == "model" and name in _OF_STRATEGY else _MOVED.get(key, key)


def _read_as_settings() -> tuple[Flag, ...]:
    found = ((each, argument_of(each.names[0].replace("-", "_"))) for each in MEGATRON_BRIDGE.flags)
    return tuple(replace(each, names=(name.replace("_", "-"),)) for each, name in found if name is not None)


NEMO = FlagTable(
    (
        *_read_as_settings(),
        Flag(("overlap.overlap-grad-reduce",), "overlap_grad_reduce", truth),
        Flag(("overlap.defer-embedding-wgrad-compute",), "defer_embedding_wgrad_compute", truth),
        Flag(("precision.precision",), "precision", str),
        Flag(("trainer.devices",), "devices", count),
        Flag(("trainer.num-nodes",), "nodes", count),
    ),
    harmless=dict.fromkeys(
        (
            *(name for name in MEGATRON_BRIDGE.harmless if name.startswith(("model.", "ddp.", "optimizer."))),
            *("overlap.overlap-param-gather", "ddp.check-for-nan-in-grad", "ddp.average-in-collective", "optimizer.lr"),
            *("precision.params-dtype", "precision.pipeline-dtype", "precision.autocast-enabled", "model.parallel-output"),
            *("strategy.pipeline-dtype", "strategy.gradient-as-bucket-view", "model.rotary-base", "optimizer.weight-decay"),
            *("strategy.ckpt-async-save", "strategy.ckpt-parallel-load", "strategy.ckpt-load-optimizer"),
            *("optimizer.adam-beta1", "optimizer.adam-beta2", "optimizer.adam-eps", "optimizer.clip-grad"),
            *("optimizer.sgd-momentum", "model.make-vocab-size-divisible-by", "model.init-method-std"),
        ),
        True,
    ),
    not_priced={
        "strategy.fsdp": "shards of weights and gradients: read as none",
        "strategy.ddp": "how gradients are summed, where it is no record",
        "overlap.bucket-size": "messages of gradients",
        "data.rampup-batch-size": "a batch that grows",
    },
    sections={
        **dict.fromkeys(("data", "trainer"), ""),
        "precision": "number formats",
        "overlap": "what travels beside products",
        "strategy": "how Megatron-Core trains",
        "optimizer": "the optimizer",
        "ddp": "sums of gradients",
        "model": "the model",
    },
)
"""The arguments that say something of a plan, its model or its work, into the fields of Megatron-LM's flags; ``precision``,
``devices`` and ``nodes`` beside them."""


# A plan as its command.

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


# Its command in the words of plans.

_MARK = "MegatronStrategy"
"""The call by which such a script is known."""
_IMPORT = re.compile(r"^[ \t]*(?:from|import) nemo\b", re.MULTILINE)
_LONGEST = 200_000
"""Characters of a script that are parsed."""
_CONFIGURED = ("Config", "Partial")
"""Calls of NeMo-Run whose first argument is the call that they stand for."""
_FLAGS = frozenset(field.name for field in fields(MegatronFlags))
_MOMENTS = {"bfloat16": "bf16", "uint8": "fp8"}


def is_script_of_nemo(text: str) -> bool:
    """Return True of a Python script that trains by NeMo's strategy, not of a script of a shell that holds one."""
    if _MARK not in text or _IMPORT.search(text) is None or len(text) > _LONGEST:
        return False
    try:
        _parsed(text)
    except InvalidInputError:
        return False
    return True


def script_of_nemo(name: str, files: LaunchFiles) -> str | None:
    """Return the text of a script that trains by NeMo's strategy; None of another, or one that was not given."""
    text = files.named(name) if name.endswith(".py") else None
    return text if text is not None and _MARK in text else None


def read_run(start: Start) -> StatedTraining:
    """Return what the script that was started states; raises InvalidInputError for one that can't be read."""
    text = script_of_nemo(start.words[0], start.files) if start.words else None
    if text is None:
        raise InvalidInputError("a run of NeMo is read from its script", given=" ".join(start.words[:1]) or "no script")
    read = NEMO.read(list(_words(_parsed(text))))
    found = dict(read.fields)
    precision = str(found.get("precision", "32")).casefold()
    found |= {"bf16": precision.startswith("bf16"), "fp16": precision.startswith(("16", "fp16"))}
    # Its loss is fused in parts, and its optimizer sharded as the optimizer's record says.
    found.setdefault("cross_entropy_loss_fusion", True)
    if found.get("exp_avg_dtype") in _MOMENTS:
        found["exp_avg_dtype"] = _MOMENTS[found["exp_avg_dtype"]]
    devices, nodes = found.get("devices"), found.get("nodes")
    flags = MegatronFlags(**{name: value for name, value in found.items() if name in _FLAGS})
    flags = replace(flags, group_query_attention=flags.num_query_groups is not None)
    world = start.world or (None if devices is None else devices * (nodes or 1))
    return stated_by_flags(flags, read.given, replace(start, world=world), Launcher.NEMO)


def _parsed(text: str) -> ast.Module:
    if len(text) > _LONGEST:
        raise InvalidInputError("the script is too long", given=f"{len(text):,} characters", allowed=f"{_LONGEST:,}")
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidInputError("the script is not Python that can be read", given=str(error)[:200]) from None


def _words(tree: ast.Module) -> Iterator[str]:
    """Arguments as flags, ``--section.name=value``; a value that is computed is one that a shell would fill in."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _last_name(node.func)
        if name in _CONFIGURED and node.args:
            name = _last_name(node.args[0])
        section = CALLS.get(name)
        if section is None:
            continue
        for each in node.keywords:
            if each.arg is None or isinstance(each.value, ast.Call) or _is_none(each.value):
                continue
            named = f"{section}.{each.arg}"
            if isinstance(each.value, ast.Name) and named.replace("_", "-") not in NEMO.by_name:
                # Another record, whose call is read by itself.
                continue
            yield f"--{named}={_text(each.value)}"


def _text(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=bool() as truth):
            return str(truth).casefold()
        case ast.Constant(value=str() | int() | float() as constant):
            return str(constant)
        case ast.List(elts=members) | ast.Tuple(elts=members) if all(isinstance(each, ast.Constant) for each in members):
            return f"[{','.join(_text(each) for each in members)}]"
        case ast.Attribute():
            return value.attr
        case _:
            return f"${_last_name(value)}"


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _last_name(value: ast.expr) -> str:
    match value:
        case ast.Name():
            return value.id
        case ast.Attribute():
            return value.attr
        case _:
            return ""
