"""Passes of token slices: slice k of micro-batch i is number ``i * n_slices + k`` of an order.

Slices of a micro-batch go forward first to last, since each reads the keys and values of those before it, and backward last
to first, since each adds to their gradients.
"""

from __future__ import annotations

from meshwright.costmodels.pipeline.program import Action, PassKind, Slot


def slice_passes(rank: int, n_microbatches: int, n_slices: int) -> tuple[list[Slot], list[Slot]]:
    """Forwards and backwards of a rank, each in order."""
    starts = range(0, n_microbatches * n_slices, n_slices)
    forwards = [start + k for start in starts for k in range(n_slices)]
    backwards = [start + k for start in starts for k in reversed(range(n_slices))]
    return (
        [(Action(PassKind.FORWARD, number, rank),) for number in forwards],
        [(Action(PassKind.BACKWARD, number, rank),) for number in backwards],
    )
