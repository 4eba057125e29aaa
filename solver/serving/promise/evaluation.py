"""Does a layout keep the promise under a load? Bounds first, then simulation; every answer is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.queueing.analytic.capacity import least_work_s, mean_least_work_s
from meshwright.costmodels.queueing.analytic.percentiles import AnalyticFigures, Curves, curves, predict, predict_closed
from meshwright.costmodels.queueing.analytic.step_curves import first_token_s, token_s
from meshwright.costmodels.queueing.results import Percentile
from meshwright.costmodels.queueing.simulation.dealing import dealt_to_fewest
from meshwright.costmodels.queueing.simulation.replica import (
    EVERYTHING,
    NO_TARGETS,
    SimulationResult,
    Targets,
    Window,
    pooled,
    simulate,
    simulate_closed_loop,
)
from meshwright.solver.control import Stop, never_stop, spend
from meshwright.solver.problem.request import ServingWorkload
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import SEQUENCES, STEP_TOKENS
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import (
    MAX_UTILISATION,
    P95,
    SURELY_COUNTED,
    Alone,
    AskedLoad,
    Candidate,
    CandidateKey,
    EngineKey,
    Measured,
    Running,
    answers_per_s,
    largest_batch,
)
from meshwright.solver.serving.promise.promised import Promised

# Workers that compute prompts and answers in one layout: their batch limits, bounds and simulations.

_SATURATED_REQUESTS = 2_000
"""Requests of the simulation that finds what a full engine can keep up with."""

_FULL_BATCHES = 4
"""Full batches of every attention group, and of every slot of its pipeline, that this simulation answers at least."""

_SETTLING_ANSWERS = 3
"""Answers' times after which a replica of several attention groups counts as settled, and the last one loads it still."""


_LEAST_SHARE = 4
"""Of the requests of a replica that is simulated alone each of several gets this part or more: 95th percentiles lie within 3%
of those of all (one engine, 2 to 32 replicas, three loads)."""


class OneLayout:
    """The way of workers in one layout."""

    def __init__(self, asked: AskedLoad):
        self._asked = asked
        self._candidates: dict[EngineKey, list[Candidate]] = {}
        self._least_work_s: dict[tuple[EngineKey, int], npt.NDArray[np.float64]] = {}
        self._curves: dict[CandidateKey, Curves] = {}
        self._alone: dict[tuple[CandidateKey, int], Alone] = {}

    def candidates(self, engine: Engine) -> list[Candidate]:
        """Batch limits whose cache holds the longest request and every sequence of which may get a token, most first."""
        if engine.key not in self._candidates:
            every = (Candidate(engine, step, sequences) for step in STEP_TOKENS for sequences in reversed(SEQUENCES))
            self._candidates[engine.key] = [
                candidate
                for candidate in every
                if -(-candidate.sequences // engine.layout.pp) * engine.query_tokens <= candidate.step_tokens
                and candidate.limits.kv_tokens >= self._asked.longest_request
            ]
        return self._candidates[engine.key]

    def alone(self, engine: Engine, step_tokens: int) -> Alone:
        """Times of the request at the 95th percentile with nobody else in the engine.

        Time to first token is that of the prompt's 95th percentile. Time per token is that of a request with this prompt:
        with its own output when lengths are fixed, of its second token otherwise (later ones take longer).
        """
        prompt = int(self._asked.prompt.quantile(P95))
        # Steps that hold the whole prompt are alike.
        step_tokens = min(step_tokens, max(STEP_TOKENS[0], prompt))
        key = (engine.key, step_tokens)
        if key not in self._alone:
            fixed = self._asked.prompt.is_fixed and self._asked.output.is_fixed
            output = max(2, int(self._asked.output.quantile(P95))) if fixed else 2
            times, cached = engine.alone_times, int(prompt * self._asked.workload.prefix_hit_ratio)
            fresh = self._fresh_tokens if self._asked.workload.hits_by_request else prompt
            ttft_s = first_token_s(times, prompt_tokens=fresh, cached_tokens=cached, step_tokens=step_tokens)
            several = self._asked.output.quantile(P95) > 1
            tpot_s = token_s(times, prompt_tokens=prompt, output_tokens=output) if several else 0.0
            if engine.speculation is not None:
                tpot_s = self._verified_token_s(engine)
            self._alone[key] = Alone(ttft_s, tpot_s)
        return self._alone[key]

    @property
    def _fresh_tokens(self) -> int:
        """Prompt tokens that surely 5% of the counted requests find no fewer of to compute; what lies before them in the cache
        makes none faster."""
        stream = self._asked.traffic.whole
        fresh = stream.prompt_tokens if stream.cached_tokens is None else stream.prompt_tokens - stream.cached_tokens
        return int(np.quantile(fresh, SURELY_COUNTED, method="lower"))

    def _verified_token_s(self, engine: Engine) -> float:
        """Return the lower bound on the 95th percentile of the time per token, where rounds give several tokens. No round is
        faster than one of a single sequence with the shortest prompt, and of the counted requests at least 5% need as many
        rounds a token."""
        stream = self._asked.traffic.whole
        several = stream.output_tokens > 1
        if stream.rounds is None or not several.any():
            return 0.0
        per_token = stream.rounds[several] / (stream.output_tokens[several] - 1)
        round_s = token_s(engine.alone_times, prompt_tokens=int(stream.prompt_tokens.min()), output_tokens=2)
        return round_s * float(np.quantile(per_token, SURELY_COUNTED, method="lower"))

    def bounds_with(self, asked: Candidate) -> dict[tuple[int, int], float]:
        """Bounds of a candidate and all others of its engine, by their limits of tokens in a step and of sequences.

        The tables of a given plan's engine end at its own limits, which need be none of the search's: larger ones are left out.
        """
        engine = asked.engine
        candidates = (*self.candidates(engine), asked)
        step_limits = tuple(sorted({candidate.step_tokens for candidate in candidates}))
        least_s = least_work_s(engine.simulated_times, self._asked.demand, step_limits)
        found = {}
        for candidate in candidates:
            batch = largest_batch(self._asked, candidate)
            if batch <= least_s.shape[1]:
                work_s = least_s[step_limits.index(candidate.step_tokens), batch - 1]
                found[candidate.step_tokens, candidate.sequences] = engine.layout.schedulers / float(work_s)
        return found

    def least_request_s(self, candidate: Candidate) -> float:
        """Return the least seconds that a mean device works for a mean request of its attention group, whatever the
        schedule."""
        key = (candidate.engine.key, candidate.step_tokens)
        if key not in self._least_work_s:
            times = candidate.engine.simulated_times
            self._least_work_s[key] = mean_least_work_s(times, self._asked.demand, (candidate.step_tokens,))[0]
        return float(self._least_work_s[key][largest_batch(self._asked, candidate) - 1])

    def expected(self, candidate: Candidate, share: Share) -> AnalyticFigures:
        """Return the figures that the analytic model expects of a candidate under a load."""
        share = _of_a_group(candidate, share)
        load = replace(self._asked.traffic.load_of(share), output=self._asked.traffic.output_rounds)
        times = candidate.engine.times
        if self._asked.traffic.is_closed:
            figures = predict_closed(times, load, candidate.limits, clients=self._asked.traffic.clients(share))
        else:
            if candidate.key not in self._curves:
                self._curves[candidate.key] = curves(times, load, candidate.limits)
            figures = predict(times, load, candidate.limits, self._curves[candidate.key])
        return replace(figures, tpot_p95_s=figures.tpot_p95_s * self._asked.traffic.rounds_per_token)

    def simulations_of(
        self, candidate: Candidate, share: Share, *, requests: int, targets: Targets = NO_TARGETS
    ) -> list[SimulationResult]:
        """One replica under its share of a load; under a trace, and where a router looks at all, every one."""
        times, limits = candidate.engine.simulated_times, candidate.limits
        together = self._asked.traffic.side_by_side(share)
        requests, window = self._counted(candidate, share, requests, together=together)
        longer = requests if candidate.engine.layout.schedulers > 1 else 0
        streams = self._asked.traffic.streams(share, requests, at_least=longer)
        if self._asked.traffic.is_closed:
            clients = self._asked.traffic.clients(share)
            delay_s = candidate.engine.turnaround_s
            each, (stream,) = self._asked.traffic.one_run, streams
            if each is None:
                return [simulate_closed_loop(times, stream, limits, concurrency=clients, delay_s=delay_s, targets=targets)]
            stream, window = stream[: each * clients], EVERYTHING
            run = simulate_closed_loop(
                times, stream, limits, concurrency=clients, delay_s=delay_s, targets=targets, window=window
            )
            return [replace(run, one_run=True)]
        if together > 1:
            streams = tuple(dealt_to_fewest(times, streams[0], limits, workers=together))
        # Of several replicas none alone shows that the percentile of all is missed.
        early = targets if len(streams) == 1 else NO_TARGETS
        return [simulate(times, stream, limits, targets=early, window=window) for stream in streams]

    def _counted(self, candidate: Candidate, share: Share, requests: int, *, together: int) -> tuple[int, Window | None]:
        """Requests of a simulation of one replica, and which of them count, None: those of the stream. As many as of one
        attention group; of several that are simulated together each has fewer, but enough to settle. A trace stays whole.

        Several groups hold so many more at a time that a run has to begin with several times as many before it is settled, and
        to end with as many. They are no more than fit, nor, where targets are kept, than arrive in the time of an answer.
        """
        groups, window = candidate.engine.layout.schedulers, Window()
        if (groups == 1 and together == 1) or self._asked.traffic.is_closed or self._asked.traffic.is_traced:
            return requests, None
        answer_s = self._asked.targets.ttft_s + self._asked.targets.tpot_s * self._asked.output.mean
        held = math.ceil(min(groups * largest_batch(self._asked, candidate), share.each * answer_s))
        if groups == 1:
            settled = math.ceil(_SETTLING_ANSWERS * held / window.warm_up)
            return min(requests, max(requests // _LEAST_SHARE, settled)), window
        first, end = window.measured(requests)
        warm_up, cool_down = max(first, _SETTLING_ANSWERS * held), max(requests - end, held)
        every = warm_up + (end - first) + cool_down
        # Shares from which the counts come back.
        return every, Window((warm_up + 0.5) / every, (cool_down + 0.5) / every)

    def saturated_per_s(self, candidate: Candidate) -> float:
        """Requests per second of an engine that always has requests waiting."""
        layout = candidate.engine.layout
        clients = 2 * layout.schedulers * candidate.sequences
        running = layout.schedulers * layout.pp * largest_batch(self._asked, candidate)
        requests = max(_SATURATED_REQUESTS, _FULL_BATCHES * running)
        (stream,) = self._asked.traffic.streams(Share(1.0), requests, at_least=requests)
        result = simulate_closed_loop(
            candidate.engine.simulated_times, stream, candidate.limits, concurrency=clients, window=EVERYTHING
        )
        return answers_per_s(result)


def _of_a_group(candidate: Candidate, share: Share) -> Share:
    """The share of one attention group of a replica among others alike."""
    return Share(share.load, share.replicas * candidate.engine.layout.schedulers)


REQUESTS = 10_000
"""Requests of a simulation: 8,500 are counted, so a 95th percentile rests on 425 above it."""

SCREENING_REQUESTS = 2_000
"""Requests of the short simulation that comes first: its 95th percentiles must meet the targets too."""


STEPS_OF_A_LOOK = 10_000
"""Steps of a simulation that count as one more look at the stopping rule, 2.5 ms on one core: 10,000 prompts of 2,000 tokens
take as many in steps of 2,048."""


class SearchStoppedError(Exception):
    """The caller's stopping rule was met before a simulation; never leaves the search."""


class Evaluator:
    """Judges candidates for one workload and its promise, whatever way they run in; remembers what it has simulated.

    ``targets`` are those of simulated percentiles.

    Before each simulation ``stop`` is asked; True raises SearchStoppedError.
    """

    def __init__(
        self,
        workload: ServingWorkload,
        promised: Promised,
        seed: int,
        stop: Stop = never_stop,
        running: Callable[[AskedLoad], Running] = OneLayout,
    ):
        self.workload, self.promised, self.seed, self.stop = workload, promised, seed, stop
        self.simulations = 0
        self.asked = asked = AskedLoad(workload, promised, seed, REQUESTS)
        self.traffic, self.targets, self.demand = asked.traffic, asked.targets, asked.demand
        self.prompt, self.output, self.longest_request = asked.prompt, asked.output, asked.longest_request
        self._running = running(asked)
        self.candidates, self.alone = self._running.candidates, self._running.alone
        self.expected, self.least_request_s = self._running.expected, self._running.least_request_s
        self._measured: dict[tuple[CandidateKey, tuple[float, int]], Measured] = {}
        self._rate_bounds: dict[EngineKey, dict[tuple[int, int], float]] = {}
        self._best_rate_bound: dict[EngineKey, float] = {}
        self._capacity: dict[CandidateKey, float] = {}

    def rate_bound(self, candidate: Candidate) -> float:
        """Requests per second that no schedule of the engine can exceed, all its attention groups together."""
        limits, bounds = (candidate.step_tokens, candidate.sequences), self._rate_bounds.setdefault(candidate.engine.key, {})
        if limits not in bounds:
            bounds.update(self._running.bounds_with(candidate))
        return bounds[limits]

    def best_rate_bound(self, engine: Engine) -> float:
        """The largest of the bounds of an engine's candidates."""
        if engine.key not in self._best_rate_bound:
            self._best_rate_bound[engine.key] = max(self.rate_bound(candidate) for candidate in self.candidates(engine))
        return self._best_rate_bound[engine.key]

    def can_keep_up(self, candidate: Candidate, share: Share) -> bool:
        """Return True if no bound says that the load outruns the engine; clients of a closed loop never do."""
        return self.traffic.is_closed or share.each < self.rate_bound(candidate)

    def only_overloads(self, candidate: Candidate, share: Share) -> bool:
        """Return True if a load is known to be too high without simulating it: there is no target that it may miss instead."""
        open_loop = not self.traffic.is_closed and self.targets == NO_TARGETS
        return open_loop and share.each > MAX_UTILISATION * self.capacity(candidate)

    def measure(self, candidate: Candidate, share: Share, *, within: float = 1.0) -> Measured:
        """Simulate a candidate with its share of a load; ends early when a target is sure to be missed.

        With ``within`` < 1 who takes more than that share of a target is of no interest, and counts as missed.
        """
        key = (candidate.key, self.traffic.key(share))
        if key not in self._measured:
            measured = self._simulate(candidate, share, within)
            if measured.missed and within < 1.0:
                return measured
            self._measured[key] = measured
        return replace(self._measured[key], share=share)

    def measure_fully(self, candidate: Candidate, share: Share) -> Measured:
        """Simulate to the end whatever is missed, for figures of a layout that breaks the promise."""
        return self._simulate(candidate, share, math.inf)

    def strain(self, *, ttft: Percentile, tpot: Percentile) -> float:
        """The larger share of a target that what is promised takes: 1 less the room that is left."""
        return max(self.promised.shares(ttft_s=ttft.high, tpot_s=tpot.high))

    def simulations_of(
        self, candidate: Candidate, share: Share, *, requests: int, targets: Targets = NO_TARGETS
    ) -> list[SimulationResult]:
        """One replica under its share of a load; under a trace every one."""
        self.count_simulation(self.least_steps(candidate.step_tokens, requests))
        return self._running.simulations_of(candidate, share, requests=requests, targets=targets)

    def capacity(self, candidate: Candidate) -> float:
        """Requests per second of an engine that always has requests waiting."""
        if candidate.key not in self._capacity:
            self.count_simulation(self.least_steps(candidate.step_tokens, _SATURATED_REQUESTS))
            self._capacity[candidate.key] = self._running.saturated_per_s(candidate)
        return self._capacity[candidate.key]

    def _simulate(self, candidate: Candidate, share: Share, within: float) -> Measured:
        """Simulate with so large a share of the targets allowed; infinite: to the end whatever is missed."""
        targets = NO_TARGETS if within == math.inf else self.targets
        # What has no target misses none, in a short simulation or a long one; the beginning of a trace proves nothing of all.
        is_screened = (targets != NO_TARGETS or self.traffic.one_run is not None) and not self.traffic.is_traced
        result = self._run(candidate, share, targets, SCREENING_REQUESTS) if is_screened else None
        if result is None or (not result.missed and (self.traffic.one_run is None or within != 1.0)):
            allowed = NO_TARGETS if within == math.inf else self.promised.tightened(within)
            result = self._run(candidate, share, allowed, REQUESTS)
        ttft, tpot = result.ttft(P95), result.tpot(P95)
        slower = self._slowed(candidate, share, within, ttft=ttft, tpot=tpot, missed=result.missed)
        broken, peak_running = result.missed, result.peak_running
        if slower is not None:
            ttft, tpot = self.promised.with_slowed(ttft, tpot, slower=(slower.ttft(P95), slower.tpot(P95)))
            broken, peak_running = slower.missed, max(peak_running, slower.peak_running)
        missed = broken or (within < 1.0 and self.strain(ttft=ttft, tpot=tpot) > within)
        kept = not missed and ttft.high <= self.targets.ttft_s and tpot.high <= self.targets.tpot_s
        requests_per_s, utilisation = share.each, math.nan
        if not missed:
            requests_per_s = self._answered_per_s(result, share) if self.traffic.is_closed else share.each
            utilisation = requests_per_s / self.capacity(candidate)
        if self.traffic.is_closed:
            utilisation = min(1.0, utilisation)
        return Measured(
            candidate=candidate,
            share=share,
            requests_per_s=requests_per_s,
            keeps=kept and (self.traffic.is_closed or utilisation <= MAX_UTILISATION),
            ttft=ttft,
            tpot=tpot,
            utilisation=utilisation,
            mean_batch=result.mean_batch,
            request_s=result.request_s,
            peak_running=peak_running,
            missed=missed,
        )

    def _slowed(
        self, candidate: Candidate, share: Share, within: float, *, ttft: Percentile, tpot: Percentile, missed: bool
    ) -> SimulationResult | None:
        """Simulate an open loop with steps that take what is promised of them; None where its percentiles with those that are
        expected do not meet the targets, and where there are none."""
        slowed, targets = self.promised.slowed, self.targets
        kept = not missed and ttft.high <= targets.ttft_s and tpot.high <= targets.tpot_s
        has_target = targets.ttft_s < math.inf or targets.tpot_s < math.inf
        if slowed is None or not has_target or not (kept or within == math.inf):
            return None
        allowed = NO_TARGETS if within == math.inf else self.promised.slowed_targets(self.promised.tightened(within))
        return self._run(candidate, Share(share.load * slowed.slowdown, share.replicas), allowed, REQUESTS)

    def _answered_per_s(self, result: SimulationResult, share: Share) -> float:
        """Requests that a mean replica answers a second in a closed loop. The fullest one is simulated; who has fewer clients
        answers each of them no more slowly."""
        per_s = answers_per_s(result) if self.traffic.one_run is None else len(result.answered_s) / result.duration_s
        return per_s * share.each / self.traffic.clients(share)

    def _run(self, candidate: Candidate, share: Share, targets: Targets, requests: int) -> SimulationResult:
        return pooled(self.simulations_of(candidate, share, requests=requests, targets=targets))

    def least_steps(self, step_tokens: int, requests: int) -> float:
        """Steps that the prompts of so many requests fill at least."""
        return requests * self.demand.prompt_tokens / step_tokens

    def count_simulation(self, steps: float = 0.0) -> None:
        """Note a simulation of at least so many steps that is about to run; raises SearchStoppedError when the stopping rule is
        met."""
        if self.stop():
            raise SearchStoppedError
        spend(self.stop, steps / STEPS_OF_A_LOOK)
        self.simulations += 1
