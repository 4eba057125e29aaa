"""One phase of disaggregated serving by itself: which workers keep its part of the promise, and how many it takes.

A prefill worker answers each prompt with one token; a decode worker is an engine whose prefix cache holds all of every prompt
but its last token. Both are engines under workloads of their own, so what refuses and measures engines holds for them too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean

from meshwright.solver.control import Stop, never_stop
from meshwright.solver.problem.request import ServingRequest, ServingWorkload
from meshwright.solver.problem.serving_load import FixedLength, TraceArrivals
from meshwright.solver.problem.token_counts import token_count
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.energy import energy_per_token_j
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.promise.question import (
    Refused,
    expected_strain,
    measurements,
    ordering_candidate,
    usable_candidates,
)
from meshwright.solver.serving.workers.goodput import RATE_GRID, SUSTAINED_STEPS, expected_rate, step_below
from meshwright.solver.serving.workers.roomiest import Roomiest


class PhaseKind(StrEnum):
    """Computing prompts, or tokens after the first."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass
class Phase:
    """Workers of one phase under the whole load; remembers what it has found. Requests have ``output_tokens`` on average.

    Each engine runs with the batch limits that, with so many workers, leave most room to the phase's targets.
    """

    kind: PhaseKind
    evaluator: Evaluator
    engines: list[Engine]
    load: float
    output_tokens: float
    refused: list[Refused] = field(default_factory=list)
    _usable: dict[object, list[Candidate]] = field(default_factory=dict)
    _workers_at_least: dict[object, int] = field(default_factory=dict)
    _choices: dict[tuple[object, int, float], Measured | None] = field(default_factory=dict)

    def usable(self, engine: Engine) -> list[Candidate]:
        """Batch limits of an engine whose request alone meets the targets; empty where there are none."""
        if engine.key not in self._usable:
            found = usable_candidates(self.evaluator, engine)
            if isinstance(found, Refused):
                self.refused.append(found)
                found = []
            self._usable[engine.key] = _limits_of(self.kind, found)
        return self._usable[engine.key]

    def choice(self, engine: Engine, workers: int, load: float | None = None) -> Measured | None:
        """The roomiest batch limits that keep the phase's targets with so many workers; None where none do."""
        load = self.load if load is None else load
        key = (engine.key, workers, load)
        if key not in self._choices:
            roomiest, usable = Roomiest(self.evaluator), self.usable(engine)
            if usable:
                roomiest.look_at(usable, Share(load, workers))
            self._choices[key] = roomiest.best
        return self._choices[key]

    def keeps_any(self, engine: Engine, load: float, workers: int = 1) -> bool:
        """Return True if so many workers keep the phase's targets under a load, whatever their batch limits."""
        return any(measured.keeps for measured in measurements(self.evaluator, self.usable(engine), Share(load, workers)))

    def expected_rate(self, engine: Engine) -> float:
        """Requests per second at which the analytic model thinks that one worker keeps the phase's targets, to a tenth; 0 where
        it does so at none that is worth a look."""
        return expected_rate(self.evaluator, self.usable(engine))

    def sustains(self, chosen: Measured, load: float, *, steps: int = SUSTAINED_STEPS) -> bool:
        """Return True if workers with their batch limits keep the phase's targets under a load and at so many lower rates of
        the grid: those of all workers, and those of one."""
        workers = chosen.share.replicas
        whole, each = step_below(load), step_below(load / workers)
        shares = [Share(RATE_GRID ** (whole - down), workers) for down in range(steps + 1)]
        shares += [Share(RATE_GRID ** (each - down)) for down in range(steps + 1)]
        return all(self.evaluator.measure(chosen.candidate, share).keeps for share in shares)

    def least_workers(self, engine: Engine, most: int) -> int | None:
        """Fewest workers of an engine that keep the phase's targets, at most ``most``; None where they do not."""
        if not self.usable(engine) or most < 1:
            return None
        low, high = self.workers_at_least(engine), most
        if low > high or not self.keeps_any(engine, self.load, high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.keeps_any(engine, self.load, middle) else (middle + 1, high)
        return low

    def workers_at_least(self, engine: Engine) -> int:
        """Workers below which the load outruns the phase, by a bound that holds for every schedule."""
        if engine.key not in self._workers_at_least:
            bound = max(self.evaluator.rate_bound(candidate) for candidate in self.usable(engine))
            self._workers_at_least[engine.key] = max(1, math.ceil(self.load / bound * (1.0 - 1e-12)))
        return self._workers_at_least[engine.key]

    def expected_workers(self, engine: Engine) -> int | None:
        """Workers that the analytic model thinks are enough; None where it thinks none are."""
        candidates = self.usable(engine)
        if not candidates:
            return None
        low, high = self.workers_at_least(engine), engine.layout.most_replicas
        candidate = ordering_candidate(candidates)

        def strained(workers: int) -> bool:
            return expected_strain(self.evaluator, candidate, Share(self.load, workers)) > 1.0

        if low > high or strained(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if strained(middle) else (low, middle)
        return low

    def strain(self, measured: Measured) -> float:
        """The larger ratio of a percentile's upper limit to its target."""
        return self.evaluator.strain(ttft=measured.ttft, tpot=measured.tpot)

    def energy_per_token_j(self, measured: Measured) -> float:
        """Joules of the phase for an output token of the request."""
        return energy_per_token_j(measured, self.evaluator, output_tokens=self.output_tokens)


def phase(kind: PhaseKind, request: ServingRequest, engines: list[Engine], *, load: float, stop: Stop) -> Phase:
    """A phase of a request under the whole load."""
    evaluator = phase_evaluator(kind, request, stop=stop)
    return Phase(kind, evaluator, engines, load, mean_output_tokens(request))


def mean_output_tokens(request: ServingRequest) -> float:
    """Output tokens of a mean request."""
    workload = request.workload
    if isinstance(workload.arrivals, TraceArrivals):
        return fmean(workload.arrivals.output_tokens)
    assert workload.output_tokens is not None
    return token_count(workload.output_tokens).mean


def phase_evaluator(kind: PhaseKind, request: ServingRequest, *, stop: Stop = never_stop) -> Evaluator:
    """Return the evaluator that simulates workers of one phase by themselves."""
    workload, promised = request.workload, promised_of(request, pools=True)
    if kind is PhaseKind.PREFILL:
        return Evaluator(_one_token_answers(workload), promised.of_prompts(), request.search.seed, stop)
    return Evaluator(replace(workload.without_prefix_cache(), prefix_hit_ratio=1.0), promised, request.search.seed, stop)


def _one_token_answers(workload: ServingWorkload) -> ServingWorkload:
    """The workload of prefill workers: the same prompts, each answered with its first token."""
    arrivals = workload.arrivals
    if isinstance(arrivals, TraceArrivals):
        return replace(workload, arrivals=replace(arrivals, output_tokens=(1,) * len(arrivals.output_tokens)))
    return replace(workload, output_tokens=FixedLength(1))


def _limits_of(kind: PhaseKind, candidates: list[Candidate]) -> list[Candidate]:
    """Limits that differ in what the phase does: of prefill the tokens of a step, with as many sequences as there is room
    for; of decode the sequences, with the smallest step that holds a token of each."""
    chosen: dict[int, Candidate] = {}
    for candidate in candidates:
        limit = candidate.step_tokens if kind is PhaseKind.PREFILL else candidate.sequences
        better = (
            candidate.sequences > chosen[limit].sequences
            if kind is PhaseKind.PREFILL and limit in chosen
            else limit not in chosen or candidate.step_tokens < chosen[limit].step_tokens
        )
        if better:
            chosen[limit] = candidate
    return list(chosen.values())
