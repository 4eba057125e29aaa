"""MaxText on GPUs: one YAML file over its base.yml, one process of JAX a node, and both read back.

Keys are those of src/maxtext/configs/base.yml, rules those of configs/types.py, main of 22 August 2026 (e591f30c). The global
batch is per_device_batch_size x devices x gradient_accumulation_steps (calculate_global_batch_sizes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.parts.command import (
    PORT,
    ShellVariable,
    command_text,
    devices_per_node,
    node_assumptions,
)
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.flag import Flag, FlagTable, ParsedCommand, count, truth
from meshwright.app.launching.parts.implemented import not_as_stated
from meshwright.app.launching.parts.launch_files import config_of, words_of_config
from meshwright.app.launching.parts.launchable import recompute_mode
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE, Optimizer
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.graph import Hyperparameters, RotaryScaling, RotaryScalingKind
from meshwright.solver.problem.launchers.decoders import DecoderShape, decoder_shape
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload


@dataclass(frozen=True, slots=True)
class MaxTextAxes:
    """Degrees of the axes of MaxText's mesh, inside of nodes (ICI) or over them (DCN); None where a file does not give one, -1
    for what the others leave."""

    data: int | None = None
    fsdp: int | None = None
    context: int | None = None
    tensor: int | None = None
    tensor_sequence: int | None = None
    expert: int | None = None
    pipeline: int | None = None


_AXES = tuple(field.name for field in fields(MaxTextAxes))
_WRITTEN_AXES = ("data", "fsdp", "context", "tensor", "tensor_sequence")
"""The axes that plans have, the outermost of the mesh first (mesh_axes)."""


@dataclass(frozen=True, slots=True)
class MaxTextKeys:
    """The keys that say something of a plan, its model or its work; None where a file does not give one."""

    base_config: str | None = None
    model: str | None = None
    per_device_batch: float | None = None
    accumulation: int | None = None
    seq_len: int | None = None
    remat: str | None = None
    context_kept: str | None = None
    over_data: bool | None = None
    dtype: str | None = None
    weight_dtype: str | None = None
    grad_dtype: str | None = None
    optimizer: str | None = None
    decoder: str | None = None
    layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    tied: bool | None = None
    qkv_bias: bool | None = None
    qk_norm: bool | None = None
    experts: int | None = None
    hardware: str | None = None


def _degree(text: str) -> int:
    """Return a degree, -1 for what the others leave; raises ValueError for anything else."""
    return -1 if text == "-1" else count(text)


def _batch(text: str) -> float:
    """Return a positive number; raises ValueError for anything else."""
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError(text)
    return number


def _whole(text: str) -> int:
    """Return a positive integer, as YAML may write it; raises ValueError for anything else."""
    return count(text.replace("_", ""))


MAXTEXT = FlagTable(
    (
        Flag(("base-config",), "base_config", str),
        Flag(("model-name",), "model", str),
        *(
            Flag((f"{place}-{axis.replace('_', '-')}-parallelism",), f"{place}_{axis}", _degree)
            for place in ("ici", "dcn")
            for axis in _AXES
        ),
        Flag(("per-device-batch-size",), "per_device_batch", _batch),
        Flag(("gradient-accumulation-steps",), "accumulation", count),
        Flag(("max-target-length",), "seq_len", _whole),
        Flag(("remat-policy",), "remat", str),
        Flag(("context",), "context_kept", str),
        Flag(("shard-optimizer-over-data",), "over_data", truth),
        Flag(("dtype",), "dtype", str),
        Flag(("weight-dtype",), "weight_dtype", str),
        Flag(("grad-dtype",), "grad_dtype", str),
        Flag(("opt-type",), "optimizer", str),
        Flag(("decoder-block",), "decoder", str),
        Flag(("base-num-decoder-layers",), "layers", count),
        Flag(("base-emb-dim",), "hidden", count),
        Flag(("base-mlp-dim",), "ffn", count),
        Flag(("base-num-query-heads",), "heads", count),
        Flag(("base-num-kv-heads",), "kv_heads", count),
        Flag(("head-dim",), "head_dim", count),
        Flag(("vocab-size",), "vocab", _whole),
        Flag(("logits-via-embedding",), "tied", truth),
        Flag(("attention-bias",), "qkv_bias", truth),
        Flag(("use-qk-norm",), "qk_norm", truth),
        Flag(("num-experts",), "experts", count),
        Flag(("hardware",), "hardware", str),
    ),
    harmless={
        **dict.fromkeys(("run-name", "base-output-directory", "steps", "log-period", "learning-rate", "dataset-type"), True),
        **dict.fromkeys(("enable-checkpointing", "async-checkpointing", "checkpoint-period", "dataset-path"), True),
        **dict.fromkeys(
            ("dataset-name", "reuse-example-batch", "profiler", "tokenizer-path", "tokenizer-type", "enable-dropout"), True
        ),
        **dict.fromkeys(("rope-type", "rope-max-timescale", "rope-linear-scaling-factor", "rope-use-scale"), True),
        **dict.fromkeys(("normalization-layer-epsilon", "normalize-embedding-logits", "mlp-activations"), True),
        **dict.fromkeys(("context-parallel-load-balance", "override-model-config", "init-weights-seed"), True),
        # What a custom policy keeps beside the context, which tells its modes apart.
        **dict.fromkeys(("decoder-layer-input", "query-proj", "key-proj", "value-proj", "out-proj"), True),
        **dict.fromkeys(("mlpwi-0", "mlpwi-1", "mlpwo"), True),
    },
    not_priced={
        "attention": "kernels of attention",
        "context-parallel-strategy": "how keys and values reach the ranks of a sequence",
        "quantization": "products in few bits",
        "mu-dtype": "formats of optimizer states",
        "scan-layers": "how layers are compiled",
        "use-iota-embed": "the embedding as a product",
        "packing": "masks of documents",
        "max-segments-per-seq": "masks of documents",
        "optimizer-memory-host-offload": "optimizer states on the host, which come back for the update",
        "parameter-memory-host-offload": "weights on the host, which come back for each step",
        "num-vocab-tiling": "the loss in parts",
        "megablox": "kernels of experts",
        "capacity-factor": "tokens that experts drop",
    },
)


# A plan as its command.

VERSION = "0.2.4"
MODULE = "maxtext.trainers.pre_train.train"
CONFIG = "maxtext.yml"
STEPS = 100
LEARNING_RATE = 1e-5
"""Stand-ins: no plan decides them."""
_MEMORY_SHARE = "0.95"
"""Of a device's memory, which JAX takes as it starts; 0.75 unless told (its page on GPU memory). NCCL needs the rest."""
_MASK = "attention's mask of synthetic data takes a byte for each pair of tokens of a sequence, which no plan counts"
_BASE = 10_000
"""Base of the rotary frequencies where the model's source states none: base.yml's own."""
_EPSILON = 1e-5
_LLAMA3 = RotaryScaling(RotaryScalingKind.LLAMA3, 8.0, 8192, 1.0, 4.0)
"""What rope_type llama3.1 is (layers/embeddings.py, LLaMARotaryEmbedding)."""
_FORMATS = {DType.BF16: "bfloat16", DType.FP32: "float32"}
_KEPT = ("decoder_layer_input", "query_proj", "key_proj", "value_proj", "out_proj", "mlpwi_0", "mlpwi_1")
"""What plans keep that recompute no whole layers: outputs of products that are read again. The last one's are only added up."""


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The configuration, and one process of JAX a node; raises ExportError for a model that is no plain decoder."""
    plan = pipeline_plan(answer)
    workload, stated = request.workload, request.model.hyperparameters or Hyperparameters()
    shape = decoder_shape(request.model)
    per_node = devices_per_node(request, plan.devices)
    return Export(
        launcher=Launcher.MAXTEXT,
        version=VERSION,
        command=command_text(environment=_environment(request, per_node), parts=[("python", "-m", MODULE, CONFIG)]),
        files={CONFIG: yaml_text(_written(plan, workload, shape, stated, per_node[0]))},
        inexpressible=_inexpressible(plan, workload, stated),
        assumptions=(
            *node_assumptions(request, plan.devices),
            *(("each node is a slice to JAX, by slice_index of its devices",) if len(per_node) > 1 else ()),
            "run on every node in an environment of MaxText's main branch (August 2026), with Transformer Engine for JAX",
            "nothing of MaxText on GPUs was measured here: its figures are borrowed from compiled layers of PyTorch",
            "data are synthetic; the learning rate, steps, initial weights and the output folder are stand-ins",
            _of_memory(plan),
            *((_MASK,) if plan.axes.cp == 1 else ()),
            *_stated_nowhere(stated),
        ),
    )


def _environment(request: TrainingRequest, per_node: tuple[int, ...]) -> list[tuple[str, str | ShellVariable]]:
    """The variables of JAX's processes (utils/max_utils.py, initialize_jax_for_gpu)."""
    found: list[tuple[str, str | ShellVariable]] = [
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", _MEMORY_SHARE),
        ("XLA_FLAGS", "--xla_gpu_enable_latency_hiding_scheduler=true"),
    ]
    if per_node[0] < request.cluster.groups[0].node.host_devices:
        found.append(("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(per_node[0])))))
    if len(per_node) > 1:
        found += [
            ("JAX_COORDINATOR_IP", ShellVariable("MASTER_ADDR")),
            ("JAX_COORDINATOR_PORT", str(PORT)),
            ("NNODES", str(len(per_node))),
            ("NODE_RANK", ShellVariable("NODE_RANK")),
        ]
    return found


def _written(
    plan: PipelinePlan, workload: TrainingWorkload, shape: DecoderShape, stated: Hyperparameters, per_node: int
) -> dict[str, Any]:
    return {
        "base_config": "base.yml",
        "run_name": "planned",
        "base_output_directory": "runs",
        "hardware": "gpu",
        "steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "enable_checkpointing": False,
        "dataset_type": "synthetic",
        "packing": False,
        **_written_axes(plan, per_node),
        "shard_optimizer_over_data": _zero(plan) == 1 and plan.axes.dp > 1,
        "per_device_batch_size": sequences_a_device(plan.microbatch.size * plan.axes.dp, plan.devices),
        "gradient_accumulation_steps": plan.microbatch.count,
        "max_target_length": workload.seq_len,
        "dtype": "bfloat16",
        "weight_dtype": "float32",
        "grad_dtype": _FORMATS[workload.gradient_dtype],
        "opt_type": "adamw",
        "mu_dtype": "float32",
        **_written_remat(recompute_mode(plan)),
        "scan_layers": True,
        "attention": "cudnn_flash_te",
        "context_parallel_strategy": "ring",
        "context_parallel_load_balance": True,
        **_written_model(shape, stated),
    }


def _zero(plan: PipelinePlan) -> int:
    return plan.stages[0].zero_stage


def _written_axes(plan: PipelinePlan, per_node: int) -> dict[str, int]:
    """The axes inside of nodes and over them: the innermost fill a node first."""
    axes = plan.axes
    shards = 1
    if _zero(plan) == MAX_ZERO_STAGE:
        shards = (plan.stages[0].shard_ranks or axes.dp * axes.cp) // axes.cp
    degrees = {
        "data": axes.dp // shards,
        "fsdp": shards,
        "context": axes.cp,
        "tensor": 1 if plan.sequence_parallel else axes.tp,
        "tensor_sequence": axes.tp if plan.sequence_parallel else 1,
    }
    room, inside = per_node, {}
    for axis in reversed(_WRITTEN_AXES):
        inside[axis] = math.gcd(degrees[axis], room)
        room //= inside[axis]
    assert room == 1, "a launchable plan's axes fill its nodes"
    return {
        **{f"ici_{axis}_parallelism": inside[axis] for axis in _WRITTEN_AXES},
        **{f"dcn_{axis}_parallelism": degrees[axis] // inside[axis] for axis in _WRITTEN_AXES},
    }


def sequences_a_device(sequences: int, devices: int) -> int | float:
    """Return the sequences of a micro-batch of all replicas, a device: MaxText, which cuts off, finds as many again."""
    if sequences % devices == 0:
        return sequences // devices
    share = sequences / devices
    return share if int(devices * share) == sequences else math.nextafter(share, math.inf)


def _written_remat(mode: Recompute) -> dict[str, str]:
    """What is kept of a layer (layers/nnx_decoders.py, get_remat_policy): its input, or outputs of products and attention."""
    if mode is Recompute.FULL:
        return {"remat_policy": "full"}
    kept = dict.fromkeys(_KEPT, "device")
    return {"remat_policy": "custom", **kept, "context": "device" if mode is Recompute.NONE else "remat", "mlpwo": "remat"}


def _written_model(shape: DecoderShape, stated: Hyperparameters) -> dict[str, Any]:
    """Sizes of a decoder: llama2's, with biases of q, k and v qwen2's, with norms of heads alone qwen3's."""
    return {
        "decoder_block": "qwen2" if shape.qkv_bias else "qwen3" if shape.qk_norm else "llama2",
        "base_num_decoder_layers": shape.layers,
        "base_emb_dim": shape.hidden,
        "base_mlp_dim": shape.ffn,
        "base_num_query_heads": shape.heads,
        "base_num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "mlp_activations": ["silu", "linear"],
        "enable_dropout": False,
        "logits_via_embedding": shape.tied,
        "normalize_embedding_logits": False,
        "attention_bias": shape.qkv_bias,
        "use_qk_norm": shape.qk_norm,
        "use_iota_embed": False,
        "normalization_layer_epsilon": stated.norm_epsilon or _EPSILON,
        "rope_max_timescale": int(stated.rotary_base or _BASE),
        "rope_type": "llama3.1" if _is_llama3(stated) else "default",
        "rope_linear_scaling_factor": _linear_factor(stated),
    }


def _is_llama3(stated: Hyperparameters) -> bool:
    return stated.rotary_scaling == _LLAMA3


def _linear_factor(stated: Hyperparameters) -> float:
    scaling = stated.rotary_scaling
    return scaling.factor or 1.0 if scaling is not None and scaling.kind is RotaryScalingKind.LINEAR else 1.0


def _inexpressible(plan: PipelinePlan, workload: TrainingWorkload, stated: Hyperparameters) -> tuple[str, ...]:
    lost = []
    if _zero(plan) == 1 and plan.axes.dp > 1 and plan.microbatch.count > 1 and workload.gradient_dtype is DType.FP32:
        lost.append(
            "gradients summed in fp32 over micro-batches: beside shard_optimizer_over_data MaxText sums them in bf16, which "
            "takes less memory than planned"
        )
    if workload.matmul is not MatmulRecipe.WORKING:
        lost.append(f"{workload.matmul.value} products: no key of MaxText's quantization is written, products are bf16")
    if workload.saved_activations is SavedFormat.FP8:
        lost.append("saved activations in fp8: MaxText keeps them in 16 bits, which takes more memory than planned")
    scaling = stated.rotary_scaling
    if scaling is not None and not _is_llama3(stated) and scaling.kind is not RotaryScalingKind.LINEAR:
        lost.append(f"rotary positions stretched by {scaling.kind.value} as the model's are: no key is written for it")
    return (*lost, *not_as_stated(workload, Launcher.MAXTEXT, said=(), instead="no key says so, and its stand-in is"))


def _of_memory(plan: PipelinePlan) -> str:
    """What a parameter takes: weights in fp32 alone, Adam's moments, gradients in fp32."""
    several = plan.microbatch.count > 1
    if _zero(plan) == 1 and plan.axes.dp > 1:
        # gradient_accumulation.py casts weights before it gathers them; a step of one micro-batch does not.
        return (
            f"weights gathered from their shards and gradients take {6 if several else 8} bytes a parameter, weights in fp32 "
            "and moments 12 bytes over the ranks of data"
        )
    beside = ", for those of one micro-batch lie beside their sum" if several else ""
    where = " over the ranks that shard" if _zero(plan) == MAX_ZERO_STAGE else ""
    return (
        f"weights are fp32 and cast where they are read: they, gradients and moments take {20 if several else 16} bytes a "
        f"parameter{where}{beside}"
    )


def _stated_nowhere(stated: Hyperparameters) -> tuple[str, ...]:
    keys = (("rope_max_timescale", stated.rotary_base), ("normalization_layer_epsilon", stated.norm_epsilon))
    missing = [name for name, value in keys if value is None]
    return (f"the request does not state the model's {' and '.join(missing)}: check {CONFIG}",) if missing else ()


# Its command in the words of plans.

_DTYPES = {"bfloat16": DType.BF16, "float16": DType.FP16, "float32": DType.FP32}
_BATCH, _LENGTH = 12.0, 2048
"""base.yml's own."""
_POLICIES = {
    "full": Recompute.FULL,
    "minimal": Recompute.SELECTIVE,
    "minimal_with_context": Recompute.NONE,
    "minimal_flash": Recompute.NONE,
    "none": Recompute.NONE,
}
_OF_NODES = ("dcn_data_parallelism is left to MaxText, which copies state on each node: it is read as sharded over all ranks",)
_DECODERS = {"llama2": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3"}


def read_run(start: Start) -> StatedTraining:
    """Return what a run of MaxText states; raises InvalidInputError for a value that can't be."""
    read = _read(start)
    inside, over = (
        MaxTextAxes(**{axis: read.fields[f"{place}_{axis}"] for axis in _AXES if f"{place}_{axis}" in read.fields})
        for place in ("ici", "dcn")
    )
    keys = MaxTextKeys(**{name: value for name, value in read.fields.items() if name[:4] not in ("ici_", "dcn_")})
    degrees = {axis: _product(getattr(inside, axis), getattr(over, axis)) for axis in _AXES}
    if degrees["pipeline"] != 1:
        raise InvalidInputError(
            "pipelines of MaxText are circular, over stages that are scanned: no schedule of plans is that one",
            given=f"pipeline {degrees['pipeline']}",
            allowed="1",
        )
    tensor, along, cp = (degrees[axis] or 1 for axis in ("tensor", "tensor_sequence", "context"))
    tp = tensor * along
    # base.yml leaves the devices of a node to fsdp, and nodes to data.
    data = _product(inside.data, -1 if over.data is None else over.data)
    fsdp = _product(-1 if inside.fsdp is None else inside.fsdp, over.fsdp)
    ep = degrees["expert"] or 1
    dp = None if data is None or fsdp is None else data * fsdp * ep
    microbatch, problem = _microbatch(keys, tp * cp)
    recompute, notes = _recompute(keys)
    zero_stage = MAX_ZERO_STAGE if fsdp != 1 or cp > 1 else 1 if keys.over_data else 0
    world = start.world or (None if dp is None else dp * tp * cp)
    return StatedTraining(
        launcher=Launcher.MAXTEXT,
        given=read.given,
        environment=start.environment,
        notes=(*notes, *_notes(keys), *(_OF_NODES if data is None and zero_stage == MAX_ZERO_STAGE else ())),
        problems=() if problem is None else (problem,),
        model=None if keys.model in (None, "default") else _catalogued(keys.model),
        config=_config(keys),
        world=world,
        data_parallel=dp,
        tp=tp,
        cp=cp,
        ep=ep,
        microbatch=microbatch,
        accumulation=keys.accumulation or 1,
        seq_len=keys.seq_len or _LENGTH,
        zero_stage=zero_stage,
        optimizer_copies=data if zero_stage == MAX_ZERO_STAGE and data is not None and data > 1 else None,
        sequence_parallel=along > 1,
        recompute=recompute,
        workload=_workload(keys),
    )


def _read(start: Start) -> ParsedCommand:
    """The keys of the file that the command names, of files that one is based on, and of the command, the last first."""
    words = list(start.words)
    document = start.document
    if document is None:
        named = words.pop(0) if words and words[0].endswith((".yml", ".yaml")) else "base.yml"
        document = _document(start, named)
    own = MAXTEXT.read([f"--{word}" if "=" in word and not word.startswith("-") else word for word in words])
    read = own
    for _ in range(_MOST_BASES):
        of_file = MAXTEXT.read(words_of_config(document))
        read = ParsedCommand({**of_file.fields, **read.fields}, (*read.given, *of_file.given), own.words)
        document = _document(start, of_file.fields.get("base_config", "base.yml"))
        if not document:
            return read
    raise InvalidInputError("configurations of MaxText name one another", given=f"more than {_MOST_BASES}")


_MOST_BASES = 8


def _document(start: Start, named: str) -> Mapping[str, Any]:
    """What a file holds; nothing of base.yml, whose values are known, where it was not given."""
    text = start.files.named(named)
    if text is None and named.rpartition("/")[2] == "base.yml":
        return {}
    return config_of(start.files.required(named, flag="the configuration") if text is None else text) or {}


def _product(inside: int | None, over: int | None) -> int | None:
    """Return a degree; None of one that takes what the others leave."""
    return None if -1 in (inside, over) else (inside or 1) * (over or 1)


def _microbatch(keys: MaxTextKeys, ranks_of_replica: int) -> tuple[int, str | None]:
    """Sequences of a micro-batch of a replica, and what is wrong with them."""
    per_device = _BATCH if keys.per_device_batch is None else keys.per_device_batch
    sequences = per_device * ranks_of_replica
    found = max(1, round(sequences))
    if math.isclose(sequences, found, rel_tol=1e-6):
        return found, None
    return found, f"per_device_batch_size {per_device:g} on the {ranks_of_replica} ranks of a replica makes no whole sequences"


def _recompute(keys: MaxTextKeys) -> tuple[Recompute, tuple[str, ...]]:
    """The recompute mode, and what of it is only near."""
    policy = (keys.remat or "full").casefold()
    if policy == "custom":
        return (Recompute.NONE if keys.context_kept == "device" else Recompute.SELECTIVE), ()
    if policy in _POLICIES:
        return _POLICIES[policy], ()
    return Recompute.SELECTIVE, (f"remat_policy {policy} is read as selective: it keeps other outputs of products",)


def _notes(keys: MaxTextKeys) -> tuple[str, ...]:
    found = ["MaxText is not measured here: figures are those of compiled layers of PyTorch"]
    if (keys.hardware or "tpu") not in ("gpu", "gpu_multiprocess"):
        found.append("hardware is not gpu: the run is read as one on GPUs")
    if (keys.weight_dtype or "float32") != "float32":
        found.append(f"weight_dtype {keys.weight_dtype}: no fp32 copy of weights is kept, which plans count")
    return tuple(found)


def _catalogued(name: str) -> str:
    """Return a model's name in the catalogue: MaxText writes families and their numbers in one word (llama3.1-8b)."""
    return f"llama-{name.removeprefix('llama')}" if name.startswith("llama") else name


def _config(keys: MaxTextKeys) -> dict[str, Any] | None:
    """The sizes as a config.json; None where a name says them, or some are base.yml's own."""
    if None in (keys.layers, keys.hidden, keys.heads, keys.ffn, keys.vocab) or (keys.experts or 1) > 1:
        return None
    assert keys.hidden is not None and keys.heads is not None
    kind = _DECODERS.get(keys.decoder or "llama2")
    if kind is None:
        raise InvalidInputError("no model is read of this decoder_block", given=keys.decoder, allowed=", ".join(_DECODERS))
    return {
        "model_type": kind,
        "num_hidden_layers": keys.layers,
        "hidden_size": keys.hidden,
        "num_attention_heads": keys.heads,
        "num_key_value_heads": keys.kv_heads or keys.heads,
        "head_dim": keys.head_dim or 128,
        "intermediate_size": keys.ffn,
        "vocab_size": keys.vocab,
        "tie_word_embeddings": bool(keys.tied),
    }


def _workload(keys: MaxTextKeys) -> dict[str, Any]:
    """Fields of the request's workload."""
    if (keys.optimizer or "adamw").casefold() != "adamw":
        raise InvalidInputError("no cost model covers this optimizer", given=keys.optimizer, allowed="adamw")
    named = {"dtype": keys.dtype or "bfloat16", "grad_dtype": keys.grad_dtype or "float32"}
    for key, value in named.items():
        if value not in _DTYPES:
            raise InvalidInputError(f"{key} can't be this", given=value, allowed=", ".join(_DTYPES))
    return {
        "precision": _DTYPES[named["dtype"]].value,
        "gradient_dtype": _DTYPES[named["grad_dtype"]].value,
        "optimizer": Optimizer.ADAMW.value,
    }
