"""The requests of a folder: every ``*.plan.yaml`` under it, by its path from there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from meshwright.app.plans.keyed import KeyedRequest, keyed_request
from meshwright.app.quoting.readable import ALLOWED_CHARACTERS, readable
from meshwright.app.requests.files import read_request
from meshwright.app.requests.limits import Entry
from meshwright.costmodels.errors import InvalidInputError

REQUEST_PATTERN = "*.plan.yaml"


@dataclass(frozen=True, slots=True)
class FoundRequest:
    """A request file: its name in the lock, and the request or why it can't be used."""

    name: str
    request: KeyedRequest | InvalidInputError


def find_requests(folder: Path, locked: Collection[str] = ()) -> tuple[FoundRequest, ...]:
    """The requests under a folder, hidden folders left out, by name; raises InvalidInputError for what is no folder.

    Names with hidden characters are refused, of files and in them, but not in those that are locked already.
    """
    if not folder.is_dir():
        raise InvalidInputError("there is no such folder", given=str(folder), allowed="a folder with *.plan.yaml files")
    names = [path.relative_to(folder) for path in folder.rglob(REQUEST_PATTERN) if path.is_file()]
    visible = sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))
    return tuple(_found(folder, name, Entry.STORED if name in locked else Entry.NEW) for name in visible)


def _found(folder: Path, name: str, entry: Entry) -> FoundRequest:
    if entry is Entry.NEW and readable(name) != name:
        refused = InvalidInputError(
            "the file's name has characters that can't be used",
            given=name,
            allowed=ALLOWED_CHARACTERS,
            remedy="give it another name",
        )
        return FoundRequest(readable(name), refused)
    try:
        return FoundRequest(name, keyed_request(read_request(str(folder / name), entry=entry)))
    except InvalidInputError as error:
        return FoundRequest(name, error)
