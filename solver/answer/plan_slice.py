"""Token slices as a plan states them."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.units import STRICT_RECORD


@dataclass(frozen=True, slots=True)
class PlanSlice:
    """A token slice: its tokens of a sequence, and the parts of a micro-batch's time on a stage that its passes take."""

    __pydantic_config__ = STRICT_RECORD

    tokens: int
    forward: float
    backward: float
