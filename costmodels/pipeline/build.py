"""Builds the program of a schedule."""

from __future__ import annotations

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline.program import Program, Schedule
from meshwright.costmodels.pipeline.schedules.table import TOKEN_SLICED, TRAITS
from meshwright.costmodels.pipeline.traits import PipelineSize


def build(schedule: Schedule, n_ranks: int, n_microbatches: int, *, n_chunks: int = 2, n_slices: int = 2) -> Program:
    """The program of a schedule on ``n_ranks`` ranks.

    ``n_chunks`` counts for schedules of any number of chunks only, ``n_slices`` for those of token slices. Raises
    InvalidInputError where a schedule is not defined, as its traits say: interleaved 1F1B needs two chunks or more and
    micro-batches in multiples of ranks; DualPipe an even number of ranks and of micro-batches, and twice as many micro-batches
    as ranks; DualPipeV as many micro-batches as DualPipe on twice the ranks has in one direction.
    """
    slices = n_slices if schedule in TOKEN_SLICED else 1
    size = valid_size(schedule, n_ranks, n_microbatches, n_chunks, n_slices=slices)
    if slices < 1:
        raise InvalidInputError("bad number of token slices", given=slices, allowed="1 or more")
    traits = TRAITS[schedule]
    paths = traits.paths(n_ranks, n_chunks)
    per_path = n_microbatches // len(paths)
    path_of = tuple(microbatch // per_path for microbatch in range(n_microbatches) for _ in range(slices))
    return Program(schedule, paths, path_of, tuple(tuple(order) for order in traits.orders(size)), slices)


def valid_size(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int = 2, *, n_slices: int = 1) -> PipelineSize:
    """A pipeline's size; raises InvalidInputError where the schedule is not defined on it, see `build`."""
    if n_ranks < 1 or n_microbatches < 1:
        raise InvalidInputError("bad pipeline", given=(n_ranks, n_microbatches), allowed="1 or more ranks and micro-batches")
    size = PipelineSize(n_ranks, n_microbatches, n_chunks, n_slices)
    TRAITS[schedule].require(size)
    return size
