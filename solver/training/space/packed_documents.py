"""Sequences that are packed of documents: the launchers and the searches that they are planned for."""

from __future__ import annotations

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.problem.choices import BatchShares, Space, StageDegrees
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingRequest


def keeps_documents_together(request: TrainingRequest, *, ring: int) -> bool:
    """Return True if ranks that share a sequence share the work of its documents evenly.

    Ranks that exchange tokens for heads have every document whole. Chunks of a ring are of equal length, but not of equal work
    under masks of documents.
    """
    return ring == 1 or request.workload.documents is None


def refuse_documents(request: TrainingRequest) -> None:
    """Raise WorkloadError for a search that does not go with the workload's lengths of documents."""
    if request.workload.documents is None:
        return
    search = request.search
    rules = TRAINERS.get(search.launcher)
    if search.space is Space.LAUNCHABLE and (rules is None or not rules.masks_documents):
        able = sorted(launcher.value for launcher, each in TRAINERS.items() if each.masks_documents)
        raise WorkloadError(
            "packed documents are planned for launchers that mask them",
            given=f"launcher: {search.launcher.value}",
            allowed=f"launcher: {' or '.join(able)}, or space: free",
        )
    if any(number > 1 for number in search.token_slices):
        raise WorkloadError(
            "token slices cut documents", given=list(search.token_slices), allowed="without search.token_slices"
        )
    if search.stage_degrees is not StageDegrees.SAME or search.batch_shares is not BatchShares.EVEN:
        raise WorkloadError(
            "packed documents are not searched beside stages or replicas that differ",
            given={"stage_degrees": search.stage_degrees.value, "batch_shares": search.batch_shares.value},
            allowed="search.stage_degrees: same, search.batch_shares: even",
        )
