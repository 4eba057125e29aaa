"""The table of search choices in docs/request-format.md says of each what the ledger says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from meshwright.costmodels.units import Fraction
from meshwright.solver.answer.arrangement import usual
from meshwright.solver.problem.choice import EVERY_FORM, SERVING, TRAINING, Launched, LedgerEntry, Part, Unnamed
from meshwright.solver.problem.search import LEDGER, Search

PAGE = (Path(__file__).parents[2] / "docs" / "request-format.md").read_text(encoding="utf-8")
SECTION = re.split(r"^## ", PAGE.partition("## `search`")[2], flags=re.MULTILINE)[0]
ROWS = re.findall(r"^\| (`.*`) \| (.*) \| (.*) \|$", SECTION, re.MULTILINE)
HINTS = get_type_hints(Search, include_extras=True)
EACH = pytest.mark.parametrize("entry", LEDGER.values(), ids=LEDGER.keys())


def test_it_has_every_choice_once_in_the_order_of_the_ledger() -> None:
    assert [name for names, _, _ in ROWS for name in names_in(names)] == list(LEDGER)


@EACH
def test_it_says_which_kinds_of_plans_have_it(entry: LedgerEntry) -> None:
    holds, _ = row(entry)
    said = set(re.findall(r"(?:^|; )(training|serving)\b", holds))
    assert entry.choice.forms <= EVERY_FORM
    had = {kind for kind, forms in (("training", TRAINING), ("serving", SERVING)) if entry.choice.forms & forms}
    assert said == had if len(had) == 1 else said in (set(), had)


@EACH
def test_it_says_whether_it_is_for_the_free_space_alone(entry: LedgerEntry) -> None:
    holds, _ = row(entry)
    assert ("in the `free` space" in holds) == (entry.choice.launched is Launched.BY_NONE)


@EACH
def test_it_says_whether_it_is_a_list_and_of_what(entry: LedgerEntry) -> None:
    holds, _ = row(entry)
    assert ("allowed" in holds) == entry.lists
    kind = kind_of(entry)
    if kind == Fraction:
        assert "0 to 1" in holds
    elif isinstance(kind, type) and issubclass(kind, Enum):
        assert {str(member.value) for member in kind} <= set(re.findall(r"`([^`]+)`", holds))


@EACH
def test_it_says_what_holds_where_a_request_does_not_name_it(entry: LedgerEntry) -> None:
    _, default = row(entry)
    assert re.fullmatch(default_pattern(entry), default)


def row(entry: LedgerEntry) -> tuple[str, str]:
    """Kinds of values and the default, as the row of a choice says them."""
    ((holds, default),) = [(holds, default) for names, holds, default in ROWS if entry.name in names_in(names)]
    return holds, default


def names_in(names: str) -> list[str]:
    return re.findall(r"`(\w+)`", names)


def kind_of(entry: LedgerEntry) -> Any:
    """The type of a choice's value, or of one value of its list."""
    kind = bare(HINTS[entry.name])
    if entry.lists:
        item = get_args(kind)[0]
        return item if item == Fraction else bare(item)
    return next((option for option in get_args(kind) if option is not NoneType), kind)


def bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def default_pattern(entry: LedgerEntry) -> str:
    """A pattern of the words for a choice that a request does not name."""
    if not entry.lists:
        return "none(: .*)?" if entry.default is None else re.escape(written(entry.default))
    match entry.choice.unnamed:
        case Unnamed.ANY:
            return "all( .*)?"
        case Unnamed.OWN:
            return "the workload's alone"
        case Unnamed.DEFAULT:
            return _alone(entry)


def _alone(entry: LedgerEntry) -> str:
    """A pattern of the words for a list that allows what is usual alone."""
    place = entry.choice.place
    if place is None:
        return "neither"
    (value,) = entry.default or (None if place.part is Part.FORM else usual(place),)
    if isinstance(value, Mapping):
        return "none"
    return r"\w+ alone" if value is None else re.escape(f"{written(value)} alone")


def written(value: Any) -> str:
    if isinstance(value, str):
        return f"`{value.value if isinstance(value, Enum) else value}`"
    return f"{value:g}"
