"""The lock file: the plans of a folder's requests, one a block, in an order and a rounding that every machine agrees on.

Keys are sorted, figures have six significant digits, lines end in a line feed, and no clock, path or host stands in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from meshwright.app.documents.records import read_record, to_document
from meshwright.app.quoting import shell_word
from meshwright.app.regression.locked_plan import WRITTEN_WHERE_SET, LockedPlan, rounded
from meshwright.app.requests.files import read_document
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import STRICT_RECORD

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
