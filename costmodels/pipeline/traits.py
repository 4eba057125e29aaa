"""The traits of a pipeline schedule: the record that each file of `costmodels.pipeline.schedules` fills in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.dims import SliceShares
from meshwright.costmodels.pipeline.program import Schedule, Slot

MAX_PROGRAM_RANKS = 32
"""Schedules without a closed form are run as programs up to this many ranks (0.2 s of CPU time at 32)."""

IntArray = npt.NDArray[np.int64]
Paths = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PipelineSize:
    """The size of a pipeline; ``n_chunks`` counts where a schedule takes any number of them, ``n_slices`` where it cuts
    sequences."""

    n_ranks: int
    n_microbatches: int
    n_chunks: int = 1
    n_slices: int = 1


@dataclass(frozen=True, slots=True)
class PassShares:
    """Parts of a micro-batch's time on a rank: forward, backward to the input (with recomputation), to the weights."""

    forward: float
    input: float
    weight: float

    def __post_init__(self) -> None:
        if min(self.forward, self.input, self.weight) < 0 or abs(self.forward + self.input + self.weight - 1) > 1e-9:
            raise InvalidInputError("bad shares of a micro-batch", given=self, allowed="three parts of 1")


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of one micro-batch, or token slice, on one part of the model; ``overlapped`` as in `Durations`."""

    forward_s: float
    input_s: float
    weight_s: float
    overlapped: float = 1.0

    @property
    def backward_s(self) -> float:
        """A full backward."""
        return self.input_s + self.weight_s

    @property
    def all_equal(self) -> bool:
        """Return True if the three passes take the same time."""
        return self.forward_s == self.input_s == self.weight_s


class Backward(Enum):
    """The way in which a backward pass runs."""

    WHOLE = auto()
    """Gradients of inputs and of weights in one pass; what a step waits is a multiple of forward and backward together."""
    SPLIT = auto()
    """In two halves at least in part of the step; what a step waits depends on how long each is."""


class SendTiming(Enum):
    """The time at which a rank sends what the next one waits for."""

    BETWEEN_PASSES = auto()
    """In the time of the stage."""
    UNDER_OTHER_CHUNKS = auto()
    """While it runs another chunk of the model; what fills and drains the pipeline shows in full."""
    UNDER_OTHER_MICROBATCHES = auto()
    """While it runs micro-batches that it took on earlier than 1F1B would."""


class HeldMicrobatches(Enum):
    """The micro-batches whose activations a rank holds in a long step."""

    STEADY = auto()
    """As many as in a short one."""
    EVERY = auto()
    """All of the step."""


class ChunkCount(Enum):
    """The side that says how many parts of the model a rank holds."""

    OF_PATH = auto()
    """The schedule's path."""
    ANY = auto()
    """The search: two or more. Micro-batches go through the chunks in groups of as many as there are ranks, so that each part
    of the first rank holds a group before its first backward."""


class PipelineRuntime(Enum):
    """A framework's runtime of pipelines, which has names of its own for the schedules that it runs."""

    MEGATRON_CORE = auto()
    """Functions of megatron.core.pipeline_parallel.schedules."""
    DEEPSPEED = auto()
    """Classes of deepspeed.runtime.pipe.schedule."""
    PYTORCH = auto()
    """Names that get_schedule_class of torch.distributed.pipelining.schedules takes."""
    NANOTRON = auto()
    """Names of nanotron's pp_engine."""


def no_closed_form(*_: object) -> None:
    """Return None for a closed form that is not known: the event program is asked."""
    return


def any_size(_: PipelineSize) -> None:
    """Accept every pipeline."""


def fills_in_two_rounds(size: PipelineSize) -> bool:
    """Return True for two micro-batches a rank, on few enough ranks to run the event program."""
    return 1 < size.n_ranks <= MAX_PROGRAM_RANKS and size.n_microbatches >= 2 * size.n_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSequences:
    """A schedule in which a micro-batch passes a part of the model at once.

    peak_in_flight  [rank, size] most micro-batches whose activations a rank holds
    fills           whether there are the micro-batches to reach the steady state, in which ratios hold
    waiting_ratio   wait over that of 1F1B, None where the event program says it
    held_passes     [rank, size] `costmodels.pipeline.placement.held_passes` of a rank without its event program, None where
                    that is asked
    held            whether a longer step holds more
    """

    peak_in_flight: Callable[[int, PipelineSize], float]
    fills: Callable[[PipelineSize], bool] = fills_in_two_rounds
    waiting_ratio: Callable[[PipelineSize, PassShares], float | None] = no_closed_form
    held_passes: Callable[[int, PipelineSize], IntArray] | None = None
    held: HeldMicrobatches = HeldMicrobatches.STEADY


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSlices:
    """A schedule that cuts each micro-batch along its sequence.

    waiting_ratio   [ranks, micro-batches, shares] wait over that of 1F1B
    held_tokens     [ranks, micro-batches, lengths] most tokens of a sequence whose activations each rank holds
    length_weights  [ranks, micro-batches] what the sum of the slices' times and the longest count, where lengths are chosen
    """

    waiting_ratio: Callable[[int, int, SliceShares], float]
    held_tokens: Callable[[int, int, tuple[int, ...]], tuple[int, ...]]
    length_weights: Callable[[int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTraits:
    """All that is to be known of one schedule.

    schedule      its name in requests and plans
    title         its name in sentences
    paths         [ranks, chunks] the ways of micro-batches: the rank of each position
    orders        what each rank runs, in order
    sequences     its closed forms, by how micro-batches pass
    bubble_s      idle time of the rank that waits most, None where no closed form is exact
    require       raises InvalidInputError where it is not defined
    chunk_count   who says how many parts a rank holds
    backward      how a backward pass runs
    sends         when a rank sends
    pairs_passes  whether it runs forwards beside backwards of other micro-batches, so that each hides what the other sends
    no_better_than  a schedule that takes no longer and holds no more, None where there is none
    run_by        runtimes that run it, each with its own name of it
    """

    schedule: Schedule
    title: str
    paths: Callable[[int, int], Paths]
    orders: Callable[[PipelineSize], list[list[Slot]]]
    sequences: WholeSequences | TokenSlices
    bubble_s: Callable[[PipelineSize, PassTimes], float | None] = no_closed_form
    require: Callable[[PipelineSize], None] = any_size
    chunk_count: ChunkCount = ChunkCount.OF_PATH
    backward: Backward = Backward.WHOLE
    sends: SendTiming = SendTiming.BETWEEN_PASSES
    pairs_passes: bool = False
    no_better_than: Schedule | None = None
    run_by: tuple[tuple[PipelineRuntime, str], ...] = ()


def along(n_ranks: int, _: int) -> Paths:
    """Return the path from the first rank to the last."""
    return (tuple(range(n_ranks)),)


def along_in_chunks(n_ranks: int, n_chunks: int) -> Paths:
    """Return the path from the first rank to the last, once for each chunk."""
    return (tuple(range(n_ranks)) * n_chunks,)


def out_and_back(n_ranks: int, _: int) -> Paths:
    """Return the path from the first rank to the last and back: a V, two chunks a rank."""
    out = tuple(range(n_ranks))
    return (out + out[::-1],)


def from_both_ends(n_ranks: int, _: int) -> Paths:
    """Return two paths: half of the micro-batches go from the first rank to the last, half from the last to the first."""
    out = tuple(range(n_ranks))
    return out, out[::-1]


def fill_and_drain_s(size: PipelineSize, times: PassTimes) -> float:
    """Return the bubble of schedules whose ranks wait for the first forward and the last backward of the others alone.

    Multi-GPU lecture; Megatron-LM SC'21 section 2.2.2: its (p-1)(F+B)/v, F and B there being v chunks'.
    """
    return (size.n_ranks - 1) * (times.forward_s + times.backward_s)


def fills_in_one_chunk(size: PipelineSize) -> bool:
    """Return True for any pipeline of one chunk a rank."""
    return size.n_chunks == 1


def waits_as_1f1b(_: PipelineSize, __: PassShares) -> float:
    """Return 1 (multi-GPU lecture)."""
    return 1.0


# Moments of a step in which a rank may need most memory.


def undominated(held: IntArray) -> IntArray:
    """Distinct rows ``[moment, part]`` but for those of which another row is at least as large in every column."""
    rows = np.unique(held, axis=0)
    at_least = np.all(rows[None, :, :] >= rows[:, None, :], axis=2)
    np.fill_diagonal(at_least, False)
    return np.asarray(rows[~at_least.any(axis=1)])
