"""The models, clusters and calibrations that a tenant has registered, as requests name them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

import rfc8785
from sqlalchemy import Connection, Engine, Select, func, select

from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import VersionChangedError
from meshwright.app.base.records import to_document
from meshwright.app.requests.digests import KeyedRequest, keyed_request
from meshwright.app.requests.limits import Entry
from meshwright.app.requests.resolve import NoFiles, read_cluster, read_model, resolve_request
from meshwright.app.store.calibrations import CalibrationStore
from meshwright.app.store.engine import is_sqlite, reading
from meshwright.app.store.questions import Asked
from meshwright.app.store.statements import in_utc, insert_if_absent, owned
from meshwright.app.store.tables import registered
from meshwright.costmodels.calibration.calibration import Calibration, is_measured
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError, InvalidInputError, ModelError, WorkloadError
from meshwright.solver.problem.graph import ModelGraph

# Models and clusters under their names: every change is a new version, and all versions are deleted together.


class RegisteredKind(StrEnum):
    """The kind of a registered document."""

    MODEL = "model"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of what is registered under a name; ``document`` is JSON text, ``digest`` of its canonical form."""

    id: int
    name: str
    version: int
    digest: str
    document: str
    created_at: datetime


COLUMNS = tuple(registered.c[name] for name in Registered.__dataclass_fields__)


class RegisteredRepository:
    """One tenant's registered models or clusters. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str, kind: RegisteredKind):
        self._engine, self._tenant, self._kind = engine, tenant, kind

    def find(self, name: str, version: int | None = None) -> Registered | None:
        """A version under a name, the newest unless told."""
        with reading(self._engine) as connection:
            return self.find_with(connection, name, version)

    def find_with(self, connection: Connection, name: str, version: int | None = None) -> Registered | None:
        """As ``find``, in the caller's transaction."""
        query = owned(select(*COLUMNS), registered, self._tenant).where(
            registered.c.kind == self._kind.value, registered.c.name == name
        )
        if version is not None:
            query = query.where(registered.c.version == version)
        row = connection.execute(query.order_by(registered.c.version.desc()).limit(1)).mappings().one_or_none()
        return None if row is None else Registered(**in_utc(row))

    def put(
        self, connection: Connection, name: str, *, digest: str, document: str, expected: str | None
    ) -> tuple[Registered, bool]:
        """Make this the newest version unless it is already; the newest, and whether it is new.

        expected    digest that the newest version must have; None for any. Raises VersionChangedError.
        """
        newest = self.find_with(connection, name)
        if expected is not None and (newest is None or newest.digest != expected):
            given = "none" if newest is None else f"version {newest.version}, {newest.digest}"
            raise VersionChangedError(f"the {self._kind} {name!r} is at another version", given=given, allowed=expected)
        if newest is not None and newest.digest == digest:
            return newest, False
        version = 1 if newest is None else newest.version + 1
        key = ["tenant", "kind", "name", "version"]
        insert = insert_if_absent(registered, key, is_sqlite=is_sqlite(self._engine)).values(
            tenant=self._tenant,
            kind=self._kind.value,
            name=name,
            version=version,
            digest=digest,
            document=document,
            created_at=datetime.now(UTC),
        )
        if connection.execute(insert.returning(registered.c.id)).scalar_one_or_none() is None:
            raise VersionChangedError(f"the {self._kind} {name!r} was changed at the same time", remedy="read it and try again")
        stored = self.find_with(connection, name, version)
        assert stored is not None, "a row that this transaction wrote"
        return stored, True

    def page(self, *, before: int | None, limit: int) -> tuple[Registered, ...]:
        """The newest version of every name, last changed first: at most ``limit`` of those before row ``before``."""
        mine = owned(select(func.max(registered.c.id)), registered, self._tenant).where(registered.c.kind == self._kind.value)
        query = select(*COLUMNS).where(registered.c.id.in_(mine.group_by(registered.c.name)))
        return self._rows(query, before, limit)

    def versions(self, name: str, *, before: int | None, limit: int) -> tuple[Registered, ...]:
        """The versions under a name, newest first."""
        query = owned(select(*COLUMNS), registered, self._tenant).where(
            registered.c.kind == self._kind.value, registered.c.name == name
        )
        return self._rows(query, before, limit)

    def _rows(self, query: Select[Any], before: int | None, limit: int) -> tuple[Registered, ...]:
        if before is not None:
            query = query.where(registered.c.id < before)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(registered.c.id.desc()).limit(limit)).mappings()
            return tuple(Registered(**in_utc(row)) for row in rows)


REMEMBERED = 256
"""Registered models and clusters that a process remembers as records."""


class FleetNow:
    """A tenant's fleet at one moment, for questions that are resolved together: each name is looked up once."""

    def __init__(self, engine: Engine, tenant: str):
        self._engine, self._tenant = engine, tenant
        self._calibrations = CalibrationStore(engine, tenant)
        self._registered: dict[tuple[RegisteredKind, str], Registered | None] = {}
        self._newest: dict[str, Calibration | None] = {}

    def registered(self, kind: RegisteredKind, name: str) -> Registered | None:
        """The newest version of what is registered under a name; None when nothing is."""
        key = (kind, name)
        if key not in self._registered:
            self._registered[key] = RegisteredRepository(self._engine, self._tenant, kind).find(name)
        return self._registered[key]

    def newest_calibration(self, key: str) -> Calibration | None:
        """The newest stored calibration of a device key; None when there is none."""
        if key not in self._newest:
            self._newest[key] = self._calibrations.newest(key)
        return self._newest[key]

    def calibration(self, reference: str) -> Calibration:
        """The stored calibration of a reference; raises CalibrationNotFoundError."""
        return self._calibrations.find(reference)


class StoredRegistry:
    """Reads what a request names from the fleet, and remembers which versions it read and what it follows."""

    def __init__(self, fleet: FleetNow):
        self._fleet = fleet
        self._read: dict[RegisteredKind, Registered] = {}
        self._follows: set[str] = set()

    def model(self, name: str) -> ModelGraph:
        """The newest version of a registered model; raises ModelError when there is none."""
        return _model_of(self._newest(RegisteredKind.MODEL, name, ModelError).document, name)

    def cluster(self, name: str) -> Cluster:
        """The newest version of a registered cluster; raises ClusterError when there is none."""
        return _cluster_of(self._newest(RegisteredKind.CLUSTER, name, ClusterError).document)

    def find(self, reference: str) -> Calibration:
        """The stored calibration of a reference; raises CalibrationNotFoundError. A bare key stands for its newest."""
        found = self._fleet.calibration(reference)
        if not is_measured(reference):
            self._follows.add(reference)
        return found

    def newest_calibration(self, key: str) -> Calibration | None:
        """The newest stored calibration of a device key; None when there is none yet."""
        self._follows.add(key)
        return self._fleet.newest_calibration(key)

    def follows_runs(self, *, is_registered: bool) -> bool:
        """Return True for a registered cluster: a request that names no such thing is the same tomorrow."""
        return is_registered

    def asked(self, document: dict[str, Any]) -> Asked | None:
        """The question that a request document is; None when it named nothing that changes."""
        if not self._read and not self._follows:
            return None
        model, cluster = self._read.get(RegisteredKind.MODEL), self._read.get(RegisteredKind.CLUSTER)
        return Asked(
            digest=canonical_digest(document),
            document=compact_json(document),
            cluster=cluster.name if cluster else None,
            model=model.name if model else None,
            cluster_version=cluster.version if cluster else None,
            model_version=model.version if model else None,
            follows=tuple(sorted(self._follows)),
        )

    def _newest(self, kind: RegisteredKind, name: str, error: type[InvalidInputError]) -> Registered:
        found = self._fleet.registered(kind, name)
        if found is None:
            raise error(f"no {kind} is registered under this name", given=name, remedy=f"register it: PUT /v1/{kind}s/{name}")
        self._read[kind] = found
        return found


class FleetNamedError(Exception):
    """A request names something of the fleet, which only the database knows."""


class NothingRead:
    """A registry for finding out whether a request needs one."""

    def model(self, name: str) -> ModelGraph:
        """Raises FleetNamedError."""
        raise FleetNamedError

    def cluster(self, name: str) -> Cluster:
        """Raises FleetNamedError."""
        raise FleetNamedError

    def find(self, reference: str) -> Calibration:
        """Raises FleetNamedError."""
        raise FleetNamedError

    def newest_calibration(self, key: str) -> Calibration | None:
        """Raises FleetNamedError."""
        raise FleetNamedError

    def follows_runs(self, *, is_registered: bool) -> bool:
        """Return False: a registered cluster was noticed before."""
        return False


NOTHING_READ = NothingRead()


@lru_cache(maxsize=REMEMBERED)
def _model_of(text: str, name: str) -> ModelGraph:
    """The model of a registered document; the same text is read once."""
    return read_model(json.loads(text), files=NoFiles(), name=name, entry=Entry.STORED)


@lru_cache(maxsize=REMEMBERED)
def _cluster_of(text: str) -> Cluster:
    """The cluster of a registered document; the same text is read once."""
    return read_cluster(json.loads(text), Entry.STORED)


def registered_model(document: object, name: str) -> str:
    """JSON text under which a model is registered: its graph, every reference resolved. Raises DocumentError."""
    graph = read_model(document, files=NoFiles(), name=name)
    return compact_json({"graph": to_document(ModelGraph, graph)})


def registered_cluster(document: object) -> str:
    """JSON text under which a cluster is registered, every reference resolved. Raises DocumentError."""
    return compact_json(to_document(Cluster, read_cluster(document)))


def canonical_digest(document: object) -> str:
    """``sha256:<hex>`` over the RFC 8785 form of a document; raises WorkloadError when it has none."""
    try:
        canonical = rfc8785.dumps(document)  # type: ignore[arg-type]
    except rfc8785.CanonicalizationError as error:
        raise WorkloadError(f"the document has no canonical form: {error}", allowed="whole numbers below 2^53") from None
    return f"sha256:{hashlib.sha256(canonical).hexdigest()}"


# Questions resolved against the fleet of now.


@dataclass(frozen=True, slots=True)
class ResolvedQuestion:
    """The request that a question is now, and under which versions."""

    key: KeyedRequest
    asked: Asked


def resolve_question(fleet: FleetNow, document: str) -> ResolvedQuestion:
    """The request of a question's document (JSON text); raises InvalidInputError when the fleet no longer has what it names."""
    registry = StoredRegistry(fleet)
    parsed = json.loads(document)
    request = resolve_request(parsed, files=NoFiles(), registry=registry, stored=registry, entry=Entry.STORED)
    asked = registry.asked(parsed)
    assert asked is not None, "a stored question names something that changes"
    return ResolvedQuestion(keyed_request(request), asked)
