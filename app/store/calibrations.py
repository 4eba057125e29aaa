"""Calibrations kept and found again by the names that people give: a key, a key and version, or the start of a digest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, RowMapping, Select, and_, func, insert, select, text

from meshwright.app.base.digits import is_digits
from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import CalibrationNotFoundError
from meshwright.app.requests.calibrations import calibration_name, provenance_of, read_calibration_document
from meshwright.app.requests.learned import run_group
from meshwright.app.store.engine import reading, writing
from meshwright.app.store.questions import QuestionFilter, QuestionRepository
from meshwright.app.store.statements import TENANT, QuickRows, in_utc, owned
from meshwright.app.store.tables import DEFAULT_TENANT, calibrations, plan_calibrations, plans
from meshwright.costmodels.calibration.calibration import SEPARATOR, Calibration, calibration_key, is_measured
from meshwright.costmodels.calibration.from_runs import is_run_key
from meshwright.costmodels.errors import ClusterError

# Calibrations in the database: only ever added, numbered by device key; and which plans rest on older ones.

# Any number that other programs on the same PostgreSQL will hardly take; derived from "meshcali".
_POSTGRESQL_LOCK = 0x6D657368_63616C69


@dataclass(frozen=True, slots=True)
class NewCalibration:
    """A calibration to be stored; its fields are described at the table."""

    name: str
    key: str
    created_at: datetime
    source: str
    samples: int
    samples_digest: str
    document: str


@dataclass(frozen=True, slots=True)
class CalibrationSummary:
    """A stored calibration without its document; ``id`` is its place in the order of arrival."""

    id: int
    name: str
    key: str
    version: int
    created_at: datetime
    source: str
    samples: int
    samples_digest: str


@dataclass(frozen=True, slots=True)
class StaleUse:
    """A plan that rests on a calibration although a newer one of the same device was stored after the plan.

    used     the calibration it rests on: a stored one's name, or the bare key of the one that Meshwright ships
    newest   name of the newest stored calibration of the key
    since    when the first newer one was stored
    """

    plan_digest: str
    key: str
    used: str
    newest: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Standing:
    """A stored plan's standing: since when a newer calibration than one it rests on is stored; None where none is."""

    stale_since: datetime | None


SUMMARY_COLUMNS = tuple(calibrations.c[name] for name in CalibrationSummary.__dataclass_fields__)


class CalibrationRepository:
    """Reads and additions of one tenant's calibrations. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str = DEFAULT_TENANT):
        self._engine, self._tenant = engine, tenant

    def add(self, calibration: NewCalibration) -> tuple[CalibrationSummary, bool]:
        """Store under the key's next version unless this content is stored already; the row, and whether it is new."""
        with writing(self._engine) as connection:
            return self.add_with(connection, calibration)

    def add_with(self, connection: Connection, calibration: NewCalibration) -> tuple[CalibrationSummary, bool]:
        """As ``add``, in the caller's transaction."""
        _lock(connection)
        same = self._summaries().where(calibrations.c.name == calibration.name)
        row = connection.execute(same).mappings().one_or_none()
        if row is not None:
            return _summary(row), False
        versions = owned(select(func.max(calibrations.c.version)), calibrations, self._tenant)
        newest = connection.execute(versions.where(calibrations.c.key == calibration.key)).scalar_one()
        values = {name: getattr(calibration, name) for name in NewCalibration.__dataclass_fields__}
        added = insert(calibrations).values(tenant=self._tenant, **values, version=(newest or 0) + 1)
        return _summary(connection.execute(added.returning(*SUMMARY_COLUMNS)).mappings().one()), True

    def document(self, name: str) -> str | None:
        """JSON text of the calibration of a name."""
        query = owned(select(calibrations.c.document), calibrations, self._tenant).where(calibrations.c.name == name)
        with reading(self._engine) as connection:
            return connection.execute(query).scalar_one_or_none()

    def newest_document(self, key: str) -> str | None:
        """JSON text of the newest calibration of a device key."""
        query = owned(select(calibrations.c.document), calibrations, self._tenant).where(calibrations.c.key == key)
        with reading(self._engine) as connection:
            return connection.execute(query.order_by(calibrations.c.version.desc()).limit(1)).scalar_one_or_none()

    def find(self, name: str) -> CalibrationSummary | None:
        """The calibration of a name."""
        return self._one(calibrations.c.name == name)

    def find_version(self, key: str, version: int) -> CalibrationSummary | None:
        """The calibration of a device key with a version."""
        return self._one(and_(calibrations.c.key == key, calibrations.c.version == version))

    def newest(self, key: str) -> CalibrationSummary | None:
        """The newest calibration of a device key."""
        found = self.list(key=key, limit=1)
        return found[0] if found else None

    def list(self, *, key: str | None = None, before: int | None = None, limit: int) -> tuple[CalibrationSummary, ...]:
        """At most ``limit`` calibrations, newest first; with ``key`` only that device's, with ``before`` those before a row."""
        query = self._summaries().order_by(calibrations.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(calibrations.c.id < before)
        if key is not None:
            query = query.where(calibrations.c.key == key)
        with reading(self._engine) as connection:
            return tuple(_summary(row) for row in connection.execute(query).mappings())

    def stale_uses(self, plan_digests: tuple[str, ...]) -> tuple[StaleUse, ...]:
        """Calibrations that these plans rest on and that a newer one, stored after the plan, replaces; in order of plans."""
        rows = _STALE.find(self._engine, {"tenant": self._tenant, "digests": list(plan_digests)})
        if not rows:
            return ()
        with reading(self._engine) as connection:
            newest_ids = {row["newest_id"] for row in rows}
            by_id = select(calibrations.c.id, calibrations.c.name).where(calibrations.c.id.in_(newest_ids))
            names = {row.id: row.name for row in connection.execute(by_id)}
        return tuple(
            StaleUse(row["digest"], row["key"], row["calibration"], names[row["newest_id"]], row["since"])
            for row in map(in_utc, rows)
        )

    def standings(self, plan_digests: Sequence[str]) -> dict[str, Standing]:
        """How those of these plans that are stored stand to newer calibrations."""
        rows = map(in_utc, _STANDING.find(self._engine, {"tenant": self._tenant, "digests": list(plan_digests)}))
        return {row["digest"]: Standing(row["since"]) for row in rows}

    def _one(self, condition: ColumnElement[bool]) -> CalibrationSummary | None:
        with reading(self._engine) as connection:
            row = connection.execute(self._summaries().where(condition)).mappings().one_or_none()
        return None if row is None else _summary(row)

    def _summaries(self) -> Select[Any]:
        return owned(select(*SUMMARY_COLUMNS), calibrations, self._tenant)


def note_calibrations(connection: Connection, *, plan: str, request: str, tenant: str) -> None:
    """Note what a plan that is being stored rests on: the calibrations that its request's devices and networks name."""
    document = json.loads(request)
    nodes = [group["node"] for group in document.get("cluster", {}).get("groups", ())]
    names = {node["device"]["calibration"] for node in nodes}
    names |= {node["network"] for node in nodes if is_measured(node.get("network", ""))}
    # A plan that was made before any run rests on what is shipped: nothing learned, under the bare key.
    names |= {_run_calibration_of(document)} - {""}
    for key, name in sorted({calibration_key(name): name for name in sorted(names)}.items()):
        connection.execute(insert(plan_calibrations).values(tenant=tenant, plan=plan, key=key, calibration=name))


def _run_calibration_of(request: Mapping[str, Any]) -> str:
    """The name of what a request has from runs, or the key that this would have; nothing for a request that is none."""
    group = run_group(request)
    given = (each for each in request.get("calibrations", ()) if is_run_key(each["key"]))
    return "" if group is None else next(map(calibration_name, given), group.key)


_RESTS_ON = and_(plan_calibrations.c.tenant == plans.c.tenant, plan_calibrations.c.plan == plans.c.digest)
_NEWER = and_(
    calibrations.c.tenant == plans.c.tenant,
    calibrations.c.key == plan_calibrations.c.key,
    calibrations.c.created_at > plans.c.created_at,
    calibrations.c.name != plan_calibrations.c.calibration,
)


def _stale_uses() -> Select[Any]:
    query = (
        select(
            plans.c.digest,
            plan_calibrations.c.key,
            plan_calibrations.c.calibration,
            func.min(calibrations.c.created_at).label("since"),
            func.max(calibrations.c.id).label("newest_id"),
        )
        .join(plan_calibrations, _RESTS_ON)
        .join(calibrations, _NEWER)
        .group_by(plans.c.id, plans.c.digest, plan_calibrations.c.key, plan_calibrations.c.calibration)
        .order_by(plans.c.id, plan_calibrations.c.key)
    )
    return owned(query, plans, TENANT)


def _standings() -> Select[Any]:
    query = select(plans.c.digest, func.min(calibrations.c.created_at).label("since"))
    query = query.outerjoin(plan_calibrations, _RESTS_ON).outerjoin(calibrations, _NEWER)
    return owned(query.group_by(plans.c.id, plans.c.digest), plans, TENANT)


_STANDING = QuickRows(_standings(), plans.c.digest, "digests")
_STALE = QuickRows(_stale_uses(), plans.c.digest, "digests")


def _lock(connection: Connection) -> None:
    """Let one process number calibrations at a time: SQLite's BEGIN IMMEDIATE does, PostgreSQL needs an advisory lock."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRESQL_LOCK})


def _summary(row: RowMapping) -> CalibrationSummary:
    return CalibrationSummary(**in_utc(row))


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
class KeptCalibration:
    """The result of storing a calibration: its row, whether it is new, and how many questions' plans became stale by it."""

    row: CalibrationSummary
    is_new: bool
    stale: int


class CalibrationStore:
    """One tenant's calibrations. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str = DEFAULT_TENANT):
        self._engine, self._tenant = engine, tenant
        self._calibrations = CalibrationRepository(engine, tenant)

    def keep(self, calibration: Calibration) -> KeptCalibration:
        """Store a calibration under its key's next version, unless it is stored already.

        A new one makes the current plans of the questions that follow its key stale. Raises ClusterError for a document
        that does not say what it was fitted to.
        """
        with writing(self._engine) as connection:
            return self.keep_with(connection, calibration)

    def keep_with(self, connection: Connection, calibration: Calibration) -> KeptCalibration:
        """As ``keep``, in the caller's transaction."""
        stored, is_new = self._calibrations.add_with(connection, _row_of(calibration))
        stale = 0
        if is_new:
            about = QuestionFilter(calibration=stored.key)
            stale = QuestionRepository(self._engine, self._tenant).mark_stale(connection, about, change_of(stored))
        return KeptCalibration(stored, is_new, stale)

    def resolve(self, reference: str) -> CalibrationSummary:
        """The row that a reference means; raises CalibrationNotFoundError."""
        key, _, rest = reference.partition(SEPARATOR)
        found: CalibrationSummary | None = None
        if not rest:
            found = self._calibrations.newest(key)
        elif is_digits(rest, most=9):
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
