"""The question of a search, its findings, and the measurements that every objective needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import OnProgress, Progress, ignore_progress
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import ORDINARY_SEQUENCES
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.evaluation import Evaluator

# The cost of a device of an engine, for objectives that add up devices or their prices.

UnitCost = Callable[[Engine], float]
"""A function that returns what one device of an engine costs."""


def unit_cost(objective: Objective) -> UnitCost:
    """Return the cost of a device for an objective: its price where money counts, else 1."""
    return price if objective is Objective.COST else one_device


def one_device(_: Engine) -> float:
    """Count a device as one."""
    return 1.0


def price(engine: Engine) -> float:
    """USD per hour of a device of an engine."""
    per_hour = engine.layout.group.node.device.price_per_hour
    assert per_hour is not None, "prices are asked for first"
    return per_hour


def require_prices(request: ServingRequest) -> None:
    """Raise WorkloadError where money counts and a device has no price."""
    if request.objective is not Objective.COST:
        return
    unpriced = [group.node.device.name for group in request.cluster.groups if not group.node.device.price_per_hour]
    if unpriced:
        raise WorkloadError(
            "objective cost needs a price for every device",
            given=unpriced,
            remedy="set price_per_hour of the device, or ask for objective devices",
        )


_ORDERING_STEP_TOKENS = 4096
"""Token limit at which the analytic model orders engines."""


Measure = Callable[[Candidate, Share], Measured]
"""Simulates a candidate with its share of a load."""


@dataclass(frozen=True, eq=False)
class Found:
    """Replicas of a candidate that keep the promise, as simulated with their share of a load."""

    measured: Measured

    @property
    def replicas(self) -> int:
        """Replicas of the engine."""
        return self.measured.share.replicas

    @property
    def load(self) -> float:
        """Load of all replicas: requests per second, or clients of a closed loop."""
        return self.measured.share.load

    @property
    def requests_per_s(self) -> float:
        """Requests that all replicas answer."""
        return self.measured.requests_per_s * self.replicas

    @property
    def engine(self) -> Engine:
        """The engine of every replica."""
        return self.measured.candidate.engine

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.engine.layout.devices


class Cause(StrEnum):
    """The cause that refuses an engine: memory or a request alone, at any rate; one replica's cost; or the requested rate."""

    MEMORY = "memory"
    ALONE = "alone"
    COST = "cost"
    RATE = "rate"


@dataclass(frozen=True, eq=False)
class Refused:
    """Why an engine is not part of the best plan, and the least objective that it could still have had."""

    engine: Engine
    cause: Cause
    why: str
    objective_at_least: float = math.inf


@dataclass
class ServingSearchResult:
    """The best plan, plans that were best for a while, engines refused, and the proven bound of the objective; ``equal`` are
    plans of the best one's cost, one an engine, as far as they were looked at.

    ``stopped``: the caller ended the search before every engine was decided.
    """

    best: Found | None = None
    beaten: list[Found] = field(default_factory=list)
    equal: list[Found] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    bound: float = math.inf
    considered: int = 0
    stopped: bool = False


@dataclass(frozen=True)
class Question:
    """The question of a search.

    engines      every engine of the space
    load         requests per second that the plan must serve, or clients of a closed loop
    replicas     allowed numbers of replicas; empty does not restrict
    unit_cost    what one device of an engine costs; 1 where devices are counted
    at_most      cost above which a plan is not looked for
    describe     makes the plan record of the best so far; none unless a form gives it
    above        goodput that another plan has: only more is of interest
    """

    engines: Sequence[Engine]
    evaluator: Evaluator
    load: float
    replicas: tuple[int, ...]
    unit_cost: UnitCost = one_device
    progress: OnProgress = ignore_progress
    describe: Callable[[ServingSearchResult], Plan | None] = lambda _: None
    above: float = 0.0
    at_most: float = math.inf

    def tell(self, result: ServingSearchResult, done: int, best: float | None, note: str) -> None:
        """Tell the listener that so many engines are decided, and what the objective of the best is."""
        incumbent = None if result.best is None else partial(self.describe, replace(result))
        self.progress(Progress(done, len(self.engines), best=best, note=note, incumbent=incumbent))

    def cost(self, engine: Engine, replicas: int) -> float:
        """Objective of a number of replicas."""
        return replicas * engine.layout.devices * self.unit_cost(engine)

    def counts(self, engine: Engine, least: int, most: int) -> list[int]:
        """Allowed numbers of replicas from least to most."""
        numbers: Sequence[int] = sorted(set(self.replicas)) if self.replicas else range(least, most + 1)
        return [n for n in numbers if least <= n <= min(most, engine.layout.most_replicas)]


def usable_candidates(evaluator: Evaluator, engine: Engine) -> list[Candidate] | Refused:
    """Candidates whose request alone meets the targets; where there are none, why."""
    candidates = evaluator.candidates(engine)
    if not candidates:
        return Refused(engine, Cause.MEMORY, "weights and the cache of the longest request do not fit in memory")
    alone = {step: evaluator.alone(engine, step) for step in dict.fromkeys(c.step_tokens for c in candidates)}
    targets = evaluator.targets
    in_time = {step for step, seen in alone.items() if seen.ttft_s <= targets.ttft_s and seen.tpot_s <= targets.tpot_s}
    usable = [candidate for candidate in candidates if candidate.step_tokens in in_time]
    if usable:
        return usable
    ttft_ms, tpot_ms = 1e3 * min(a.ttft_s for a in alone.values()), 1e3 * min(a.tpot_s for a in alone.values())
    why = f"a request alone takes at least {ttft_ms:.0f} ms to its first token and {tpot_ms:.1f} ms a token"
    return Refused(engine, Cause.ALONE, why)


def least_replicas(question: Question, engine: Engine) -> int:
    """Replicas below which the arrivals outrun the engine, by a bound that holds for every schedule."""
    candidates = question.evaluator.candidates(engine)
    if not candidates or question.evaluator.traffic.is_closed:
        return 1
    return max(1, math.ceil(question.load / question.evaluator.best_rate_bound(engine) * (1.0 - 1e-12)))


def measurements(
    evaluator: Evaluator,
    candidates: list[Candidate],
    share: Share,
    measure: Measure | None = None,
    *,
    leaves_out_overloaded: bool = False,
) -> Iterator[Measured]:
    """Simulations of all candidates under a load, but those that can't differ from one already seen.

    ``measure`` takes the place of the evaluator's own. Token limits come by their throughput bound, and for each of them
    sequence limits from the ordinary one up, then down. A limit that a run never reached changes nothing, nor does any smaller
    one that it never reached either; a larger one only takes room from the cache. ``leaves_out_overloaded``: without those that
    nothing but the load refuses, as far as that is known before.
    """
    by_step_tokens: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        if evaluator.can_keep_up(candidate, share):
            by_step_tokens.setdefault(candidate.step_tokens, []).append(candidate)
    for group in sorted(by_step_tokens.values(), key=lambda group: -evaluator.rate_bound(group[0])):
        unreached = enough = math.inf
        for candidate in sorted(group, key=lambda candidate: place_of_limit(candidate.sequences)):
            if candidate.sequences > enough or unreached <= candidate.sequences < ORDINARY_SEQUENCES:
                continue
            if leaves_out_overloaded and evaluator.only_overloads(candidate, share):
                continue
            measured = (measure or evaluator.measure)(candidate, share)
            yield measured
            if measured.only_overloaded:
                continue
            cache_never_full = measured.peak_running * evaluator.longest_request <= candidate.limits.kv_tokens
            if cache_never_full:
                unreached = min(unreached, measured.peak_running)
            if measured.peak_running < candidate.sequences:
                enough = min(enough, candidate.sequences)


def place_of_limit(sequences: int) -> tuple[bool, int]:
    """The place of a limit of sequences: the ordinary one, larger ones upwards, smaller ones downwards."""
    return sequences < ORDINARY_SEQUENCES, abs(sequences - ORDINARY_SEQUENCES)


def expected_strain(evaluator: Evaluator, candidate: Candidate, share: Share) -> float:
    """Return the strain that the analytic model expects of a candidate: the larger ratio of percentile to target."""
    figures = evaluator.expected(candidate, share)
    ratios = evaluator.promised.shares(ttft_s=figures.ttft_p95_s, tpot_s=figures.tpot_p95_s)
    return max([figures.utilisation, *(ratio for ratio in ratios if not math.isnan(ratio))])


def ordering_candidate(candidates: list[Candidate]) -> Candidate:
    """The candidate that stands for its engine where engines are put in order."""
    return min(candidates, key=lambda c: (abs(c.step_tokens - _ORDERING_STEP_TOKENS), place_of_limit(c.sequences)))


def replica_count(count: int) -> str:
    """Words for a number of replicas."""
    return "1 replica" if count == 1 else f"{count} replicas"
