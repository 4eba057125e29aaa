"""Recipes of verl, NeMo, Megatron-Bridge and NeMo-RL: their keys, and the model and the layout that one trains with.

Its trainer is Megatron-Core or PyTorch's FSDP; what else a recipe does between steps is named, and not priced. Sources:
verl/trainer/config/ppo_trainer.yaml, sft_trainer.yaml (0.2 to 0.7); NeMo, examples/nlp/language_modeling/conf (1.x);
nemo_rl/examples/configs; megatron/bridge/training/config.py, models/gpt_provider.py and recipes/gpt/vanilla_gpt.py of 0.7, and
the records of megatron-core that they inherit from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.base.digits import is_digits
from meshwright.app.launching.launchers.megatron_lm import MegatronFlags, stated_by_flags
from meshwright.app.launching.parts.flag import Flag, FlagTable, ParsedCommand, count, share, truth
from meshwright.app.launching.parts.launch_files import config_of, words_of_config
from meshwright.app.launching.parts.methods import method_of, not_counted
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining, stated_modules
from meshwright.costmodels.memory.training_state import NOTHING_OFFLOADED, Offload
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.problem.carried_choices import USUAL_STAGE, StageChoices
from meshwright.solver.problem.choices import Launcher, Recompute


@dataclass(frozen=True, slots=True)
class RecipeKeys:
    """The keys that say something of a plan, its model or its work; None where a recipe does not give one."""

    model: str | None = None
    recipe: str | None = None
    strategy: str | None = None
    tp: int | None = None
    pp: int | None = None
    virtual: int | None = None
    cp: int | None = None
    ulysses: int | None = None
    ep: int | None = None
    etp: int | None = None
    sequence_parallel: bool | None = None
    shard_ranks: int | None = None
    microbatch: int | None = None
    global_batch: int | None = None
    whole_batch: int | None = None
    seq_len: int | None = None
    prompt: int | None = None
    response: int | None = None
    nodes: int | None = None
    devices: int | None = None
    precision: str | None = None
    granularity: str | None = None
    recompute_num_layers: int | None = None
    recompute_method: str | None = None
    recompute_modules: tuple[str, ...] = ()
    recomputes: bool | None = None
    weights_on_host: bool | None = None
    state_on_host: bool | None = None
    sharded_state: bool | None = None
    answers: int | None = None
    estimator: str | None = None


_ACTOR, _OF_MEGATRON, _OF_FSDP = (
    "actor-rollout-ref.actor",
    "actor-rollout-ref.actor.megatron",
    "actor-rollout-ref.actor.fsdp-config",
)
_BRIDGE, _DTENSOR = "policy.megatron-cfg", "policy.dtensor-cfg"


def _none_or(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a reader of values that may be left out (null, none, -1)."""
    return lambda text: None if text.casefold() in ("null", "none", "-1", "") else read(text)


def _degree(said: str, ours: str, *more: str) -> Flag:
    """A degree under the name that Megatron-Core has for it, in each framework's section."""
    names = (
        f"model.{ours}",
        f"{_OF_MEGATRON}.{ours}",
        f"{_BRIDGE}.{ours}",
        f"engine.{ours}",
        f"trainer.strategy.{ours}",
        *more,
    )
    return Flag(names, said, _none_or(count))


RECIPES = FlagTable(
    (
        Flag(
            (
                *("actor-rollout-ref.model.path", "model.partial-pretrain", "model.path", "policy.model-name"),
                *("model.restore-from-path", "checkpoint.pretrained-checkpoint", "hf-path", "model.hf-model-id"),
            ),
            "model",
            _none_or(str),
            is_name=True,
        ),
        Flag(("recipe", "factory"), "recipe", str),
        Flag((f"{_ACTOR}.strategy", "model.strategy", "engine"), "strategy", str),
        _degree("tp", "tensor-model-parallel-size", f"{_DTENSOR}.tensor-parallel-size"),
        _degree("pp", "pipeline-model-parallel-size"),
        _degree("virtual", "virtual-pipeline-model-parallel-size"),
        _degree("cp", "context-parallel-size", f"{_DTENSOR}.context-parallel-size"),
        _degree("ep", "expert-model-parallel-size", f"{_DTENSOR}.expert-parallel-size"),
        _degree("etp", "expert-tensor-parallel-size"),
        Flag((f"{_ACTOR}.ulysses-sequence-parallel-size", "ulysses-sequence-parallel-size"), "ulysses", count),
        Flag(
            tuple(f"{begin}.sequence-parallel" for begin in ("model", _OF_MEGATRON, _BRIDGE, _DTENSOR, "trainer.strategy")),
            "sequence_parallel",
            truth,
        ),
        Flag((f"{_OF_FSDP}.fsdp-size", "model.fsdp-config.fsdp-size"), "shard_ranks", _none_or(count)),
        Flag(
            (
                *(f"{_ACTOR}.ppo-micro-batch-size-per-gpu", "data.micro-batch-size-per-gpu", "policy.train-micro-batch-size"),
                *("model.micro-batch-size", "train.micro-batch-size", "data.micro-batch-size"),
            ),
            "microbatch",
            _none_or(count),
        ),
        Flag(
            (
                *(f"{_ACTOR}.ppo-mini-batch-size", "policy.train-global-batch-size", "model.global-batch-size"),
                *("train.global-batch-size", "data.global-batch-size"),
            ),
            "global_batch",
            count,
        ),
        Flag(("data.train-batch-size",), "whole_batch", count),
        Flag(("actor-rollout-ref.rollout.n",), "answers", count),
        Flag(("algorithm.adv-estimator",), "estimator", str),
        Flag(
            (
                *("policy.max-total-sequence-length", "data.max-length", "model.encoder-seq-length", "model.seq-length"),
                *("dataset.sequence-length", "dataset.seq-length", "data.seq-length"),
            ),
            "seq_len",
            count,
        ),
        Flag(("data.max-prompt-length",), "prompt", count),
        Flag(("data.max-response-length",), "response", count),
        Flag(("trainer.nnodes", "trainer.num-nodes", "cluster.num-nodes"), "nodes", count),
        Flag(("trainer.n-gpus-per-node", "trainer.devices", "cluster.gpus-per-node"), "devices", count),
        Flag(("policy.precision", "trainer.precision", "mixed-precision", f"{_ACTOR}.fsdp-config.dtype"), "precision", str),
        Flag(
            (
                *("model.activations-checkpoint-granularity", "model.recompute-granularity"),
                f"{_OF_MEGATRON}.override-transformer-config.recompute-granularity",
            ),
            "granularity",
            _none_or(str),
        ),
        Flag(
            (
                *("model.activations-checkpoint-num-layers", "model.recompute-num-layers"),
                f"{_OF_MEGATRON}.override-transformer-config.recompute-num-layers",
            ),
            "recompute_num_layers",
            _none_or(count),
        ),
        Flag(
            (
                *("model.activations-checkpoint-method", "model.recompute-method"),
                f"{_OF_MEGATRON}.override-transformer-config.recompute-method",
            ),
            "recompute_method",
            _none_or(str),
        ),
        Flag(
            ("model.recompute-modules", f"{_OF_MEGATRON}.override-transformer-config.recompute-modules"),
            "recompute_modules",
            lambda text: () if text.casefold() in ("null", "none") else _listed(text),
        ),
        Flag(
            (
                *("actor-rollout-ref.model.enable-gradient-checkpointing", "model.enable-gradient-checkpointing"),
                *(f"{_BRIDGE}.activation-checkpointing", f"{_DTENSOR}.activation-checkpointing"),
            ),
            "recomputes",
            truth,
        ),
        Flag(
            (f"{_OF_FSDP}.param-offload", "model.fsdp-config.cpu-offload", f"{_DTENSOR}.cpu-offload"), "weights_on_host", truth
        ),
        Flag((f"{_OF_FSDP}.optimizer-offload", "model.fsdp-config.offload-params"), "state_on_host", truth),
        Flag(("ddp.use-distributed-optimizer", "optimizer.use-distributed-optimizer"), "sharded_state", truth),
    ),
    harmless={
        **dict.fromkeys(("config-path", "config-name", "config", "seed", "name", "defaults", "run-name"), True),
        **dict.fromkeys(("ray-init", "reward-model", "custom-reward-function", "yes", "executor"), True),
    },
    sections={
        "actor-rollout-ref.rollout": "answers between steps, which no figure takes into account",
        "actor-rollout-ref.ref": "the model that answers are compared with, which no figure takes into account",
        "actor-rollout-ref": "how the actor is trained",
        "critic": "the critic, which no figure takes into account",
        "reward-model": "rewards, which no figure takes into account",
        "policy.generation": "answers between steps, which no figure takes into account",
        "policy": "how the policy is trained",
        "model": "how the model runs",
        "ddp": "when gradients travel",
        "comm-overlap": "messages beside products",
        "mixed-precision": "formats of products",
        **dict.fromkeys(("algorithm", "data", "dataset", "trainer", "logger", "checkpoint", "checkpointing", "env"), ""),
        **dict.fromkeys(("optim", "optimizer", "scheduler", "train", "cluster", "exp-manager", "tokenizer", "hydra"), ""),
        **dict.fromkeys(("grpo", "sft", "dpo", "loss-fn", "rng", "dist", "validation", "reward", "ray-kwargs", "log"), ""),
    },
)


# The settings of Megatron-Bridge's recipes, ``section.key=value``, by the flags of Megatron-LM that say the same.

RECIPE = "vanilla_gpt_pretrain_config"
"""The recipe of Megatron-LM's own defaults, whose model is said by settings alone."""

_MODEL = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size"),
    *("expert_tensor_parallel_size", "recompute_num_layers", "num_layers", "hidden_size", "ffn_hidden_size"),
    *("num_attention_heads", "kv_channels", "num_query_groups", "moe_router_topk", "moe_ffn_hidden_size", "vocab_size"),
    *("moe_shared_expert_intermediate_size", "mtp_num_layers"),
)
_MODEL_WORDS = (
    *("pipeline_model_parallel_layout", "cp_comm_type", "recompute_granularity", "recompute_method", "fp8_recipe"),
    *("position_embedding_type", "normalization", "cuda_graph_impl", "moe_token_dispatcher_type"),
)
_MODEL_SWITCHES = (
    *("sequence_parallel", "tp_comm_overlap", "bf16", "fp16", "cross_entropy_loss_fusion", "defer_embedding_wgrad_compute"),
    *("moe_enable_deepep", "add_qkv_bias", "qk_layernorm"),
)
_DDP_SWITCHES = ("use_distributed_optimizer", "overlap_grad_reduce", "use_megatron_fsdp")
_ACTIVATIONS_SQUARED = frozenset(("squared_relu", "relu2"))


def _listed(text: str) -> tuple[str, ...]:
    """Return the members of a list, as Hydra writes it or with blanks between."""
    return tuple(each.strip("'\" ") for each in text.strip("[]").replace(",", " ").split())


def _counts(text: str) -> tuple[int, ...]:
    return tuple(count(each) for each in _listed(text))


def _window(text: str) -> str:
    return ",".join(_listed(text))


def _layers(text: str) -> str:
    """Return which layers have experts, as Megatron-LM's flag says it."""
    return text if is_digits(text) else f"[{','.join(_listed(text))}]"


def _unquoted(text: str) -> str:
    return text.strip("'\"")


def _not(text: str) -> bool:
    return not truth(text)


def _key(section: str, field: str) -> tuple[str, ...]:
    return (f"{section}.{field}".replace("_", "-"),)


def _flag(section: str, field: str, read: Callable[[str], Any], *, key: str | None = None) -> Flag:
    return Flag(_key(section, key or field), field, read)


MEGATRON_BRIDGE = FlagTable(
    (
        *(_flag("model", field, count) for field in _MODEL),
        *(_flag("model", field, _unquoted) for field in _MODEL_WORDS),
        *(_flag("model", field, truth) for field in _MODEL_SWITCHES),
        *(_flag("ddp", field, truth) for field in _DDP_SWITCHES),
        _flag("model", "num_virtual_stages_per_pipeline_rank", count, key="virtual_pipeline_model_parallel_size"),
        _flag("model", "recompute_modules", _listed),
        _flag("model", "hierarchical_context_parallel_sizes", _counts),
        _flag("model", "num_experts", count, key="num_moe_experts"),
        _flag("model", "moe_layer_freq", _layers),
        _flag("model", "fp8_format", str, key="fp8"),
        _flag("model", "fp4_format", str, key="fp4"),
        _flag("model", "attention_dropout", float),
        _flag("model", "hidden_dropout", float),
        _flag("model", "window_size", _window),
        _flag("model", "swiglu", truth, key="gated_linear_unit"),
        _flag("model", "squared_relu", lambda text: text in _ACTIVATIONS_SQUARED, key="activation_func"),
        _flag("model", "disable_bias_linear", _not, key="add_bias_linear"),
        _flag("model", "untie_embeddings_and_output_weights", _not, key="share_embeddings_and_output_weights"),
        _flag("train", "micro_batch_size", count),
        _flag("train", "global_batch_size", count),
        _flag("dataset", "seq_length", count),
        _flag("dist", "use_tp_pp_dp_mapping", truth),
        _flag("ddp", "num_distributed_optimizer_instances", count),
        _flag("ddp", "data_parallel_sharding_strategy", str),
        _flag("ddp", "grad_reduce_in_bf16", _not, key="grad_reduce_in_fp32"),
        _flag("optimizer", "optimizer", str),
        _flag("optimizer", "exp_avg_dtype", str),
        _flag("optimizer", "optimizer_cpu_offload", truth),
        _flag("optimizer", "optimizer_offload_fraction", share),
    ),
    harmless=dict.fromkeys(
        (
            *("recipe", "mode", "dataset", "model.seq-length", "model.params-dtype", "model.pipeline-dtype", "optimizer.bf16"),
            *("optimizer.fp16", "optimizer.params-dtype", "mixed-precision", "optimizer.exp-avg-sq-dtype", "model.rotary-base"),
            *("optimizer.use-distributed-optimizer", "optimizer.use-precision-aware-optimizer", "model.bias-activation-fusion"),
            *("optimizer.overlap-cpu-optimizer-d2h-h2d", "ddp.overlap-param-gather", "model.bias-dropout-fusion"),
            *("model.apply-rope-fusion", "model.persist-layer-norm", "model.layernorm-epsilon", "model.rotary-percent"),
            *("model.rope-scaling", "model.rope-scaling-factor", "model.moe-grouped-gemm", "model.fp4-recipe"),
            *("model.use-te-rng-tracker", "model.gradient-accumulation-fusion", "model.moe-router-score-function"),
            *("model.moe-router-pre-softmax", "model.moe-router-topk-scaling-factor", "model.moe-router-enable-expert-bias"),
            *("model.moe-aux-loss-coeff", "model.moe-router-dtype"),
        ),
        True,
    ),
    sections=RECIPES.sections,
)
"""The settings that say something of a plan, its model or its work, into the fields of Megatron-LM's flags."""

OWN: Mapping[str, str] = {
    "norm-epsilon": "model.layernorm_epsilon",
    "rotary-base": "model.rotary_base",
    "rotary-percent": "model.rotary_percent",
    "use-rope-scaling": "model.rope_scaling",
    "rope-scaling-factor": "model.rope_scaling_factor",
    "moe-grouped-gemm": "model.moe_grouped_gemm",
    "moe-router-dtype": "model.moe_router_dtype",
    "moe-router-num-groups": "model.moe_router_num_groups",
    "moe-router-group-topk": "model.moe_router_group_topk",
    "moe-router-score-function": "model.moe_router_score_function",
    "moe-router-pre-softmax": "model.moe_router_pre_softmax",
    "moe-router-topk-scaling-factor": "model.moe_router_topk_scaling_factor",
    "moe-router-enable-expert-bias": "model.moe_router_enable_expert_bias",
    "moe-aux-loss-coeff": "model.moe_aux_loss_coeff",
    "moe-shared-expert-gate": "model.moe_shared_expert_gate",
    "cuda-graph-scope": "model.cuda_graph_scope",
    "fp4-recipe": "model.fp4_recipe",
    "overlap-param-gather": "ddp.overlap_param_gather",
    "overlap-cpu-optimizer-d2h-h2d": "optimizer.overlap_cpu_optimizer_d2h_h2d",
    "use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
    "exp-avg-sq-dtype": "optimizer.exp_avg_sq_dtype",
    "sgd-momentum": "optimizer.sgd_momentum",
    "lr": "optimizer.lr",
    "train-iters": "train.train_iters",
    "ckpt-format": "checkpoint.ckpt_format",
}
"""The settings of flags that no plan is read from."""


def key_of(field: str) -> str:
    """Return the key of the setting that says a field."""
    return MEGATRON_BRIDGE.name(field).replace("-", "_")


# A recipe in the words of plans.

_SETTING = re.compile(r"(?:\+\+|\+)?([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
"""A key of Hydra with its value."""
_FORMATS = {
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "bf16_mixed"), DType.BF16),
    **dict.fromkeys(("fp16", "float16", "16", "16-mixed", "fp16_mixed"), DType.FP16),
    **dict.fromkeys(("fp32", "float32", "32"), DType.FP32),
}
_ENDS_OF_RECIPES = re.compile(r"_(pretrain|finetune|sft|peft|config|recipe).*$")


def read_recipe(start: Start, launcher: Launcher = Launcher.MEGATRON_LM) -> StatedTraining:
    """Return what a recipe states, of a launcher where Megatron-Core trains; raises InvalidInputError for a value that can't
    be."""
    if launcher is Launcher.MEGATRON_BRIDGE and is_bare(start.words):
        return read_megatron_bridge(start, _as_flags(start.words))
    document = start.document if start.document is not None else _named(start)
    read = RECIPES.read([*words_of_config(_without_what_is_off(document)), *_as_flags(start.words)])
    keys = RecipeKeys(**read.fields)
    is_megatron = _is_megatron(keys, document)
    tp, pp, cp = keys.tp or 1, keys.pp or 1, (keys.cp or 1) * (keys.ulysses or 1)
    chunks = (keys.virtual or 1) if pp > 1 else 1
    by_verl = _is_of_verl(start, document, read)
    if by_verl and not is_megatron and keys.recomputes is None:
        # hf_model.yaml and sft_trainer.yaml, enable_gradient_checkpointing.
        keys = replace(keys, recomputes=True)
    recompute, stages, unpriced = _recompute(keys)
    world = start.world or (None if keys.devices is None else keys.devices * (keys.nodes or 1))
    offload = _offload(keys)
    return StatedTraining(
        launcher=launcher if is_megatron else Launcher.ACCELERATE,
        given=read.given,
        environment=start.environment,
        notes=(
            "the recipe is read for its model and the layout of its training; rollouts and other models are not priced",
            *unpriced,
        ),
        model=keys.model or (None if keys.recipe is None else _ENDS_OF_RECIPES.sub("", keys.recipe).replace("_", "-")),
        world=world,
        tp=tp,
        pp=pp,
        cp=cp,
        ulysses=keys.ulysses or 1,
        ep=keys.ep or 1,
        etp=None if keys.etp in (None, tp) else keys.etp,
        chunks=chunks,
        schedule=None if pp == 1 else (Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B).value,
        microbatch=keys.microbatch,
        global_batch=_global_batch(keys),
        seq_len=keys.seq_len or ((keys.prompt or 0) + (keys.response or 0) or None),
        zero_stage=(1 if keys.sharded_state is not False else 0) if is_megatron else 3,
        shard_ranks=keys.shard_ranks,
        sequence_parallel=is_megatron and tp > 1 and keys.sequence_parallel is not False,
        recompute=recompute,
        stages=stages,
        offload=offload,
        workload={"precision": _FORMATS.get((keys.precision or "bf16").casefold(), DType.BF16).value},
        not_counted=not_counted(_method(start, document, keys, by_verl=by_verl)),
        of_program=_program(document, launcher, by_verl=by_verl),
    )


def _is_of_verl(start: Start, document: Mapping[str, Any], read: ParsedCommand) -> bool:
    own = any(flag.table_name.startswith("actor-rollout-ref.") for flag in read.given)
    return own or "actor_rollout_ref" in document or start.program.startswith(("verl.", "recipe.dapo"))


def _global_batch(keys: RecipeKeys) -> int | None:
    """Sequences of an update: of verl its mini-batch of prompts, each with as many answers as it draws (fsdp_workers.py)."""
    prompts = keys.global_batch or keys.whole_batch
    return None if prompts is None else prompts * (keys.answers or 1)


def _method(start: Start, document: Mapping[str, Any], keys: RecipeKeys, *, by_verl: bool) -> str | None:
    """The method by how answers are judged, the program's name, or the sections of a file: NeMo-RL's, or verl's of an actor."""
    sections = [name for name in ("grpo", "dpo") if name in document]
    is_rl = by_verl and ("actor_rollout_ref" in document or not start.program or "sft" not in start.program)
    return method_of(keys.estimator, start.program, *sections) or ("ppo" if is_rl else None)


def _program(document: Mapping[str, Any], launcher: Launcher, *, by_verl: bool) -> str:
    """The framework of a recipe, whose command is not that of the launcher that it is priced by."""
    if launcher is Launcher.MEGATRON_BRIDGE:
        return ""
    return "verl" if by_verl else "NeMo-RL" if "policy" in document else "NeMo"


def _named(start: Start) -> Mapping[str, Any]:
    """The file of a recipe, where one is named and was given."""
    words = list(start.words)
    for flag in ("--config", "--config-file", "--config-name"):
        if flag in words[:-1]:
            text = start.files.named(words[words.index(flag) + 1])
            return {} if text is None else config_of(text) or {}
    first = next((word for word in words if word.endswith((".yaml", ".yml"))), None)
    text = None if first is None else start.files.named(first)
    return {} if text is None else config_of(text) or {}


def _as_flags(words: Sequence[str]) -> list[str]:
    """Settings of Hydra, ``a.b=c``, as flags."""
    found = []
    for word in words:
        setting = _SETTING.fullmatch(word)
        found.append(word if setting is None else f"--{setting[1]}={setting[2]}")
    return found


def _without_what_is_off(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """NeMo-RL has a section for each of its two trainers, of which one is enabled."""
    policy = document.get("policy")
    if not isinstance(policy, Mapping):
        return document
    off = [name for name in ("dtensor_cfg", "megatron_cfg") if not _is_on(policy.get(name))]
    return {**document, "policy": {name: value for name, value in policy.items() if name not in off}}


def _is_on(section: object) -> bool:
    return isinstance(section, Mapping) and section.get("enabled", False) is True


def _is_megatron(keys: RecipeKeys, document: Mapping[str, Any]) -> bool:
    if keys.strategy is not None:
        return keys.strategy.casefold().startswith("megatron")
    policy = document.get("policy")
    if isinstance(policy, Mapping):
        return _is_on(policy.get("megatron_cfg"))
    # verl trains by FSDP unless told; NeMo and Megatron-Bridge by Megatron-Core.
    return not any(value is not None for value in (keys.prompt, keys.response, keys.whole_batch))


def _recompute(keys: RecipeKeys) -> tuple[Recompute, StageChoices, tuple[str, ...]]:
    """The mode; the layers of each stage that are recomputed where the method takes some, or the modules of all layers; and
    what was taken for granted."""
    if keys.recomputes or keys.granularity == "full":
        some = keys.recompute_num_layers if keys.recompute_method == "block" else None
        return Recompute.FULL, USUAL_STAGE.with_layers(some), ()
    if keys.granularity == "selective":
        return stated_modules(keys.recompute_modules)
    return Recompute.NONE, USUAL_STAGE, ()


def _offload(keys: RecipeKeys) -> Offload:
    if not keys.weights_on_host and not keys.state_on_host:
        return NOTHING_OFFLOADED
    weights = 1.0 if keys.weights_on_host else 0.0
    return Offload(optimizer=1.0, weights=weights, gradients=1.0)


_NO_MIXTURE = ("null", "none")
_HALF = ("fp16", "16")


def is_bare(words: Sequence[str]) -> bool:
    """Return True if a command names the recipe whose model is said by settings alone."""
    return any(word.removeprefix("--recipe=") == RECIPE for word in words)


def read_megatron_bridge(start: Start, settings: Sequence[str]) -> StatedTraining:
    """Return what settings, ``--section.key=value``, state; raises InvalidInputError for a value that can't be."""
    read = MEGATRON_BRIDGE.read(settings)
    flags = MegatronFlags(**{**_by_default(settings), **read.fields})
    flags = replace(flags, group_query_attention=flags.num_query_groups is not None)
    return stated_by_flags(flags, read.given, start, Launcher.MEGATRON_BRIDGE)


def _by_default(settings: Sequence[str]) -> dict[str, bool]:
    """What holds of the recipe unless told: its optimizer shards, its loss is fused in parts, and it trains in bf16."""
    named = [word.partition("=")[2] for word in settings if word.startswith("--mixed_precision=")]
    mixture = named[-1].casefold() if named else "bf16"
    is_half = mixture.startswith(_HALF)
    return {
        "use_distributed_optimizer": True,
        "cross_entropy_loss_fusion": True,
        "bf16": not is_half and mixture not in _NO_MIXTURE,
        "fp16": is_half,
    }
