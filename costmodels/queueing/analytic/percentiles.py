"""Percentiles of a serving replica without simulation: used to order a search, checked against the simulator.

Three parts, each solved by itself because they change at different speeds. Prompts that wait, for a few steps: a queue with
service in bulk (``prompt_queue``). Sequences that decode, for hundreds of rounds: arrivals slow rounds down, and slow rounds
let more gather, a self-exciting process whose cumulants give the time per token (``feedback``). Who waits for a place: a
diffusion. Arrivals are Poisson whatever the load says of bursts, and nobody is evicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammainc, gammaincinv, ndtr, ndtri

from meshwright.costmodels.compiling import kept_compiled
from meshwright.costmodels.queueing.analytic.prompt_queue import BINS, BINS_OF_A_FACTOR, PromptSteps, first_token_times
from meshwright.costmodels.queueing.analytic.step_curves import StepCurves, step_curves
from meshwright.costmodels.queueing.load import Load
from meshwright.costmodels.queueing.simulation.replica import Admission, BatchLimits
from meshwright.costmodels.queueing.step_times import StepTimes

# The steady state of an engine: how many sequences decode, how long rounds last, who waits for a place.
#
# The batch changes slowly, over stays of hundreds of rounds; prompts queue for a few steps. So the queue of prompts is solved
# at a few sizes of the batch, and its mean step there, a curve over the batch, is made linear as seen over the batch's own
# distribution (statistical linearisation; Booton 1954), which in turn comes from the linear self-exciting process.

CELLS_OF_A_STAY = 16
"""Parts of a mean stay that the recursion goes through one by one."""

_SYMMETRIC = 1e-3
"""Skewness below which a distribution counts as normal."""


class Feedback(NamedTuple):
    """A linear engine: rounds last ``base_s`` and, of a sequence in its i-th round, ``sequence_s + i growth_s``.

    prompt_s         mean, mean square and mean cube of what a prompt adds to a round
    rounds           [k] equally likely rounds of requests
    arrivals_per_s   rate of a Poisson process
    """

    base_s: float
    sequence_s: float
    growth_s: float
    prompt_s: tuple[float, float, float]
    rounds: FloatArray
    arrivals_per_s: float


class Cumulants(NamedTuple):
    """Mean, variance and third central moment."""

    mean: float
    variance: float
    third: float

    def scaled(self, factor: float) -> Cumulants:
        """Those of the quantity times a factor."""
        return Cumulants(self.mean * factor, self.variance * factor**2, self.third * factor**3)

    def below(self, value: float) -> float:
        """Chance of less than a value, by the shifted gamma distribution of these cumulants (Pearson's type III)."""
        deviation = math.sqrt(max(self.variance, 1e-300))
        skewness = self.third / deviation**3
        z = (value - self.mean) / deviation
        if skewness < _SYMMETRIC:
            return float(ndtr(z))
        shape = 4.0 / skewness**2
        return float(gammainc(shape, max(0.0, shape + z * math.sqrt(shape))))

    def quantile(self, probability: float) -> float:
        """Value that is not exceeded with a probability, by the same distribution."""
        deviation = math.sqrt(max(self.variance, 1e-300))
        skewness = self.third / deviation**3
        if skewness < _SYMMETRIC:
            return self.mean + deviation * float(ndtri(probability))
        shape = 4.0 / skewness**2
        return self.mean + deviation * (float(gammaincinv(shape, probability)) - shape) / math.sqrt(shape)


def stay_s(feedback: Feedback, rounds: float) -> Cumulants:
    """Time that a request of so many rounds takes for them, from its first token on."""
    return Cumulants(*_cumulants(feedback, rounds, _cells_before(feedback)))


def present(feedback: Feedback) -> Cumulants:
    """Sequences that decode in a round."""
    return Cumulants(*_cumulants(feedback, 0.0, _cells_before(feedback)))


def _cells_before(feedback: Feedback) -> int:
    """Cells before the moment asked about that can matter: the longest stay, and clusters until they have died out."""
    mean = float(np.mean(feedback.rounds))
    each_s = feedback.sequence_s + feedback.growth_s * mean / 2.0
    free = max(0.05, 1.0 - feedback.arrivals_per_s * feedback.prompt_s[0])
    brings = min(0.95, feedback.arrivals_per_s * mean * each_s / free)
    return int(CELLS_OF_A_STAY * (float(feedback.rounds.max()) / mean + 3.0 / (1.0 - brings)))


@kept_compiled
def _cumulants(feedback, asked, before):  # type: ignore[no-untyped-def]
    """Cumulants of the time of the next ``asked`` rounds for who is there, or of who is present where ``asked`` is 0.

    ``effect[k]`` are the cluster's first three moments, about zero, of what an arrival in cell k adds with all it brings. By
    the branching property the log of its generating function is what it adds itself, and of each cell after it a Poisson
    number of arrivals; the derivatives of that at zero are these moments.
    """
    rate, rounds = feedback.arrivals_per_s, feedback.rounds
    prompt_s, prompt_square, prompt_cube = feedback.prompt_s
    mean = 0.0
    for k in range(len(rounds)):
        mean += rounds[k]
    width = mean / len(rounds) / CELLS_OF_A_STAY
    after = math.ceil(asked / width)
    size = before + after + 1
    # Sums from a cell to the end of the three moments, plain and times the round, for integrals over a stay.
    sums = np.zeros((3, 2, size + 2))
    effects = np.zeros(3)
    total = np.zeros(3)
    stays = np.zeros(3)
    free = 1.0 - rate * prompt_s
    for cell in range(size - 1, -1, -1):
        at = (cell - before) * width
        first = square = cube = second = product = third = 0.0
        own = np.zeros(3)
        asks = cell == before and asked > 0.0
        for k in range(len(rounds) + (1 if asks else 0)):
            stay = rounds[k] if k < len(rounds) else asked
            ahead = stay / width
            end = min(size, cell + 1 + int(ahead))
            part = ahead - int(ahead) if end < size else 0.0
            for moment in range(3):
                plain = sums[moment, 0, cell + 1] - sums[moment, 0, end]
                moved = sums[moment, 1, cell + 1] - sums[moment, 1, end]
                if part > 0.0:
                    plain += part * (sums[moment, 0, end] - sums[moment, 0, end + 1])
                    moved += part * (sums[moment, 1, end] - sums[moment, 1, end + 1])
                stays[moment] = feedback.sequence_s * plain + feedback.growth_s * (moved - at * plain)
            if asked == 0.0 and stay > -at:
                stays[0] += 1.0
            if k < len(rounds):
                share = 1.0 / len(rounds)
                first += share * stays[0]
                square += share * stays[0] ** 2
                cube += share * stays[0] ** 3
                second += share * stays[1]
                product += share * stays[0] * stays[1]
                third += share * stays[2]
            else:
                for moment in range(3):
                    own[moment] = stays[moment]
        counts = min(1.0, max(0.0, (asked - at) / width)) if at >= 0.0 else 0.0
        effects[0] = (first + prompt_s * counts) / free
        direct = counts + rate * effects[0]
        effects[1] = (second + square + 2.0 * first * prompt_s * direct + prompt_square * direct**2) / free
        mixed = product + prompt_s * direct * second + rate * effects[1] * (prompt_s * first + prompt_square * direct)
        cubes = cube + 3.0 * square * prompt_s * direct + 3.0 * first * prompt_square * direct**2 + prompt_cube * direct**3
        effects[2] = (third + 3.0 * mixed + cubes) / free
        if asks:
            # Who arrives with its own prompt counts; its time does not, since the first token ends it.
            for moment in range(3):
                total[moment] += own[moment]
                total[moment] += prompt_s * rate * effects[moment]
        for moment in range(3):
            weight = rate * effects[moment] + (counts if moment == 0 else 0.0)
            sums[moment, 0, cell] = sums[moment, 0, cell + 1] + width * weight
            sums[moment, 1, cell] = sums[moment, 1, cell + 1] + width * weight * at
            total[moment] += rate * feedback.base_s * width * effects[moment]
    return total[0] + asked * feedback.base_s, total[1], total[2]


FloatArray = npt.NDArray[np.float64]

_POINTS = np.array([-math.sqrt(3.0), 0.0, math.sqrt(3.0)])
_WEIGHTS = np.array([1.0, 4.0, 1.0]) / 6.0
"""Gauss and Hermite's rule of three points for a normal distribution."""

_PASSES = 4
_SETTLED = 0.01
"""Change of the mean batch, relative, at which the passes end."""

_CAPACITY_PASSES = 2

_NO_TIMES = np.zeros(0)


@dataclass(frozen=True, eq=False)
class Busy:
    """A replica under a load: the feedback of its rounds, and who decodes in one of them; no more than ``places``.

    ``stays`` are shares of all requests with their rounds and the time of these; who has no rounds is not in them.
    """

    feedback: Feedback
    decoding: Cumulants
    stays: tuple[tuple[float, float, Cumulants], ...]
    places: float

    @property
    def mean_batch(self) -> float:
        """Sequences that decode, averaged over time: Little's law."""
        mean_s = sum(share * stay.mean for share, _, stay in self.stays)
        return min(self.places, self.feedback.arrivals_per_s * mean_s)

    def tpot_quantile(self, probability: float) -> float:
        """Percentile of a stay's time over its rounds: requests of each length are a share of all."""
        each = [(share, stay.scaled(1.0 / rounds)) for share, rounds, stay in self.stays]
        ends = [one.quantile(probability) for _, one in each]
        several = sum(share for share, _ in each)
        low, high = min(ends), max(ends)
        for _ in range(30):
            middle = (low + high) / 2.0
            below = sum(share * one.below(middle) for share, one in each) / several
            low, high = (middle, high) if below < probability else (low, middle)
        return high

    def queues(self, steps: StepCurves) -> tuple[tuple[float, PromptSteps], ...]:
        """Shares of time with few, some and many sequences that decode, or none, and what steps do with prompts then."""
        none = math.exp(-self.decoding.mean)
        found = [(none, steps.at(0.0, idle=1.0))] if none > 1e-3 else []
        for weight, sequences in zip(_WEIGHTS, _batches(self.decoding, self.places), strict=True):
            found.append(((1.0 - none) * float(weight), steps.at(float(sequences))))
        return tuple(found)

    def place_wait(self, max_requests_per_s: float) -> tuple[float, float]:
        """Chance to wait for a place, and mean time of who does: a diffusion that drifts back steadily while places are full
        (Halfin and Whitt 1981; Browne and Whitt 1995), at the variance of arrivals and of stays (Allen and Cunneen)."""
        rate = self.feedback.arrivals_per_s
        free_per_s = max_requests_per_s - rate
        room = self.places - self.mean_batch
        width = 0.05 * math.sqrt(self.decoding.variance)
        full = (self.decoding.below(self.places) - self.decoding.below(self.places - width)) / width
        # Below, an arrival also takes the time of its prompt from all rounds; beyond, only who is answered lets a prompt in.
        swing = (1.0 - rate * self.feedback.prompt_s[0]) ** -2
        beyond = full * swing * rate / free_per_s if room > 0.0 else 1.0
        below = self.decoding.below(self.places)
        rounds = self.feedback.rounds
        squared_variation = float(np.var(rounds) / np.mean(rounds) ** 2)
        mean_beyond = rate * (1.0 + squared_variation) / (2.0 * free_per_s)
        return beyond / (below + beyond), mean_beyond / max_requests_per_s


@dataclass(frozen=True, eq=False)
class FirstTokens:
    """Histogram of the time to first token of who has a place, bins of equal ratio from ``least_s``; and the wait for a place:
    its chance and its mean, exponential."""

    least_s: float
    share: FloatArray
    place: tuple[float, float] = (0.0, 0.0)

    def quantile(self, probability: float) -> float:
        """Time that is not exceeded with a probability."""
        seen = np.flatnonzero(self.share)
        times = self.least_s * 10.0 ** (seen / BINS_OF_A_FACTOR)
        share = self.share[seen] / self.share.sum()
        chance, mean_s = self.place
        if chance < 1e-3:
            total = np.cumsum(share)
            return float(times[min(len(times) - 1, int(np.searchsorted(total, probability)))])
        low, high = 0.0, float(times[-1]) + 10.0 * mean_s
        for _ in range(40):
            middle = (low + high) / 2.0
            left = middle - times
            in_time = np.where(left >= 0.0, 1.0 - chance * np.exp(-np.maximum(left, 0.0) / mean_s), 0.0)
            low, high = (middle, high) if float(np.dot(share, in_time)) < probability else (low, middle)
        return high


def first_token_distribution(queues: tuple[tuple[float, PromptSteps], ...], requests_per_s: float) -> FirstTokens:
    """Time to first token of arrivals that meet each of the queues in its share of time."""
    least_s = min(float(steps.step_s[1:].min()) for _, steps in queues) / 2.0
    share = np.zeros(BINS)
    for weight, steps in queues:
        part = np.zeros(BINS)
        first_token_times(steps, requests_per_s, least_s, _cells(steps, requests_per_s), part)
        share += weight * part / max(part.sum(), 1e-300)
    return FirstTokens(least_s, share)


def settle(steps: StepCurves, requests_per_s: float, *, places: float) -> Busy:
    """The steady state of a replica."""
    mean = _first_guess(steps, requests_per_s, places)
    deviation = math.sqrt(mean + 1.0)
    for _ in range(_PASSES):
        before = mean
        batches = np.clip(mean + deviation * _POINTS, 1.0, max(1.0, places))
        round_s = np.array([_round_s(steps, float(n), requests_per_s) for n in batches])
        feedback, mean = _linearised(steps, requests_per_s, batches, round_s)
        mean = min(mean, places)
        decoding = present(feedback)
        deviation = math.sqrt(max(decoding.variance, 1e-12))
        if abs(mean - before) < _SETTLED * mean:
            break
    lengths, count = np.unique(steps.rounds, return_counts=True)
    shares = count / len(steps.rounds)
    stays = tuple((float(p), float(n), stay_s(feedback, float(n))) for p, n in zip(shares, lengths, strict=True) if n > 0.0)
    return Busy(feedback, decoding, stays, places)


def capacity_per_s(steps: StepCurves, *, places: float) -> float:
    """Rate of arrivals at which the places are full on average; without decoding, at which prompts fill every step."""
    prompts = steps.at(places if len(steps.rounds) else 0.0)
    last = len(prompts.step_s) - 1
    mean = float(np.dot(prompts.prompt, np.arange(len(prompts.prompt))))
    most_per_s = prompts.room / mean / float(prompts.step_s[last])
    if not len(steps.rounds):
        return most_per_s
    mean_rounds = float(np.mean(steps.rounds))
    alone_s = float(steps.decode_s(np.array([places]))[0])
    rate = 0.5 * min(most_per_s, places / (mean_rounds * alone_s))
    for _ in range(_CAPACITY_PASSES):
        round_s = _round_s(steps, places, rate)
        # Time that prompts add to a round for each that arrives in it.
        prompt_s = (round_s - alone_s) / (rate * round_s)
        rate = min(places / (mean_rounds * alone_s + places * prompt_s), 0.98 * most_per_s)
    return rate


def _first_guess(steps: StepCurves, requests_per_s: float, places: float) -> float:
    """The smallest batch that keeps up where each prompt takes a full step's share of its tokens."""
    rounds = float(np.mean(steps.rounds))
    cells = float(np.dot(steps.prompt, np.arange(len(steps.prompt))))
    taken = np.minimum(0.9, requests_per_s * cells / steps.room * (steps.step_s[:, -1] - steps.step_s[:, 0]))
    needed = requests_per_s * rounds * steps.stages * steps.step_s[:, 0] / (1.0 - taken)
    enough = np.flatnonzero(needed[1:] <= steps.sequences[1:])
    return float(min(places, needed[1 + enough[0]] if len(enough) else places))


def _linearised(steps: StepCurves, requests_per_s: float, batches: FloatArray, round_s: FloatArray) -> tuple[Feedback, float]:
    """The linear process nearest to the curve of rounds over the batch, and its mean batch."""
    mean_rounds = float(np.mean(steps.rounds))
    mean_s, centre = float(_WEIGHTS @ round_s), float(_WEIGHTS @ batches)
    spread = float(_WEIGHTS @ (batches - centre) ** 2)
    slope_s = max(0.0, float(_WEIGHTS @ ((batches - centre) * (round_s - mean_s))) / spread) if spread > 1e-9 else 0.0
    brings = min(0.97, requests_per_s * mean_rounds * slope_s)
    slope_s = brings / (requests_per_s * mean_rounds)
    mean = requests_per_s * mean_rounds * (mean_s - slope_s * centre) / (1.0 - brings)
    mean = max(1e-3, mean)
    at_mean_s = mean_s + slope_s * (mean - centre)
    alone_s = float(_WEIGHTS @ steps.decode_s(batches))
    taken = min(0.97, max(0.0, (mean_s - alone_s) / mean_s))
    prompt_s = taken / requests_per_s
    sequence_s = slope_s * (1.0 - taken)
    base_s = max(1e-9, at_mean_s * (1.0 - taken) - sequence_s * mean)
    i = np.interp(centre, steps.sequences, steps.kv_token_s) * steps.stages / max(1.0, centre)
    growth_s = min(float(i), sequence_s / mean_rounds)
    square, cube = steps.prompt_spread
    moments = (prompt_s, prompt_s**2 * square, prompt_s**3 * cube)
    rounds = steps.rounds
    age = float(np.sum(rounds**2) / np.sum(rounds)) / 2.0
    return Feedback(base_s, sequence_s - growth_s * age, growth_s, moments, rounds, requests_per_s), mean


def _round_s(steps: StepCurves, sequences: float, requests_per_s: float) -> float:
    """Mean time between two tokens of a sequence while so many decode."""
    prompts = steps.at(sequences)
    between_s, without = first_token_times(prompts, requests_per_s, 1.0, _cells(prompts, requests_per_s), _NO_TIMES)
    return float(steps.stages * between_s / (without if steps.prefill_first else 1.0))


def _batches(decoding: Cumulants, places: float) -> FloatArray:
    return np.clip(decoding.mean + math.sqrt(decoding.variance) * _POINTS, 1.0, max(1.0, places))


def _cells(steps: PromptSteps, requests_per_s: float) -> int:
    """Cells that a queue of prompts is followed to: as many as fill ten of its mean waits, within limits."""
    last = len(steps.step_s) - 1
    mean = float(np.dot(steps.prompt, np.arange(len(steps.prompt))))
    # Share of full steps that arrivals fill.
    filled = requests_per_s * float(steps.step_s[last]) * mean / steps.room
    longest = max(float(len(steps.prompt)), steps.room)
    return int(min(160.0, max(24.0, 3.0 * longest + 6.0 * mean / max(0.02, 1.0 - filled))))


# Percentiles of a replica, of its three parts.

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
