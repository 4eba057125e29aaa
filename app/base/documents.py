"""Documents: JSON or YAML text from outside as plain values, with every limit that keeps a hostile file harmless.

Refused: files over a size, nesting over a depth, too many values, NaN and Infinity, keys given twice, YAML aliases and
tags. YAML follows the core schema of YAML 1.2: ``no`` is a string, ``1e3`` a number, dates are strings.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import Any, BinaryIO

import yaml

from meshwright.costmodels.errors import InvalidInputError

MAX_DOCUMENT_BYTES = 8 * 2**20
MAX_YAML_BYTES = 256 * 2**10
"""PyYAML reads about 0.1 MB a second, so large files have to be JSON."""
MAX_DEPTH = 64
MAX_VALUES = 1_000_000
MAX_INTEGER = 2**63 - 1

# A string of JSON, up to its closing quote or the end of the text; possessive and never failing, so that it is linear.
_JSON_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_NOT_STRUCTURE = re.compile(r"[^\[\]{},]++")


class NonFinite(StrEnum):
    """The treatment of NaN, Infinity and numbers too large for a float.

    Files of other tools hold them (``time_step_limit`` in config.json of state-space models): as text they harm nobody,
    and no field of ours that wants a number takes them.
    """

    REFUSED = "refused"
    AS_TEXT = "as_text"


def parse_document(
    text: bytes, *, what: str, max_bytes: int = MAX_DOCUMENT_BYTES, non_finite: NonFinite = NonFinite.REFUSED
) -> Any:
    """The value that a JSON or YAML document holds: None, bool, int, float, str, list or dict.

    text    UTF-8; JSON if its first character is a brace or a bracket, YAML otherwise
    what    the document in the user's words, for messages ("request", "model graph")

    Raises InvalidInputError for whatever can't or mustn't be read.
    """
    if len(text) > max_bytes:
        raise InvalidInputError(f"{what} is too large", given=f"{len(text)} bytes", allowed=f"at most {max_bytes} bytes")
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{what} is not UTF-8 text", given=f"byte {error.start} can't be decoded") from None
    if decoded.lstrip()[:1] in ("{", "["):
        return _parse_json(decoded, what, non_finite)
    return _parse_yaml(decoded, what, non_finite)


def _parse_json(text: str, what: str, non_finite: NonFinite) -> Any:
    _check_structure(text, what)
    try:
        value = json.loads(
            text,
            object_pairs_hook=lambda pairs: _object(pairs, what),
            parse_constant=lambda word: _not_finite(word, what, non_finite),
            parse_float=lambda digits: _finite(digits, what, non_finite),
            parse_int=lambda digits: _whole(digits, what),
        )
    except json.JSONDecodeError as error:
        raise InvalidInputError(
            f"{what} is not valid JSON", given=f"{error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    if _SURROGATE_ESCAPE.search(text):
        _check_unicode(value, what)
    return value


def _check_structure(text: str, what: str) -> None:
    """Refuse depth and bulk before the parser sees them: it is recursive, and a list costs 50 times its text."""
    structure = _NOT_STRUCTURE.sub("", _JSON_STRING.sub("", text))
    if len(structure) > MAX_VALUES:
        raise InvalidInputError(f"{what} has too many values", allowed=f"at most {MAX_VALUES}")
    depth = 0
    for mark in structure:
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep(what)
        elif mark in "]}":
            depth -= 1


def _check_unicode(value: Any, what: str) -> None:
    """Refuse halves of surrogate pairs, which JSON can write but nobody can store or print."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInputError(f"{what} has half of a surrogate pair", remedy="write the character itself") from None


def _parse_yaml(text: str, what: str, non_finite: NonFinite) -> Any:
    if len(text) > MAX_YAML_BYTES:
        raise InvalidInputError(
            f"{what} is too large for YAML",
            given=f"{len(text)} characters",
            allowed=f"at most {MAX_YAML_BYTES}",
            remedy="write it as JSON",
        )
    loader = _Loader(text, what, non_finite)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        problem = _yaml_problem(error)
        remedy = "indent with spaces: YAML takes no tabs" if r"'\t'" in problem else None
        raise InvalidInputError(f"{what} is not valid YAML", given=problem, remedy=remedy) from None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Safe loader that counts depth, refuses aliases, tags and repeated keys, and resolves scalars as YAML 1.2 does."""

    def __init__(self, text: str, what: str, non_finite: NonFinite) -> None:
        self._what = what
        self._non_finite = non_finite
        self._depth = 0
        try:
            super().__init__(text)
        except yaml.YAMLError as error:
            raise InvalidInputError(f"{what} is not valid YAML", given=_yaml_problem(error)) from None

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise InvalidInputError(
                f"{self._what} uses YAML aliases", allowed="plain values", remedy="write the value where it is used"
            )
        tag = getattr(self.peek_event(), "tag", None)  # type: ignore[no-untyped-call]
        if tag is not None:
            raise InvalidInputError(f"{self._what} uses a YAML tag", given=tag, allowed="plain values")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _too_deep(self._what)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        pairs = [(self.construct_object(key, deep=True), self.construct_object(value, deep=True)) for key, value in node.value]
        return _object(pairs, self._what)

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        return _whole(self.construct_scalar(node), self._what)

    def construct_finite(self, node: yaml.ScalarNode) -> float | str:
        return _finite(self.construct_scalar(node), self._what, self._non_finite)


# Drop PyYAML's rules of YAML 1.1 before adding those of the core schema.
_Loader.yaml_implicit_resolvers = {}
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_finite)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:null|Null|NULL|~|)$"), ["n", "N", "~", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"),
    list("-+.0123456789"),
)


def _object(pairs: list[tuple[Any, Any]], what: str) -> dict[Any, Any]:
    result = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise InvalidInputError(f"{what} has a key that is not a string", given=key)
        if key in result:
            raise InvalidInputError(f"{what} gives a key twice", given=key, remedy="keep one of them")
        result[key] = value
    return result


def _finite(digits: str, what: str, non_finite: NonFinite) -> float | str:
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    return number if math.isfinite(number) else _not_finite(digits, what, non_finite)


def _whole(digits: str, what: str) -> int:
    # The length first: Python itself refuses to convert more than 4300 digits.
    number = int(digits) if len(digits) <= len(str(-MAX_INTEGER)) else None
    if number is None or abs(number) > MAX_INTEGER:
        raise InvalidInputError(f"{what} has an integer that is too large", given=digits, allowed=f"up to {MAX_INTEGER}")
    return number


def _not_finite(word: str, what: str, non_finite: NonFinite) -> str:
    if non_finite is NonFinite.AS_TEXT:
        return word
    raise InvalidInputError(f"{what} has a number that is not finite", given=word, allowed="finite numbers")


def _too_deep(what: str) -> InvalidInputError:
    return InvalidInputError(f"{what} is nested too deeply", allowed=f"at most {MAX_DEPTH} levels")


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
    return problem if mark is None else f"{problem} at line {mark.line + 1}, column {mark.column + 1}"


# JSON text as Meshwright writes it, whole or from texts of its parts.


def compact_json(document: object) -> str:
    """JSON text without spaces, keys in the order given."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def object_text(texts: Mapping[str, str]) -> str:
    """JSON text of an object, from the JSON texts of its fields."""
    return "{" + ",".join(f"{compact_json(name)}:{text}" for name, text in texts.items()) + "}"


# Files that may be compressed: read whole, but no further than their content may be long.

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
