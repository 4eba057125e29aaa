"""The prediction of the simulator for an open loop: requests that arrive by themselves, on the workers of a row.

One worker is simulated under its share of a Poisson process, dealt out by the router that the row says, as the search does. A
factor on step times is simulated as the same engine under as much more load, with all times as much longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from meshwright.app.evidence.serving.deployment import MAX_LOAD_SEQUENCES, Deployment, admission
from meshwright.app.evidence.serving.figures import Figures, figures_of
from meshwright.app.evidence.serving.recipes import BenchmarkSource, EngineName
from meshwright.app.evidence.serving.replay import PROFILES, EngineConstants, kv_tokens_of, simulated_engine, with_host_time
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.queueing.load import Load, RequestStream, TokenCount, in_turn, request_stream
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.queueing.simulation.dealing import MOST_TOGETHER, dealt_to_fewest
from meshwright.costmodels.queueing.simulation.replica import (
    Admission,
    BatchLimits,
    Scheduling,
    SimulationResult,
    Window,
    pooled,
    simulate,
    simulate_closed_loop,
)
from meshwright.costmodels.queueing.step_times import GroupTimes, StepTimes

REQUESTS = 10_000
"""Requests of a simulation, as many as of the search's."""

FEWER_REQUESTS = 4_000
"""Requests of a simulation where a factor or a rate is looked for."""

NEAR_KNEE = 0.9
"""Share of predicted capacity above which times are ill-conditioned: a few percent of step time are multiples of a wait."""

_HALVINGS = 14
_LEAST, _MOST = 0.3, 4.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The lengths of a data set around their means: log-scales of a lognormal, 0 of a fixed length, and where each is cut."""

    prompt_sigma: float
    longest_prompt: int
    output_sigma: float
    longest_output: int


SHAPES: Mapping[str, Shape] = {
    # MLPerf cuts both at 1,024 tokens; the spreads are assumed.
    "openorca": Shape(0.8, 1024, 0.8, 1024),
    # Published configurations: max_input_len 2540, max_seq_len 2668, so each answer has 128 tokens; the spread is assumed.
    "cnn-dailymail": Shape(0.45, 2540, 0.0, 128),
}
"""Data sets by name in small letters; lengths of others are fixed."""

_VALUES = 500


def cut_lognormal(mean: float, sigma: float, longest: int) -> TokenCount:
    """Return a lognormal length cut at ``longest``, with this mean after the cut; a fixed one where sigma is 0 or the mean is
    no shorter than the longest."""
    if sigma == 0.0 or mean >= longest:
        return TokenCount(float(round(mean)))
    places = np.exp(sigma * ndtri((np.arange(_VALUES) + 0.5) / _VALUES))
    low, high = math.log(mean) - 10.0 * sigma, math.log(longest) + 10.0 * sigma
    for _ in range(60):
        middle = (low + high) / 2.0
        below = float(np.minimum(math.exp(middle) * places, longest).mean()) < mean
        low, high = (middle, high) if below else (low, middle)
    return TokenCount.empirical(np.clip(np.rint(math.exp(low) * places), 1, longest).astype(np.int64))


def lengths_of(deployed: Deployment) -> tuple[TokenCount, TokenCount]:
    """Return the lengths of prompts and answers: of a known data set lognormal and cut, else fixed."""
    shape = SHAPES.get(deployed.dataset.casefold(), Shape(0.0, deployed.prompt_tokens, 0.0, deployed.output_tokens))
    return (
        cut_lognormal(deployed.prompt_tokens, shape.prompt_sigma, shape.longest_prompt),
        cut_lognormal(deployed.output_tokens, shape.output_sigma, shape.longest_output),
    )


@dataclass(frozen=True, eq=False)
class OpenLoop:
    """One of equal workers under its share of the requests, or several where a router looks at all of them.

    ``load`` is that of one worker, of which ``together`` are simulated; ``outside_s`` is the time to first token outside of the
    simulation. A run that is ``finite`` has so many requests of all workers, which come at the row's rate on average.
    """

    times: StepTimes | GroupTimes
    limits: BatchLimits
    load: Load
    workers: int
    outside_s: float
    together: int = 1
    finite: int | None = None

    def run(self, *, slowdown: float = 1.0, rate: float = 1.0, requests: int = REQUESTS) -> SimulationResult:
        """Simulate with step times and a rate of requests so many times as large; times are to be taken times ``slowdown``."""
        load = replace(self.load, requests_per_s=self.load.requests_per_s * slowdown * rate * self.together)
        stream = self._stream(load, requests * self.together)
        if self.together == 1:
            return simulate(self.times, stream, self.limits)
        parts = dealt_to_fewest(self.times, stream, self.limits, workers=self.together)
        return pooled([simulate(self.times, part, self.limits) for part in parts])

    def _stream(self, load: Load, requests: int) -> RequestStream:
        if self.finite is None:
            return request_stream(load, requests=requests, seed=0)
        count = max(2, math.ceil(self.finite * self.together / self.workers))
        drawn = request_stream(load, requests=count, seed=0)
        # The row's rate is that of its run, whatever gaps are drawn.
        rate = count / float(drawn.arrival_s[-1])
        return replace(drawn.faster(load.requests_per_s / rate), is_finite=True)

    def times_s(
        self, share: float, *, slowdown: float = 1.0, rate: float = 1.0, requests: int = REQUESTS
    ) -> tuple[float, float]:
        """Return the quantiles of times to first token, of what is simulated alone, and per output token."""
        result = self.run(slowdown=slowdown, rate=rate, requests=requests)
        ttft, tpot = (float(np.quantile(seen, share)) for seen in (result.ttft_s, result.tpot_s))
        return slowdown * ttft, slowdown * tpot

    @property
    def utilisation(self) -> float:
        """Requests per second over those that a worker answers which always has some waiting."""
        requests = max(FEWER_REQUESTS, 4 * self.limits.sequences)
        stream = request_stream(replace(self.load, requests_per_s=1.0, cv=1.0), requests=requests, seed=0)
        clients = min(requests // 2, 2 * self.limits.sequences)
        full = simulate_closed_loop(self.times, stream, self.limits, concurrency=clients, window=Window(0.0, 0.0))
        answered = np.sort(full.answered_s)
        low, high = len(answered) // 4, 3 * len(answered) // 4
        return self.load.requests_per_s * float(answered[high] - answered[low]) / (high - low)

    def slowdown_of(self, tpot_p95_s: float) -> float | None:
        """Return the factor on step times with which a measured 95th percentile per output token is what is simulated; None
        where none from 0.3 to 4 does."""
        return _crossing(lambda s: self.times_s(0.95, slowdown=s, requests=FEWER_REQUESTS)[1] < tpot_p95_s)

    def goodput_of(self, ttft_p99_s: float, tpot_p99_s: float) -> float | None:
        """Return the largest rate, over the row's, at which both 99th percentiles stay within limits; None as above."""

        def keeps(rate: float) -> bool:
            ttft_s, tpot_s = self.times_s(0.99, rate=rate, requests=FEWER_REQUESTS)
            return ttft_s + self.outside_s <= ttft_p99_s and tpot_s <= tpot_p99_s

        return _crossing(keeps)


def open_loop(deployed: Deployment, constants: EngineConstants) -> OpenLoop:
    """Return the open loop of a row; raises NotPredictedError for pools, drafts and what does not fit."""
    if deployed.requests_per_s is None:
        raise NotPredictedError("the row is not of an open loop")
    if deployed.prefill is not None or deployed.drafted:
        raise NotPredictedError("an open loop on prefill and decode pools or with drafts")
    workers = deployed.decode
    try:
        engine = simulated_engine(deployed)
        sequences = min(MAX_LOAD_SEQUENCES, deployed.step_tokens, deployed.most_sequences)
        kv_tokens = kv_tokens_of(engine, deployed, step_tokens=deployed.step_tokens, sequences=sequences)
    except InvalidInputError as error:
        raise NotPredictedError(error.problem) from error
    prompt, output = lengths_of(deployed)
    if kv_tokens < prompt.quantile(1.0 - 1e-9) + output.quantile(1.0 - 1e-9):
        raise NotPredictedError("the model says that weights and one request do not fit in memory")
    # MLPerf's configurations of TensorRT-LLM say batch_scheduler_policy max_util: requests start until the cache is full.
    evicts = deployed.source is BenchmarkSource.MLPERF and deployed.engine is EngineName.TENSORRT_LLM
    lets_in = Admission.PREEMPT if evicts else admission(deployed.engine, None)
    limits = BatchLimits(sequences, deployed.step_tokens, kv_tokens, Scheduling.CHUNKED_PREFILL, lets_in)
    load = Load(deployed.requests_per_s / workers.count, prompt, output)
    if deployed.router is Router.ROUND_ROBIN:
        load = in_turn(load, workers.count)
    times = with_host_time(engine, constants, PROFILES[deployed.engine])
    together = min(workers.count, MOST_TOGETHER) if deployed.router is Router.LEAST_LOADED else 1
    return OpenLoop(times, limits, load, workers.count, PROFILES[deployed.engine].outside_s, together, deployed.requests)


def open_figures(deployed: Deployment, constants: EngineConstants) -> Figures:
    """Return the figures of an open loop; raises NotPredictedError as ``open_loop`` does."""
    loop = open_loop(deployed, constants)
    result, load = loop.run(), loop.load
    tokens_per_s = load.requests_per_s * loop.workers * load.output.mean
    if loop.finite is not None:
        # A queue that grows or drains gives tokens at another rate than it gets requests.
        answered = float(result.requests.output_tokens.sum()) / result.duration_s
        tokens_per_s = answered * loop.workers / loop.together
    return figures_of(result, outside_s=constants.request_s, output_tokens_per_s=tokens_per_s)


def _crossing(below: Callable[[float], bool]) -> float | None:
    """The largest factor from 0.3 to 4 that is still below, by halving; None where none or all are."""
    low, high = _LEAST, _MOST
    if not below(low) or below(high):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if below(middle) else (low, middle)
    return low
