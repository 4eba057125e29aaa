"""Builds the program of a schedule."""

from __future__ import annotations

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline.bidirectional import dualpipe_order, dualpipe_v_order
from meshwright.costmodels.pipeline.linear import gpipe_order, interleaved_order, one_f_one_b_order, zero_bubble_order
from meshwright.costmodels.pipeline.program import TOKEN_SLICED, Program, Schedule, Slot
from meshwright.costmodels.pipeline.token_slices import seq_1f1b_order, terapipe_order
from meshwright.costmodels.pipeline.vshape import v_half_orders, v_min_orders, zb_v_order

_V_SHAPED = (Schedule.ZB_V, Schedule.V_HALF, Schedule.V_MIN, Schedule.DUALPIPE_V)


def chunks_per_rank(schedule: Schedule, n_chunks: int = 2) -> int:
    """Parts of the model that a micro-batch passes on each rank; ``n_chunks`` counts for the interleaved schedule only."""
    if schedule is Schedule.INTERLEAVED:
        return n_chunks
    return 2 if schedule in _V_SHAPED else 1


def build(schedule: Schedule, n_ranks: int, n_microbatches: int, *, n_chunks: int = 2, n_slices: int = 2) -> Program:
    """The program of a schedule on ``n_ranks`` ranks.

    ``n_chunks`` counts for the interleaved schedule only, ``n_slices`` for those of token slices. Raises InvalidInputError
    where a schedule is not defined: interleaved 1F1B needs two chunks or more and micro-batches in multiples of ranks;
    DualPipe an even number of ranks and of micro-batches, and twice as many micro-batches as ranks; DualPipeV as many
    micro-batches as DualPipe on twice the ranks has in one direction.
    """
    require_valid(schedule, n_ranks, n_microbatches, n_chunks)
    slices = n_slices if schedule in TOKEN_SLICED else 1
    if slices < 1:
        raise InvalidInputError("bad number of token slices", given=slices, allowed="1 or more")
    paths = _paths(schedule, n_ranks, n_chunks)
    per_path = n_microbatches // len(paths)
    path_of = tuple(microbatch // per_path for microbatch in range(n_microbatches) for _ in range(slices))
    orders = _orders(schedule, n_ranks, n_microbatches, n_chunks, slices)
    return Program(schedule, paths, path_of, tuple(tuple(order) for order in orders), slices)


def require_valid(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int = 2) -> None:
    """Raises InvalidInputError where a schedule is not defined; see `build`."""
    if n_ranks < 1 or n_microbatches < 1:
        raise InvalidInputError("bad pipeline", given=(n_ranks, n_microbatches), allowed="1 or more ranks and micro-batches")
    if schedule is Schedule.INTERLEAVED and (n_chunks < 2 or n_microbatches % n_ranks):
        raise InvalidInputError(
            "interleaved 1F1B can't run this",
            given=f"{n_chunks} chunks, {n_microbatches} micro-batches on {n_ranks} ranks",
            allowed="2 or more chunks, micro-batches in multiples of ranks",
        )
    if schedule is Schedule.DUALPIPE and (n_ranks % 2 or n_microbatches % 2 or n_microbatches < 2 * n_ranks):
        raise InvalidInputError(
            "DualPipe can't run this",
            given=f"{n_microbatches} micro-batches on {n_ranks} ranks",
            allowed="both even, at least 2 micro-batches a rank",
        )
    if schedule is Schedule.DUALPIPE_V and n_microbatches < 2 * n_ranks:
        raise InvalidInputError(
            "DualPipeV can't run this",
            given=f"{n_microbatches} micro-batches on {n_ranks} ranks",
            allowed="at least 2 micro-batches a rank",
        )


def _paths(schedule: Schedule, n_ranks: int, n_chunks: int) -> tuple[tuple[int, ...], ...]:
    along = tuple(range(n_ranks))
    if schedule is Schedule.DUALPIPE:
        return along, along[::-1]
    if schedule in _V_SHAPED:
        return (along + along[::-1],)
    return (along * chunks_per_rank(schedule, n_chunks),)


def _orders(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int, n_slices: int) -> list[list[Slot]]:
    match schedule:
        case Schedule.V_HALF:
            return v_half_orders(n_ranks, n_microbatches)
        case Schedule.V_MIN:
            return v_min_orders(n_ranks, n_microbatches)
        case Schedule.TERAPIPE:
            return [terapipe_order(rank, n_microbatches, n_slices) for rank in range(n_ranks)]
        case Schedule.SEQ_1F1B:
            return [seq_1f1b_order(rank, n_ranks, n_microbatches, n_slices) for rank in range(n_ranks)]
        case _:
            return [_order(schedule, rank, n_ranks, n_microbatches, n_chunks) for rank in range(n_ranks)]


def _order(schedule: Schedule, rank: int, n_ranks: int, n_microbatches: int, n_chunks: int) -> list[Slot]:
    to_end = n_ranks - rank
    match schedule:
        case Schedule.GPIPE:
            return gpipe_order(rank, n_microbatches)
        case Schedule.ONE_F_ONE_B:
            return one_f_one_b_order(rank, n_microbatches, warmup=to_end)
        case Schedule.EAGER_ONE_F_ONE_B:
            return one_f_one_b_order(rank, n_microbatches, warmup=2 * to_end - 1)
        case Schedule.INTERLEAVED:
            return interleaved_order(rank, n_ranks, n_microbatches, n_chunks)
        case Schedule.ZB_H1:
            return zero_bubble_order(rank, n_microbatches, warmup=to_end, most_held=n_ranks)
        case Schedule.ZB_H2:
            return zero_bubble_order(rank, n_microbatches, warmup=2 * to_end - 1, most_held=2 * n_ranks - 1)
        case Schedule.ZB_V:
            return zb_v_order(rank, n_ranks, n_microbatches)
        case Schedule.DUALPIPE:
            return dualpipe_order(rank, n_ranks, n_microbatches)
        case Schedule.DUALPIPE_V:
            return dualpipe_v_order(rank, n_ranks, n_microbatches)
    raise AssertionError(schedule)
