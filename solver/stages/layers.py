"""Splits a chain of blocks over the stages of a pipeline of given length, each stage with its own recompute config.

The special case of `solver.stages.partition` that the outer search asks thousands of times: the devices of each stage
are fixed, so that costs are sums over blocks, and the optimum takes about a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.errors import InvalidInputError
from solver.stages.layer_kernels import least_rest, least_shortage, least_tail, memory_reach
from solver.stages.longest import Found, least_objective

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LayerStage:
    """A stage: blocks ``first`` to ``last`` (inclusive) under ``config``, its steady time, extra and peak memory."""

    first: int
    last: int
    config: int
    time_s: float
    extra_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class LayerPartition:
    """The best split: its stages in order, the time of a step, a proven lower bound on it, and the limits tried."""

    stages: tuple[LayerStage, ...]
    objective_s: float
    bound_s: float
    limits_tried: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """The stage that is worst off in the split that lacks least: what it needs, and what it has."""

    stage: int
    need_bytes: float
    have_bytes: float


def partition_layers(
    *,
    time_s: ArrayLike,
    static_bytes: ArrayLike,
    activation_bytes: ArrayLike,
    transient_bytes: ArrayLike,
    extra_s: ArrayLike,
    boundary_s: float,
    time_scale: ArrayLike,
    capacity_bytes: ArrayLike,
    in_flight: ArrayLike,
    n_microbatches: int,
) -> LayerPartition | None:
    """The split of a chain of blocks over a pipeline that takes least time a step; None when none fits in memory.

    time_s            [config, block] steady time of one micro-batch, forward and backward
    static_bytes      [block] weights, gradients and optimizer state
    activation_bytes  [config, block] kept from forward to backward, for each micro-batch in flight
    transient_bytes   [config, block] needed only while the block runs; a stage needs the largest of its blocks
    extra_s           [block] what the block adds once a step: optimizer, gradient reduction
    boundary_s        added to the time of every stage: sending activations and gradients on
    time_scale        [stage] factor on the blocks' time there: 2 means half as fast
    capacity_bytes    [stage] memory that may be used
    in_flight         [stage] micro-batches held at once, as the schedule counts them

    Stage i takes ``t_i = time_scale[i] * sum time + boundary_s`` and needs ``sum static + in_flight[i] * sum activation
    + max transient``. Every stage holds at least one block. The objective is `solver.stages.longest.objective_s`, solved
    exactly up to the rounding of float sums; ``bound_s`` equals it. Equal splits: the first one in a fixed order of search.

    Raises InvalidInputError when shapes disagree or a figure is negative or not finite (capacity may be infinite).
    """
    chain = _Chain.read(time_s, static_bytes, activation_bytes, transient_bytes, extra_s)
    slots = _Slots.read(capacity_bytes, in_flight, time_scale)
    if n_microbatches < 1:
        raise InvalidInputError("bad number of micro-batches", given=n_microbatches, allowed="1 or more")
    if not 0 <= boundary_s < np.inf:
        raise InvalidInputError("bad time between stages", given=boundary_s, allowed="0 or more, finite")
    if len(slots.capacity_bytes) > chain.n_blocks:
        return None

    fits = memory_reach(*chain.memory, slots.capacity_bytes, slots.in_flight)
    rest_s = least_rest(chain.time_s, slots.time_scale, float(boundary_s))

    def solve_within(limit_s: float, below_s: float) -> Found[list[LayerStage]] | None:
        tail_s, ends, configs = least_tail(
            chain.cumulative_time_s,
            chain.cumulative_extra_s,
            slots.time_scale,
            float(boundary_s),
            fits,
            rest_s,
            limit_s,
            below_s,
        )
        if not tail_s < below_s:
            return None
        stages = _stages(chain, slots, boundary_s, ends, configs)
        return Found(max(stage.time_s for stage in stages), tail_s, stages)

    best = least_objective(solve_within, n_microbatches)
    if best is None:
        return None
    return LayerPartition(tuple(best.choice), best.objective_s, best.objective_s, best.limits_tried)


def memory_shortage(
    *,
    static_bytes: ArrayLike,
    activation_bytes: ArrayLike,
    transient_bytes: ArrayLike,
    capacity_bytes: ArrayLike,
    in_flight: ArrayLike,
) -> Shortage | None:
    """How near the chain comes to fitting: the least, over splits and configs, of the largest need less capacity.

    Arguments as in `partition_layers`. Exact. When everything fits, the answer is the stage with the least room to spare
    in the roomiest split. None when there are more stages than blocks. Raises InvalidInputError as `partition_layers`.
    """
    activation = np.asarray(activation_bytes, np.float64)
    n_blocks = np.asarray(static_bytes).shape[0]
    chain = _Chain.read(np.zeros(activation.shape), static_bytes, activation, transient_bytes, np.zeros(n_blocks))
    capacity = np.asarray(capacity_bytes, np.float64)
    slots = _Slots.read(capacity, in_flight, np.ones(capacity.shape))
    if len(capacity) > chain.n_blocks:
        return None
    ends, configs = least_shortage(*chain.memory, slots.capacity_bytes, slots.in_flight)
    stages = _stages(chain, slots, 0.0, ends, configs)
    shorts = [stage.memory_bytes - have for stage, have in zip(stages, slots.capacity_bytes, strict=True)]
    worst = int(np.argmax(shorts))
    return Shortage(worst, stages[worst].memory_bytes, float(slots.capacity_bytes[worst]))


@dataclass(frozen=True, slots=True)
class _Chain:
    """Costs of the blocks, with the running sums that make the cost of a segment a difference."""

    n_blocks: int
    time_s: Floats
    cumulative_time_s: Floats
    cumulative_extra_s: Floats
    cumulative_static_bytes: Floats
    cumulative_activation_bytes: Floats
    transient_bytes: Floats

    @property
    def memory(self) -> tuple[Floats, Floats, Floats]:
        """What the kernels take of memory: running sums of static and activation bytes, and transient bytes."""
        return self.cumulative_static_bytes, self.cumulative_activation_bytes, self.transient_bytes

    @staticmethod
    def read(
        time_s: ArrayLike, static: ArrayLike, activation: ArrayLike, transient: ArrayLike, extra_s: ArrayLike
    ) -> _Chain:
        """Checks the figures of the blocks and sums them up."""
        time = np.ascontiguousarray(time_s, np.float64)
        if time.ndim != 2 or 0 in time.shape:
            raise InvalidInputError("bad shape of time_s", given=time.shape, allowed="[config, block], none empty")
        shape = time.shape
        return _Chain(
            shape[1],
            _checked("time_s", time, shape),
            _running_sum(time),
            _running_sum(_checked("extra_s", extra_s, shape[1:])),
            _running_sum(_checked("static_bytes", static, shape[1:])),
            _running_sum(_checked("activation_bytes", activation, shape)),
            _checked("transient_bytes", transient, shape),
        )


@dataclass(frozen=True, slots=True)
class _Slots:
    """What each position of the pipeline offers."""

    capacity_bytes: Floats
    in_flight: Ints
    time_scale: Floats

    @staticmethod
    def read(capacity_bytes: ArrayLike, in_flight: ArrayLike, time_scale: ArrayLike) -> _Slots:
        """Checks the figures of the stages."""
        capacity = np.ascontiguousarray(capacity_bytes, np.float64)
        if capacity.ndim != 1 or not len(capacity) or np.isnan(capacity).any() or (capacity < 0).any():
            raise InvalidInputError("bad capacity_bytes", given=capacity_bytes, allowed="[stage], 0 or more, not empty")
        held = np.ascontiguousarray(in_flight)
        if held.shape != capacity.shape or not np.issubdtype(held.dtype, np.integer) or (held < 1).any():
            raise InvalidInputError("bad in_flight", given=in_flight, allowed="[stage], integers of 1 or more")
        return _Slots(capacity, held.astype(np.int64), _checked("time_scale", time_scale, capacity.shape))


def _checked(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Floats:
    array = np.ascontiguousarray(values, np.float64)
    if array.shape != shape:
        raise InvalidInputError(f"bad shape of {name}", given=array.shape, allowed=str(shape))
    if not np.isfinite(array).all() or (array < 0).any():
        raise InvalidInputError(f"bad figure in {name}", given=float(array.min()), allowed="0 or more, finite")
    return array


def _running_sum(values: Floats) -> Floats:
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def _stages(chain: _Chain, slots: _Slots, boundary_s: float, ends: Ints, configs: Ints) -> list[LayerStage]:
    stages = []
    first = 0
    for i, (end, config) in enumerate(zip(ends.tolist(), configs.tolist(), strict=True)):
        blocks_s = float(chain.cumulative_time_s[config, end] - chain.cumulative_time_s[config, first])
        extra_s = float(chain.cumulative_extra_s[end] - chain.cumulative_extra_s[first])
        static = float(chain.cumulative_static_bytes[end] - chain.cumulative_static_bytes[first])
        activation = chain.cumulative_activation_bytes[config, end] - chain.cumulative_activation_bytes[config, first]
        transient = float(chain.transient_bytes[config, first:end].max())
        memory = static + float(slots.in_flight[i] * activation) + transient
        time_s = float(slots.time_scale[i]) * blocks_s + boundary_s
        stages.append(LayerStage(first, end - 1, config, time_s, extra_s, memory))
        first = end
    return stages
