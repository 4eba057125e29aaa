"""Files that may be compressed: read whole, but no further than their content may be long."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import BinaryIO

from meshwright.costmodels.errors import InvalidInputError

_GZIP_MARK = b"\x1f\x8b"
PIECE_BYTES = 2**20
"""Content is unpacked in pieces of this length, so that one that is no document is refused early."""
ANY_RATIO_BYTES = 2**24
"""Content up to this length may be packed as densely as gzip can (1,032 to 1)."""
MOST_RATIO = 200
"""Bytes of longer content that one packed byte may stand for: the densest of the contest's instances has 64, traced graphs
have 10 to 22."""


def read_bounded(file: BinaryIO, *, limit: int, what: str) -> bytes:
    """Return the contents of a file, decompressed if it is gzip; raises InvalidInputError for one that is damaged, too large,
    or packed so densely that it can only be meant to fill memory."""
    head = _read(file, limit)
    if head.startswith(_GZIP_MARK):
        head = _decompressed(head, limit, what)
    if len(head) > limit:
        raise InvalidInputError(
            f"the {what} is too large", given=f"more than {limit} bytes", allowed=f"at most {limit} bytes"
        )  # fmt: skip
    return head


def _read(file: BinaryIO, limit: int) -> bytes:
    """No more than ``limit`` and a piece: a read of a known length would take room for all of it at once."""
    content = bytearray()
    while len(content) <= limit and (piece := file.read(PIECE_BYTES)):
        content += piece
    return bytes(content)


def _decompressed(packed: bytes, limit: int, what: str) -> bytes:
    """No more than ``limit`` and a piece, so that a small file can't fill memory."""
    content, source = bytearray(), io.BytesIO(packed)
    file = gzip.GzipFile(fileobj=source)
    try:
        while len(content) <= limit and (piece := file.read(PIECE_BYTES)):
            content += piece
            # Of what was read so far: a bomb is refused long before its end.
            if len(content) > max(ANY_RATIO_BYTES, MOST_RATIO * source.tell()):
                raise InvalidInputError(
                    f"the {what} is packed more densely than any document",
                    given=f"{source.tell()} bytes that unpack to more than {len(content)}",
                    allowed=f"{MOST_RATIO} bytes for each packed one, beyond {ANY_RATIO_BYTES} bytes",
                    remedy="unpack it, if it comes from somebody you trust",
                )
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(f"the {what} is a damaged gzip file: {error}") from error
    return bytes(content)
