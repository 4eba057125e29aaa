"""The answers of the calibration endpoints, as Pydantic models."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from meshwright.app.calibrations.repository import CalibrationSummary
from meshwright.app.http.answers import ANSWER


class CalibrationItem(BaseModel):
    """A stored calibration in a list."""

    model_config = ANSWER

    name: str = Field(description="KEY@sha256:HEX, the digest being that of its document.")
    key: str = Field(description="The device key that it is for.")
    version: int = Field(description="Counts from 1 within its key.")
    created_at: datetime
    source: str = Field(description="Where its measurements come from.")
    samples: int = Field(description="Measured rows that it was fitted to.")
    samples_digest: str


class CalibrationDocument(CalibrationItem):
    """A stored calibration with its document."""

    document: dict[str, Any]


class CalibrationAnswer(CalibrationItem):
    """The answer to a POST of a calibration."""

    stale: int = Field(description="Questions whose current plan became stale by it.")
    replan: str | None = Field(description="Where the batch is that plans them again, if one was started.")


class CalibrationPage(BaseModel):
    """A page of calibrations, newest first."""

    model_config = ANSWER

    calibrations: list[CalibrationItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


def item_fields(row: CalibrationSummary) -> dict[str, Any]:
    """Return the fields of a calibration that every answer holds."""
    return {name: getattr(row, name) for name in CalibrationItem.model_fields}
