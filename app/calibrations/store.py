"""Calibrations kept and found again by the names that people give: a key, a key and version, or the start of a digest."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from sqlalchemy import Engine

from app.calibrations.documents import read_calibration_document
from app.db.calibration_repository import CalibrationRepository, CalibrationSummary, NewCalibration
from app.db.metadata import DEFAULT_TENANT
from app.errors import CalibrationNotFoundError
from app.plans.documents import compact_json
from costmodels.calibration import SEPARATOR, Calibration

DIGEST_START = re.compile(r"sha256:[0-9a-f]{8,64}")
MOST_LISTED = 1000

REFERENCES = "KEY (its newest), KEY@VERSION, or KEY@sha256: and at least 8 hexadecimal digits"


class CalibrationStore:
    """One tenant's calibrations. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str = DEFAULT_TENANT):
        self._calibrations = CalibrationRepository(engine, tenant)

    def keep(self, calibration: Calibration) -> tuple[CalibrationSummary, bool]:
        """Store a calibration under its key's next version, unless it is stored already; its row, and whether it is new."""
        document = calibration.document
        row = NewCalibration(
            name=calibration.name,
            key=document["key"],
            created_at=datetime.now(UTC),
            source="; ".join(document["kernels"]["provenance"]),
            samples=document["samples"]["rows"],
            samples_digest=document["samples"]["digest"],
            document=compact_json(document),
        )
        return self._calibrations.add(row)

    def resolve(self, reference: str) -> CalibrationSummary:
        """The row that a reference means; raises CalibrationNotFoundError."""
        key, _, rest = reference.partition(SEPARATOR)
        found: CalibrationSummary | None = None
        if not rest:
            found = self._calibrations.newest(key)
        elif rest.isdigit() and len(rest) < 10:
            found = self._calibrations.find_version(key, int(rest))
        elif DIGEST_START.fullmatch(rest):
            of_key = self._calibrations.list(key=key, limit=MOST_LISTED)
            starting = [row for row in of_key if row.name.startswith(reference)]
            found = starting[0] if len(starting) == 1 else None
        if found is None:
            known = sorted({f"{row.key}{SEPARATOR}{row.version}" for row in self.list()})
            raise CalibrationNotFoundError(
                "no calibration is stored under this name",
                given=reference,
                allowed=f"{REFERENCES}; stored: {', '.join(known[:20]) or 'none'}",
                remedy="'meshwright calibrate list' lists them, 'meshwright calibrate fit' makes one",
            )
        return found

    def find(self, reference: str) -> Calibration:
        """The calibration that a reference means; raises CalibrationNotFoundError."""
        row = self.resolve(reference)
        text = self._calibrations.document(row.name)
        assert text is not None, "a row that was there a moment ago; calibrations are never deleted"
        return read_calibration_document(json.loads(text))

    def list(self, key: str | None = None) -> tuple[CalibrationSummary, ...]:
        """Stored calibrations, newest first."""
        return self._calibrations.list(key=key, limit=MOST_LISTED)
