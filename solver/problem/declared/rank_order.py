"""The order of ranks: whether those of a stage lie together, or those of a replica."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from meshwright.solver.problem.choice import (
    TRAINING,
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


class RankOrder(StrEnum):
    """The axis of a training plan's mesh whose ranks lie farthest apart. tp is innermost, then cp, then the other of pp and dp:
    with pp outermost the ranks of a stage lie together, with dp outermost those of a replica."""

    PP_OUTERMOST = "pp-outermost"
    DP_OUTERMOST = "dp-outermost"


def _launched(launcher: Launcher, mesh: RankedDegrees) -> Collection[RankOrder]:
    """Return the orders that a launcher lays ranks in. The device meshes of the others have pp outermost.

    Megatron-Core's is tp-cp-ep-dp-pp, or tp-cp-ep-pp-dp with --use-tp-pp-dp-mapping. There its groups for experts and those for
    all else must have one dp (megatron.core.parallel_state asserts it, of dense models, too).
    """
    if launcher in OVER_MEGATRON_CORE and mesh.expert_dp == mesh.dp:
        return tuple(RankOrder)
    return (RankOrder.PP_OUTERMOST,)


RANK_ORDER = MeshChoice(
    word="rank_order",
    forms=TRAINING,
    launched=Launched.BY_RULES,
    place=Place(Part.PIPELINES, "rank_order"),
    unnamed=Unnamed.DEFAULT,
    published=(RankOrder.PP_OUTERMOST,),
    said=Said.LISTED,
    lock=LockPlace.CHOICES,
    at_most=None,
    values=RankOrder,
    # Else the ranks of a stage and those of a replica are the same in every order.
    is_open=lambda mesh: mesh.dp > 1 and mesh.pp > 1,
    launched_by=_launched,
    words={RankOrder.DP_OUTERMOST: "dp outermost"},
    mechanisms={RankOrder.DP_OUTERMOST: "ranks with dp outermost"},
    unlike_stages=UnlikeStages(
        asked="stages that differ have no replicas whose ranks could lie together: their numbers of replicas differ, too",
        given="stages that differ lie one behind the other",
    ),
)
