"""nanotron: one YAML file of mesh, model, batch and optimizer, and torchrun over its run_train.py.

Keys are those of src/nanotron/config (config.py, parallelism_config.py, models_config.py), main of 7 April 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.parts.command import command_text, flag, node_assumptions, torchrun
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.flag import Flag, FlagTable, ParsedCommand, ShortNames, count, truth
from meshwright.app.launching.parts.implemented import not_as_stated
from meshwright.app.launching.parts.launch_files import config_of, words_of_config
from meshwright.app.launching.parts.launchable import recompute_differs, recompute_mode
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.pipeline import PipelineRuntime, Schedule, names_in
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.graph import Hyperparameters
from meshwright.solver.problem.launchers.decoders import DecoderShape, decoder_shape
from meshwright.solver.problem.launchers.nanotron_stages import layers_of_stages
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload


@dataclass(frozen=True, slots=True)
class NanotronKeys:
    """The keys that say something of a plan, its model or its work; None where a file does not give one."""

    config_file: str | None = None
    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    cp: int | None = None
    ep: int | None = None
    engine: str | None = None
    tp_mode: str | None = None
    recomputes: bool | None = None
    dtype: str | None = None
    layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    vocab: int | None = None
    tied: bool | None = None
    qkv_bias: bool | None = None
    seq_len: int | None = None
    microbatch: int | None = None
    accumulation: int | None = None
    zero_stage: int | None = None
    sums_in_fp32: bool | None = None
    optimizer: str | None = None


_MODEL = "model.model-config"

NANOTRON = FlagTable(
    (
        Flag(("config-file",), "config_file", str),
        Flag(("parallelism.dp",), "dp", count),
        Flag(("parallelism.pp",), "pp", count),
        Flag(("parallelism.tp",), "tp", count),
        Flag(("parallelism.context-parallel-size",), "cp", count),
        Flag(("parallelism.expert-parallel-size",), "ep", count),
        Flag(("parallelism.pp-engine",), "engine", str),
        Flag(("parallelism.tp-mode",), "tp_mode", str),
        Flag(("parallelism.recompute-layer",), "recomputes", truth),
        Flag(("model.dtype",), "dtype", str),
        Flag((f"{_MODEL}.num-hidden-layers",), "layers", count),
        Flag((f"{_MODEL}.hidden-size",), "hidden", count),
        Flag((f"{_MODEL}.intermediate-size",), "ffn", count),
        Flag((f"{_MODEL}.num-attention-heads",), "heads", count),
        Flag((f"{_MODEL}.num-key-value-heads",), "kv_heads", count),
        Flag((f"{_MODEL}.vocab-size",), "vocab", count),
        Flag((f"{_MODEL}.tie-word-embeddings",), "tied", truth),
        Flag((f"{_MODEL}.attention-bias",), "qkv_bias", truth),
        Flag(("tokens.sequence-length",), "seq_len", count),
        Flag(("tokens.micro-batch-size",), "microbatch", count),
        Flag(("tokens.batch-accumulation-per-replica",), "accumulation", count),
        Flag(("optimizer.zero-stage",), "zero_stage", int),
        Flag(("optimizer.accumulate-grad-in-fp32",), "sums_in_fp32", truth),
        Flag(("optimizer.optimizer-factory.name",), "optimizer", str),
    ),
    harmless={
        **dict.fromkeys(("parallelism.tp-recompute-allgather", "data-stages", "profiler", "s3-upload", "lighteval"), True),
    },
    not_priced={
        "parallelism.tp-linear-async-communication": "gathers over tp beside products",
        f"{_MODEL}.-attn-implementation": "kernels of attention",
        f"{_MODEL}.sliding-window-size": "a window of attention",
    },
    sections={
        f"{_MODEL}.moe-config": "experts",
        **dict.fromkeys(("general", "model", "tokens", "optimizer", "checkpoints", "logging", "metrics-logging"), ""),
        **dict.fromkeys(("tokenizer", "lighteval", "profiler", "s3-upload"), ""),
    },
    short_names=ShortNames.ARGPARSE,
)


# A plan as its command.

VERSION = "0.4"
SCRIPT = "run_train.py"
CONFIG = "nanotron.yaml"
STEPS = 100
LEARNING_RATE = 1e-5
"""Stand-ins: no plan decides them."""
_BASE = 10_000.0
"""Base of the rotary frequencies where the model's source states none (Su et al. 2021, section 3.2.2)."""
_EPSILON = 1e-5
"""The addend to the variance in norms where the model's source states none."""


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The configuration, and torchrun over nanotron's script; raises ExportError for a model that is no plain decoder."""
    plan = pipeline_plan(answer)
    workload, stated = request.workload, request.model.hyperparameters or Hyperparameters()
    shape = decoder_shape(request.model)
    parts = [*torchrun(request, plan.devices), (SCRIPT, *flag("config-file", CONFIG))]
    return Export(
        launcher=Launcher.NANOTRON,
        version=VERSION,
        command=command_text(environment=(("CUDA_DEVICE_MAX_CONNECTIONS", "1"),), parts=parts),
        files={CONFIG: yaml_text(_written(plan, workload, shape, stated))},
        inexpressible=(*recompute_differs(plan), *_inexpressible(workload, stated)),
        assumptions=(
            *node_assumptions(request, plan.devices),
            "run in a checkout of nanotron's main branch (April 2026: PyPI's 0.4 has not all of these keys), with flash-attn",
            "data are dummy tokens; the learning rate, steps, initial weights and the folder of checkpoints are stand-ins",
            "gradients in bf16 lie beside their sums in fp32 (DDP's buckets): 20 bytes a parameter where 18 are planned, "
            "less what ZeRO-1 shards",
            *_stated_nowhere(stated),
        ),
    )


def _written(plan: PipelinePlan, workload: TrainingWorkload, shape: DecoderShape, stated: Hyperparameters) -> dict[str, Any]:
    axes, microbatch = plan.axes, plan.microbatch
    names = names_in(PipelineRuntime.NANOTRON)
    return {
        "general": {"project": "meshwright", "run": "planned", "seed": 42, "ignore_sanity_checks": True},
        "parallelism": {
            "dp": axes.dp,
            "pp": axes.pp,
            "tp": axes.tp,
            "expert_parallel_size": 1,
            "context_parallel_size": 1,
            "pp_engine": names[Schedule(plan.schedule)] if axes.pp > 1 else names[Schedule.ONE_F_ONE_B],
            "tp_mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": False,
            "tp_recompute_allgather": True,
            "recompute_layer": recompute_mode(plan) is Recompute.FULL,
        },
        "model": {
            "dtype": "bfloat16",
            "make_vocab_size_divisible_by": 1,
            "init_method": {"std": 0.02},
            "model_config": _written_model(workload, shape, stated),
        },
        "tokens": {
            "sequence_length": workload.seq_len,
            "micro_batch_size": microbatch.size,
            "batch_accumulation_per_replica": microbatch.count,
            "train_steps": STEPS,
        },
        "optimizer": {
            "zero_stage": plan.stages[0].zero_stage,
            "accumulate_grad_in_fp32": True,
            "weight_decay": 0.01,
            "clip_grad": 1.0,
            "optimizer_factory": {
                "name": "adamW",
                "adam_beta1": 0.9,
                "adam_beta2": 0.95,
                "adam_eps": 1e-8,
                "torch_adam_is_fused": True,
            },
            "learning_rate_scheduler": {
                "learning_rate": LEARNING_RATE,
                "lr_warmup_style": "linear",
                "lr_decay_style": "cosine",
            },
        },
        "data_stages": [{"name": "dummy", "start_training_step": 1, "data": {"dataset": None, "seed": 42}}],
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": STEPS, "save_final_state": False},
        "logging": {"log_level": "info", "iteration_step_info_interval": 1},
        "metrics_logging": {"log_level": 0},
    }


def _written_model(workload: TrainingWorkload, shape: DecoderShape, stated: Hyperparameters) -> dict[str, Any]:
    """Its model of Qwen2's layers, which are Llama's with biases of q, k and v or without."""
    return {
        "is_qwen2_config": True,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "attention_bias": shape.qkv_bias,
        "hidden_act": "silu",
        "max_position_embeddings": max(workload.seq_len, stated.positions or 0),
        "rope_theta": float(stated.rotary_base or _BASE),
        "rms_norm_eps": stated.norm_epsilon or _EPSILON,
        "_attn_implementation": "flash_attention_2",
        "log_attn_probs": False,
    }


def _inexpressible(workload: TrainingWorkload, stated: Hyperparameters) -> tuple[str, ...]:
    lost = []
    if workload.gradient_dtype is not DType.FP32:
        lost.append(
            f"{workload.gradient_dtype.value} gradients: nanotron has fp32 weights of the optimizer beside gradients summed in "
            "fp32 alone, which take four bytes a parameter more"
        )
    if workload.matmul is not MatmulRecipe.WORKING:
        lost.append(f"{workload.matmul.value} products: nanotron's are {workload.precision.value}")
    if workload.saved_activations is SavedFormat.FP8:
        lost.append("saved activations in fp8: nanotron keeps them in 16 bits, which takes more memory than planned")
    if stated.rotary_scaling is not None:
        lost.append(
            f"rotary positions stretched by {stated.rotary_scaling.kind.value}: nanotron's Qwen2 does not stretch them so"
        )
    return (*lost, *not_as_stated(workload, Launcher.NANOTRON, said=(), instead="no key says so, and nanotron's own is"))


def _stated_nowhere(stated: Hyperparameters) -> tuple[str, ...]:
    keys = (("rope_theta", stated.rotary_base), ("rms_norm_eps", stated.norm_epsilon))
    missing = [name for name, value in keys if value is None]
    return (f"the request does not state the model's {' and '.join(missing)}: check {CONFIG}",) if missing else ()


# Its command in the words of plans.

_FORMATS = {"bfloat16": DType.BF16, "float16": DType.FP16, "float32": DType.FP32}


def read_run(start: Start) -> StatedTraining:
    """Return what a run of nanotron states; raises InvalidInputError for a value that can't be."""
    read = _read(start)
    keys = NanotronKeys(**read.fields)
    tp, pp, cp = keys.tp or 1, keys.pp or 1, keys.cp or 1
    parts, problem = _parts(keys, pp)
    zero_stage = keys.zero_stage or 0
    notes = () if zero_stage < 2 else (f"optimizer.zero_stage {zero_stage} is ZeRO-1 in nanotron",)
    return StatedTraining(
        launcher=Launcher.NANOTRON,
        given=read.given,
        environment=start.environment,
        notes=notes,
        problems=() if problem is None else (problem,),
        config=_config(keys),
        world=start.world or ((keys.dp or 1) * tp * pp * cp if keys.dp is not None else None),
        data_parallel=keys.dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=keys.ep or 1,
        parts=parts,
        schedule=_schedule(keys).value if pp > 1 else None,
        microbatch=keys.microbatch,
        accumulation=keys.accumulation,
        seq_len=keys.seq_len,
        zero_stage=min(zero_stage, 1),
        sequence_parallel=tp > 1 and (keys.tp_mode or "").casefold() == "reduce_scatter",
        recompute=Recompute.FULL if keys.recomputes else Recompute.NONE,
        workload=_workload(keys),
    )


def _read(start: Start) -> ParsedCommand:
    """The keys of the file that the command names, or of the file that was given alone."""
    own = NANOTRON.read(start.words)
    document = start.document
    if document is None:
        named = own.fields.get("config_file")
        if named is None:
            raise InvalidInputError("a run of nanotron reads all from a file", given="no --config-file")
        document = config_of(start.files.required(named, flag="--config-file"))
    of_file = NANOTRON.read([] if document is None else words_of_config(document))
    fields = {**of_file.fields, **own.fields}
    return ParsedCommand(fields, (*own.given, *of_file.given), own.words)


def _parts(keys: NanotronKeys, pp: int) -> tuple[tuple[int, ...], str | None]:
    """Decoder layers of each stage, which nanotron cuts by itself, and why there are none."""
    sizes = (keys.layers, keys.hidden, keys.ffn, keys.vocab)
    if pp == 1 or None in sizes:
        return (), None
    layers, hidden, ffn, vocab = (size or 0 for size in sizes)
    found = layers_of_stages(layers=layers, hidden=hidden, heads_width=hidden, ffn=ffn, vocab=vocab, pp=pp)
    return (found, None) if found is not None else ((), f"nanotron finds no {pp} stages for {layers} layers")


def _schedule(keys: NanotronKeys) -> Schedule:
    """The pipeline's schedule; all forward passes first unless told (parallelism_config.py)."""
    known = {name: schedule for schedule, name in names_in(PipelineRuntime.NANOTRON).items()}
    named = (keys.engine or "afab").casefold()
    if named not in known:
        raise InvalidInputError("parallelism.pp_engine can't be this", given=keys.engine, allowed=", ".join(known))
    return known[named]


def _config(keys: NanotronKeys) -> dict[str, Any] | None:
    if None in (keys.layers, keys.hidden, keys.heads, keys.ffn, keys.vocab):
        return None
    return {
        "model_type": "qwen2" if keys.qkv_bias else "llama",
        "num_hidden_layers": keys.layers,
        "hidden_size": keys.hidden,
        "num_attention_heads": keys.heads,
        "num_key_value_heads": keys.kv_heads or keys.heads,
        "intermediate_size": keys.ffn,
        "vocab_size": keys.vocab,
        "tie_word_embeddings": bool(keys.tied),
    }


def _workload(keys: NanotronKeys) -> dict[str, Any]:
    """Fields of the request's workload."""
    precision = keys.dtype or "bfloat16"
    if precision not in _FORMATS:
        raise InvalidInputError("model.dtype can't be this", given=precision, allowed=", ".join(_FORMATS))
    if (keys.optimizer or "adamW").casefold() != "adamw":
        raise InvalidInputError("no cost model covers this optimizer", given=keys.optimizer, allowed="adamW")
    return {"precision": _FORMATS[precision].value, "optimizer": Optimizer.ADAMW.value}
