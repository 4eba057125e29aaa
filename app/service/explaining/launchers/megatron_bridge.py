"""A command of Megatron-Bridge over its recipe of Megatron-LM's defaults: settings, read as the flags that say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.app.launching.flags.megatron_bridge import MEGATRON_BRIDGE, RECIPE
from meshwright.app.launching.flags.megatron_lm import MegatronFlags
from meshwright.app.service.explaining.launchers.megatron_lm import stated_by_flags
from meshwright.app.service.explaining.start import Start
from meshwright.app.service.explaining.stated import StatedTraining
from meshwright.solver.problem.choices import Launcher

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
