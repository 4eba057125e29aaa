"""The policy of a check: how much worse a figure may get, and what a change of structure means.

It stands in the lock (``policy``) and in the nearest ``pyproject.toml`` with a table ``[tool.meshwright.check]``. A field
that both set has the lock's value.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from meshwright.app.documents.records import read_record
from meshwright.app.errors import at_field
from meshwright.app.requests.limits import check_values
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import STRICT_RECORD, NonNegativeFloat

PROJECT_FILE = "pyproject.toml"
PROJECT_TABLE = "tool.meshwright.check"
REPOSITORY_MARK = ".git"


class Action(StrEnum):
    """The effect of a change on the check."""

    ALLOW = "allow"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of what passes.

    throughput_tolerance, latency_tolerance, cost_tolerance   relative: 0.01 lets a figure get 1% worse
    gap_tolerance               how much the certificate's gap may rise
    min_memory_headroom_bytes   bytes that every plan leaves free on its fullest device
    devices                     a plan needs more devices than the locked one
    structure                   axes, stages, recompute, schedule, micro-batch, shardings or serving layout changed
    """

    __pydantic_config__ = STRICT_RECORD

    throughput_tolerance: NonNegativeFloat = 0.01
    latency_tolerance: NonNegativeFloat = 0.01
    cost_tolerance: NonNegativeFloat = 0.01
    gap_tolerance: NonNegativeFloat = 0.01
    min_memory_headroom_bytes: NonNegativeFloat = 0.0
    devices: Action = Action.FAIL
    structure: Action = Action.WARN


def read_policy(lock_policy: Mapping[str, Any], folder: Path) -> Policy:
    """The policy of a folder: the lock's fields over those of pyproject.toml over the defaults; raises InvalidInputError."""
    _checked(lock_policy, "policy")
    return _checked({**_project_policy(folder), **lock_policy}, "policy")


def _project_policy(folder: Path) -> dict[str, Any]:
    """The table in the nearest pyproject.toml that has one, up to the root of the repository."""
    here = folder.resolve()
    for place in (here, *here.parents):
        table = _table_in(place / PROJECT_FILE)
        if table is not None:
            _checked(table, f"{place / PROJECT_FILE}: {PROJECT_TABLE}")
            return table
        if (place / REPOSITORY_MARK).exists():
            break
    return {}


def _table_in(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path.name} can't be read: {error}", given=str(path)) from None
    for name in PROJECT_TABLE.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return None if value is None else dict(value)


def _checked(fields: Mapping[str, Any], where: str) -> Policy:
    try:
        check_values(dict(fields))
        return read_record(Policy, dict(fields), what="policy")
    except InvalidInputError as error:
        raise at_field(error, where) from None
