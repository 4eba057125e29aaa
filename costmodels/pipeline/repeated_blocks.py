"""Orders of a building block of passes that repeats for every micro-batch, on a path along the ranks and back (a V).

Qi et al., Pipeline Parallelism with Controllable Memory (NeurIPS'24).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwright.costmodels.pipeline.program import Action, PassKind, Slot

BLOCK_SLOTS = 6
"""Slots a micro-batch takes on a rank when all passes take one: two chunks, each forward, input and weight."""


@dataclass(slots=True)
class _Lane:
    """The actions that a rank has still to do, and those that it has done."""

    passes: deque[Action]
    weights: deque[Action] = field(default_factory=deque)
    held: int = 0
    slots: list[Slot] = field(default_factory=list)


def repeated_block_orders(
    blocks: Sequence[tuple[int, int, int, int]], n_microbatches: int, *, most_held: int
) -> list[list[Slot]]:
    """Orders of a building block that repeats for every micro-batch.

    A block gives the slots at which a rank forwards on chunks 0 and 1 and backwards on chunks 1 and 0. The order of
    these passes is kept; gaps close as soon as what a pass needs has arrived, and a rank that would wait, or that may hold
    no more, runs a weight half instead. Times are counted in slots, all passes being equal.
    """
    n_ranks = len(blocks)
    lanes = [_Lane(deque(_passes(rank, n_ranks, block, n_microbatches))) for rank, block in enumerate(blocks)]
    done: set[Action] = set()
    while any(lane.passes or lane.weights for lane in lanes):
        chosen = [(lane, action) for lane in lanes if (action := _choose(lane, done, 2 * n_ranks, most_held))]
        assert chosen, "a building block that repeats can't wait for itself"
        for lane, action in chosen:
            lane.slots.append((action,))
            lane.held += (action.kind is PassKind.FORWARD) - (action.kind is PassKind.WEIGHT)
            done.add(action)
            if action.kind is PassKind.INPUT:
                lane.weights.append(action._replace(kind=PassKind.WEIGHT))
    return [lane.slots for lane in lanes]


def _passes(rank: int, n_ranks: int, block: tuple[int, int, int, int], n_microbatches: int) -> list[Action]:
    out, back = rank, 2 * n_ranks - 1 - rank
    chunks = ((PassKind.FORWARD, out), (PassKind.FORWARD, back), (PassKind.INPUT, back), (PassKind.INPUT, out))
    timed = [
        (offset + BLOCK_SLOTS * microbatch, Action(kind, microbatch, position))
        for microbatch in range(n_microbatches)
        for offset, (kind, position) in zip(block, chunks, strict=True)
    ]
    return [action for _, action in sorted(timed)]


def _choose(lane: _Lane, done: set[Action], n_positions: int, most_held: int) -> Action | None:
    """The next pass if it can run now, else a weight half, else nothing."""
    if lane.passes:
        action = lane.passes[0]
        has_room = action.kind is not PassKind.FORWARD or lane.held < most_held
        previous = _previous(action, n_positions)
        if has_room and (previous is None or previous in done):
            return lane.passes.popleft()
    return lane.weights.popleft() if lane.weights else None


def _previous(action: Action, n_positions: int) -> Action | None:
    """Return the action that a forward or input pass waits for; None for the first forward."""
    if action.kind is PassKind.FORWARD:
        return action._replace(position=action.position - 1) if action.position else None
    if action.position == n_positions - 1:
        return action._replace(kind=PassKind.FORWARD)
    return action._replace(position=action.position + 1)
