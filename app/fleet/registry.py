"""The models, clusters and calibrations that a tenant has registered, as requests name them."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

import rfc8785
from sqlalchemy import Engine

from meshwright.app.calibrations.store import CalibrationStore
from meshwright.app.documents.json_text import compact_json
from meshwright.app.documents.records import to_document
from meshwright.app.fleet.registered_repository import Registered, RegisteredKind, RegisteredRepository
from meshwright.app.questions.repository import Asked
from meshwright.app.requests.limits import Entry
from meshwright.app.requests.resolve import NoFiles, read_cluster, read_model
from meshwright.costmodels.calibration.calibration import Calibration, is_measured
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError, InvalidInputError, ModelError, WorkloadError
from meshwright.solver.problem.graph import ModelGraph

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
