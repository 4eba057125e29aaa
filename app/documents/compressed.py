"""Files that may be compressed: read whole, but no further than their content may be long."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import BinaryIO

from meshwright.costmodels.errors import InvalidInputError

_GZIP_MARK = b"\x1f\x8b"


def read_bounded(file: BinaryIO, *, limit: int, what: str) -> bytes:
    """Return the contents of a file, decompressed if it is gzip; raises InvalidInputError for a damaged or too large one."""
    head = file.read(limit + 1)
    if head.startswith(_GZIP_MARK):
        head = _decompressed(head, limit, what)
    if len(head) > limit:
        raise InvalidInputError(
            f"the {what} is too large", given=f"more than {limit} bytes", allowed=f"at most {limit} bytes"
        )  # fmt: skip
    return head


def _decompressed(packed: bytes, limit: int, what: str) -> bytes:
    """No more than ``limit`` + 1 bytes, so that a small file can't fill memory."""
    try:
        return gzip.GzipFile(fileobj=io.BytesIO(packed)).read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(f"the {what} is a damaged gzip file: {error}") from error
