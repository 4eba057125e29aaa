"""Of plans that cost the same, the one that leaves most room to its targets.

Room is what the tighter target has left above the upper end of its confidence interval. Of equal room fewer replicas are
better, then the layout that comes first in canonical order, the smaller limit of tokens and the larger one of sequences. So
the answer does not depend on which of them a search meets first. Exact: a candidate is passed over only when a request alone
or a simulation of it takes more of a target than the best so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from solver.serving.engine import Engine
from solver.serving.evaluation import Candidate, CandidateKey, Evaluator, Measured
from solver.serving.question import Question, Refused, expected_strain, measurements, ordering_candidate, usable_candidates
from solver.serving.traffic import Share

_ROUNDING = 1e-9
"""Relative difference of two times that may be rounding alone."""


@dataclass
class Roomiest:
    """The roomiest of the candidates that were looked at and keep the promise; ``best`` is the first to beat, if any."""

    evaluator: Evaluator
    best: Measured | None = None

    def look_at(self, candidates: list[Candidate], share: Share) -> None:
        """Simulate those candidates that may be roomier under a load, as far as that takes."""
        alone = {step: self._strain_alone(candidates[0].engine, step) for step in {c.step_tokens for c in candidates}}
        most = self._within * (1.0 + _ROUNDING)
        promising = [candidate for candidate in candidates if alone[candidate.step_tokens] <= most]
        for measured in measurements(self.evaluator, promising, share, self._measure):
            if measured.keeps and (
                self.best is None or roominess(self.evaluator, measured) < roominess(self.evaluator, self.best)
            ):
                self.best = measured

    @property
    def _within(self) -> float:
        """The share of its targets that a candidate may take at most to be as roomy as the best."""
        return 1.0 if self.best is None else self.evaluator.strain(ttft=self.best.ttft, tpot=self.best.tpot)

    def _measure(self, candidate: Candidate, share: Share) -> Measured:
        return self.evaluator.measure(candidate, share, within=self._within)

    def _strain_alone(self, engine: Engine, step_tokens: int) -> float:
        """The larger ratio of a lone request's time to its target, below which no load leaves the engine."""
        alone, targets = self.evaluator.alone(engine, step_tokens), self.evaluator.targets
        return max(alone.ttft_s / targets.ttft_s, alone.tpot_s / targets.tpot_s)


def roominess(evaluator: Evaluator, measured: Measured) -> tuple[float, int, CandidateKey]:
    """What plans of equal cost are compared by, the best one least."""
    *engine, step_tokens, sequences = measured.candidate.key
    assert isinstance(sequences, int)
    strain = evaluator.strain(ttft=measured.ttft, tpot=measured.tpot)
    return strain, measured.share.replicas, (*engine, step_tokens, -sequences)


def roomiest_of(question: Question, best: Measured, equals: Iterable[tuple[Engine, int]]) -> Measured:
    """The roomiest plan of the best one's engine and ``equals``, engines with so many replicas each, at the best one's load.

    Those that the analytic model thinks roomiest come first.
    """
    evaluator, load = question.evaluator, best.share.load
    found = Roomiest(evaluator, best)
    usable = {engine.key: (usable_candidates(evaluator, engine), replicas) for engine, replicas in equals}
    ordered = []
    for key, (candidates, replicas) in usable.items():
        if not isinstance(candidates, Refused):
            share = Share(load, replicas)
            strain = expected_strain(evaluator, ordering_candidate(candidates), share)
            ordered.append(
                (key != best.candidate.engine.key, math.inf if math.isnan(strain) else strain, key, candidates, share)
            )
    for *_, candidates, share in sorted(ordered, key=lambda entry: entry[:3]):
        found.look_at(candidates, share)
    assert found.best is not None, "it began with the best"
    return found.best
