"""The assumptions of a prediction where a row and its source are silent: cells for empty columns, each with its words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from meshwright.app.validation.cells import Cells

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
