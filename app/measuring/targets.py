"""The targets of Meshwright for a calibration's held-out errors, printed beside them."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.fitting.cross_validation import Score


@dataclass(frozen=True, slots=True)
class Target:
    """Largest median and 95th percentile of the relative error on held-out rows."""

    median: float
    p95: float

    def holds(self, score: Score) -> bool:
        """Return True if the score, to the tenth of a per cent that is printed, is within the target."""
        return round(score.median, 3) <= self.median and round(score.p95, 3) <= self.p95


TARGETS = {
    "gemm/bf16": Target(0.03, 0.12),
    "prefill_attention/bf16": Target(0.07, 0.25),
    "decode_attention/bf16": Target(0.12, 0.45),
    "collectives": Target(0.05, 0.15),
}


def target_of(score: Score) -> Target | None:
    """The target of a score, by kind and format; None where none is set."""
    kind_and_format = "/".join(score.name.split("/")[:2])
    return TARGETS.get(kind_and_format)
