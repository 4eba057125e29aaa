"""Reading what commands are given: documents from files or stdin, and files that a request names."""

from __future__ import annotations

import sys
from pathlib import Path

from app.importers.documents import MAX_DOCUMENT_BYTES, NonFinite, parse_document
from costmodels.errors import InvalidInputError

STDIN = "-"


class FilesBeside:
    """Files that a request names, found relative to the request file."""

    def __init__(self, folder: Path):
        self._folder = folder

    def read(self, path: str) -> object:
        """The parsed document at a path; raises InvalidInputError.

        These may be files of other tools, in which Infinity stands; fields that want a number don't take it.
        """
        return parse_document(read_bytes(self._folder / path), what=f"file {path}", non_finite=NonFinite.AS_TEXT)


def read_document(path: str, *, what: str) -> object:
    """The parsed document in a file, or on stdin for "-"; raises InvalidInputError."""
    if path == STDIN:
        return parse_document(sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1), what=what)
    return parse_document(read_bytes(Path(path)), what=what)


def folder_of(path: str) -> Path:
    """The folder against which a request's paths are read: the file's, or for stdin the current one."""
    return Path() if path == STDIN else Path(path).parent


def read_bytes(path: Path) -> bytes:
    """At most one byte more of a file than a document may have; raises InvalidInputError when it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_DOCUMENT_BYTES + 1)
    except (OSError, ValueError) as error:
        # ValueError: a path with a null character.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInputError(f"the file can't be read: {reason}", given=str(path)) from None
