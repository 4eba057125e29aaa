"""Runs of layers as stages: for a size and place of stages, every way to run each run of layers that no other beats there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import kept_compiled
from meshwright.solver.control import Stop, heed
from meshwright.solver.training.forms.stagewise.stage_ways import Way

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FIRST_ROOM = 8
"""Ways of a run of layers that there is room for at first; doubled where there are more."""


class Runs(NamedTuple):
    """``[first, last, :number[first, last]]`` are the ways of a run of layers: time, extra, later stages that memory allows
    under 1F1B, and which way it is."""

    number: Ints
    time_s: Floats
    extra_s: Floats
    later: Ints
    way: Ints


def unbeaten_runs(ways: list[Way], border: int, *, n_microbatches: int, below_s: float, stop: Stop) -> Runs:
    """For every run of layers the ways that no other equals or beats in time, extra and memory, between one of the borders;
    those left out whose micro-batches take ``below_s`` by themselves, and all of a run that is the whole model. Raises
    SearchStopped."""
    n_layers = ways[0].table.time_s.shape[1]
    runs = _roomier(None, n_layers)
    for index, way in enumerate(ways):
        heed(stop)
        while int(runs.number.max()) == runs.time_s.shape[2]:
            runs = _roomier(runs, n_layers)
        table, parts = way.table, way.table.parts
        by_layer = (
            *(table.time_s[0], table.extra_s, table.static_bytes, table.activation_bytes[0], table.transient_bytes[0]),
            *(parts.host_static_bytes, parts.host_activation_bytes[0], parts.nvme_bytes),
        )
        _add_way(
            runs,
            index,
            np.array(by_layer),
            np.array([max(0.0, table.capacity_bytes), parts.host_capacity_bytes, parts.nvme_capacity_bytes]),
            way.boundary_s[border],
            table.step_s,
            n_microbatches,
            below_s / n_microbatches,
        )
    return runs


def _roomier(runs: Runs | None, n_layers: int) -> Runs:
    """The same with room for twice as many ways of a run."""
    if runs is None:
        shape = (n_layers, n_layers, FIRST_ROOM)
        return Runs(
            np.zeros(shape[:2], np.int64),
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
        )
    return Runs(runs.number, *(np.concatenate([part, np.zeros_like(part)], axis=2) for part in runs[1:]))


@kept_compiled
def _add_way(
    runs: Runs,
    way: int,
    by_layer: Floats,
    capacity: Floats,
    boundary_s: float,
    step_s: float,
    n_microbatches: int,
    limit_s: float,
) -> None:
    """Add a way to every run of layers that it can hold in less than ``limit_s`` a micro-batch.

    Rows of ``by_layer``: time, extra, static, activation and transient bytes, bytes on the host that stay and that
    micro-batches in flight keep, bytes on drives. ``capacity`` is of device, host and drives. A stage with q behind it holds
    min(q + 1, n_microbatches) micro-batches at once.
    """
    n_layers = by_layer.shape[1]
    for first in range(n_layers):
        time_s, extra_s = boundary_s, step_s if first > 0 else 0.0
        static = kept = transient = on_host = kept_on_host = on_drives = 0.0
        for last in range(first, n_layers):
            time_s, extra_s = time_s + by_layer[0, last], extra_s + by_layer[1, last]
            static, kept, transient = static + by_layer[2, last], kept + by_layer[3, last], max(transient, by_layer[4, last])
            on_host, kept_on_host = on_host + by_layer[5, last], kept_on_host + by_layer[6, last]
            on_drives += by_layer[7, last]
            held = min(
                _held(capacity[0] - static - transient, kept, n_microbatches),
                _held(capacity[1] - on_host, kept_on_host, n_microbatches),
            )
            later = n_layers if held >= n_microbatches else held - 1
            # Longer runs take more time and more of everything.
            if time_s >= limit_s or later < 0 or on_drives > capacity[2]:
                break
            if last - first + 1 < n_layers:
                _insert(runs, first, last, time_s, extra_s, later, way)


@kept_compiled
def _held(room: float, each: float, n_microbatches: int) -> int:
    """Micro-batches that fit, as far as there are any."""
    if room < 0.0:
        return -1
    return n_microbatches if each * n_microbatches <= room else int(room / each)


@kept_compiled
def _insert(runs: Runs, first: int, last: int, time_s: float, extra_s: float, later: int, way: int) -> None:
    """Add a way to a run of layers unless another is as good in all; and drop those that it beats."""
    number = runs.number[first, last]
    times, extras, laters = runs.time_s[first, last], runs.extra_s[first, last], runs.later[first, last]
    for other in range(number):
        if times[other] <= time_s and extras[other] <= extra_s and laters[other] >= later:
            return
    kept = 0
    for other in range(number):
        if not (time_s <= times[other] and extra_s <= extras[other] and later >= laters[other]):
            times[kept], extras[kept], laters[kept] = times[other], extras[other], laters[other]
            runs.way[first, last, kept] = runs.way[first, last, other]
            kept += 1
    times[kept], extras[kept], laters[kept] = time_s, extra_s, later
    runs.way[first, last, kept] = way
    runs.number[first, last] = kept + 1
