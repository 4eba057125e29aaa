"""Measured runs in the database: only ever added, each once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

from annotated_types import Len
from sqlalchemy import Connection, Engine, RowMapping, select

from meshwright.app.base.records import read_record, to_document
from meshwright.app.requests.digests import DIGEST_PATTERN
from meshwright.app.requests.limits import check_values
from meshwright.app.store.engine import is_sqlite, reading
from meshwright.app.store.fleet import canonical_digest
from meshwright.app.store.statements import in_utc, insert_if_absent, owned
from meshwright.app.store.tables import DEFAULT_TENANT, runs
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import STRICT_RECORD, PositiveFloat, PositiveInt


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be stored; its fields are described at the table."""

    digest: str
    created_at: datetime
    cluster: str
    profile: str
    model: str
    plan: str
    kind: str
    outcome: str
    run: str
    predicted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun(NewRun):
    """A run's row; ``id`` is its place in the order of arrival."""

    id: int


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The runs that a list holds; None does not filter."""

    cluster: str | None = None
    profile: str | None = None
    model: str | None = None
    plan: str | None = None


COLUMNS = tuple(runs.c[name] for name in StoredRun.__dataclass_fields__)


class RunRepository:
    """Reads and additions of one tenant's runs. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str = DEFAULT_TENANT):
        self._engine, self._tenant = engine, tenant

    def add_with(self, connection: Connection, run: NewRun) -> tuple[StoredRun, bool]:
        """Store a run unless it is stored already, in the caller's transaction; the row, and whether it is new."""
        values = {name: getattr(run, name) for name in NewRun.__dataclass_fields__}
        insert = insert_if_absent(runs, ["tenant", "digest"], is_sqlite=is_sqlite(self._engine))
        added = connection.execute(insert.values(tenant=self._tenant, **values).returning(runs.c.id)).scalar_one_or_none()
        mine = owned(select(*COLUMNS), runs, self._tenant).where(runs.c.digest == run.digest)
        return _run(connection.execute(mine).mappings().one()), added is not None

    def find(self, digest: str) -> StoredRun | None:
        """The run of a digest."""
        mine = owned(select(*COLUMNS), runs, self._tenant).where(runs.c.digest == digest)
        with reading(self._engine) as connection:
            row = connection.execute(mine).mappings().one_or_none()
        return None if row is None else _run(row)

    def page(self, wanted: RunFilter, *, before: int | None, limit: int) -> tuple[StoredRun, ...]:
        """Newest runs first: at most ``limit`` of those that arrived before row ``before``."""
        query = owned(select(*COLUMNS), runs, self._tenant).order_by(runs.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(runs.c.id < before)
        for name in RunFilter.__dataclass_fields__:
            value = getattr(wanted, name)
            if value is not None:
                query = query.where(runs.c[name] == value)
        with reading(self._engine) as connection:
            return tuple(_run(row) for row in connection.execute(query).mappings())

    def of_group(self, connection: Connection, cluster: str, profile: str, *, limit: int) -> tuple[StoredRun, ...]:
        """The latest runs of a hardware and a profile, oldest first, in the caller's transaction."""
        query = owned(select(*COLUMNS), runs, self._tenant).where(runs.c.cluster == cluster, runs.c.profile == profile)
        found = connection.execute(query.order_by(runs.c.id.desc()).limit(limit)).mappings().all()
        return tuple(_run(row) for row in reversed(found))


def _run(row: RowMapping) -> StoredRun:
    return StoredRun(**in_utc(row))


# The run document (meshwright.run/1): what was measured when a plan ran, or that it ran out of memory.

RUN_SCHEMA: Final = "meshwright.run/1"

MAX_WORDS = 200
"""Characters of the words that a user adds to a run."""

Words = Annotated[str, Len(0, MAX_WORDS)]


class RunOutcome(StrEnum):
    """The end of a run."""

    COMPLETED = "completed"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run of a plan. Figures that were not measured are left out.

    plan               digest of the plan that ran
    outcome            completed, or out of memory, which has no figures
    step_time_s        training: median time of a step
    peak_memory_bytes  of the fullest device, as the allocator reserved it
    tokens_per_s       serving: tokens generated a second by all devices
    ttft_p95_s, tpot_p95_s  serving
    requests_per_s     serving: the rate at which requests were sent meanwhile; without it the rate that the plan was asked for
    software           versions it ran with
    label              words that tell two runs with the same figures apart: a job's number, a date
    """

    __pydantic_config__ = STRICT_RECORD

    plan: Annotated[str, Len(1, MAX_WORDS)]
    outcome: RunOutcome = RunOutcome.COMPLETED
    step_time_s: PositiveFloat | None = None
    peak_memory_bytes: PositiveInt | None = None
    tokens_per_s: PositiveFloat | None = None
    ttft_p95_s: PositiveFloat | None = None
    tpot_p95_s: PositiveFloat | None = None
    requests_per_s: PositiveFloat | None = None
    software: Words = ""
    label: Words = ""
    schema: Literal["meshwright.run/1"] = RUN_SCHEMA

    def __post_init__(self) -> None:
        if not DIGEST_PATTERN.fullmatch(self.plan):
            raise InvalidInputError("plan is no digest", given=self.plan, allowed="sha256: and 64 hexadecimal digits")
        measured = self.measured()
        if self.outcome is RunOutcome.OUT_OF_MEMORY and measured:
            raise InvalidInputError(
                "a run that went out of memory has no figures", given=", ".join(measured), remedy="leave them out"
            )
        if self.outcome is RunOutcome.COMPLETED and not measured:
            raise InvalidInputError(
                "a run that completed has at least one figure", given="none", allowed=", ".join(figure_names())
            )

    def measured(self) -> dict[str, float]:
        """Return the figures that were measured, by name."""
        return {name: value for name in figure_names() if (value := getattr(self, name)) is not None}


FIGURES_OF = {
    "training": ("step_time_s", "peak_memory_bytes"),
    "serving": ("tokens_per_s", "ttft_p95_s", "tpot_p95_s", "peak_memory_bytes"),
}
"""The figures that runs of each kind of plan have."""

TOLD_OF = {"training": (), "serving": ("requests_per_s",)}
"""What is told beside them of how each kind ran."""


def figure_names() -> tuple[str, ...]:
    """Return the names of all figures, in the order of the record."""
    known = {name for names in FIGURES_OF.values() for name in names}
    return tuple(each.name for each in fields(MeasuredRun) if each.name in known)


def read_run(document: object) -> MeasuredRun:
    """The run of a parsed document; raises DocumentError."""
    check_values(document)
    return read_record(MeasuredRun, document, what="run")


def run_document(run: MeasuredRun) -> dict[str, object]:
    """Return the run as a document, its schema first, without what was not measured."""
    whole = to_document(MeasuredRun, run)
    return {"schema": whole.pop("schema")} | {name: value for name, value in whole.items() if value not in (None, "")}


def run_digest(run: MeasuredRun) -> str:
    """Return ``sha256:<hex>`` of the canonical run: the same run has one digest however it was written."""
    return canonical_digest(run_document(run))
