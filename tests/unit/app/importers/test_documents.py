"""Text from outside: what is read, and that whatever is hostile is refused quickly and with a reason."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.base.documents import (
    MAX_DEPTH,
    MAX_DOCUMENT_BYTES,
    MAX_INTEGER,
    MAX_VALUES,
    MAX_YAML_BYTES,
    NonFinite,
    parse_document,
)
from meshwright.costmodels.errors import InvalidInputError

TEXT = st.text(st.characters(codec="utf-8"))
PLAIN_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(st.lists(PLAIN_VALUES))
def test_json_is_read_as_it_was_written(value: list[object]) -> None:
    assert parse_document(json.dumps(value).encode(), what="document") == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_with_a_typed_error(text: bytes) -> None:
    with contextlib.suppress(InvalidInputError):
        parse_document(text, what="document")


def test_yaml_follows_the_core_schema() -> None:
    text = b"a: 1e3\nb: no\nc: 2020-01-01\nd: 1:30\ne: ~\nf: 0x10\ng: true\nh: [1, -2, .5]\n"
    assert parse_document(text, what="document") == {
        "a": 1000.0,
        "b": "no",
        "c": "2020-01-01",
        "d": "1:30",
        "e": None,
        "f": "0x10",
        "g": True,
        "h": [1, -2, 0.5],
    }


REFUSED = {
    "deep list": (b"[" * 100_000, "nested too deeply"),
    "deep object": (b'{"a":' * 100_000, "nested too deeply"),
    "deep YAML sequence": (b"- " * 100_000, "nested too deeply"),
    "deep YAML mapping": (b"\n".join(b" " * i + b"a:" for i in range(200)), "nested too deeply"),
    "deep YAML flow": (b"a: " + b"[" * 1000, "nested too deeply"),
    "NaN": (b'{"a": NaN}', "not finite"),
    "Infinity": (b'{"a": -Infinity}', "not finite"),
    "overflow": (b'{"a": 1e999}', "not finite"),
    "YAML NaN": (b"a: .nan", "not finite"),
    "YAML overflow": (b"a: 1e999", "not finite"),
    "long integer": (b"[" + b"9" * 5000 + b"]", "integer that is too large"),
    "YAML long integer": (b"a: " + b"9" * 5000, "integer that is too large"),
    "beyond 64 bits": (b"[9223372036854775808]", "integer that is too large"),
    "key twice": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "gives a key twice; given: 'c'"),
    "YAML key twice": (b"a: 1\nb: 2\na: 3", "gives a key twice; given: 'a'"),
    "YAML key that is no string": (b"1: 2", "key that is not a string"),
    "YAML alias": (b"a: &x [1]\nb: *x", "aliases"),
    "YAML tag": (b"a: !!python/object/apply:os.system [ls]", "tag"),
    "YAML explicit type": (b"a: !!str 1", "tag"),
    "two YAML documents": (b"---\na: 1\n---\nb: 2", "not valid YAML"),
    "control character": (b"a: \x00", "not valid YAML"),
    "trailing text": (b'{"a": 1} x', "not valid JSON"),
    "unterminated string of escapes": (b'["' + b'\\"' * 1_000_000, "not valid JSON"),
    "half of a surrogate pair": (b'["\\ud800"]', "surrogate"),
    "not UTF-8": (b"[\xff]", "not UTF-8"),
    "too large": (b" " * (MAX_DOCUMENT_BYTES + 1), "too large"),
    "too large for YAML": (b"a: " + b"x" * MAX_YAML_BYTES, "too large for YAML"),
    "too many values": (b"[" + b"0," * MAX_VALUES + b"0]", "too many values"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_hostile_text_is_refused(case: str) -> None:
    text, reason = REFUSED[case]
    with pytest.raises(InvalidInputError, match="document") as refusal:
        parse_document(text, what="document")
    assert reason in str(refusal.value)


def test_files_of_other_tools_may_keep_numbers_that_are_not_finite_as_text() -> None:
    text = b'{"time_step_limit": [0.0, Infinity], "a": NaN, "b": 1e999, "c": 1.5}'
    value = parse_document(text, what="document", non_finite=NonFinite.AS_TEXT)
    assert value == {"time_step_limit": [0.0, "Infinity"], "a": "NaN", "b": "1e999", "c": 1.5}
    assert parse_document(b"a: .inf", what="document", non_finite=NonFinite.AS_TEXT) == {"a": ".inf"}


def test_nesting_up_to_the_limit_is_read() -> None:
    value = parse_document(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, what="document")
    assert json.dumps(value) == "[" * MAX_DEPTH + "]" * MAX_DEPTH


def test_brackets_inside_strings_are_not_depth() -> None:
    text = json.dumps(["[" * 1000, '\\"{' * 1000]).encode()
    assert parse_document(text, what="document") == json.loads(text)
