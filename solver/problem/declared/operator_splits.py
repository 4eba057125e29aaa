"""What operators of the free space may split over the ranks of tp beside their dims."""

from __future__ import annotations

from enum import StrEnum

from meshwright.solver.problem.choice import TRAINING, Choice, Launched, LockPlace, Published, Said, Unnamed


class OperatorSplit(StrEnum):
    """What an operator splits, whatever its neighbours do."""

    BATCH = "batch"
    """The sequences of a micro-batch: each rank of tp computes some of them, with whole weights."""
    WEIGHTS = "weights"
    """The storage of weights that every rank of tp uses whole: gathered before each pass, their gradients scattered (fully
    sharded data parallelism by operator)."""


OPERATOR_SPLITS = Choice(
    word="operator_splits",
    forms=TRAINING,
    launched=Launched.NOT_OF_A_PLAN,
    place=None,
    unnamed=Unnamed.DEFAULT,
    published=Published.AS_ASKED,
    said=Said.LISTED,
    lock=LockPlace.NOT_OF_A_PLAN,
    at_most=None,
)
