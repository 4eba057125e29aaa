"""torchtitan: command-line flags over one of its registered configurations.

Rules are those of torchtitan/distributed/parallel_dims.py, models/common/decoder.py and config/configs.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from meshwright.app.launching.exporters.command import Words, command_text, flag, model_parts, node_assumptions, torchrun
from meshwright.app.launching.exporters.export import Export
from meshwright.app.launching.exporters.implemented import torchtitan_compiles, torchtitan_graphs, torchtitan_lost
from meshwright.app.launching.exporters.launchable import recompute_differs, recompute_mode
from meshwright.app.launching.flags.torchtitan import TORCHTITAN
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.pipeline import PipelineRuntime, Schedule, names_in
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute, TpOverlap
from meshwright.solver.problem.graph import Hyperparameters, ModelGraph, RotaryScalingKind
from meshwright.solver.problem.launchers.decoders import DecoderShape, FeedForward, Norm, Positions, decoder_shape, is_layer
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

VERSION = "0.3.0"
PLAN_MODULE = "meshwright_plan"
PLAN_CONFIG = "planned"


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A configuration that torchtitan ships, or one of an export: its module and function, and the sizes it builds.

    ``is_bf16`` is False of one that turns on float8 and torch.compile, which no plan is exported with.
    """

    module: str
    config: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    qk_norm: bool = False
    tied: bool = False
    is_bf16: bool = True

    def builds(self, shape: DecoderShape) -> bool:
        """Return True if the configuration has these sizes."""
        sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.ffn, shape.vocab)
        own = (self.layers, self.hidden, self.heads, self.kv_heads, self.head_dim, self.ffn, self.vocab)
        plain = shape.gate is FeedForward.SWIGLU and shape.norm is Norm.RMS and shape.positions is Positions.ROTARY
        habits = (shape.qk_norm, shape.tied) == (self.qk_norm, self.tied)
        return sizes == own and plain and habits and not (shape.qkv_bias or shape.linear_bias or shape.oddities or shape.window)


MODELS = (
    RegisteredModel("llama3", "llama3_8b", 32, 4096, 32, 8, 128, 14336, 128256),
    RegisteredModel("llama3", "llama3_70b", 80, 8192, 64, 8, 128, 28672, 128256),
    RegisteredModel("llama3", "llama3_405b", 126, 16384, 128, 8, 128, 53248, 128256, is_bf16=False),
    RegisteredModel("qwen3", "qwen3_0_6b", 28, 1024, 16, 8, 128, 3072, 151936, qk_norm=True, tied=True),
    RegisteredModel("qwen3", "qwen3_1_7b", 28, 2048, 16, 8, 128, 6144, 151936, qk_norm=True, tied=True),
    RegisteredModel("qwen3", "qwen3_14b", 40, 5120, 40, 8, 128, 17408, 151936, qk_norm=True),
    RegisteredModel("qwen3", "qwen3_32b", 64, 5120, 64, 8, 128, 25600, 151936, qk_norm=True),
)
"""Dense configurations of torchtitan 0.3.0, sizes read from what their functions build."""

_BASES = {False: ("llama3", "llama3_70b"), True: ("qwen3", "qwen3_32b")}
"""By norms of heads: the module, and its configuration in bf16 that has the most layers, which other sizes are put into."""


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """Flags of parallelism, batch, checkpointing and stage borders; of a model that torchtitan has no
    configuration of, one of its sizes."""
    plan = pipeline_plan(answer)
    workload = request.workload
    shape = decoder_shape(request.model)
    model = _registered(shape)
    module, config = (PLAN_MODULE, PLAN_CONFIG) if model is None else (model.module, model.config)
    parts = [
        *torchrun(request, plan.devices),
        ("-m", "torchtitan.train"),
        (*say("module", module), *say("config", config)),
        *_batch_words(plan, workload),
        *_parallelism_words(plan),
        *_pipeline_words(plan, request),
        *_precision_words(workload),
        *_compile_words(plan, workload),
        # Subcommands come last.
        (f"activation-checkpoint:{recompute_mode(plan).value}",),
    ]
    return Export(
        launcher=Launcher.TORCHTITAN,
        version=VERSION,
        command=command_text(environment=(("PYTHONPATH", "."),) if model is None else (), parts=parts),
        files={f"{PLAN_MODULE}.py": _own_configuration(shape, request.model)} if model is None else {},
        inexpressible=(*recompute_differs(plan), *_inexpressible(plan, workload), *torchtitan_lost(plan, workload)),
        assumptions=(
            *node_assumptions(request, plan.devices),
            "tokenizer files lie where the configuration looks for them (hf_assets_path); dataset, learning rate and steps are "
            "the configuration's",
            *(_of_own_configuration(shape, request.model) if model is None else ()),
            *_master_weights(workload),
            *torchtitan_graphs(plan, workload),
        ),
    )


def _registered(shape: DecoderShape) -> RegisteredModel | None:
    """The registered configuration of these sizes in bf16, None where torchtitan ships none."""
    return next((model for model in MODELS if model.is_bf16 and model.builds(shape)), None)


_SIZE = re.compile(r"^    '(\w+)': (\d{1,9}|True|False),$", re.MULTILINE)


def exported_model(text: str) -> RegisteredModel | None:
    """Return the model of the configuration of an export; None of another text."""
    said = {name: value == "True" if value[0] in "TF" else int(value) for name, value in _SIZE.findall(text)}
    wanted = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "qk_norm", "tied")
    if not set(wanted) <= said.keys():
        return None
    sizes: dict[str, Any] = {name: said[name] for name in wanted}
    return RegisteredModel(PLAN_MODULE, PLAN_CONFIG, **sizes)


def _own_configuration(shape: DecoderShape, graph: ModelGraph) -> str:
    """A module with a configuration of these sizes."""
    stated = graph.hyperparameters or Hyperparameters()
    module, config = _BASES[shape.qk_norm]
    sizes = {name: getattr(shape, name) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")}
    model = {
        "name": graph.name,
        **sizes,
        **{name: getattr(shape, name) for name in ("qk_norm", "tied")},
        "positions": stated.positions or 0,
        "norm_epsilon": stated.norm_epsilon,
        "rotary": _rotary(stated, module),
    }
    text = files(__package__).joinpath("torchtitan_model.txt").read_text(encoding="utf-8")
    listed = "\n".join(["{", *(f"    {name!r}: {value!r}," for name, value in model.items()), "}"])
    return text.replace("@MODULE@", module).replace("@CONFIG@", config).replace("@MODEL@", listed)


def _rotary(stated: Hyperparameters, module: str) -> dict[str, object]:
    """Fields of the rotary positions where the model's source states their base; else those of torchtitan's own model."""
    if stated.rotary_base is None:
        return {}
    found: dict[str, object] = {"theta": stated.rotary_base, "scaling": "none"}
    if _is_stretched(stated, module):
        scaling = stated.rotary_scaling
        assert scaling is not None
        names = {
            "scaling_factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_positions,
            "low_freq_factor": scaling.low_frequency,
            "high_freq_factor": scaling.high_frequency,
        }
        found |= {"scaling": "llama", **{name: value for name, value in names.items() if value is not None}}
    return found


def _is_stretched(stated: Hyperparameters, module: str) -> bool:
    """True where positions are stretched by llama3's rule, and torchtitan's module has it (ComplexRoPE)."""
    return module == "llama3" and stated.rotary_scaling is not None and stated.rotary_scaling.kind is RotaryScalingKind.LLAMA3


def _of_own_configuration(shape: DecoderShape, graph: ModelGraph) -> tuple[str, ...]:
    """What a configuration of our own takes for granted."""
    module, config = _BASES[shape.qk_norm]
    stated = graph.hyperparameters or Hyperparameters()
    said = [f"{PLAN_MODULE}.py is {config} with the model's sizes; so are its learning rate, data and steps"]
    if stated.rotary_base is None:
        said.append(f"rotary positions are those of {config}: the request does not state the model's")
    if stated.rotary_scaling is not None and not _is_stretched(stated, module):
        said.append(f"rotary positions are not stretched by {stated.rotary_scaling.kind.value}, as the model's are")
    return tuple(said)


def stage_modules(plan: PipelinePlan, request: TrainingRequest) -> tuple[tuple[str, ...], ...]:
    """Names of the modules of each model part, as --parallelism.module_fqns_per_model_part takes them."""
    stages, layer = [], 0
    for part in model_parts(plan):
        names: list[str] = []
        for span in part:
            block = request.model.block(span.block)
            if is_layer(block):
                names += [f"layers.{layer + i}" for i in range(span.count)]
                layer += span.count
            elif any(operator.kind is OperatorKind.EMBEDDING for operator in block.operators):
                names.append("tok_embeddings")
            else:
                names += ["norm", "lm_head"]
        stages.append(tuple(names))
    return tuple(stages)


def say(field: str, *values: object) -> Words:
    """The flag of a field by torchtitan's table, words of a name joined as its configuration has them."""
    section, dot, name = TORCHTITAN.name(field).rpartition(".")
    spelt = "no-" + name[3:].replace("-", "_") if name.startswith("no-") else name.replace("-", "_")
    return flag(f"{section}{dot}{spelt}", *values)


def _batch_words(plan: PipelinePlan, workload: TrainingWorkload) -> list[Words]:
    """A pipeline splits the local batch into micro-batches; without one, micro-batches are accumulated steps."""
    axes, microbatch = plan.axes, plan.microbatch
    assert axes is not None and microbatch is not None
    local = microbatch.size * (microbatch.count if axes.pp > 1 else 1)
    return [
        (*say("local_batch", local), *say("global_batch", workload.global_batch)),
        say("seq_len", workload.seq_len),
    ]


def _parallelism_words(plan: PipelinePlan) -> list[Words]:
    axes, zero_stage, shard_ranks = plan.axes, plan.stages[0].zero_stage, plan.stages[0].shard_ranks
    assert axes is not None
    replicate, shard = (axes.dp, 1) if zero_stage == 0 else (1, axes.dp)
    if shard_ranks is not None:
        # A mesh of two dimensions; the cp ranks of a sequence always shard together.
        shard = shard_ranks // axes.cp
        replicate = axes.dp // shard
    words = [
        say("replicate", replicate),
        say("shard", shard),
        say("reshard", "always" if zero_stage == 3 else "never"),
        say("tp", axes.tp),
        say("cp", axes.cp),
    ]
    if plan.stages[0].offload.weights:
        # Parameters, gradients and optimizer states: FSDP moves all or none.
        words.append(say("cpu_offload"))
    if axes.tp > 1 and not plan.sequence_parallel:
        words.append(say("sequence_parallel"))
    return words


def _pipeline_words(plan: PipelinePlan, request: TrainingRequest) -> list[Words]:
    axes, microbatch = plan.axes, plan.microbatch
    assert axes is not None and microbatch is not None
    if axes.pp == 1:
        return []
    name = names_in(PipelineRuntime.PYTORCH)[Schedule(plan.schedule)]
    return [
        (*say("pp", axes.pp), *say("schedule", name)),
        say("microbatch", microbatch.size),
        say("stages", *(",".join(names) for names in stage_modules(plan, request))),
        # torchtitan refuses a pipeline under its default CUDA graphs.
        flag("training.disable_cuda_graphs"),
    ]


def _compile_words(plan: PipelinePlan, workload: TrainingWorkload) -> list[Words]:
    """Chunked products are what its compiler makes of layers, with which it compiles the loss."""
    if plan.tp_overlap is TpOverlap.EXPOSED:
        return [say("compile")] if torchtitan_compiles(workload) else []
    return [(*say("compile"), *say("asynchronous"))]


def _precision_words(workload: TrainingWorkload) -> list[Words]:
    name = "bfloat16" if workload.precision is DType.BF16 else "float32"
    return [say("precision", name)]


def _inexpressible(plan: PipelinePlan, workload: TrainingWorkload) -> tuple[str, ...]:
    axes, zero_stage = plan.axes, plan.stages[0].zero_stage
    assert axes is not None
    lost = []
    if zero_stage == 1:
        lost.append("ZeRO-1: FSDP shards gradients with the optimizer state; launched as ZeRO-2, which takes less memory")
    if zero_stage == 0 and axes.cp > 1:
        lost.append("ZeRO-0 beside context parallelism: torchtitan shards parameters over the cp ranks all the same")
    if recompute_mode(plan) is Recompute.SELECTIVE:
        lost.append(
            "selective recompute of attention and norms: torchtitan's selective mode chooses by operator what it saves, so "
            "memory and time of activations differ"
        )
    if workload.gradient_dtype is not DType.FP32:
        lost.append(f"{workload.gradient_dtype.value} gradients: torchtitan reduces and keeps them in fp32")
    if workload.matmul is not MatmulRecipe.WORKING:
        lost.append(f"{workload.matmul.value} products: add the float8 or MX converter to the configuration (model.converters)")
    if workload.saved_activations is SavedFormat.FP8:
        lost.append("saved activations in fp8: torchtitan keeps them in 16 bits, which takes more memory than planned")
    return tuple(lost)


def _master_weights(workload: TrainingWorkload) -> tuple[str, ...]:
    if workload.precision is DType.FP32:
        return ()
    return (
        "torchtitan keeps fp32 weights and makes bf16 copies while a layer runs: 16 bytes a parameter where 18 are planned",
    )
