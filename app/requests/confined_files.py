"""Files that a stranger's request may name: those of one folder, none of which is quoted in an error.

``check`` plans what a pull request holds on a machine that has more than the repository: a symbolic link or ``..`` leads out of
it, and an error is printed where everybody reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.app.models.stated_parameters import StatedParameters
from meshwright.app.requests.files import FilesBeside
from meshwright.costmodels.errors import InvalidInputError

_WORD = re.compile(r"\w{3,}")
GIT = ".git"


def repository_of(folder: Path) -> Path:
    """Return the folder of the repository that a folder is in; the folder itself where it is in none."""
    folder = folder.resolve()
    return next((each for each in (folder, *folder.parents) if (each / GIT).exists()), folder)


def require_within(path: Path, root: Path, *, given: str) -> None:
    """Raise InvalidInputError unless a path, links followed, lies in a folder and not in its .git; of a folder each entry."""
    try:
        places = [path.resolve(), *(each.resolve() for each in path.iterdir())] if path.is_dir() else [path.resolve()]
    except (OSError, ValueError, RuntimeError):
        places = []
    if not places or any(not place.is_relative_to(root) or GIT in place.relative_to(root).parts for place in places):
        raise InvalidInputError(
            "a check reads files of its repository only",
            given=given,
            remedy="put the file into the repository and name it there",
        )


class ConfinedFiles(FilesBeside):
    """Files that a request of a check names, relative to the request file and within ``root``; ``named`` are those it read."""

    def __init__(self, folder: Path, root: Path):
        super().__init__(folder)
        self._root = root
        self.named: list[str] = []

    def read(self, path: str) -> object:
        """As of files beside a request; raises InvalidInputError for one outside, as all of these do."""
        self._admit(path)
        return super().read(path)

    def has(self, name: str) -> bool:
        """Return True if there is such a file, which the request may name."""
        if not super().has(name):
            return False
        require_within(self._folder / name, self._root, given=name)
        return True

    def read_config(self, name: str) -> tuple[object, str]:
        """As of files beside a request."""
        if super().has(name):
            self._admit(name)
        return super().read_config(name)

    def stated_parameters(self, name: str, config: Mapping[str, Any]) -> StatedParameters | None:
        """As of files beside a request."""
        path = self._folder / name
        if super().has(name):
            require_within(path if path.is_dir() else path.parent, self._root, given=name)
        return super().stated_parameters(name, config)

    def read_text(self, path: str) -> str:
        """As of files beside a request."""
        self._admit(path)
        return super().read_text(path)

    def _admit(self, path: str) -> None:
        require_within(self._folder / path, self._root, given=path)
        self.named.append(path)

    def unquoted(self, error: InvalidInputError, request_text: str) -> InvalidInputError:
        """Return an error as it is where no file was read, or none of its words is the files' own; else one that names the
        files alone."""
        said = set(_WORD.findall(str(error))) - set(_WORD.findall(request_text))
        if not any(said & self._words(path) for path in self.named):
            return error
        return InvalidInputError(
            "a file that the request names can't be used",
            given=", ".join(self.named),
            remedy="see why with: meshwright plan, on your machine",
        )

    def _words(self, path: str) -> set[str]:
        place = self._folder / path
        files = [each for each in place.iterdir() if each.is_file()] if place.is_dir() else [place]
        text = " ".join(each.read_bytes().decode("utf-8", "replace") for each in files if each.is_file())
        return set(_WORD.findall(text))
