"""Rules of a mapping: what the words of a row say of its run.

A rule names columns and the words that they must hold, and states what such rows do not repeat in columns of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from math import prod
from typing import Any, Literal

from meshwright.app.evidence.training.cells import RUN_COLUMNS, STATED_COLUMNS, Cells
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.network.token_dispatch import TokenDispatch
from meshwright.costmodels.units import STRICT_RECORD, DType, Name, NonNegativeInt, PositiveInt
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.implementation import StatedImplementation

NOTHING_STATED = StatedImplementation()


class MemoryRank(StrEnum):
    """The device whose memory a source reports."""

    FULLEST = "fullest"
    FIRST_STAGE = "first-stage"
    LAST_STAGE = "last-stage"
    MEAN = "mean"


class MemoryCount(StrEnum):
    """The count of memory: what tensors take, what their allocator holds, or what the process holds on the device."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    PROCESS = "process"


class UnstatedRecompute(StrEnum):
    """The meaning of rows that don't say whether they recompute."""

    NEVER = "never"
    WHERE_NEEDED = "where-needed"
    """Fully, where the plan would not have fitted otherwise."""


class UnstatedSequence(StrEnum):
    """The layout of norms and residuals over tp, in rows that don't say."""

    REPLICATED = "replicated"
    PARALLEL = "sequence-parallel"


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
    named            a regular expression that the row's source, schedule or notes must match, in any case of letters
    columns          cells for columns that the row leaves empty
    instead          cells in place of the row's own, where these say something else than they seem to
    implementation   fields of the implementation
    model            the model of the row

    The other fields are those of a source, in place of its own.
    """

    __pydantic_config__ = STRICT_RECORD

    basis: str
    where: Mapping[str, str] = field(default_factory=dict)
    named: str = ""
    columns: Mapping[str, str | int] = field(default_factory=dict)
    instead: Mapping[str, str | int] = field(default_factory=dict)
    implementation: StatedImplementation = NOTHING_STATED
    model: StatedModel | None = None
    zero_stage: Literal[0, 1, 2, 3] | None = None
    gradient_dtype: DType | None = None
    fp8_recipe: MatmulRecipe | None = None
    unstated_sequence: UnstatedSequence | None = None
    memory_rank: MemoryRank | None = None
    memory_count: MemoryCount | None = None
    memory_unit_bytes: PositiveInt | None = None
    dispatch: TokenDispatch | None = None
    expert_overlap: ExpertOverlap | None = None
    mtp_layers: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        _require_columns("where", self.where, RUN_COLUMNS)
        _require_columns("columns", self.columns, STATED_COLUMNS)
        _require_columns("instead", self.instead, STATED_COLUMNS)
        patterns = {f"where: {column}": pattern for column, pattern in self.where.items()}
        for name, pattern in {**patterns, "named": self.named}.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidInputError(f"{name} is no regular expression: {error}", given=pattern) from None

    def holds(self, cells: Cells) -> bool:
        """Return True if the row has all the rule's words."""
        if not all(re.search(pattern, cells.text(column), re.IGNORECASE) for column, pattern in self.where.items()):
            return False
        return any(re.search(self.named, cells.text(column), re.IGNORECASE) for column in _NAMING)

    def reading(self) -> dict[str, Any]:
        """The fields of a source that the rule states."""
        return {name: getattr(self, name) for name in _OF_SOURCES if getattr(self, name) is not None}


_NAMING = ("source", "schedule", "notes")
"""Columns in which people name frameworks and say what they measured."""

_OF_RULES = ("basis", "where", "named", "columns", "instead", "implementation", "model")
_OF_SOURCES = tuple(each.name for each in fields(RowRule) if each.name not in _OF_RULES)


@dataclass(frozen=True, slots=True)
class StatedByRules:
    """The facts that the rules of a row state of it beside columns: fields of its source in `reading`, and the rules' bases."""

    implementation: StatedImplementation = NOTHING_STATED
    model: StatedModel | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    bases: tuple[str, ...] = ()


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
                rule.model or said.model,
                {**said.reading, **rule.reading()},
                (*said.bases, rule.basis),
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


# The assumptions of a prediction where a row and its source are silent: cells for empty columns, each with its words.

MICRO_BATCH = 1
"""Sequences of a micro-batch in rows that give none: what every published planner starts from."""

HEAD_DIM, HEAD_DIMS = 128, range(64, 257)
"""Width of a head in rows that give no heads, that of GPT-3 (Brown et al. 2020, table 2.1) and of Llama, and widths that may
take its place where heads would not divide."""

FFN_OVER_HIDDEN = 4
"""Width of an ungated feed-forward network over that of the residual stream (Vaswani et al. 2017, section 3.3)."""

VOCAB = 50_257
"""Tokens of GPT-2's vocabulary, in rows that give none."""

UNGATED, GATED = "dense-gelu", "dense-gated"


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption of an empty column: its cell and the words that say so. A cell of None assumes nothing."""

    column: str
    value: Callable[[Cells], int | str | None]
    words: str


def completed_by_assumptions(cells: Cells) -> tuple[Cells, tuple[str, ...]]:
    """The row with what can be assumed of its empty columns, and the words of each assumption."""
    words = []
    for assumption in _ASSUMPTIONS:
        value = None if cells.values.get(assumption.column, "").strip() else assumption.value(cells)
        if value is not None:
            cells = replace(cells, values={**cells.values, assumption.column: str(value)})
            words.append(assumption.words.format(value=value))
    return cells, tuple(words)


def _with_shape(compute: Callable[[Cells, int], int | str | None]) -> Callable[[Cells], int | str | None]:
    """Of rows that give the width of their model alone: others are looked up by their model's name."""

    def value(cells: Cells) -> int | str | None:
        hidden = cells.size("hidden")
        return None if hidden is None else compute(cells, hidden)

    return value


def _arch(cells: Cells, hidden: int) -> str:
    return UNGATED if cells.size("ffn_hidden") in (None, FFN_OVER_HIDDEN * hidden) else GATED


def _heads(cells: Cells, hidden: int) -> int | None:
    """As many heads as tp ranks can share, of a width nearest to `HEAD_DIM`."""
    tp = cells.size("tp") or 1
    numbers = [hidden // width for width in HEAD_DIMS if hidden % width == 0 and hidden // width % tp == 0]
    return min(numbers, key=lambda heads: abs(math.log(hidden / heads / HEAD_DIM)), default=None)


def _ffn(cells: Cells, hidden: int) -> int | None:
    return FFN_OVER_HIDDEN * hidden if cells.text("arch").startswith(UNGATED) else None


def _layers(cells: Cells, hidden: int) -> int | None:
    """Layers of four products of the residual stream's width squared and two of the feed-forward network's, beside one table of
    tokens, that make up the stated parameters."""
    parameters = cells.number("params_b")
    if parameters is None or not cells.text("arch").startswith(UNGATED):
        return None
    layer = 4 * hidden**2 + 2 * hidden * (cells.size("ffn_hidden") or FFN_OVER_HIDDEN * hidden)
    return max(1, round((parameters * 1e9 - hidden * (cells.size("vocab") or VOCAB)) / layer))


def _replicas(cells: Cells) -> int | None:
    devices = cells.size("n_gpus")
    replica = prod(cells.size(degree) or 1 for degree in ("tp", "pp", "cp"))
    stated = any(cells.size(degree) for degree in ("tp", "pp"))
    return None if devices is None or not stated or devices % replica else devices // replica


def _devices(cells: Cells) -> int | None:
    degrees: Mapping[str, int | None] = {degree: cells.size(degree) for degree in ("dp", "tp", "pp")}
    return None if None in degrees.values() else prod(cells.size(degree) or 1 for degree in ("dp", "tp", "pp", "cp"))


_ASSUMPTIONS = (
    Assumption("arch", _with_shape(_arch), "architecture {value}"),
    Assumption("ffn_hidden", _with_shape(_ffn), "feed-forward networks of {value:,} columns, four times the hidden size"),
    Assumption("vocab", _with_shape(lambda cells, hidden: VOCAB), "a vocabulary of {value:,} tokens"),
    Assumption("heads", _with_shape(_heads), "{value} heads"),
    Assumption("n_layers", _with_shape(_layers), "{value} layers, as its parameters say"),
    Assumption("dp", _replicas, "{value} replicas, which fill its devices"),
    Assumption("n_gpus", _devices, "{value} devices, as its degrees say"),
    Assumption("micro_batch", lambda cells: MICRO_BATCH, "micro-batches of {value} sequence"),
)
