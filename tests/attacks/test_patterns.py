"""No pattern of the product takes more than about linear time: each is searched in long texts made of its own parts."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

try:
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python before 3.11
    import sre_parse as parser

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("costmodels", "solver", "app")
ANYWHERE = ("search", "finditer", "findall", "sub", "subn", "split")
"""Methods that try a pattern at each place of a text."""
SHORT, LONG = 3_000, 12_000
"""Characters of the texts: a quadratic pattern takes 16 times as long for the longer one, a linear one four times."""
MOST_GROWTH = 9.0
NOTICED_S = 0.05
"""Processor seconds below which growth is not looked at: 12,000 characters take a linear pattern a few milliseconds."""
PUMPS = ("a", "0", " ", "-", ".", ",", "(", '"', "\\", "_", "a ", "1,", "\n", "=", ":")
"""Texts that are repeated in front of every pattern, beside its own parts."""


@dataclass(frozen=True, slots=True)
class Found:
    """A pattern of a module, and whether it is looked for at each place of a text."""

    where: str
    pattern: re.Pattern[str]
    anywhere: bool


def patterns() -> Iterator[Found]:
    """Yield every pattern that stands in a module, be it in a record of records."""
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "re.compile" not in text:
                continue
            module = importlib.import_module(f"meshwright.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}")
            for name, value in vars(module).items():
                for pattern in _within(value):
                    used = {method for method in ANYWHERE if f"{name}.{method}(" in text}
                    by_others = f"{name}." not in text and any(f".{method}(" in text for method in ANYWHERE)
                    yield Found(f"{path.relative_to(ROOT)}:{name}", pattern, bool(used) or by_others)


def _within(value: object, depth: int = 3) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _within(each, depth - 1)
    elif depth and isinstance(value, dict):
        for each in (*value.keys(), *value.values()):
            yield from _within(each, depth - 1)


def _sample(items: Any) -> str:
    """A text that the parts of a parsed pattern may match, each repeated as seldom as can be, but once where it may be none."""
    return "".join(_of(kind, given) for kind, given in items)


def _of(kind: Any, given: Any) -> str:
    match str(kind):
        case "LITERAL":
            return chr(given)
        case "NOT_LITERAL":
            return "a" if given != ord("a") else "b"
        case "ANY":
            return "a"
        case "IN":
            return _of_set(given)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _sample(given[2]) * max(1, min(given[0], 3))
        case "SUBPATTERN":
            return _sample(given[-1])
        case "ATOMIC_GROUP":
            return _sample(given)
        case "BRANCH":
            return _sample(given[1][0])
        case _:
            return ""


def _of_set(items: Any) -> str:
    kinds = {str(kind): given for kind, given in items}
    if "NEGATE" in kinds:
        return next(letter for letter in "a0 -.," if not _in_set(items, letter))
    for kind, given in items:
        match str(kind):
            case "LITERAL":
                return chr(given)
            case "RANGE":
                return chr(given[0])
            case "CATEGORY":
                return {"CATEGORY_DIGIT": "0", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a"}.get(str(given), "-")
    return "a"


def _in_set(items: Any, letter: str) -> bool:
    classes = {"CATEGORY_DIGIT": str.isdigit, "CATEGORY_SPACE": str.isspace, "CATEGORY_WORD": str.isalnum}
    for kind, given in items:
        if str(kind) == "LITERAL" and chr(given) == letter:
            return True
        if str(kind) == "RANGE" and given[0] <= ord(letter) <= given[1]:
            return True
        if str(kind) == "CATEGORY" and str(given) in classes and classes[str(given)](letter):
            return True
    return False


def attacks(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield beginnings and what is repeated behind them: every part that may repeat, after what comes before it."""
    parsed = list(parser.parse(pattern.pattern, pattern.flags))
    for beginning, repeated in _repeats(parsed, ""):
        yield beginning, repeated
        yield "", repeated
        # What comes before it as well: a search begins anew at each.
        yield "", beginning + repeated
        yield "", repeated + beginning
    whole = _sample(parsed)
    yield "", whole
    yield "", whole[:-1]
    for pump in PUMPS:
        yield "", pump
        yield whole[:-1], pump


def _repeats(items: list[Any], before: str) -> Iterator[tuple[str, str]]:
    for position, (kind, given) in enumerate(items):
        beginning = before + _sample(items[:position])
        match str(kind):
            case "MAX_REPEAT" | "MIN_REPEAT":
                yield beginning, _sample(given[2]) or "a"
                yield from _repeats(list(given[2]), beginning)
            case "SUBPATTERN":
                yield from _repeats(list(given[-1]), beginning)
            case "BRANCH":
                for branch in given[1]:
                    yield from _repeats(list(branch), beginning)
            case _:
                pass


def taken_s(found: Found, text: str) -> float:
    """Return the processor seconds of a search, or of a match at the beginning."""
    began = time.process_time()
    if found.anywhere:
        for _ in found.pattern.finditer(text):
            pass
    else:
        found.pattern.fullmatch(text)
        found.pattern.match(text)
    return time.process_time() - began


def worst(found: Found) -> str | None:
    """Return how a pattern can be made slow; None where no attack does it."""
    for beginning, repeated in dict.fromkeys(each for each in attacks(found.pattern) if each[1]):
        texts = [beginning + repeated * (size // len(repeated)) + "\x00" for size in (SHORT, LONG)]
        long_s = taken_s(found, texts[1])
        if long_s > NOTICED_S:
            growth = min(taken_s(found, texts[1]), long_s) / max(taken_s(found, texts[0]), 1e-6)
            if growth > MOST_GROWTH:
                return f"{found.where} {found.pattern.pattern!r}: {long_s:.2f} s for {beginning!r} + {repeated!r} * n"
    return None


@pytest.mark.slow
def test_no_pattern_takes_more_than_linear_time() -> None:
    slow = [said for found in patterns() if (said := worst(found)) is not None]
    assert slow == [], "\n".join(slow)


@pytest.mark.slow
def test_every_pattern_is_walked_and_a_quadratic_one_is_found() -> None:
    names = {found.where for found in patterns()}
    assert len(names) > 100
    assert worst(Found("here", re.compile(r"(\w+)\s*=\s*\w+;"), anywhere=True)) is not None
    assert worst(Found("here", re.compile(r"\d{1,20}x"), anywhere=True)) is None
