"""Rules of a mapping: what the words of a row say of its run.

A rule names columns and the words that they must hold, and states what such rows do not repeat in columns of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from meshwright.app.validation.cells import Cells
from meshwright.app.validation.stated.columns import RUN_COLUMNS, STATED_COLUMNS
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import STRICT_RECORD, DType, Name
from meshwright.solver.problem.implementation import StatedImplementation

NOTHING_STATED = StatedImplementation()


@dataclass(frozen=True, slots=True)
class StatedModel:
    """A model by its name in the catalogue, by its config.json, or by both: the fields that differ from the catalogue's."""

    __pydantic_config__ = STRICT_RECORD

    catalog: Name | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowRule:
    """The meaning of rows whose columns hold some words.

    basis            how this is known
    where            regular expressions by column, in any case of letters; a row must match all of them
    columns          cells for columns that the row leaves empty
    instead          cells in place of the row's own, where these say something else than they seem to
    implementation   fields of the implementation
    gradient_dtype   format of gradients, in place of the source's
    model            the model of the row
    """

    __pydantic_config__ = STRICT_RECORD

    basis: str
    where: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str | int] = field(default_factory=dict)
    instead: Mapping[str, str | int] = field(default_factory=dict)
    implementation: StatedImplementation = NOTHING_STATED
    gradient_dtype: DType | None = None
    model: StatedModel | None = None

    def __post_init__(self) -> None:
        _require_columns("where", self.where, RUN_COLUMNS)
        _require_columns("columns", self.columns, STATED_COLUMNS)
        _require_columns("instead", self.instead, STATED_COLUMNS)
        for column, pattern in self.where.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidInputError(f"where: {column} is no regular expression: {error}", given=pattern) from None

    def holds(self, cells: Cells) -> bool:
        """Return True if the row has all the rule's words."""
        return all(re.search(pattern, cells.text(column), re.IGNORECASE) for column, pattern in self.where.items())


@dataclass(frozen=True, slots=True)
class StatedByRules:
    """The facts that the rules of a row state of it beside columns."""

    implementation: StatedImplementation = NOTHING_STATED
    gradient_dtype: DType | None = None
    model: StatedModel | None = None


def completed_by_rules(cells: Cells, rules: Sequence[RowRule]) -> tuple[Cells, StatedByRules]:
    """The row with the columns that its rules state, and what else they say of it.

    All rules look at the row as its table has it. Of two that state the same, the later counts.
    """
    stated, instead = dict[str, str](), dict[str, str]()
    said = StatedByRules()
    for rule in rules:
        if rule.holds(cells):
            stated |= {column: str(value) for column, value in rule.columns.items()}
            instead |= {column: str(value) for column, value in rule.instead.items()}
            said = StatedByRules(
                stated_over(said.implementation, rule.implementation),
                rule.gradient_dtype or said.gradient_dtype,
                rule.model or said.model,
            )
    empty = {column: value for column, value in stated.items() if not cells.values.get(column, "").strip()}
    return replace(cells, values={**cells.values, **empty, **instead}), said


def stated_over(base: StatedImplementation, stated: StatedImplementation) -> StatedImplementation:
    """The first with every field that the second states."""
    given = {each.name: getattr(stated, each.name) for each in fields(stated)}
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def _require_columns(what: str, given: Mapping[str, Any], allowed: Sequence[str]) -> None:
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise InvalidInputError(f"{what} names columns that it can't", given=", ".join(unknown), allowed=", ".join(allowed))
