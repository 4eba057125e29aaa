"""The number of first layers of a stage that are recomputed whole, where they are neither none nor all."""

from __future__ import annotations

import re

from meshwright.solver.problem.choice import TRAINING, Choice, Launched, LockPlace, Part, Place, Published, Said, Unnamed
from meshwright.solver.problem.choices import OVER_MEGATRON_CORE, Recompute

# With a published planner, `solver.training.space.candidates` lets a stage recompute all of its layers or none.
RECOMPUTE_LAYERS = Choice(
    word="recompute_layers",
    forms=TRAINING,
    launched=Launched.BY_RULES,
    place=Place(Part.STAGES, "recompute_layers"),
    unnamed=Unnamed.ANY,
    published=Published.AS_ASKED,
    said=Said.LISTED,
    lock=LockPlace.CHOICES,
    at_most=None,
)

LAUNCHERS = OVER_MEGATRON_CORE
"""Launchers that recompute some layers of a stage whole, and others not (--recompute-method block, --recompute-num-layers)."""

UNDECIDED = 0
"""The number of layers to recompute before it is known."""

MECHANISM = "recomputation of some layers"

_WORDS = re.compile(r"recompute full of (\d+|some) layers(?: of each part)?")


def in_words(number: int, *, pp: int) -> str:
    """Return a number of layers of each of ``pp`` stages, in the name of a candidate."""
    said = "some" if number == UNDECIDED else str(number)
    return f"recompute {Recompute.FULL.value} of {said} layers{'' if pp == 1 else ' of each part'}"


def read_words(words: str) -> int | None:
    """Return the number that `in_words` wrote; None of other words."""
    found = _WORDS.fullmatch(words)
    return None if found is None else UNDECIDED if found[1] == "some" else int(found[1])
