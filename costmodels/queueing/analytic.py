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
from scipy.special import ndtr

from costmodels.queueing.load import Load
from costmodels.queueing.simulation import BatchLimits, Scheduling
from costmodels.queueing.single_server import waiting_time
from costmodels.queueing.step_times import StepTimes

FloatArray = npt.NDArray[np.float64]

_LENGTH_NODES = 32
"""Equally likely values that stand for a distribution of lengths."""


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
class _Rates:
    """At n = 1, 2, ... decoding sequences: time between tokens without prompts, engine time of a mean prompt, and the
    decode rounds that run within that time."""

    sequences: FloatArray
    round_s: FloatArray
    prefill_s: FloatArray
    rounds_in_prefill: FloatArray


def predict(times: StepTimes, load: Load, limits: BatchLimits) -> AnalyticFigures:
    """Expected figures of a replica; see the module's docstring for the model."""
    rates = _rates(times, load, limits, load.prompt.mean)
    tokens = max(load.output.mean - 1.0, 1e-9)
    # A request keeps a full engine busy for its share of decode rounds and its prompt, less the rounds that go with it.
    per_request_s = tokens * rates.round_s / rates.sequences + rates.prefill_s - rates.rounds_in_prefill * rates.round_s
    max_rate = float(np.max(1.0 / np.maximum(per_request_s, rates.prefill_s)))
    utilisation = load.requests_per_s / max_rate
    prefill_share = load.requests_per_s * rates.prefill_s
    if utilisation >= 1.0 or prefill_share[0] >= 1.0:
        return AnalyticFigures(
            utilisation, max_rate, float(rates.sequences[-1]), float(rates.prefill_s[-1]), float(rates.round_s[-1]), math.inf, math.inf
        )
    share = np.minimum(prefill_share, 1.0 - 1e-9)
    token_rate = (1.0 - share) / rates.round_s + load.requests_per_s * rates.rounds_in_prefill
    occupancy = _occupancy(load.requests_per_s * tokens / token_rate, rates.sequences)
    counts = np.arange(len(occupancy), dtype=np.float64)
    decoding = np.minimum(counts, rates.sequences[-1])
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


def _rates(times: StepTimes, load: Load, limits: BatchLimits, prompt: float) -> _Rates:
    kv_tokens = load.prompt.mean + load.output.second_moment / (2.0 * load.output.mean)
    reserved = load.prompt.mean + load.output.mean
    most = max(1, min(limits.sequences, int(limits.kv_tokens / reserved)))
    sequences = np.arange(1, most + 1, dtype=np.float64)
    per_slot = np.maximum(1.0, sequences / times.stages)
    stage_s = times.decode_step_s(per_slot, kv_tokens)
    # A slot goes round in the latency of the pipeline, or as fast as the slowest stage serves all slots.
    slots = np.minimum(sequences, times.stages)
    round_s = np.maximum(stage_s.sum(axis=0), slots * stage_s.max(axis=0))
    prefill_s, rounds = _prefill(times, limits, per_slot, kv_tokens, prompt)
    return _Rates(sequences, round_s, prefill_s, rounds / times.stages)


def _prefill(
    times: StepTimes, limits: BatchLimits, per_slot: FloatArray, kv_tokens: float, prompt: float
) -> tuple[FloatArray, FloatArray]:
    """Time that a prompt holds the slowest stage, and the steps it takes."""
    if limits.scheduling is Scheduling.PREFILL_FIRST:
        alone = times.mixed_step_s(np.zeros_like(per_slot), kv_tokens, prompt_tokens=prompt, prefix_tokens=0.0, logits=1)
        return alone.max(axis=0), np.zeros_like(per_slot)
    room = np.maximum(1.0, limits.step_tokens - per_slot)
    total, steps = np.zeros_like(per_slot), np.zeros_like(per_slot)
    for chunk in np.unique(room):
        chosen = room == chunk
        n_chunks = prompt / chunk
        done = 0.0
        while done < prompt:
            size = min(chunk, prompt - done)
            # The rest of a last, short chunk is filled with the next prompt: it counts for the part of a step it takes.
            weight = size / chunk if n_chunks > 1.0 else 1.0
            full = chunk if n_chunks > 1.0 else size
            step = times.mixed_step_s(per_slot[chosen], kv_tokens, prompt_tokens=full, prefix_tokens=done, logits=1)
            total[chosen] += weight * step.max(axis=0)
            steps[chosen] += weight
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


def _tpot_p95(load: Load, rates: _Rates, *, mean_batch: float) -> float:
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


def _sensitivity(load: Load, rates: _Rates, batch: float) -> tuple[float, float, float]:
    """Share of time that prompts leave to rounds, delay a prompt causes, and how a round grows with the batch."""
    delay_s = max(0.0, float(np.interp(batch, rates.sequences, rates.prefill_s - rates.rounds_in_prefill * rates.round_s)))
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
    low, high = mean_s, mean_s + 6.0 * float(spread.max())
    if not high > low:
        return mean_s
    for _ in range(50):
        middle = (low + high) / 2.0
        below = float(np.mean(ndtr((middle - mean_s) / np.maximum(spread, 1e-15))))
        low, high = (middle, high) if below < 0.95 else (low, middle)
    return high


def _ttft_p95(
    times: StepTimes, load: Load, limits: BatchLimits, rates: _Rates, occupancy: FloatArray, at_mean: float
) -> float:
    """Wait for earlier prompts, for the step under way, and the prompt's own steps; then the wait for a place."""
    quantiles = (np.arange(_LENGTH_NODES) + 0.5) / _LENGTH_NODES
    batch = np.array([max(1.0, at_mean / times.stages)])
    kv_tokens = load.prompt.mean + load.output.second_moment / (2.0 * load.output.mean)
    prompts = load.prompt.quantile(quantiles) if load.prompt.sigma > 0.0 else np.array([load.prompt.mean])
    service_s = np.array([float(_prefill(times, limits, batch, kv_tokens, p)[0][0]) for p in prompts])
    if load.requests_per_s * float(np.mean(service_s)) >= 1.0:
        return math.inf
    round_s = float(np.interp(at_mean, rates.sequences, rates.round_s))
    latency = float(times.stages)
    # An engine that is decoding ends its step first; the share of time with nobody decoding has no step to end.
    busy = 1.0 - float(occupancy[0])
    residual = busy * round_s / max(1.0, min(latency, at_mean)) * quantiles
    through_pipeline = service_s * latency if times.stages > 1 else service_s
    wait = waiting_time(load.requests_per_s, service_s, (residual, through_pipeline))
    return wait.quantile(0.95) + _place_wait_p95(load, rates, occupancy)


def _place_wait_p95(load: Load, rates: _Rates, occupancy: FloatArray) -> float:
    """95th percentile of the wait for a place in a full batch: places come free at the rate of a full engine."""
    places = len(rates.sequences)
    tail = 1.0 - np.cumsum(occupancy)
    ahead = int(np.searchsorted(-tail, -0.05))
    if ahead < places:
        return 0.0
    share = min(load.requests_per_s * float(rates.prefill_s[-1]), 1.0 - 1e-9)
    token_rate = (1.0 - share) / float(rates.round_s[-1]) + load.requests_per_s * float(rates.rounds_in_prefill[-1])
    served_per_s = places * token_rate / max(load.output.mean - 1.0, 1e-9)
    return (ahead - places + 1) / served_per_s
