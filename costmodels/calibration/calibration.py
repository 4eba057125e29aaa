"""Calibrations measured by a user: named by their content, carried by a request, in force while it is solved.

A name is ``<key>@sha256:<hex>``: the device's calibration key and the digest of the document, so that a name never means
two contents and everything that is remembered under it stays true. A bare key names the calibration that is shipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.units import STRICT_RECORD

CALIBRATION_SCHEMA = "meshwright.calibration/1"

SEPARATOR = "@"
"""Between key and digest in the name of a measured calibration; keys hold none."""

BORROWS = "~"
"""Between key and source in the name of a borrowed calibration (`costmodels.calibration.kernel_file`); keys hold none."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A measured calibration: its name, and its decoded document, whose parts `costmodels` reads when it needs them."""

    __pydantic_config__ = STRICT_RECORD

    name: str
    document: Mapping[str, Any]


_in_force: ContextVar[Mapping[str, Mapping[str, Any]]] = ContextVar("calibrations in force", default=MappingProxyType({}))


@contextmanager
def calibrations_in_force(calibrations: Iterable[Calibration]) -> Iterator[None]:
    """Let devices use these measured calibrations, by name, while the block runs; nested blocks add theirs."""
    added = {calibration.name: calibration.document for calibration in calibrations}
    token = _in_force.set({**_in_force.get(), **added})
    try:
        yield
    finally:
        _in_force.reset(token)


def is_measured(name: str) -> bool:
    """Return True if this names a user's calibration rather than a shipped one."""
    return SEPARATOR in name


def calibration_key(name: str) -> str:
    """The device's calibration key in a name, measured or borrowed; a bare key is its own."""
    return name.partition(SEPARATOR)[0].partition(BORROWS)[0]


def document_in_force(name: str) -> Mapping[str, Any]:
    """The document of a measured calibration; raises ClusterError when it is not in force."""
    found = _in_force.get().get(name)
    if found is None:
        raise ClusterError(
            "this calibration is not given with the request",
            given=name,
            allowed=", ".join(sorted(_in_force.get())) or "none",
            remedy="name it in the request's 'calibrations', or use the shipped one",
        )
    return found
