"""Calibrations kept and found again by the names that people give: a key, a key and version, or the start of a digest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from sqlalchemy import Connection, Engine

from meshwright.app.calibrations.repository import CalibrationRepository, CalibrationSummary, NewCalibration
from meshwright.app.db.engine import writing
from meshwright.app.db.tables.metadata import DEFAULT_TENANT
from meshwright.app.documents.json_text import compact_json
from meshwright.app.errors import CalibrationNotFoundError
from meshwright.app.measuring.documents import provenance_of, read_calibration_document
from meshwright.app.questions.repository import QuestionFilter, QuestionRepository
from meshwright.costmodels.calibration.calibration import SEPARATOR, Calibration
from meshwright.costmodels.errors import ClusterError

DIGEST_START = re.compile(r"sha256:[0-9a-f]{8,64}")
MOST_LISTED = 1000

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
ALLOWED_KEY = "letters, digits, '.', '_' and '-', at most 200, the first a letter or digit"
SAMPLES_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
MOST_SAMPLES = 2**53

REFERENCES = "KEY (its newest), KEY@VERSION, or KEY@sha256: and at least 8 hexadecimal digits"

REMEMBERED = 64
"""Calibrations that a process remembers as records."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of storing a calibration: its row, whether it is new, and how many questions' plans became stale by it."""

    row: CalibrationSummary
    is_new: bool
    stale: int


class CalibrationStore:
    """One tenant's calibrations. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str = DEFAULT_TENANT):
        self._engine, self._tenant = engine, tenant
        self._calibrations = CalibrationRepository(engine, tenant)

    def keep(self, calibration: Calibration) -> Kept:
        """Store a calibration under its key's next version, unless it is stored already.

        A new one makes the current plans of the questions that follow its key stale. Raises ClusterError for a document
        that does not say what it was fitted to.
        """
        with writing(self._engine) as connection:
            return self.keep_with(connection, calibration)

    def keep_with(self, connection: Connection, calibration: Calibration) -> Kept:
        """As ``keep``, in the caller's transaction."""
        stored, is_new = self._calibrations.add_with(connection, _row_of(calibration))
        stale = 0
        if is_new:
            about = QuestionFilter(calibration=stored.key)
            stale = QuestionRepository(self._engine, self._tenant).mark_stale(connection, about, change_of(stored))
        return Kept(stored, is_new, stale)

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
        return _read(text)

    def newest(self, key: str) -> Calibration | None:
        """The newest calibration of a device key; None when none is stored."""
        text = self._calibrations.newest_document(key)
        return None if text is None else _read(text)

    def list(self, key: str | None = None) -> tuple[CalibrationSummary, ...]:
        """Stored calibrations, newest first."""
        return self.page(key, before=None, limit=MOST_LISTED)

    def page(self, key: str | None, *, before: int | None, limit: int) -> tuple[CalibrationSummary, ...]:
        """As ``list``, at most ``limit`` of those that arrived before row ``before``."""
        return self._calibrations.list(key=key, before=before, limit=limit)


def change_of(stored: CalibrationSummary) -> str:
    """Return the change that a new calibration makes, in words."""
    return f"calibration {stored.key} is at version {stored.version}"


@lru_cache(maxsize=REMEMBERED)
def _read(text: str) -> Calibration:
    """The calibration of a stored document; the same text is read once."""
    return read_calibration_document(json.loads(text))


def _row_of(calibration: Calibration) -> NewCalibration:
    document = calibration.document
    try:
        sources, samples = list(provenance_of(document)), document["samples"]
        rows, digest = samples["rows"], samples["digest"]
    except (KeyError, TypeError) as error:
        raise ClusterError(
            "the calibration does not say what it was fitted to",
            given=f"nothing under {error}",
            allowed="'kernels.provenance', 'samples.rows' and 'samples.digest', as 'meshwright calibrate fit' writes them",
        ) from None
    usable_rows = isinstance(rows, int) and not isinstance(rows, bool) and 0 <= rows <= MOST_SAMPLES
    if not (usable_rows and isinstance(digest, str) and SAMPLES_DIGEST.fullmatch(digest)):
        allowed = f"at most {MOST_SAMPLES} rows, and sha256: with 64 hexadecimal digits"
        raise ClusterError(
            "the calibration's samples can't be counted or told from others", given=str(samples)[:200], allowed=allowed
        )
    source = "; ".join(map(str, sources))
    if not (source.isprintable() and KEY.fullmatch(document["key"])):
        allowed = f"printable sources, and as key {ALLOWED_KEY}"
        raise ClusterError("the calibration's key or sources can't be stored", given=document["key"][:100], allowed=allowed)
    return NewCalibration(
        name=calibration.name,
        key=document["key"],
        created_at=datetime.now(UTC),
        source=source,
        samples=rows,
        samples_digest=digest,
        document=compact_json(document),
    )
