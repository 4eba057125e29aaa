"""The ways of running gathers and scatters over tp that a candidate has."""

from __future__ import annotations

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE
from meshwright.solver.blocks.tp_strategies import Spec
from meshwright.solver.problem.choices import Space, TpOverlap
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingRequest


def tp_overlaps(request: TrainingRequest, *, tp: int, cp: int, boundary: Spec) -> tuple[TpOverlap, ...]:
    """Ways that the request allows and its launcher has: chunks only under sequence parallelism, which gathers and scatters,
    and in the launchable space only over NVLink, by which a device writes into another's memory."""
    workload, search = request.workload, request.search
    if tp == 1:
        return (TpOverlap.EXPOSED,)
    allowed = search.tp_overlap or (TpOverlap.EXPOSED,)
    can_cut = boundary.dim is not None and _cuts_products(request, rows=workload.seq_len // cp, tp=tp)
    return tuple(way for way in TpOverlap if way in allowed and (way is TpOverlap.EXPOSED or can_cut))


def max_zero_stage(request: TrainingRequest, overlap: TpOverlap) -> int:
    """Highest ZeRO stage beside a way of gathers and scatters."""
    if request.search.space is Space.FREE or overlap is TpOverlap.EXPOSED:
        return MAX_ZERO_STAGE
    cut = TRAINERS[request.search.launcher].cut_products
    return MAX_ZERO_STAGE if cut is None else cut.max_zero


def _cuts_products(request: TrainingRequest, *, rows: int, tp: int) -> bool:
    """Return True if the launcher cuts products over tp ranks, which have so many rows of each sequence together."""
    if request.search.space is Space.FREE:
        return True
    cut = TRAINERS[request.search.launcher].cut_products
    return cut is not None and rows % (cut.rows_a_rank * tp) == 0 and _joined_by_nvlink(request.cluster)


def _joined_by_nvlink(cluster: Cluster) -> bool:
    """Links are known by their names alone."""
    return all("nvlink" in group.node.intra.name.lower() for group in cluster.groups)
