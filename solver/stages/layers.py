"""Splits a chain of blocks over the stages of a pipeline of given length, each stage with its own recompute config.

The special case of `solver.stages.partition` that the outer search asks thousands of times: the devices of each stage
are fixed, so that costs are sums over blocks, and the optimum takes about a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.costmodels.compiling import compiled_once_it_pays
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.stages.longest import FoundPartition, least_objective
from meshwright.solver.stages.pinned import Pinned, reach

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
    boundary_s: ArrayLike,
    capacity_bytes: ArrayLike,
    in_flight: ArrayLike,
    n_microbatches: int,
    step_s: ArrayLike = 0.0,
    beside_s: ArrayLike = 0.0,
    waiting: float = 1.0,
    parameters: ArrayLike = 0.0,
    most_parameters: float = math.inf,
    pinned: Sequence[Pinned] = (),
) -> LayerPartition | None:
    """The split of a chain of blocks over a pipeline that takes least time a step; None when none fits in memory.

    time_s            [config, block] or [stage, config, block] steady time of one micro-batch, forward and backward
    static_bytes      [block] weights, gradients and optimizer state
    activation_bytes  [config, block] kept from forward to backward, for each micro-batch in flight
    transient_bytes   [config, block] needed only while the block runs; a stage needs the largest of its blocks
    extra_s           [block] or [stage, block] what the block adds once a step: optimizer, gradient reduction
    boundary_s        one figure or [stage], added to the time of a stage: sending activations and gradients on
    step_s            one figure or [stage], added to the extra of a stage
    beside_s          one figure or [stage]: sending that goes on beside the compute of other micro-batches
    capacity_bytes    [stage] memory that may be used
    in_flight         [stage] micro-batches held at once, as the schedule counts them
    waiting           how long the schedule waits, over 1F1B (`costmodels.pipeline.waiting_ratio`), up to n_microbatches
    parameters        [block], of which no stage holds more than ``most_parameters``
    pinned            blocks that lie on a stage that is named

    Stage i takes ``t_i = max(sum time + boundary_s, beside_s)``, hiding the smaller of the two, with an extra of ``d_i = sum
    extra + step_s``, and needs ``sum static + in_flight[i] * sum activation + max transient``. Every stage holds at least one
    block. The objective is
    `solver.stages.longest.objective_s`, solved exactly up to the rounding of float sums; ``bound_s`` equals it. Equal
    splits: the first one in a fixed order of search.

    Raises InvalidInputError when shapes disagree or a figure is negative or not finite (capacity may be infinite).
    """
    chain = _Chain.read(static_bytes, activation_bytes, transient_bytes)
    slots = _Slots.read(capacity_bytes, in_flight)
    clock = _Clock.read(time_s, extra_s, boundary_s, step_s, beside_s, n_stages=len(slots.capacity_bytes), chain=chain)
    if n_microbatches < 1:
        raise InvalidInputError("bad number of micro-batches", given=n_microbatches, allowed="1 or more")
    if not 0.0 <= waiting <= n_microbatches:
        raise InvalidInputError("bad waiting", given=waiting, allowed=f"0 to n_microbatches = {n_microbatches}")
    if len(slots.capacity_bytes) > chain.n_blocks:
        return None

    fits = memory_reach(*chain.memory, slots.capacity_bytes, slots.in_flight)
    if math.isfinite(most_parameters):
        before = _running_sum(_checked("parameters", parameters, (chain.n_blocks,)))
        fits = np.minimum(fits, np.searchsorted(before, before[:-1] + most_parameters, side="right") - 1)
    if pinned:
        fits = np.minimum(fits, reach(pinned, len(slots.capacity_bytes), chain.n_blocks)[:, None])
    passing_s = clock.boundary_s + clock.beside_s
    rest_s = waiting * least_rest(clock.time_s, passing_s)
    shortest_s = float(clock.beside_s.max())

    def solve_within(limit_s: float, below_s: float) -> FoundPartition[list[LayerStage]] | None:
        if limit_s < shortest_s:
            return None
        tail_s, ends, configs = least_tail(
            clock.cumulative_time_s,
            clock.cumulative_extra_s,
            clock.boundary_s,
            passing_s,
            clock.step_s,
            fits,
            rest_s,
            waiting,
            limit_s,
            below_s,
        )
        if not tail_s < below_s:
            return None
        stages = _stages(chain, slots, clock, ends, configs)
        return FoundPartition(max(stage.time_s for stage in stages), tail_s, stages)

    best = least_objective(solve_within, n_microbatches, waiting=waiting)
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
    """Return the shortage of the split that comes nearest to fitting: the least, over splits and configs, of the largest need
    less capacity.

    Arguments as in `partition_layers`. Exact. When everything fits, the answer is the stage with the least room to spare
    in the roomiest split. None when there are more stages than blocks. Raises InvalidInputError as `partition_layers`.
    """
    chain = _Chain.read(static_bytes, activation_bytes, transient_bytes)
    slots = _Slots.read(capacity_bytes, in_flight)
    n_stages = len(slots.capacity_bytes)
    if n_stages > chain.n_blocks:
        return None
    idle = np.zeros(chain.transient_bytes.shape)
    clock = _Clock.read(idle, np.zeros(chain.n_blocks), 0.0, 0.0, 0.0, n_stages=n_stages, chain=chain)
    ends, configs = least_shortage(*chain.memory, slots.capacity_bytes, slots.in_flight)
    stages = _stages(chain, slots, clock, ends, configs)
    shorts = [stage.memory_bytes - have for stage, have in zip(stages, slots.capacity_bytes, strict=True)]
    worst = int(np.argmax(shorts))
    return Shortage(worst, stages[worst].memory_bytes, float(slots.capacity_bytes[worst]))


@dataclass(frozen=True, slots=True)
class _Chain:
    """Memory of the blocks, with the running sums that make the need of a segment a difference."""

    n_blocks: int
    cumulative_static_bytes: Floats
    cumulative_activation_bytes: Floats
    transient_bytes: Floats

    @property
    def memory(self) -> tuple[Floats, Floats, Floats]:
        """The memory figures that the kernels take: running sums of static and activation bytes, and transient bytes."""
        return self.cumulative_static_bytes, self.cumulative_activation_bytes, self.transient_bytes

    @staticmethod
    def read(static: ArrayLike, activation: ArrayLike, transient: ArrayLike) -> _Chain:
        """Checks the figures of the blocks and sums them up."""
        held = np.ascontiguousarray(activation, np.float64)
        if held.ndim != 2 or 0 in held.shape:
            raise InvalidInputError("bad shape of activation_bytes", given=held.shape, allowed="[config, block], none empty")
        shape = held.shape
        return _Chain(
            shape[1],
            _running_sum(_checked("static_bytes", static, shape[1:])),
            _running_sum(_checked("activation_bytes", held, shape)),
            _checked("transient_bytes", transient, shape),
        )


@dataclass(frozen=True, slots=True)
class _Clock:
    """Times of the blocks on each stage ``[P, C, L]``, extras ``[P, L]``, with running sums, and figures of each stage."""

    time_s: Floats
    cumulative_time_s: Floats
    cumulative_extra_s: Floats
    boundary_s: Floats
    step_s: Floats
    beside_s: Floats

    @staticmethod
    def read(
        time_s: ArrayLike,
        extra_s: ArrayLike,
        boundary_s: ArrayLike,
        step_s: ArrayLike,
        beside_s: ArrayLike,
        *,
        n_stages: int,
        chain: _Chain,
    ) -> _Clock:
        """Checks the figures; what is the same on all stages is repeated for each."""
        shape = (n_stages, *chain.transient_bytes.shape)
        time = _on_each_stage("time_s", time_s, shape)
        return _Clock(
            time,
            _running_sum(time),
            _running_sum(_on_each_stage("extra_s", extra_s, (n_stages, chain.n_blocks))),
            _on_each_stage("boundary_s", boundary_s, (n_stages,)),
            _on_each_stage("step_s", step_s, (n_stages,)),
            _on_each_stage("beside_s", beside_s, (n_stages,)),
        )


@dataclass(frozen=True, slots=True)
class _Slots:
    """The capacity and the micro-batches in flight of each position of the pipeline."""

    capacity_bytes: Floats
    in_flight: Ints

    @staticmethod
    def read(capacity_bytes: ArrayLike, in_flight: ArrayLike) -> _Slots:
        """Checks the figures of the stages."""
        capacity = np.ascontiguousarray(capacity_bytes, np.float64)
        if capacity.ndim != 1 or not len(capacity) or np.isnan(capacity).any() or (capacity < 0).any():
            raise InvalidInputError("bad capacity_bytes", given=capacity_bytes, allowed="[stage], 0 or more, not empty")
        held = np.ascontiguousarray(in_flight)
        if held.shape != capacity.shape or not np.issubdtype(held.dtype, np.integer) or (held < 1).any():
            raise InvalidInputError("bad in_flight", given=in_flight, allowed="[stage], integers of 1 or more")
        return _Slots(capacity, held.astype(np.int64))


def _on_each_stage(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Checked figures, those without the stage dim repeated for each stage."""
    array = np.asarray(values, np.float64)
    return _checked(name, np.broadcast_to(array, shape) if array.shape == shape[1:] else array, shape)


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


def _stages(chain: _Chain, slots: _Slots, clock: _Clock, ends: Ints, configs: Ints) -> list[LayerStage]:
    stages = []
    first = 0
    for i, (end, config) in enumerate(zip(ends.tolist(), configs.tolist(), strict=True)):
        blocks_s = clock.cumulative_time_s[i, config, end] - clock.cumulative_time_s[i, config, first]
        extra_s = float(clock.cumulative_extra_s[i, end] - clock.cumulative_extra_s[i, first] + clock.step_s[i])
        static = float(chain.cumulative_static_bytes[end] - chain.cumulative_static_bytes[first])
        activation = chain.cumulative_activation_bytes[config, end] - chain.cumulative_activation_bytes[config, first]
        transient = float(chain.transient_bytes[config, first:end].max())
        memory = static + float(slots.in_flight[i] * activation) + transient
        time_s = max(float(blocks_s + clock.boundary_s[i]), float(clock.beside_s[i]))
        stages.append(LayerStage(first, end - 1, config, time_s, extra_s, memory))
        first = end
    return stages


# Compiled inner loops of `solver.stages.layers`: all arrays, no validation.
#
# Shapes: ``C`` configs, ``L`` blocks, ``P`` stages. A segment ``k..e-1`` is written by its first block and its end.


@compiled_once_it_pays(pays_after=150_000)
def memory_reach(static: Floats, activation: Floats, transient: Floats, capacity: Floats, in_flight: Ints) -> Ints:
    """``reach[i, c, k]``: the greatest end of a segment that starts at block k and fits stage i under config c.

    ``static[L+1]`` and ``activation[C, L+1]`` are running sums, ``transient[C, L]`` is per block; all in bytes, as is
    ``capacity[P]``. Two pointers over a window whose maximum is kept in a queue of falling transients.
    """
    n_configs, n_blocks = transient.shape
    n_stages = capacity.shape[0]
    reach = np.zeros((n_stages, n_configs, n_blocks), np.int64)
    queue = np.zeros(n_blocks, np.int64)
    for i in range(n_stages):
        for c in range(n_configs):
            head, tail, end = 0, 0, 0
            for k in range(n_blocks):
                end = max(end, k)
                while head < tail and queue[head] < k:
                    head += 1
                while end < n_blocks:
                    peak = transient[c, end]
                    if head < tail and transient[c, queue[head]] > peak:
                        peak = transient[c, queue[head]]
                    held = in_flight[i] * (activation[c, end + 1] - activation[c, k])
                    if static[end + 1] - static[k] + held + peak > capacity[i]:
                        break
                    while head < tail and transient[c, queue[tail - 1]] <= transient[c, end]:
                        tail -= 1
                    if head == tail:
                        head, tail = 0, 0
                    queue[tail] = end
                    tail += 1
                    end += 1
                reach[i, c, k] = end
    return reach


@compiled_once_it_pays(pays_after=500_000)
def least_rest(time: Floats, boundary: Floats) -> Floats:
    """``rest[i, k]``: no split of blocks k.. over stages i.. has a smaller sum of stage times; ``time[P, C, L]`` per block."""
    n_stages, n_configs, n_blocks = time.shape
    rest = np.zeros((n_stages + 1, n_blocks + 1))
    fastest = np.full(n_blocks, np.inf)
    boundaries = 0.0
    for i in range(n_stages - 1, -1, -1):
        boundaries += boundary[i]
        blocks = 0.0
        rest[i, n_blocks] = boundaries
        for k in range(n_blocks - 1, -1, -1):
            for c in range(n_configs):
                fastest[k] = min(fastest[k], time[i, c, k])
            blocks += fastest[k]
            rest[i, k] = blocks + boundaries
    return rest


@compiled_once_it_pays(pays_after=300_000)
def least_tail(
    cumulative_time: Floats,
    cumulative_extra: Floats,
    boundary: Floats,
    passing: Floats,
    step: Floats,
    fits: Ints,
    rest: Floats,
    waiting: float,
    limit: float,
    below: float,
) -> tuple[float, Ints, Ints]:
    """Least tail of a split with no stage longer than ``limit``, with the end and the config of each stage.

    ``cumulative_time[P, C, L+1]`` and ``cumulative_extra[P, L+1]`` are running sums, ``boundary[P]`` and ``step[P]`` add to
    a stage's time and extra, ``passing[P]`` instead of ``boundary`` to its time in the tail, ``fits`` comes from
    `memory_reach` and ``rest`` from `least_rest`, which like every time in the tail counts ``waiting`` times. The tail is
    infinite when there is no split with a tail less than ``below``.
    """
    n_stages, n_configs, n_blocks = fits.shape
    ends = np.zeros(n_stages, np.int64)
    configs = np.zeros(n_stages, np.int64)
    reach, farthest = _time_reach(cumulative_time, boundary, fits, limit)
    first, last = _cut_windows(farthest)
    for i in range(n_stages + 1):
        if first[i] > last[i]:
            return np.inf, ends, configs

    tail = np.full((n_stages + 1, n_blocks + 1), np.inf)
    came_from = np.zeros((n_stages + 1, n_blocks + 1), np.int64)
    came_with = np.zeros((n_stages + 1, n_blocks + 1), np.int64)
    tail[0, 0] = 0.0
    for i in range(n_stages):
        for k in range(first[i], last[i] + 1):
            if tail[i, k] + rest[i, k] >= below:
                continue
            for e in range(max(k + 1, first[i + 1]), min(farthest[i, k], last[i + 1]) + 1):
                base = max(tail[i, k], cumulative_extra[i, e] - cumulative_extra[i, k] + step[i])
                for c in range(n_configs):
                    if reach[i, c, k] < e:
                        continue
                    value = base + waiting * (cumulative_time[i, c, e] - cumulative_time[i, c, k] + passing[i])
                    if value < tail[i + 1, e]:
                        tail[i + 1, e] = value
                        came_from[i + 1, e] = k
                        came_with[i + 1, e] = c
    best = tail[n_stages, n_blocks]
    if not best < below:
        return np.inf, ends, configs
    end = n_blocks
    for i in range(n_stages, 0, -1):
        ends[i - 1] = end
        configs[i - 1] = came_with[i, end]
        end = came_from[i, end]
    return float(best), ends, configs


@compiled_once_it_pays(pays_after=500_000)
def _time_reach(cumulative_time: Floats, boundary: Floats, fits: Ints, limit: float) -> tuple[Ints, Ints]:
    """As `memory_reach` with the time limit added: per config, and the greatest over configs ``[P, L]``."""
    n_stages, n_configs, n_blocks = fits.shape
    reach = np.zeros((n_stages, n_configs, n_blocks), np.int64)
    farthest = np.zeros((n_stages, n_blocks), np.int64)
    for i in range(n_stages):
        for c in range(n_configs):
            end = 0
            for k in range(n_blocks):
                end = max(end, k)
                while end < fits[i, c, k] and cumulative_time[i, c, end + 1] - cumulative_time[i, c, k] + boundary[i] <= limit:
                    end += 1
                reach[i, c, k] = end
                farthest[i, k] = max(farthest[i, k], end)
    return reach, farthest


@compiled_once_it_pays(pays_after=500_000)
def _cut_windows(farthest: Ints) -> tuple[Ints, Ints]:
    """Bounds ``[P+1]`` on the block that stage i begins with, from both ends; an empty range means that no split exists."""
    n_stages, n_blocks = farthest.shape
    first = np.zeros(n_stages + 1, np.int64)
    last = np.zeros(n_stages + 1, np.int64)
    for i in range(n_stages):
        last[i + 1] = min(farthest[i, last[i]], n_blocks - (n_stages - i - 1))
    first[n_stages] = n_blocks
    for i in range(n_stages - 1, -1, -1):
        k = first[i + 1] - 1
        while k > i and farthest[i, k - 1] >= first[i + 1]:
            k -= 1
        first[i] = k
    return first, last


@compiled_once_it_pays(pays_after=10_000)
def least_shortage(
    static: Floats, activation: Floats, transient: Floats, capacity: Floats, in_flight: Ints
) -> tuple[Ints, Ints]:
    """Ends and configs of the split whose largest ``need - capacity`` over stages is least; arguments as `memory_reach`."""
    n_configs, n_blocks = transient.shape
    n_stages = capacity.shape[0]
    worst = np.full((n_stages + 1, n_blocks + 1), np.inf)
    came_from = np.zeros((n_stages + 1, n_blocks + 1), np.int64)
    came_with = np.zeros((n_stages + 1, n_blocks + 1), np.int64)
    worst[0, 0] = -np.inf
    for i in range(n_stages):
        for k in range(i, n_blocks - (n_stages - i - 1)):
            for c in range(n_configs):
                peak = 0.0
                for e in range(k + 1, n_blocks - (n_stages - i - 1) + 1):
                    peak = max(peak, transient[c, e - 1])
                    held = in_flight[i] * (activation[c, e] - activation[c, k])
                    short = max(worst[i, k], static[e] - static[k] + held + peak - capacity[i])
                    if short < worst[i + 1, e]:
                        worst[i + 1, e] = short
                        came_from[i + 1, e] = k
                        came_with[i + 1, e] = c
    ends = np.zeros(n_stages, np.int64)
    configs = np.zeros(n_stages, np.int64)
    end = n_blocks
    for i in range(n_stages, 0, -1):
        ends[i - 1] = end
        configs[i - 1] = came_with[i, end]
        end = came_from[i, end]
    return ends, configs
