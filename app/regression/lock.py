"""The lock file: the plans of a folder's requests, one a block, in an order and a rounding that every machine agrees on.

Keys are sorted, figures have six significant digits, lines end in a line feed, and no clock, path or host stands in it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from meshwright.app.base.errors import at_field
from meshwright.app.base.quoting import shell_word
from meshwright.app.base.records import read_record, to_document
from meshwright.app.regression.locked_plan import WRITTEN_WHERE_SET, LockedPlan, rounded
from meshwright.app.requests.files import read_document
from meshwright.app.requests.limits import check_values
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import STRICT_RECORD, NonNegativeFloat

LOCK_SCHEMA: Literal["meshwright.plans-lock/1"] = "meshwright.plans-lock/1"
LOCK_NAME = "plans.lock.json"


class LockError(InvalidInputError):
    """A lock that is missing or can't be read."""


@dataclass(frozen=True, slots=True)
class Lock:
    """Locked plans by the name of their request file, and the policy fields that the lock sets."""

    __pydantic_config__ = STRICT_RECORD

    schema: Literal["meshwright.plans-lock/1"] = LOCK_SCHEMA
    plans: Mapping[str, LockedPlan] = field(default_factory=dict)
    policy: Mapping[str, float | str] = field(default_factory=dict)


def read_lock(path: Path) -> Lock:
    """The lock in a file; raises LockError for one that is missing or unreadable."""
    if not path.exists():
        raise LockError("there is no lock", given=str(path), remedy=f"make it with: {accept_command(path.parent)}")
    try:
        return read_record(Lock, read_document(str(path), what="lock"), what="lock")
    except InvalidInputError as error:
        remedy = f"take back a lock that was good (after a merge: of either side); then: {accept_command(path.parent)}"
        raise LockError(f"the lock can't be read: {error}", remedy=remedy) from None


def accept_command(folder: Path) -> str:
    """The command that makes the plans of now the locked ones."""
    return f"meshwright check {shell_word(folder.as_posix())} --update"


def lock_text(lock: Lock) -> str:
    """The file of a lock; equal locks give equal bytes."""
    document = to_document(Lock, lock)
    # Dumping turns whole numbers into floats.
    for name, entry in lock.plans.items():
        document["plans"][name]["figures"] = {figure: rounded(value) for figure, value in entry.figures.items()}
        document["plans"][name]["times_s"] = {part: rounded(value) for part, value in entry.times_s.items()}
        structure = document["plans"][name]["structure"]
        for field_name in WRITTEN_WHERE_SET:
            if not structure[field_name]:
                del structure[field_name]
        if entry.shortfall is not None:
            amounts = {"need": rounded(entry.shortfall.need), "have": rounded(entry.shortfall.have)}
            document["plans"][name]["shortfall"] |= amounts
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n"


# The policy of a check: how much worse a figure may get, and what a change of structure means.
#
# It stands in the lock (``policy``) and in the nearest ``pyproject.toml`` with a table ``[tool.meshwright.check]``. A field
# that both set has the lock's value.

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
