"""What operators of the free space may split over the ranks of tp beside their dims."""

from __future__ import annotations

from enum import StrEnum


class OperatorSplit(StrEnum):
    """What an operator splits, whatever its neighbours do."""

    BATCH = "batch"
    """The sequences of a micro-batch: each rank of tp computes some of them, with whole weights."""
    WEIGHTS = "weights"
    """The storage of weights that every rank of tp uses whole: gathered before each pass, their gradients scattered (fully
    sharded data parallelism by operator)."""
