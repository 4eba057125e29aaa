"""The parts of a layer that fine-grained recomputation runs again: modules (Megatron-LM's --recompute-modules) or operators."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from itertools import chain, combinations
from typing import Annotated

from annotated_types import Len

from meshwright.costmodels.errors import InvalidInputError, WorkloadError
from meshwright.costmodels.model.dims import EXPERT_FFN, EXPERT_LATENT, EXPERTS, FFN, SHARED_FFN, TOP_K
from meshwright.solver.problem.choice import TRAINING, Choice, Launched, LockPlace, Part, Place, Published, Said, Unnamed
from meshwright.solver.problem.choices import Recompute


class RecomputeModule(StrEnum):
    """Parts of a layer, by Megatron-Core's names. Of the first three what they wrote is dropped and made again; the others keep
    their inputs, and run whole again."""

    LAYERNORM = "layernorm"
    MOE_ACT = "moe_act"
    """Activation functions of routed experts."""
    MLA_UP_PROJ = "mla_up_proj"
    """Up-projections of latent attention, and the rotation behind them."""
    CORE_ATTN = "core_attn"
    MLP = "mlp"
    """Dense feed-forward layers."""
    MOE = "moe"
    """Router, routed and shared experts, with the exchanges of tokens."""
    SHARED_EXPERTS = "shared_experts"


USUAL_MODULES = (RecomputeModule.LAYERNORM, RecomputeModule.MOE_ACT, RecomputeModule.MLA_UP_PROJ)
"""What fine-grained recomputation runs again where nothing else is said (DeepSeek-V3 report, section 3.2.3)."""

SELECTIVE_MODULES = (RecomputeModule.LAYERNORM, RecomputeModule.CORE_ATTN)
"""What selective recomputation runs again (Korthikanti et al. 2023, section 5, and the norms that launchers add)."""

DIMS_OF_MODULES = {
    RecomputeModule.MLP: frozenset({FFN}),
    RecomputeModule.MOE: frozenset({EXPERTS, TOP_K, EXPERT_FFN, EXPERT_LATENT, SHARED_FFN}),
    RecomputeModule.SHARED_EXPERTS: frozenset({SHARED_FFN}),
}
"""The dims by which a module's operators are known: each has a tensor with one of them."""

ANY = "any"
"""The word of a request that allows every set of modules that its model has."""

OPERATORS = "operators"
"""The word of a request that allows the sets of single operators that take least time for what they save."""


ModuleSet = Annotated[str, Len(1, 2000)]
"""Words of a set: of 64 operators at most, each with the name of its block."""


def is_operator(part: str) -> bool:
    """Return True if a part of a set is an operator, as block/operator, and no module."""
    return "/" in part


def modules_of_words(words: str) -> tuple[str, ...]:
    """Return the modules that words joined by + name, in their order, then the operators. Raises InvalidInputError for other
    words."""
    named = words.split("+")
    unknown = [word for word in named if word not in set(RecomputeModule) and not is_operator(word)]
    if unknown:
        raise InvalidInputError(
            "no module of a layer has this name",
            given=", ".join(unknown),
            allowed=f"{', '.join(RecomputeModule)}, operators as block/operator, several joined by +, or {ANY}, or {OPERATORS}",
        )
    return (*(module for module in RecomputeModule if module.value in named), *sorted({*filter(is_operator, named)}))


def words_of_modules(modules: Iterable[str]) -> str:
    """Return the words of a set of modules and operators, in their order."""
    named = {*modules}
    known = (module.value for module in RecomputeModule if module in named)
    return "+".join((*known, *sorted(filter(is_operator, named))))


def in_order(words: str) -> str:
    """Return the words of a set with its modules in order, `ANY` and `OPERATORS` as they are. Raises InvalidInputError for
    others."""
    return words if words in (ANY, OPERATORS) else words_of_modules(modules_of_words(words))


def sets_of(
    present: Iterable[RecomputeModule], asked: Iterable[str], operators: Collection[str] = (), least: Iterable[str] = ()
) -> tuple[str | None, ...]:
    """Return the sets, in words, that are asked for of the modules that a model has, and of the ``operators`` that can run
    again by themselves; None for the usual ones. `OPERATORS` are the sets ``least``.

    `ANY` leaves out what saves no more than another: attention, whose fused kernels give up nothing when they run again, and
    parts of experts beside all of them. Raises WorkloadError for a set with a module that the model lacks.
    """
    modules = tuple(present)
    has = (*modules, *operators)
    saving = [module for module in modules if module is not RecomputeModule.CORE_ATTN]
    usual = words_of_modules(module for module in modules if module in USUAL_MODULES)
    found: dict[str | None, None] = {}
    for words in asked:
        if words == ANY:
            every = chain.from_iterable(combinations(saving, size) for size in range(1, len(saving) + 1))
            named = (words_of_modules(each) for each in every if not _twice(each))
            found |= dict.fromkeys((None, *(words for words in named if words != usual)))
            continue
        if words == OPERATORS:
            found |= dict.fromkeys((None, *least))
            continue
        lacks = [module for module in modules_of_words(words) if module not in has]
        if lacks:
            raise WorkloadError(
                "the model has no such modules, or no such operators that can run again by themselves",
                given=", ".join(lacks),
                allowed=f"{', '.join(modules)}, several joined by +",
            )
        found[words] = None
    return tuple(found)


def _twice(modules: tuple[RecomputeModule, ...]) -> bool:
    inside = {RecomputeModule.MOE_ACT, RecomputeModule.SHARED_EXPERTS}
    return RecomputeModule.MOE in modules and bool(inside & {*modules})


RECOMPUTE_MODULES = Choice(
    word="recompute_modules",
    forms=TRAINING,
    launched=Launched.BY_RULES,
    place=Place(Part.STAGES, "recompute_modules"),
    unnamed=Unnamed.DEFAULT,
    published=Published.AS_ASKED,
    said=Said.LISTED,
    lock=LockPlace.CHOICES,
    at_most=None,
)


def mode_in_words(mode: str, modules: str | None) -> str:
    """Return a mode in the name of a candidate, with the modules that run again under it."""
    return f"{mode} of {modules}" if mode == Recompute.FINE_GRAINED.value and modules is not None else mode


def read_mode(words: str) -> tuple[Recompute, str | None]:
    """Return the mode and the modules that `mode_in_words` wrote, None where it wrote none."""
    mode, _, modules = words.partition(" of ")
    return Recompute(mode), modules or None
