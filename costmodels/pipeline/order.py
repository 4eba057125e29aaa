"""Writes the order of one rank, counting micro-batches per chunk."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from meshwright.costmodels.pipeline.program import Action, PassKind, Slot


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the model on a rank: its position on the path, and the first of the micro-batches that come to it."""

    position: int
    first_microbatch: int = 0


@dataclass(slots=True)
class RankOrder:
    """The slots of one rank so far. Each call adds the next micro-batch of a chunk, in order of arrival."""

    chunks: tuple[Chunk, ...]
    slots: list[Slot] = field(default_factory=list)
    _forwards: dict[Chunk, int] = field(default_factory=dict)
    _backwards: dict[Chunk, int] = field(default_factory=dict)
    _weights: deque[Action] = field(default_factory=deque)

    def forward(self, chunk: int, times: int = 1) -> None:
        """Adds forwards."""
        for _ in range(times):
            self.slots.append((self._next_forward(chunk),))

    def backward(self, chunk: int, times: int = 1) -> None:
        """Adds full backwards."""
        for _ in range(times):
            self.slots.append((self._next_backward(chunk, PassKind.BACKWARD),))

    def input(self, chunk: int) -> None:
        """Adds the input half of a backward; its weight half waits."""
        action = self._next_backward(chunk, PassKind.INPUT)
        self.slots.append((action,))
        self._weights.append(Action(PassKind.WEIGHT, action.microbatch, action.position))

    def weight(self) -> None:
        """Adds the weight half that has waited longest."""
        self.slots.append((self._weights.popleft(),))

    def weight_of(self, chunk: int) -> None:
        """Adds the weight half of a chunk that has waited longest."""
        action = next(action for action in self._weights if action.position == self.chunks[chunk].position)
        self._weights.remove(action)
        self.slots.append((action,))

    def remaining_weights(self) -> None:
        """Adds all weight halves that wait."""
        while self._weights:
            self.weight()

    def overlapped(self, forward_chunk: int, backward_chunk: int) -> None:
        """Adds a forward and a full backward that run together."""
        self.slots.append((self._next_forward(forward_chunk), self._next_backward(backward_chunk, PassKind.BACKWARD)))

    def held(self) -> int:
        """Forwards whose activations are not free yet."""
        return sum(self._forwards.values()) - sum(self._backwards.values()) + len(self._weights)

    def _next_forward(self, chunk: int) -> Action:
        return _next(self._forwards, self.chunks[chunk], PassKind.FORWARD)

    def _next_backward(self, chunk: int, kind: PassKind) -> Action:
        return _next(self._backwards, self.chunks[chunk], kind)


def _next(counts: dict[Chunk, int], chunk: Chunk, kind: PassKind) -> Action:
    count = counts.get(chunk, 0)
    counts[chunk] = count + 1
    return Action(kind, chunk.first_microbatch + count, chunk.position)
