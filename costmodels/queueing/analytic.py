"""Percentiles of a serving replica without simulation: used to order a search, checked against the simulator.

Decoding is a symmetric queue: all sequences in the batch advance together, at a rate r(n) that falls with their number n.
Its occupancy has the product form P(n) ~ prod_k (arrivals x tokens) / (k r(k)), whatever the distribution of output lengths
(Kelly 1979, section 3.3; Cohen 1979). Prompts queue first come first served for an M/G/1 server; a step under way when
nobody waits is a server's vacation, which adds its residual time (Fuhrmann and Cooper 1985).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from costmodels.queueing.load import Load
from costmodels.queueing.simulation import BatchLimits, Scheduling
from costmodels.queueing.single_server import waiting_time
from costmodels.queueing.step_times import StepTimes

FloatArray = npt.NDArray[np.float64]

_LENGTH_NODES = 32
"""Equally likely values that stand for a distribution of lengths."""

_BATCH_NODES = 40
"""Batch sizes at which step times are evaluated; linear between."""


@dataclass(frozen=True, slots=True)
class AnalyticFigures:
    """What the model expects of a replica under a load.

    utilisation       arrival rate over the largest rate that the engine can keep up with
    max_requests_per_s  that rate
    prefill_s         engine time that a mean prompt adds, at the mean batch
    decode_step_s     decode step at the mean batch
    ttft_p95_s, tpot_p95_s   infinite when arrivals outrun the engine
    """

    utilisation: float
    max_requests_per_s: float
    mean_batch: float
    prefill_s: float
    decode_step_s: float
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
class SteadyBatches:
    """At batches that stay as large as ``sequences``: mean time per output token, requests answered per second, and the share
    of time that their prompts take (over 1 no batch stays so large: prompts come too slowly)."""

    sequences: FloatArray
    tpot_s: FloatArray
    requests_per_s: FloatArray
    prompts_share: FloatArray


def predict(times: StepTimes, load: Load, limits: BatchLimits, rates: Rates | None = None) -> AnalyticFigures:
    """Expected figures of a replica; see the module's docstring for the model. ``rates`` are those of another load of the same
    requests, where they are known."""
    rates = batch_rates(times, load, limits) if rates is None else rates
    tokens = max(load.output.mean - 1.0, 1e-9)
    # A request keeps a full engine busy for its share of decode rounds and the delay of its prompt.
    per_request_s = tokens * rates.round_s / rates.sequences + rates.delay_s
    max_rate = float(np.max(1.0 / np.maximum(per_request_s, rates.prefill_s)))
    utilisation = load.requests_per_s / max_rate
    if utilisation >= 1.0:
        full = float(rates.sequences[-1])
        prefill_s, round_s = float(rates.prefill_s[-1]), float(rates.round_s[-1])
        return AnalyticFigures(utilisation, max_rate, full, prefill_s, round_s, math.inf, math.inf)
    open_share = np.maximum(1e-9, 1.0 - load.requests_per_s * rates.delay_s)
    occupancy = _occupancy(load.requests_per_s * tokens * rates.round_s / open_share, rates.sequences)
    decoding = np.minimum(np.arange(len(occupancy), dtype=np.float64), rates.sequences[-1])
    mean_batch = float(np.dot(occupancy, decoding))
    at_mean = max(1.0, mean_batch)
    return AnalyticFigures(
        utilisation=utilisation,
        max_requests_per_s=max_rate,
        mean_batch=mean_batch,
        prefill_s=float(np.interp(at_mean, rates.sequences, rates.prefill_s)),
        decode_step_s=float(np.interp(at_mean, rates.sequences, rates.round_s)),
        ttft_p95_s=_ttft_p95(times, load, limits, rates, occupancy, at_mean),
        tpot_p95_s=_tpot_p95(load, rates, mean_batch=mean_batch),
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
        prefill_s=prefill_s,
        decode_step_s=float(rates.round_s[at]),
        ttft_p95_s=(clients - running) / requests_per_s + prefill_s + float(rates.round_s[at]),
        tpot_p95_s=tpot_s,
    )


def batch_rates(times: StepTimes, load: Load, limits: BatchLimits) -> Rates:
    """How fast batches of every size decode and prompts pass; the rate of arrivals is not used."""
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
    return max(1, min(limits.sequences, int(limits.kv_tokens / (load.prompt.mean + load.output.mean))))


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
    if limits.scheduling is Scheduling.PREFILL_FIRST:
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


def _occupancy(work: FloatArray, sequences: FloatArray) -> FloatArray:
    """P(n) of requests that decode or wait for a place, n = 0, 1, ...; ``work`` is arrivals x tokens / rate at each n.

    Beyond the last place the rate stays, and the tail is geometric; it is cut where it has fallen to 1e-6.
    """
    log_ratio = np.log(work) - np.log(sequences)
    last = log_ratio[-1]
    extra = int(min(20_000, math.ceil(math.log(1e-6) / last))) if last < 0.0 else 0
    log_p = np.concatenate([[0.0], np.cumsum(log_ratio), np.sum(log_ratio) + last * np.arange(1, extra + 1)])
    p = np.exp(log_p - log_p.max())
    return np.asarray(p / p.sum())


def _tpot_p95(load: Load, rates: Rates, *, mean_batch: float) -> float:
    """Normal approximation over what a request meets while it decodes: others in its batch, and prompts between rounds.

    The rounds of a request are work that arriving prompts interrupt: such a completion time has variance
    work x rate x delay^2 / (1 - rate x delay)^3 (Gaver 1962). Besides, the batch varies over a residence.
    """
    if load.output.mean <= 1.0:
        return 0.0
    tokens = load.output.mean - 1.0
    mean_s = mean_batch / load.requests_per_s
    at_mean = max(1.0, mean_batch)
    open_share, delay_s, slope_s = _sensitivity(load, rates, at_mean)
    by_prompts = delay_s / open_share
    by_batch = tokens * slope_s / open_share
    variance = _batch_variance(load, mean_batch, by_prompts, by_batch)
    quantiles = (np.arange(_LENGTH_NODES) + 0.5) / _LENGTH_NODES
    lengths = np.maximum(1.0, load.output.quantile(quantiles) - 1.0) / tokens
    # Of a request that is short against the mean, the batch varies less while it is there; it meets fewer prompts.
    batch_share = np.clip(1.0 - lengths / 3.0, 1.0 / 3.0, 1.0)
    together = by_prompts * by_batch * math.sqrt(mean_batch * variance)
    spread = np.sqrt(by_batch**2 * batch_share * variance + by_prompts**2 * mean_batch / lengths + together)
    return _mixture_quantile(mean_s, spread) / tokens


def _sensitivity(load: Load, rates: Rates, batch: float) -> tuple[float, float, float]:
    """Share of time that prompts leave to rounds, delay a prompt causes, and how a round grows with the batch."""
    delay_s = float(np.interp(batch, rates.sequences, rates.delay_s))
    step = max(1.0, 0.1 * batch)
    low, high = max(1.0, batch - step), min(float(rates.sequences[-1]), batch + step)
    slope_s = 0.0
    if high > low:
        slope_s = float(np.diff(np.interp([low, high], rates.sequences, rates.round_s))[0]) / (high - low)
    return max(1e-3, 1.0 - load.requests_per_s * delay_s), delay_s, slope_s


def _batch_variance(load: Load, mean_batch: float, by_prompts: float, by_batch: float) -> float:
    """Variance of the batch: that of Poisson arrivals, and what longer residences add to it (fixed point)."""
    rate, variance = load.requests_per_s, mean_batch
    for _ in range(50):
        residence = by_batch**2 * (2.0 / 3.0) * variance + by_prompts**2 * mean_batch
        residence += by_prompts * by_batch * math.sqrt(mean_batch * variance)
        variance = min(mean_batch + rate**2 * residence, 100.0 * mean_batch)
    return variance


def _mixture_quantile(mean_s: float, spread: FloatArray) -> float:
    """95th percentile of a mixture of normals of one mean, by bisection."""
    widest = float(spread.max())
    if widest == float(spread.min()):
        return mean_s + float(ndtri(0.95)) * widest
    low, high = mean_s, mean_s + 6.0 * widest
    for _ in range(50):
        middle = (low + high) / 2.0
        below = float(np.mean(ndtr((middle - mean_s) / np.maximum(spread, 1e-15))))
        low, high = (middle, high) if below < 0.95 else (low, middle)
    return high


def _ttft_p95(times: StepTimes, load: Load, limits: BatchLimits, rates: Rates, occupancy: FloatArray, at_mean: float) -> float:
    """Wait for earlier prompts, for the step under way, and the prompt's own steps; then the wait for a place."""
    quantiles = (np.arange(_LENGTH_NODES) + 0.5) / _LENGTH_NODES
    batch = np.array([max(1.0, at_mean / times.stages)])
    kv_tokens = mean_kv_tokens(load)
    prompts = np.array([load.prompt.mean]) if load.prompt.is_fixed else load.prompt.quantile(quantiles)
    service_s = np.array([float(_prefill(times, limits, batch, kv_tokens, (p, load.cached_share))[0][0]) for p in prompts])
    if load.requests_per_s * float(np.mean(service_s)) >= 1.0:
        return math.inf
    # Who arrives while sequences decode waits for the end of the step that holds the first stage.
    round_s = float(np.interp(at_mean, rates.sequences, rates.round_s))
    residual = (1.0 - float(occupancy[0])) * round_s / times.stages * quantiles
    wait = waiting_time(load.requests_per_s, service_s, (residual, service_s * times.stages))
    return wait.quantile(0.95) + _place_wait_p95(load, rates, occupancy)


def _place_wait_p95(load: Load, rates: Rates, occupancy: FloatArray) -> float:
    """95th percentile of the wait for a place in a full batch: places come free at the rate of a full engine."""
    places = len(rates.sequences)
    ahead = int(np.searchsorted(np.cumsum(occupancy), 0.95))
    if ahead < places:
        return 0.0
    open_share = max(1e-9, 1.0 - load.requests_per_s * float(rates.delay_s[-1]))
    served_per_s = places * open_share / float(rates.round_s[-1]) / max(load.output.mean - 1.0, 1e-9)
    return (ahead - places + 1) / served_per_s
