"""What a log states of the workload that ran: it must be the workload of the plan that the run is stored of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a log states, between the bounds that rounding leaves."""

    value: float
    low: float
    high: float

    def allows(self, planned: float) -> bool:
        """Return True if the plan's figure may have been printed so."""
        return self.low <= planned <= self.high

    def __str__(self) -> str:
        return f"{self.value:.6g}" if self.low == self.high else f"about {self.value:.4g}"


def exactly(value: float) -> Figure:
    """The figure that was printed whole."""
    return Figure(value, value, value)


def printed(digits: str) -> Figure:
    """The figure of a printed number, which may be off by half of its last digit."""
    value = float(digits)
    fraction = digits.partition(".")[2]
    half = 0.5 * 10.0 ** -len(fraction) if fraction else 0.0
    return Figure(value, value - half, value + half)


def quotient(above: Figure, below: Figure) -> Figure | None:
    """The quotient of two figures above 0; None where rounding leaves nothing of them."""
    if not (below.low > 0.0 and above.low > 0.0 and math.isfinite(above.high) and math.isfinite(below.high)):
        return None
    return Figure(above.value / below.value, above.low / below.high, above.high / below.low)


@dataclass(frozen=True, slots=True)
class Stated:
    """The workload that a log states; None and empty where it says nothing.

    global_batch        training: sequences a step
    seq_len             training: tokens of a sequence
    tokens_per_step     training: tokens of all sequences of a step
    devices             training: ranks of the job
    engine_devices      serving: devices of one engine
    model               the model's name or path
    requests_per_s      serving: the rate at which requests were sent, infinite where nothing held them back
    arrival_cv          serving: coefficient of variation of the gaps between them
    max_concurrency     serving: the most requests that were let in at once
    mean_concurrency    serving: how many there were at once, on average
    is_queued           serving: True where the engine lets in as many requests as it can, whatever was sent
    requests            serving: how many were answered
    answered_per_s      serving: how many were answered a second
    prompt_tokens       serving: mean tokens of a prompt
    output_tokens       serving: mean tokens of an answer
    """

    global_batch: Figure | None = None
    seq_len: Figure | None = None
    tokens_per_step: Figure | None = None
    devices: Figure | None = None
    engine_devices: Figure | None = None
    model: str | None = None
    requests_per_s: Figure | None = None
    arrival_cv: Figure | None = None
    max_concurrency: Figure | None = None
    mean_concurrency: Figure | None = None
    is_queued: bool | None = None
    requests: Figure | None = None
    answered_per_s: Figure | None = None
    prompt_tokens: Figure | None = None
    output_tokens: Figure | None = None


NOTHING_STATED = Stated()


def merged(all_stated: Iterable[Stated]) -> Stated:
    """What several readers found in one log; where two found a figure, the first counts."""
    known = list(all_stated)
    first = {
        each.name: next((value for stated in known if (value := getattr(stated, each.name)) is not None), None)
        for each in fields(Stated)
    }
    return Stated(**first)
