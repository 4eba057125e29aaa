"""The keys of recipes that say a model and a layout: of verl, NeMo, Megatron-Bridge and NeMo-RL.

Sources: verl/trainer/config/ppo_trainer.yaml, sft_trainer.yaml (0.2 to 0.7); NeMo, examples/nlp/language_modeling/conf (1.x);
megatron/bridge/training/config.py; nemo_rl/examples/configs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.app.launching.flags.flag import Flag, FlagTable, count, truth


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
    recomputes: bool | None = None
    weights_on_host: bool | None = None
    state_on_host: bool | None = None
    sharded_state: bool | None = None


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
