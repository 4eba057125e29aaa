"""Of plans that cost the same, the one that leaves most room to its targets.

Room is what the tighter target has left above what is promised. Of equal room more answers of a closed loop are better, then
fewer replicas, then the layout that comes first in canonical order, the smaller limit of tokens and the larger one of
sequences. So the answer does not depend on which of them a search meets first. Exact: a candidate is passed over only when a
request alone or a simulation of it takes more of a target than the best so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate, CandidateKey, EngineKey, Measured
from meshwright.solver.serving.promise.evaluation import Evaluator, SearchStoppedError
from meshwright.solver.serving.promise.question import (
    Found,
    Question,
    Refused,
    SearchResult,
    expected_strain,
    measurements,
    ordering_candidate,
    usable_candidates,
)

_ROUNDING = 1e-9
"""Relative difference of two times that may be rounding alone."""


Accepts = Callable[[Measured], bool]
"""A function that returns True if what keeps the promise at a load counts."""


@dataclass
class Roomiest:
    """The roomiest of the candidates that were looked at, keep the promise and are accepted; ``best`` is the first to beat, if
    any. ``kept`` are the roomiest of each engine that were looked at."""

    evaluator: Evaluator
    best: Measured | None = None
    accepts: Accepts = field(default=lambda _: True)
    kept: dict[EngineKey, Measured] = field(default_factory=dict)

    def look_at(self, candidates: list[Candidate], share: Share) -> None:
        """Simulate those candidates that may be roomier under a load, as far as that takes."""
        alone = {step: self._strain_alone(candidates[0].engine, step) for step in {c.step_tokens for c in candidates}}
        most = self._within * (1.0 + _ROUNDING)
        promising = [candidate for candidate in candidates if alone[candidate.step_tokens] <= most]
        for measured in measurements(self.evaluator, promising, share, self._measure):
            if not measured.keeps:
                continue
            key = measured.candidate.engine.key
            if key not in self.kept or roominess(self.evaluator, measured) < roominess(self.evaluator, self.kept[key]):
                self.kept[key] = measured
            is_roomier = self.best is None or roominess(self.evaluator, measured) < roominess(self.evaluator, self.best)
            if is_roomier and self.accepts(measured):
                self.best = measured

    @property
    def _within(self) -> float:
        """The share of its targets that a candidate may take at most to be as roomy as the best."""
        return 1.0 if self.best is None else self.evaluator.strain(ttft=self.best.ttft, tpot=self.best.tpot)

    def _measure(self, candidate: Candidate, share: Share) -> Measured:
        return self.evaluator.measure(candidate, share, within=self._within)

    def _strain_alone(self, engine: Engine, step_tokens: int) -> float:
        """The larger ratio of a lone request's time to its target, below which no load leaves the engine."""
        alone = self.evaluator.alone(engine, step_tokens)
        return max(self.evaluator.promised.shares(ttft_s=alone.ttft_s, tpot_s=alone.tpot_s))


def roominess(evaluator: Evaluator, measured: Measured) -> tuple[float, float, int, CandidateKey]:
    """Return the key by which plans of equal cost are compared, the best one least."""
    *engine, step_tokens, sequences = measured.candidate.key
    assert isinstance(sequences, int)
    strain = evaluator.strain(ttft=measured.ttft, tpot=measured.tpot)
    # Clients of a closed loop are answered as fast as the engine can: of equal room the faster is better.
    slower = -measured.requests_per_s * measured.share.replicas if evaluator.traffic.is_closed else 0.0
    return strain, slower, measured.share.replicas, (*engine, step_tokens, -sequences)


def choose_roomiest(
    question: Question, result: SearchResult, equals: Iterable[tuple[Engine, int]], *, accepts: Accepts | None = None
) -> None:
    """Put the roomiest plan in the place of the best one: of its engine and ``equals``, engines with so many replicas each.

    Those that the analytic model thinks roomiest come first.
    """
    assert result.best is not None, "there is a plan to be as good as"
    found = Roomiest(question.evaluator, result.best.measured, *(() if accepts is None else (accepts,)))
    # What a stop leaves is a plan that is no worse, only less roomy.
    with suppress(SearchStoppedError):
        for candidates, share in _by_expected_room(question, result.best, equals):
            found.look_at(candidates, share)
    assert found.best is not None, "it began with the best"
    result.best = Found(found.best)
    # Where more is asked of a plan than that it keeps the promise at this load, only the best is known to do it.
    result.equal = [Found(measured) for measured in found.kept.values()] if accepts is None else []
    chosen = result.best.engine.key
    result.refused = [refused for refused in result.refused if refused.engine.key != chosen]


def _by_expected_room(
    question: Question, best: Found, equals: Iterable[tuple[Engine, int]]
) -> list[tuple[list[Candidate], Share]]:
    """Usable candidates of engines with their shares of the best plan's load; its own engine first."""
    ordered = []
    for engine, replicas in equals:
        candidates, share = usable_candidates(question.evaluator, engine), Share(best.load, replicas)
        if not isinstance(candidates, Refused):
            strain = expected_strain(question.evaluator, ordering_candidate(candidates), share)
            own = engine.key == best.engine.key
            ordered.append((not own, math.inf if math.isnan(strain) else strain, engine.key, candidates, share))
    return [(candidates, share) for *_, candidates, share in sorted(ordered, key=lambda entry: entry[:3])]
