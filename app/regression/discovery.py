"""The requests of a folder: every ``*.plan.yaml`` under it, by its path from there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.commands.inputs import read_request
from app.plans.store import KeyedRequest, keyed_request
from costmodels.errors import InvalidInputError

REQUEST_PATTERN = "*.plan.yaml"


@dataclass(frozen=True, slots=True)
class FoundRequest:
    """A request file: its name in the lock, and the request or why it can't be used."""

    name: str
    request: KeyedRequest | InvalidInputError


def find_requests(folder: Path) -> tuple[FoundRequest, ...]:
    """The requests under a folder, hidden folders left out, by name; raises InvalidInputError for what is no folder."""
    if not folder.is_dir():
        raise InvalidInputError("there is no such folder", given=str(folder), allowed="a folder with *.plan.yaml files")
    names = [path.relative_to(folder) for path in folder.rglob(REQUEST_PATTERN) if path.is_file()]
    visible = sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))
    return tuple(FoundRequest(name, _read(folder / name)) for name in visible)


def _read(path: Path) -> KeyedRequest | InvalidInputError:
    try:
        return keyed_request(read_request(str(path)))
    except InvalidInputError as error:
        return error
