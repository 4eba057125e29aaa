"""The calibration document (meshwright.calibration/1): named by its content, read and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import rfc8785

from meshwright.costmodels.calibration.calibration import CALIBRATION_SCHEMA, SEPARATOR, Calibration
from meshwright.costmodels.calibration.from_runs import RUN_CALIBRATION_SCHEMA, check_run_calibration
from meshwright.costmodels.calibration.networks import FABRIC_SCHEMA, check_fabric_calibration
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.fitting.check import check_calibration


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
