"""The way in which attention on the ranks of a sequence (context parallelism) sees their keys and values."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from meshwright.solver.problem.choice import (
    TRAINING,
    Degrees,
    Launched,
    LockPlace,
    MeshChoice,
    Part,
    Place,
    RankedDegrees,
    Said,
    UnlikeStages,
    Unnamed,
)
from meshwright.solver.problem.choices import OVER_MEGATRON_CORE, Launcher


class CpKeys(StrEnum):
    """How the cp / ulysses ranks of a sequence that have the same heads see each other's keys and values."""

    RING = "ring"
    """They pass them on, chunk by chunk, under attention (Liu et al. 2023)."""
    GATHERED = "gathered"
    """Each gathers all of them before attention (Llama 3 report, section 3.3.2)."""


def _is_open(mesh: Degrees) -> bool:
    return mesh.cp > mesh.ulysses


def _launched(launcher: Launcher, mesh: RankedDegrees) -> Collection[CpKeys]:
    """Return the ways that a launcher has: Megatron-Core's cp_comm_type is p2p or all_gather, and a2a+p2p beside exchanges.

    torchtitan's rotate method "allgather" still runs a kernel a chunk of keys, and merges: a ring whose chunks come at once.
    """
    return tuple(CpKeys) if launcher in OVER_MEGATRON_CORE and mesh.ulysses == 1 else (CpKeys.RING,)


CP_KEYS = MeshChoice(
    word="cp_keys",
    forms=TRAINING,
    launched=Launched.BY_RULES,
    place=Place(Part.PIPELINES, "cp_keys"),
    unnamed=Unnamed.ANY,
    published=(CpKeys.RING,),
    said=Said.LISTED,
    lock=LockPlace.CHOICES,
    at_most=None,
    values=CpKeys,
    is_open=_is_open,
    launched_by=_launched,
    words={CpKeys.GATHERED: "gathered keys"},
    mechanisms={CpKeys.GATHERED: "gathered keys and values"},
    unlike_stages=UnlikeStages(
        asked="stages that differ pass keys and values around rings alone",
        given="stages that differ pass keys and values around rings",
    ),
)
