"""Percentiles of a serving replica without simulation: used to order a search, checked against the simulator.

Three parts, each solved by itself because they change at different speeds. Prompts that wait, for a few steps: a queue with
service in bulk (``prompt_queue``). Sequences that decode, for hundreds of rounds: arrivals slow rounds down, and slow rounds
let more gather, a self-exciting process whose cumulants give the time per token (``feedback``). Who waits for a place: a
diffusion (``steady_state``). Arrivals are Poisson whatever the load says of bursts, and nobody is evicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.queueing.analytic.steady_state import capacity_per_s, first_token_distribution, settle
from meshwright.costmodels.queueing.analytic.step_curves import StepCurves, step_curves
from meshwright.costmodels.queueing.load import Load
from meshwright.costmodels.queueing.simulation.replica import Admission, BatchLimits
from meshwright.costmodels.queueing.step_times import StepTimes

FloatArray = npt.NDArray[np.float64]

P95 = 0.95
"""The percentile that targets are about."""

_BATCH_NODES = 40
"""Batch sizes at which step times are evaluated; linear between."""


@dataclass(frozen=True, slots=True)
class AnalyticFigures:
    """The figures that the model expects of a replica under a load.

    utilisation       arrival rate over the largest rate that the engine can keep up with
    max_requests_per_s  that rate
    ttft_p95_s, tpot_p95_s   infinite when arrivals outrun the engine
    """

    utilisation: float
    max_requests_per_s: float
    mean_batch: float
    ttft_p95_s: float
    tpot_p95_s: float


@dataclass(frozen=True, eq=False)
class Rates:
    """At n = 1, 2, ... decoding sequences: time between tokens without prompts, time that a mean prompt holds the slowest
    stage, and how much it delays a decoding sequence."""

    sequences: FloatArray
    round_s: FloatArray
    prefill_s: FloatArray
    delay_s: FloatArray


@dataclass(frozen=True, eq=False)
class Curves:
    """The figures of a replica under one kind of requests at any rate: its steps, the sequences that there is room for on
    average, and the largest rate of arrivals that it keeps up with."""

    steps: StepCurves
    places: float
    max_requests_per_s: float


@dataclass(frozen=True, eq=False)
class SteadyBatches:
    """At batches that stay as large as ``sequences``: mean time per output token, requests answered per second, and the share
    of time that their prompts take (over 1 no batch stays so large: prompts come too slowly)."""

    sequences: FloatArray
    tpot_s: FloatArray
    requests_per_s: FloatArray
    prompts_share: FloatArray


def predict(times: StepTimes, load: Load, limits: BatchLimits, known: Curves | None = None) -> AnalyticFigures:
    """Expected figures of a replica; see the module's docstring for the model. ``known`` are the curves of another load of the
    same requests, where they are there."""
    known = curves(times, load, limits) if known is None else known
    steps, rate = known.steps, load.requests_per_s
    utilisation = rate / known.max_requests_per_s
    if utilisation >= 1.0:
        return AnalyticFigures(utilisation, known.max_requests_per_s, known.places, math.inf, math.inf)
    if not len(steps.rounds):
        queues = ((1.0, steps.at(0.0, idle=1.0)),)
        ttft_p95_s = first_token_distribution(queues, rate).quantile(P95)
        return AnalyticFigures(utilisation, known.max_requests_per_s, 0.0, ttft_p95_s, 0.0)
    busy = settle(steps, rate, places=known.places)
    ttft = replace(first_token_distribution(busy.queues(steps), rate), place=busy.place_wait(known.max_requests_per_s))
    return AnalyticFigures(
        utilisation=utilisation,
        max_requests_per_s=known.max_requests_per_s,
        mean_batch=busy.mean_batch,
        ttft_p95_s=ttft.quantile(P95),
        tpot_p95_s=busy.tpot_quantile(P95),
    )


def predict_closed(times: StepTimes, load: Load, limits: BatchLimits, *, clients: int) -> AnalyticFigures:
    """Expected figures of a replica with clients in a closed loop, each of which always has one request there; the load's
    rate is not used.

    A request shares the engine with the others (``steady_batches``). Clients beyond the engine's places wait for one.
    """
    rates = batch_rates(times, load, limits)
    running = min(clients, len(rates.sequences))
    tokens = max(load.output.mean - 1.0, 1e-9)
    at = running - 1
    steady = steady_batches(rates, load)
    tpot_s, requests_per_s = float(steady.tpot_s[at]), float(steady.requests_per_s[at])
    prefill_s = float(rates.prefill_s[at])
    per_request_s = tokens * rates.round_s / rates.sequences + rates.delay_s
    max_rate = float(np.max(1.0 / np.maximum(per_request_s, rates.prefill_s)))
    return AnalyticFigures(
        utilisation=min(1.0, requests_per_s / max_rate),
        max_requests_per_s=max_rate,
        mean_batch=float(running),
        ttft_p95_s=(clients - running) / requests_per_s + prefill_s + float(rates.round_s[at]),
        tpot_p95_s=tpot_s,
    )


def curves(times: StepTimes, load: Load, limits: BatchLimits) -> Curves:
    """Return the curves of a replica; they do not depend on the rate of arrivals."""
    held = load.prompt.mean + load.output.mean
    if limits.admission is Admission.PREEMPT:
        held = mean_kv_tokens(load)
    held = max(1.0, held - load.shared_tokens)
    places = max(1.0, min(float(limits.sequences), (limits.kv_tokens - load.shared_tokens) / held))
    steps = step_curves(times, load, limits, places=places)
    return Curves(steps, places, capacity_per_s(steps, places=places))


def batch_rates(times: StepTimes, load: Load, limits: BatchLimits) -> Rates:
    """Return the rates at which batches of every size decode and prompts pass; the rate of arrivals is not used."""
    most = most_running(load, limits)
    at_nodes = rates_at(times, load, limits, np.unique(np.rint(np.geomspace(1.0, most, _BATCH_NODES))))
    sequences, nodes = np.arange(1, most + 1, dtype=np.float64), at_nodes.sequences
    return Rates(
        sequences=sequences,
        round_s=np.interp(sequences, nodes, at_nodes.round_s),
        prefill_s=np.interp(sequences, nodes, at_nodes.prefill_s),
        delay_s=np.interp(sequences, nodes, at_nodes.delay_s),
    )


def most_running(load: Load, limits: BatchLimits) -> int:
    """Sequences that run at once: as many as the limit or, of mean requests, the cache allows."""
    held = max(1.0, load.prompt.mean + load.output.mean - load.shared_tokens)
    return max(1, min(limits.sequences, int((limits.kv_tokens - load.shared_tokens) / held)))


def rates_at(times: StepTimes, load: Load, limits: BatchLimits, nodes: FloatArray) -> Rates:
    """The rates of the batches in ``nodes``; of the limits only tokens of a step and scheduling are used."""
    kv_tokens = mean_kv_tokens(load)
    per_slot = np.maximum(1.0, nodes / times.stages)
    stage_s = times.decode_step_s(per_slot, kv_tokens)
    # A slot goes round in the latency of the pipeline, or as fast as the slowest stage serves all slots.
    slots = np.minimum(nodes, times.stages)
    round_s = np.maximum(stage_s.sum(axis=0), slots * stage_s.max(axis=0))
    prefill_s, rounds = _prefill(times, limits, per_slot, kv_tokens, (load.prompt.mean, load.cached_share))
    # A prompt's step keeps its own slot for its whole way, the other slots for the stage they wait for.
    delay_s = prefill_s * (2.0 - 1.0 / times.stages) - rounds / times.stages * round_s
    return Rates(sequences=nodes, round_s=round_s, prefill_s=prefill_s, delay_s=np.maximum(0.0, delay_s))


def steady_batches(rates: Rates, load: Load) -> SteadyBatches:
    """Batches whose places are never empty: who is answered makes room for the next. In one residence a request gets its
    tokens, and the prompt of each other comes by once."""
    tokens = max(load.output.mean - 1.0, 1e-9)
    others = rates.sequences - 1.0
    tpot_s = rates.round_s + others * rates.delay_s / tokens
    requests_per_s = rates.sequences / (tokens * tpot_s + rates.prefill_s)
    return SteadyBatches(rates.sequences, tpot_s, requests_per_s, requests_per_s * rates.prefill_s)


def mean_kv_tokens(load: Load) -> float:
    """Tokens that a decoding sequence holds on average: long outputs are met more often (inspection paradox)."""
    return load.prompt.mean + load.output.second_moment / (2.0 * load.output.mean)


def _prefill(
    times: StepTimes, limits: BatchLimits, per_slot: FloatArray, kv_tokens: float, prompt_and_cached: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Time that a prompt holds the slowest stage, and the decode rounds that its steps take along.

    The prompt comes with the share of it that is in the prefix cache; at least one token is computed.
    """
    prompt, cached_share = prompt_and_cached
    cached = min(prompt * cached_share, prompt - 1.0)
    computed = prompt - cached
    if limits.scheduling.prompts_apart:
        nothing = np.zeros_like(per_slot)
        alone = times.mixed_step_s(nothing, kv_tokens, prompt_tokens=nothing + computed, prefix_tokens=nothing + cached)
        return alone.max(axis=0), nothing
    room = np.maximum(1.0, limits.step_tokens - per_slot * times.query_tokens)
    total, steps, done = np.zeros_like(per_slot), np.zeros_like(per_slot), np.full_like(per_slot, cached)
    while np.any(done < prompt):
        size = np.clip(prompt - done, 0.0, room)
        # The rest of a last, short chunk is filled with the next prompt: it counts for the part of a step it takes.
        chunk = np.where(room < computed, room, computed)
        weight = size / chunk
        step = times.mixed_step_s(per_slot, kv_tokens, prompt_tokens=chunk, prefix_tokens=done)
        total += weight * step.max(axis=0)
        steps += weight
        done += size
    return total, steps
