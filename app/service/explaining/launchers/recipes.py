"""A recipe of verl, NeMo, Megatron-Bridge or NeMo-RL: the model and the layout that it trains with, in the words of plans.

Its trainer is Megatron-Core or PyTorch's FSDP; what else a recipe does between steps is named, and not priced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.app.launching.flags.megatron_bridge import MEGATRON_BRIDGE, RECIPE
from meshwright.app.launching.flags.megatron_lm import MegatronFlags
from meshwright.app.launching.flags.recipes import RECIPES, RecipeKeys
from meshwright.app.service.explaining.launch_files import config_of, words_of_config
from meshwright.app.service.explaining.launchers.megatron_lm import stated_by_flags
from meshwright.app.service.explaining.start import Start
from meshwright.app.service.explaining.stated import StatedTraining
from meshwright.costmodels.memory.training_state import NOTHING_OFFLOADED, Offload
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.problem.carried_choices import USUAL_STAGE, StageChoices
from meshwright.solver.problem.choices import Launcher, Recompute

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
    recompute = _recompute(keys)
    world = start.world or (None if keys.devices is None else keys.devices * (keys.nodes or 1))
    offload = _offload(keys)
    return StatedTraining(
        launcher=launcher if is_megatron else Launcher.ACCELERATE,
        given=read.given,
        environment=start.environment,
        notes=("the recipe is read for its model and the layout of its training; rollouts and other models are not priced",),
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
        global_batch=keys.global_batch or keys.whole_batch,
        seq_len=keys.seq_len or ((keys.prompt or 0) + (keys.response or 0) or None),
        zero_stage=(1 if keys.sharded_state is not False else 0) if is_megatron else 3,
        shard_ranks=keys.shard_ranks,
        sequence_parallel=is_megatron and tp > 1 and keys.sequence_parallel is not False,
        recompute=recompute,
        stages=_stages(keys, recompute),
        offload=offload,
        workload={"precision": _FORMATS.get((keys.precision or "bf16").casefold(), DType.BF16).value},
    )


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


def _recompute(keys: RecipeKeys) -> Recompute:
    if keys.recomputes or keys.granularity == "full":
        return Recompute.FULL
    return Recompute.SELECTIVE if keys.granularity == "selective" else Recompute.NONE


def _stages(keys: RecipeKeys, recompute: Recompute) -> StageChoices:
    """Layers of each stage that are recomputed, where the method takes some."""
    if recompute is Recompute.FULL and keys.recompute_method == "block" and keys.recompute_num_layers is not None:
        return USUAL_STAGE.with_layers(keys.recompute_num_layers)
    return USUAL_STAGE


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
