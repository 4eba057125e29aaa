"""The devices that a change of plans leaves: which ranks of the old plan are lost, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest


def devices_left(lost: Sequence[str], old: AnsweredRequest, new: AnsweredRequest) -> list[int | None] | None:
    """Return the new rank of each old device when those that are left close ranks; None where nothing is said to be lost.

    ``lost`` names ranks of the old plan: "8" or "8-15". Raises InvalidInputError for anything else.
    """
    if not lost:
        return None
    n_old, n_new = old.request.cluster.n_devices, new.request.cluster.n_devices
    gone = {rank for text in lost for rank in _ranks(text, n_old)}
    left = [rank for rank in range(n_old) if rank not in gone]
    place = {rank: i for i, rank in enumerate(left) if i < n_new}
    return [place.get(rank) for rank in range(n_old)]


def _ranks(text: str, n_devices: int) -> range:
    """The ranks of "8" or "8-15"; raises InvalidInputError for anything else and for ranks that the old cluster lacks."""
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    ranks = range(0) if found is None else range(int(found[1]), int(found[2] or found[1]) + 1)
    if not ranks or ranks[-1] >= n_devices:
        raise InvalidInputError("--lost names no ranks of the old plan's cluster", given=text, allowed=f"0 to {n_devices - 1}")
    return ranks
