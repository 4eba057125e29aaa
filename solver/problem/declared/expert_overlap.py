"""The overlap of exchanges with experts: whether another micro-batch's passes run beside them."""

from __future__ import annotations

from enum import StrEnum

from meshwright.solver.problem.choice import TRAINING, Choice, Launched, LockPlace, Part, Place, Said, Unnamed
from meshwright.solver.problem.choices import Launcher


class ExpertOverlap(StrEnum):
    """The exchange of tokens with experts on other ranks: it shows, or runs under the pass of another micro-batch. Schedules
    whose passes run in pairs (DualPipe) have it so without being asked."""

    EXPOSED = "exposed"
    BATCH = "batch"


EXPERT_OVERLAP = Choice(
    word="expert_overlap",
    forms=TRAINING,
    launched=Launched.BY_RULES,
    place=Place(Part.PIPELINES, "expert_overlap"),
    unnamed=Unnamed.DEFAULT,
    published=(ExpertOverlap.EXPOSED,),
    said=Said.LISTED,
    lock=LockPlace.CHOICES,
    at_most=None,
)

LAUNCHERS = frozenset({Launcher.MEGATRON_LM})
"""Launchers that run it so: --overlap-moe-expert-parallel-comm. TransformerConfig of megatron.core asks for ep, virtual stages
beside pp, an alltoall or flex dispatcher, and no full recomputation."""

MECHANISM = "exchanges of experts under another micro-batch"
