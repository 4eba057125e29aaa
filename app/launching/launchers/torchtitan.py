"""torchtitan: command-line flags over one of its registered configurations; how its runs are read is in `torchtitan_runs`.

Options are keys of its TOML files (0.1, 0.2) and flags of its command (0.3), which have the same names: torchtitan/config/
job_config.py of 0.2, configs.py of 0.3. Rules are those of distributed/parallel_dims.py and models/common/decoder.py too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from meshwright.app.launching.parts.command import Words, command_text, flag, model_parts, node_assumptions, torchrun
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.flag import Flag, FlagTable, count, truth
from meshwright.app.launching.parts.implemented import not_as_stated, stated_by
from meshwright.app.launching.parts.launchable import recompute_differs, recompute_mode
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.model.implementation import HostPath, LossKernels, VectorKernels
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.pipeline import PipelineRuntime, Schedule, names_in
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute, TpOverlap
from meshwright.solver.problem.graph import Hyperparameters, ModelGraph, RotaryScalingKind
from meshwright.solver.problem.launchers.decoders import DecoderShape, FeedForward, Norm, Positions, decoder_shape, is_layer
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload


@dataclass(frozen=True, slots=True)
class TorchtitanFlags:
    """The options that say something of a plan, its model or its work; None where a run does not give one.

    stages       names of the modules of each model part
    components   what is compiled
    """

    config_file: str | None = None
    model: str | None = None
    flavor: str | None = None
    module: str | None = None
    config: str | None = None
    local_batch: int | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    precision: str | None = None
    cpu_offload: bool | None = None
    replicate: int | None = None
    shard: int | None = None
    reshard: str | None = None
    tp: int | None = None
    sequence_parallel: bool | None = None
    pp: int | None = None
    schedule: str | None = None
    microbatch: int | None = None
    layers_per_stage: int | None = None
    first_stage_less: int | None = None
    last_stage_less: int | None = None
    stages: tuple[tuple[str, ...], ...] = ()
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    checkpointing: str | None = None
    checkpointed: str | None = None
    compile: bool | None = None
    components: tuple[str, ...] | None = None
    asynchronous: bool | None = None
    optimizer: str | None = None
    converters: tuple[str, ...] = ()


def _rest(text: str) -> int | None:
    """Return a degree; None of -1, which stands for what the others leave."""
    return None if int(text) == -1 else count(text)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _stages(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the parts of ``tok_embeddings,layers.0 layers.1,norm,output``."""
    return tuple(tuple(part.split(",")) for part in text.split())


_ENDS = {
    **dict.fromkeys(("job", "profiling", "profiler", "metrics", "checkpoint", "lr-scheduler", "optimizer", "comm"), ""),
    **dict.fromkeys(("validation", "validator", "debug", "dataloader", "experimental", "loss", "memory-estimation"), ""),
    **dict.fromkeys(("quantize", "float8", "mx"), "how products in few bits are scaled"),
    "fault-tolerance": "replicas that may come and go",
    "activation-checkpoint": "what selective recomputation keeps",
    "compile": "how layers are compiled",
    "training": "",
    "model": "",
}

TORCHTITAN = FlagTable(
    (
        Flag(("job.config-file",), "config_file", str),
        Flag(("model.name",), "model", str),
        Flag(("model.flavor",), "flavor", str),
        Flag(("module",), "module", str),
        Flag(("config",), "config", str),
        Flag(("training.local-batch-size", "training.batch-size"), "local_batch", count),
        Flag(("training.global-batch-size",), "global_batch", _rest),
        Flag(("training.seq-len",), "seq_len", count),
        Flag(("training.mixed-precision-param",), "precision", str),
        Flag(("training.enable-cpu-offload",), "cpu_offload", truth, optional=True),
        Flag(("parallelism.data-parallel-replicate-degree", "training.data-parallel-replicate-degree"), "replicate", count),
        Flag(("parallelism.data-parallel-shard-degree", "training.data-parallel-shard-degree"), "shard", _rest),
        Flag(("parallelism.fsdp-reshard-after-forward", "training.fsdp-reshard-after-forward"), "reshard", str),
        Flag(("parallelism.tensor-parallel-degree", "training.tensor-parallel-degree"), "tp", count),
        Flag(("parallelism.no-enable-sequence-parallel",), "sequence_parallel", means=False),
        Flag(("parallelism.enable-sequence-parallel",), "sequence_parallel", truth, optional=True),
        Flag(("parallelism.pipeline-parallel-degree", "experimental.pipeline-parallel-degree"), "pp", count),
        Flag(("parallelism.pipeline-parallel-schedule", "experimental.pipeline-parallel-schedule"), "schedule", str),
        Flag(("parallelism.pipeline-parallel-microbatch-size",), "microbatch", count),
        Flag(("parallelism.pipeline-parallel-layers-per-stage",), "layers_per_stage", count),
        Flag(("parallelism.pipeline-parallel-first-stage-less-layers",), "first_stage_less", int),
        Flag(("parallelism.pipeline-parallel-last-stage-less-layers",), "last_stage_less", int),
        Flag(("parallelism.module-fqns-per-model-part",), "stages", _stages, many=True),
        Flag(("parallelism.context-parallel-degree", "experimental.context-parallel-degree"), "cp", count),
        Flag(("parallelism.expert-parallel-degree",), "ep", count),
        Flag(("parallelism.expert-tensor-parallel-degree",), "etp", count),
        Flag(("activation-checkpoint.mode",), "checkpointing", str),
        Flag(("activation-checkpoint.selective-ac-option",), "checkpointed", str),
        Flag(("compile.enable", "training.compile"), "compile", truth, optional=True),
        Flag(("compile.components",), "components", _listed, many=True),
        Flag(
            ("compile.enable-async-tensor-parallel", "parallelism.enable-async-tensor-parallel"),
            "asynchronous",
            truth,
            optional=True,
        ),
        Flag(("experimental.enable-async-tensor-parallel",), "asynchronous", truth, optional=True),
        Flag(("optimizer.name",), "optimizer", str),
        Flag(("model.converters",), "converters", _listed, many=True),
    ),
    not_priced={
        "optimizer.early-step-in-backward": "gradients that are released in the backward pass",
        "parallelism.context-parallel-rotate-method": "how keys and values go round the ring",
        "parallelism.context-parallel-load-balancer": "how the ring's work is shared out",
        "parallelism.disable-loss-parallel": "the loss over tp",
        "parallelism.enable-fsdp-symm-mem": "kernels of gathers",
        "parallelism.enable-compiled-autograd": "how layers are compiled",
        "parallelism.enable-approx-mid-stage": "stages of equal cost",
        "parallelism.spmd-backend": "how sharded tensors are made",
        "parallelism.pipeline-parallel-schedule-csv": "a schedule of one's own",
        "parallelism.pipeline-parallel-split-points": "borders of stages: give module_fqns_per_model_part",
        "experimental.pipeline-parallel-split-points": "borders of stages: give module_fqns_per_model_part",
        "training.disable-cuda-graphs": "launches of kernels, which are counted one by one",
        "training.dtype": "formats of weights and optimizer states",
        "training.mixed-precision-reduce": "the format in which gradients are summed",
        "compile.model": "how layers are compiled",
        "compile.loss": "how the loss is compiled",
    },
    switches=frozenset(
        ("training.disable-cuda-graphs", "parallelism.enable-fsdp-symm-mem", "parallelism.disable-loss-parallel")
    ),
    sections=_ENDS,
)


# A plan as its command.

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
        inexpressible=(*recompute_differs(plan), *_inexpressible(plan, workload), *_not_implemented(plan, workload)),
        assumptions=(
            *node_assumptions(request, plan.devices),
            "tokenizer files lie where the configuration looks for them (hf_assets_path); dataset, learning rate and steps are "
            "the configuration's",
            *(_of_own_configuration(shape, request.model) if model is None else ()),
            *_master_weights(workload),
            *_captured(plan, workload),
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
        return [say("compile")] if _compiles(workload) else []
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


def _compiles(workload: TrainingWorkload) -> bool:
    """True if the stated layers are compiled."""
    return stated_by(workload, Launcher.TORCHTITAN).kernels is VectorKernels.COMPILED


def _not_implemented(plan: PipelinePlan, workload: TrainingWorkload) -> tuple[str, ...]:
    """The parts of a stated implementation that torchtitan's flags don't say."""
    stated = stated_by(workload, Launcher.TORCHTITAN)
    said = {"host"} if stated.host is HostPath.CUDA_GRAPHS else set()
    lost = []
    if said and plan.axes.pp > 1:
        lost.append("implementation.host: cuda-graphs is planned; torchtitan refuses them beside a pipeline: launched without")
    if _compiles(workload):
        # --compile.enable compiles layers and loss.
        said |= {"kernels"} | ({"stated_loss"} if stated.loss is LossKernels.COMPILED else set())
        if stated.loss is not LossKernels.COMPILED:
            said.add("stated_loss")
            lost.append(f"implementation.stated_loss: {stated.loss.value} is planned; torchtitan compiles it with the layers")
    general = not_as_stated(workload, Launcher.TORCHTITAN, said=said, instead="no flag says so, and torchtitan's own is")
    return (*lost, *general)


def _captured(plan: PipelinePlan, workload: TrainingWorkload) -> tuple[str, ...]:
    """The graphs that torchtitan captures by itself, where the plan counts launches one by one."""
    if plan.axes.pp > 1 or stated_by(workload, Launcher.TORCHTITAN).host is HostPath.CUDA_GRAPHS:
        return ()
    return (
        "torchtitan captures the passes of a step in a CUDA graph unless --training.disable_cuda_graphs is given; the plan "
        "counts launches one by one: plan with implementation.host: cuda-graphs where layers are too small to hide them",
    )
