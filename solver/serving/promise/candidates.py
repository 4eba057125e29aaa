"""Candidates of a search, engines with their batch limits, and the figures that are measured of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from meshwright.costmodels.queueing.results import Percentile
from meshwright.costmodels.queueing.simulation.replica import Admission, BatchLimits, Scheduling
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.promised import Promised

MAX_UTILISATION = 0.97
"""Load above which a plan is refused: the percentiles of a run of 10,000 requests say nothing of the long run there."""

EngineKey = tuple[str | int, ...]
CandidateKey = tuple[str | int, ...]


@dataclass(frozen=True)
class Candidate:
    """An engine with the batch limits of each of its attention groups; replicas and rate come later."""

    engine: Engine
    step_tokens: int
    sequences: int

    @cached_property
    def key(self) -> CandidateKey:
        """The key that tells the candidates of a request apart; also their canonical order."""
        return *self.engine.key, self.step_tokens, self.sequences

    @cached_property
    def limits(self) -> BatchLimits:
        """Limits as the queueing model wants them."""
        kv_tokens = self.engine.kv_tokens(step_tokens=self.step_tokens, sequences=self.sequences)
        if self.engine.speculation is None:
            apart = self.engine.layout.repeats_answers
            scheduling = Scheduling.CHUNKS_FIRST if apart else Scheduling.CHUNKED_PREFILL
            return BatchLimits(self.sequences, self.step_tokens, kv_tokens, scheduling, Admission.PREEMPT)
        # Every sequence keeps room for its proposals; requests start when there is room for all their tokens.
        kv_tokens -= self.sequences * self.engine.speculation.draft_tokens
        return BatchLimits(self.sequences, self.step_tokens, kv_tokens, admission=Admission.RESERVE)


@dataclass(frozen=True, slots=True)
class Alone:
    """The figures of a request on an engine without other requests: no load makes it faster."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, eq=False)
class Measured:
    """A candidate, simulated with its share of a load, which the engine deals out to the attention groups of a replica.

    ``keeps`` is true when the percentiles of the short simulation and the upper ends of the confidence intervals of the long
    one meet the targets, and the load is below MAX_UTILISATION (clients of a closed loop wait instead, so it does not bind
    there). ``missed`` is true when a simulation ended early because a target was sure to be missed; its figures are then
    those of the requests seen until then. ``requests_per_s`` are those that one replica answers, ``request_s`` is how long a
    mean device works for a request of its attention group.
    """

    candidate: Candidate
    share: Share
    requests_per_s: float
    keeps: bool
    ttft: Percentile
    tpot: Percentile
    utilisation: float
    mean_batch: float
    request_s: float
    peak_running: int
    missed: bool

    @property
    def only_overloaded(self) -> bool:
        """True if nothing but the load refuses it."""
        return not self.keeps and not self.missed and self.utilisation > MAX_UTILISATION


# The room that a plan leaves to each of its promises, tightest first.


def room_note(promised: Promised, *, ttft: Percentile, tpot: Percentile, load: float | None) -> str:
    """Return a note of the constraint that binds: shares of the targets that what is promised takes, and of the largest
    allowed load.

    ``load`` is the share of what the engines keep up with, None where clients wait and no load is too high.
    """
    first, later = promised.shares(ttft_s=ttft.high, tpot_s=tpot.high)
    shares = {
        "P95 TTFT": first,
        "P95 TPOT": later,
        "load": 0.0 if load is None else load / MAX_UTILISATION,
    }
    asked = [(share, name) for name, share in shares.items() if share > 0.0 and math.isfinite(share)]
    if not asked:
        return "No target binds"
    ordered = sorted(asked, key=lambda entry: (-entry[0], entry[1]))
    tightest, *others = [f"{name} ({share:.0%})" for share, name in ordered]
    rest = f"; then {', '.join(others)}" if others else ""
    return f"Binds most, by the share of what is allowed that it takes: {tightest}{rest}"
