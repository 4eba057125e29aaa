"""Simulation of disaggregated serving: prefill workers, the way of keys and values, and decode workers.

A request goes to a prefill worker, drawn evenly or in turn; its keys and values travel over that worker's link, one request
after another; a decode worker, chosen in the same way, takes it up and computes the prompt's last token, which gives the first
token (vLLM, disaggregated prefilling: the proxy asks the prefill server for one token and drops it). So the time to first token
holds both queues and the transfer, the time per output token is the decode worker's alone. Nothing goes back from decode to
prefill workers, so the two are simulated one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.compiling import kept_compiled
from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.queueing.simulation.engine_state import FloatArray
from meshwright.costmodels.queueing.simulation.replica import (
    EVERYTHING,
    BatchLimits,
    RequestTimes,
    SimulationResult,
    Window,
    simulate,
    window_of,
)
from meshwright.costmodels.queueing.step_times import GroupTimes, StepTimes

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pool:
    """Workers of one phase, all alike: each forms steps of its own requests; attention groups of a worker step together."""

    times: StepTimes | GroupTimes
    limits: BatchLimits
    workers: int
    router: Router = Router.RANDOM


@dataclass(frozen=True, slots=True)
class CacheTransfer:
    """The transfer of keys and values from a prefill worker: ``token_s`` a token on its link, and a latency that holds nobody
    up."""

    latency_s: float
    token_s: float


@dataclass(frozen=True, eq=False)
class Prefilled:
    """When prompts were done and their keys and values arrived, in order of the stream; and the runs of the workers."""

    done_s: FloatArray
    arrived_s: FloatArray
    runs: tuple[SimulationResult, ...]


@dataclass(frozen=True, eq=False)
class DisaggregatedResult:
    """The times that requests saw in both phases together, and the runs of each phase's workers.

    ``whole`` has the times of every request: its busy time, batch and steps are those of the decode workers.
    """

    whole: SimulationResult
    prefill: tuple[SimulationResult, ...]
    decode: tuple[SimulationResult, ...]
    transfer_wait_s: FloatArray


def simulate_prefill(pool: Pool, transfer: CacheTransfer, stream: RequestStream, *, seed: int) -> Prefilled:
    """Prompts of the stream through the prefill workers and their links."""
    done_s, arrived_s = np.empty(len(stream)), np.empty(len(stream))
    runs = []
    prompts = replace(stream, output_tokens=np.ones(len(stream), dtype=np.int64), rounds=None)
    for members in _dealt_out(len(stream), pool, seed=seed):
        part = prompts[members]
        result = simulate(pool.times, part, pool.limits, window=EVERYTHING)
        first_s = result.requests.first_s
        done_s[members] = first_s
        order = np.argsort(first_s, kind="stable")
        # Each attention group sends over a link of its own.
        for group in range(result.groups):
            sending = order[result.requests.group[order] == group]
            sent_s = _one_after_another(first_s[sending], part.prompt_tokens[sending] * transfer.token_s)
            arrived_s[members[sending]] = sent_s + transfer.latency_s
        runs.append(result)
    return Prefilled(done_s, arrived_s, tuple(runs))


def simulate_decode(
    pool: Pool, prefilled: Prefilled, stream: RequestStream, *, seed: int, window: Window | None = None
) -> DisaggregatedResult:
    """Requests whose prompts are computed through the decode workers; those of the window make the percentiles, without one
    those that count of the stream."""
    count = len(stream)
    first_s, last_s = np.full(count, np.nan), np.full(count, np.nan)
    busy_s, group = np.zeros(count), np.zeros(count, dtype=np.int64)
    order = np.argsort(prefilled.arrived_s, kind="stable")
    runs = []
    for places in _dealt_out(count, pool, seed=seed + 1):
        members = order[places]
        part = RequestStream(
            prefilled.arrived_s[members],
            stream.prompt_tokens[members],
            stream.output_tokens[members],
            stream.prompt_tokens[members] - 1,
            None if stream.rounds is None else stream.rounds[members],
        )
        result = simulate(pool.times, part, pool.limits, window=EVERYTHING)
        first_s[members], last_s[members] = result.requests.first_s, result.requests.last_s
        busy_s[members], group[members] = result.requests.busy_s, result.requests.group
        runs.append(result)
    counted = np.zeros(count, dtype=np.bool_)
    first, end = (window or window_of(stream)).measured(count)
    counted[first:end] = True
    times = RequestTimes(stream.arrival_s, first_s, last_s, stream.output_tokens, counted, busy_s, group)
    return DisaggregatedResult(
        whole=replace(_whole(times, prefilled, runs), one_run=stream.is_finite),
        prefill=prefilled.runs,
        decode=tuple(runs),
        transfer_wait_s=prefilled.arrived_s - prefilled.done_s,
    )


def _whole(times: RequestTimes, prefilled: Prefilled, decode: Sequence[SimulationResult]) -> SimulationResult:
    return SimulationResult(
        requests=times,
        missed=False,
        duration_s=max(run.duration_s for run in decode),
        busy=max(fmean(run.busy for run in prefilled.runs), fmean(run.busy for run in decode)),
        worked_s=sum(run.worked_s for run in decode),
        mean_batch=fmean(run.mean_batch for run in decode),
        mean_waiting=fmean(run.mean_waiting for run in prefilled.runs),
        peak_running=max(run.peak_running for run in decode),
        steps=sum(run.steps for run in (*prefilled.runs, *decode)),
        evictions=sum(run.evictions for run in (*prefilled.runs, *decode)),
        groups=decode[0].groups,
    )


def _dealt_out(count: int, pool: Pool, *, seed: int) -> list[IntArray]:
    """Places of the requests that each worker gets; drawn ones stay with more workers. Workers without any are left out."""
    if pool.router is Router.ROUND_ROBIN:
        worker = np.arange(count, dtype=np.int64) % pool.workers
    else:
        drawn = np.random.Generator(np.random.PCG64([seed, 7])).random(count)
        worker = np.minimum((drawn * pool.workers).astype(np.int64), pool.workers - 1)
    dealt = [np.flatnonzero(worker == k) for k in range(pool.workers)]
    return [places for places in dealt if len(places)]


@kept_compiled
def _one_after_another(ready_s, takes_s):  # type: ignore[no-untyped-def]
    """When each of a queue of transfers ends: they start in order, each when ready and the link is free."""
    ends_s = np.empty_like(ready_s)
    free_s = -math.inf
    for i in range(len(ready_s)):
        free_s = max(free_s, ready_s[i]) + takes_s[i]
        ends_s[i] = free_s
    return ends_s
