"""Calibrations that a request names: stored ones, files or inline documents; they stand in for those that are shipped."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import rfc8785

from meshwright.app.base.errors import CalibrationNotFoundError, DocumentError, FieldError, at_field, short_text
from meshwright.app.requests.limits import Entry, check_values
from meshwright.costmodels.calibration.calibration import (
    CALIBRATION_SCHEMA,
    SEPARATOR,
    Calibration,
    calibration_key,
    is_measured,
)
from meshwright.costmodels.calibration.from_runs import RUN_CALIBRATION_SCHEMA, check_run_calibration, is_run_key
from meshwright.costmodels.calibration.networks import (
    FABRIC_SCHEMA,
    check_fabric_calibration,
    is_fabric_key,
    line_rates,
    measures,
)
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError, InvalidInputError
from meshwright.costmodels.fitting.check import check_calibration

FILE_ENDING = ".json"
"""A reference that ends so is the path of a calibration document; names of stored calibrations do not."""


class DocumentFiles(Protocol):
    """The reader of a file that a request names."""

    def read(self, path: str) -> object:
        """The parsed document at a path; raises InvalidInputError."""
        ...


class StoredCalibrations(Protocol):
    """Where a calibration that a request names is found."""

    def find(self, reference: str) -> Calibration:
        """The calibration of a reference; raises CalibrationNotFoundError."""
        ...


class NoStoredCalibrations:
    """Requests that are read where no store is: their calibrations stand in them."""

    def find(self, reference: str) -> Calibration:
        """Always refuses."""
        raise CalibrationNotFoundError(
            "stored calibrations can't be named here",
            given=reference,
            remedy="put the document inline, as 'meshwright calibrate show --json' prints it",
        )


def read_calibrations(
    sources: Sequence[str | Mapping[str, Any]], files: DocumentFiles, stored: StoredCalibrations, entry: Entry
) -> tuple[Calibration, ...]:
    """The calibrations in order of name; raises DocumentError at the one that can't be used, or is of a key given before."""
    found: dict[str, Calibration] = {}
    for index, source in enumerate(sources):
        try:
            calibration = _read(source, files, stored, entry)
        except InvalidInputError as error:
            raise at_field(error, f"calibrations.{index}") from None
        key = calibration_key(calibration.name)
        if key in found:
            raise _fault(index, "a calibration of this device is given already", key, "one for each key")
        found[key] = calibration
    return tuple(found[key] for key in sorted(found))


def with_calibrations(cluster: Cluster, calibrations: Sequence[Calibration]) -> Cluster:
    """The cluster whose devices name these calibrations instead of their keys' shipped ones.

    Raises DocumentError when a calibration is of no device of the cluster, or a device names one that is not given.
    """
    names = {calibration_key(calibration.name): calibration.name for calibration in calibrations}
    devices = [group.node.device for group in cluster.groups]
    keys = {calibration_key(device.calibration) for device in devices}
    for index, key in enumerate(names):
        if key not in keys and not is_run_key(key) and not is_fabric_key(key):
            raise _fault(index, "no device of the cluster has this calibration key", key, ", ".join(sorted(keys)))
    for index, device in enumerate(devices):
        if is_measured(device.calibration) and device.calibration not in names.values():
            fault = FieldError(
                f"cluster.groups.{index}.node.device.calibration",
                "this calibration is not given with the request",
                short_text(device.calibration),
                ", ".join(sorted(names.values())) or "a shipped calibration",
                "add it to 'calibrations'",
            )
            raise DocumentError("this request can't be used", (fault,))
    network = _network(cluster, calibrations)
    if not names:
        return cluster
    groups = []
    for group in cluster.groups:
        device = group.node.device
        name = names.get(calibration_key(device.calibration), device.calibration)
        node = replace(group.node, device=replace(device, calibration=name), network=network or group.node.network)
        groups.append(replace(group, node=node))
    return replace(cluster, groups=tuple(groups))


def _network(cluster: Cluster, calibrations: Sequence[Calibration]) -> str | None:
    """The name of the measured fabric among calibrations; None where there is none. Raises DocumentError for two, for one of
    other hardware, and for nodes that name one that is not given."""
    measured = [index for index, each in enumerate(calibrations) if is_fabric_key(calibration_key(each.name))]
    for index in measured[1:]:
        raise _fault(index, "the network between nodes has a calibration already", calibrations[index].name, "one")
    for index in measured:
        given = calibrations[index]
        if not measures(given.document, cluster):
            allowed = (
                f"one of {', '.join(f'{name} at {rate:.4g} bytes/s a device' for name, rate in line_rates(cluster).items())}"
            )
            raise _fault(index, "measured on nodes of another network", given.name, allowed)
        return given.name
    for index, group in enumerate(cluster.groups):
        if is_measured(group.node.network):
            fault = FieldError(
                f"cluster.groups.{index}.node.network",
                "this calibration is not given with the request",
                short_text(group.node.network),
                "a kind of network",
                "add it to 'calibrations'",
            )
            raise DocumentError("this request can't be used", (fault,))
    return None


def _read(source: str | Mapping[str, Any], files: DocumentFiles, stored: StoredCalibrations, entry: Entry) -> Calibration:
    if not isinstance(source, str):
        return read_calibration_document(source)
    if source.endswith(FILE_ENDING):
        document = files.read(source)
        check_values(document, entry)
        return read_calibration_document(document)
    return stored.find(source)


def _fault(index: int, problem: str, given: str, allowed: str) -> DocumentError:
    return DocumentError(
        "this request can't be used", (FieldError(f"calibrations.{index}", problem, short_text(given), allowed),)
    )


# The calibration document (meshwright.calibration/1): named by its content, read and checked.


def read_calibration_document(document: object) -> Calibration:
    """The calibration of a parsed document, checked; raises ClusterError."""
    if not isinstance(document, Mapping):
        raise ClusterError("a calibration is a JSON object", given=type(document).__name__)
    if document.get("schema") == RUN_CALIBRATION_SCHEMA:
        check_run_calibration(document)
    elif document.get("schema") == FABRIC_SCHEMA:
        check_fabric_calibration(document)
    else:
        check_calibration(document)
    return Calibration(calibration_name(document), document)


def provenance_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sources of a calibration's measurements, each with how many there are."""
    provenance: Mapping[str, Any] = (
        document["kernels"]["provenance"] if document["schema"] == CALIBRATION_SCHEMA else document["provenance"]
    )
    return provenance


def calibration_name(document: Mapping[str, Any]) -> str:
    """``<key>@sha256:<hex>`` over the document's canonical form (RFC 8785)."""
    try:
        canonical = rfc8785.dumps(dict(document))
    except rfc8785.CanonicalizationError as error:
        raise ClusterError(f"the calibration has no canonical form: {error}") from None
    return f"{document['key']}{SEPARATOR}sha256:{hashlib.sha256(canonical).hexdigest()}"
