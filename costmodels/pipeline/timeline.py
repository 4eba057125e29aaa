"""Runs a pipeline program: when each slot starts and ends, the makespan and the bubble."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.dims import SliceShares
from meshwright.costmodels.pipeline.program import Action, PassKind, Program, Slot


class Sends(Enum):
    """The way in which the sends of a rank share its port. A rank computes on while it sends, and while what it waits for is on
    its way."""

    TOGETHER = auto()
    """Each takes its own time, however many there are."""
    IN_TURN = auto()
    """One after another, in the order in which their passes end."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds that one micro-batch takes, by position on its path.

    forward_s   [position] forward
    input_s     [position] backward with respect to the input
    weight_s    [position] backward with respect to the weights; a full backward takes the sum of both
    send_s      [position - 1] from a position to the next or back, if they are on different ranks; the sender goes on
    overlapped  time of a forward and a backward that run together, as a fraction of their sum: 1 means nothing is saved
    sends       how sends share a rank's port
    slices      parts of these times that each token slice takes, where micro-batches are cut into slices
    """

    forward_s: Sequence[float]
    input_s: Sequence[float]
    weight_s: Sequence[float]
    send_s: Sequence[float]
    overlapped: float = 1.0
    sends: Sends = Sends.TOGETHER
    slices: SliceShares | None = None

    def __post_init__(self) -> None:
        n = len(self.forward_s)
        lengths = (n, len(self.input_s), len(self.weight_s), len(self.send_s) + 1)
        if n < 1 or len(set(lengths)) > 1:
            raise InvalidInputError("durations disagree in length", given=lengths, allowed="one a position, one send less")
        if not all(value >= 0 for values in (self.forward_s, self.input_s, self.weight_s, self.send_s) for value in values):
            raise InvalidInputError("bad duration", allowed="0 or more")
        if not 0.5 <= self.overlapped <= 1:
            raise InvalidInputError("bad fraction of overlapped time", given=self.overlapped, allowed="0.5 to 1")

    @staticmethod
    def equal(
        n_positions: int,
        *,
        forward_s: float,
        input_s: float,
        weight_s: float,
        send_s: float = 0.0,
        overlapped: float = 1.0,
        sends: Sends = Sends.TOGETHER,
    ) -> Durations:
        """The same durations at every position."""
        return Durations(
            (forward_s,) * n_positions,
            (input_s,) * n_positions,
            (weight_s,) * n_positions,
            (send_s,) * (n_positions - 1),
            overlapped,
            sends,
        )

    def slot_s(self, slot: Slot) -> float:
        """Time of a slot."""
        total_s = sum(self._action_s(action) for action in slot)
        return total_s if len(slot) == 1 else self.overlapped * total_s

    def slice_share(self, action: Action) -> float:
        """The part of its micro-batch's pass that an action is: 1 unless it is of a token slice."""
        if self.slices is None:
            return 1.0
        shares = self.slices.forward if action.kind is PassKind.FORWARD else self.slices.backward
        return shares[action.microbatch % len(shares)] / sum(shares)

    def _action_s(self, action: Action) -> float:
        return self.slice_share(action) * self._pass_s(action)

    def _pass_s(self, action: Action) -> float:
        match action.kind:
            case PassKind.FORWARD:
                return self.forward_s[action.position]
            case PassKind.INPUT:
                return self.input_s[action.position]
            case PassKind.WEIGHT:
                return self.weight_s[action.position]
            case PassKind.BACKWARD:
                return self.input_s[action.position] + self.weight_s[action.position]


@dataclass(frozen=True, slots=True)
class TimedSlot:
    """A slot with its start and end, in seconds from the start of the step."""

    slot: Slot
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of each rank, in order."""

    ranks: tuple[tuple[TimedSlot, ...], ...]

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end over all ranks."""
        return max(spans[-1].end_s for spans in self.ranks) - min(spans[0].start_s for spans in self.ranks)

    def busy_s(self, rank: int) -> float:
        """Time in which a rank computes."""
        return sum(span.end_s - span.start_s for span in self.ranks[rank])

    def idle_s(self, rank: int) -> float:
        """Time in which a rank waits between its own first start and its own last end."""
        return self.ranks[rank][-1].end_s - self.ranks[rank][0].start_s - self.busy_s(rank)

    @property
    def bubble_s(self) -> float:
        """Most idle time of a rank, as the zero-bubble papers count it.

        Waiting for the first micro-batch or for the slowest rank at the end is not in it: ranks of a steady stream of
        steps start staggered. A program that synchronises all ranks at the end of a step takes `makespan_s`.
        """
        return max(self.idle_s(rank) for rank in range(len(self.ranks)))


def simulate(program: Program, durations: Durations) -> Timeline:
    """Runs every slot as soon as its rank is free and what it needs has arrived.

    A forward needs the forward at the position before; a backward the one at the position behind, and its own forward; a
    weight gradient its own input gradient. What token slices of a micro-batch need of one another on a rank its order keeps.
    Raises InvalidInputError when durations don't match the program, or when its order can't be run.
    """
    if durations.slices is not None and len(durations.slices.forward) != program.n_slices:
        given = len(durations.slices.forward)
        raise InvalidInputError("durations don't match the program", given=given, allowed=f"{program.n_slices} token slices")
    if len(durations.forward_s) != program.n_positions:
        raise InvalidInputError(
            "durations don't match the program", given=len(durations.forward_s), allowed=f"{program.n_positions} positions"
        )
    # When what an action gives is there: on its own rank, and on the rank that it is sent to.
    here_s: dict[Action, float] = {}
    received_s: dict[Action, float] = {}
    port_free_s = [0.0] * program.n_ranks
    waiting: dict[Action, int] = {}
    spans: list[list[TimedSlot]] = [[] for _ in program.orders]
    free_s = [0.0] * program.n_ranks
    ready = deque(range(program.n_ranks))
    while ready:
        rank = ready.popleft()
        order = program.orders[rank]
        while len(spans[rank]) < len(order):
            slot = order[len(spans[rank])]
            needs = [need for action in slot for need in _needs(program, action)]
            missing = next((need for need, _ in needs if need not in here_s), None)
            if missing is not None:
                waiting[missing] = rank
                break
            start_s = free_s[rank]
            for need, crosses in needs:
                start_s = max(start_s, received_s[need] if crosses else here_s[need])
            free_s[rank] = start_s + durations.slot_s(slot)
            spans[rank].append(TimedSlot(slot, start_s, free_s[rank]))
            for action in slot:
                done = _gives(action)
                here_s[done] = free_s[rank]
                boundary = _crossed(program, done)
                if boundary is not None:
                    leaves_s = max(free_s[rank], port_free_s[rank]) if durations.sends is Sends.IN_TURN else free_s[rank]
                    received_s[done] = port_free_s[rank] = leaves_s + durations.slice_share(done) * durations.send_s[boundary]
                if done in waiting:
                    ready.append(waiting.pop(done))
    if waiting:
        raise InvalidInputError("the order of a pipeline program waits for itself", given=next(iter(waiting)))
    return Timeline(tuple(tuple(of_rank) for of_rank in spans))


def _gives(action: Action) -> Action:
    """Return the action that others wait for: a full backward gives the input's gradient, too."""
    return action._replace(kind=PassKind.INPUT) if action.kind is PassKind.BACKWARD else action


def _crossed(program: Program, done: Action) -> int | None:
    """The boundary over which what an action gives goes on, None where it stays on the rank or nothing does."""
    if done.kind is PassKind.WEIGHT:
        return None
    after = done.position + (1 if done.kind is PassKind.FORWARD else -1)
    if not 0 <= after < program.n_positions:
        return None
    stays = program.rank_of(done.microbatch, after) == program.rank_of(done.microbatch, done.position)
    return None if stays else min(after, done.position)


def _needs(program: Program, action: Action) -> list[tuple[Action, bool]]:
    """Return the actions that an action waits for, each with True if it comes from another rank."""
    kind, microbatch, position = action
    if kind is PassKind.WEIGHT:
        return [(Action(PassKind.INPUT, microbatch, position), False)]
    step = -1 if kind is PassKind.FORWARD else 1
    before = position + step
    needs: list[tuple[Action, bool]] = []
    if 0 <= before < program.n_positions:
        need = Action(PassKind.FORWARD if kind is PassKind.FORWARD else PassKind.INPUT, microbatch, before)
        needs.append((need, _crossed(program, need) is not None))
    if kind is not PassKind.FORWARD:
        needs.append((Action(PassKind.FORWARD, microbatch, position), False))
    return needs
