"""What was measured of a run, in the words of its log: ``840tok/s/gpu``, ``9.2s``, ``MFU 23%``, ``ttft 1.2s``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from meshwright.costmodels.errors import InvalidInputError


class Metric(StrEnum):
    """A figure that logs print and plans predict, by its name in predictions; those of a device are brought to all."""

    STEP_TIME = "step_time_s"
    TOKENS = "tokens_per_s"
    MFU = "mfu"
    TTFT = "ttft_p95_s"
    TPOT = "tpot_p95_s"

    @property
    def is_time(self) -> bool:
        """True of a figure that grows when a run is slower."""
        return self in (Metric.STEP_TIME, Metric.TTFT, Metric.TPOT)


class Unit(StrEnum):
    """What a measured value counts."""

    SECONDS = "s"
    TOKENS_PER_S = "tokens/s"
    SEQUENCES_PER_S = "sequences/s"
    SHARE = "share"
    TFLOPS = "TFLOP/s"


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """A measured figure as it was written.

    metric    what it is of; None of a time that does not say, which is that of a step
    each      whether it is of one device
    """

    text: str
    value: float
    unit: Unit
    metric: Metric | None
    each: bool


EXAMPLES = "840tok/s/gpu, 26000tok/s, 9.2s, 'MFU 23%', 160TFLOPS/gpu, 'ttft 1.2s', 'tpot 35ms'"
MOST_FIGURES = 5
"""One of each metric."""
LONGEST = 200
"""Characters of the words."""

_NAMES = {
    "step": Metric.STEP_TIME,
    "step time": Metric.STEP_TIME,
    "iteration": Metric.STEP_TIME,
    "mfu": Metric.MFU,
    "ttft": Metric.TTFT,
    "tpot": Metric.TPOT,
    "itl": Metric.TPOT,
}
_OF_UNIT = {
    **dict.fromkeys(("us", "µs"), (Unit.SECONDS, 1e-6)),
    "ms": (Unit.SECONDS, 1e-3),
    **dict.fromkeys(("s", "sec", "second", "seconds", "s/it", "s/step"), (Unit.SECONDS, 1.0)),
    "min": (Unit.SECONDS, 60.0),
    "%": (Unit.SHARE, 0.01),
    **dict.fromkeys(("tok/s", "toks/s", "token/s", "tokens/s", "tps", "t/s"), (Unit.TOKENS_PER_S, 1.0)),
    **dict.fromkeys(("ktok/s", "ktokens/s"), (Unit.TOKENS_PER_S, 1e3)),
    **dict.fromkeys(("samples/s", "sequences/s", "seq/s"), (Unit.SEQUENCES_PER_S, 1.0)),
    **dict.fromkeys(("tflops", "tflop/s"), (Unit.TFLOPS, 1.0)),
}
_EACH = re.compile(r"(?:/|\b(?:a|per)\s+)(?:gpu|device|chip)$")
_BETWEEN = re.compile(r",(?![0-9]{3}(?![0-9]))|;")
"""Between two figures; a comma before three digits is part of a number, as in 2,142."""
_FIGURE = re.compile(r"(?P<name>[a-z ]{0,20}?)\s*(?P<value>[0-9][0-9_,]*(?:\.[0-9]+)?|\.[0-9]+)\s*(?P<unit>[^0-9.,;]{1,24})")


def read_measured(words: Sequence[str]) -> tuple[MeasuredFigure, ...]:
    """Return the figures that words tell, several of them with commas between; raises InvalidInputError."""
    if sum(map(len, words)) > LONGEST:
        given = f"{sum(map(len, words))} characters"
        raise InvalidInputError("the measured figures are too long", given=given, allowed=f"at most {LONGEST}")
    texts = [text.strip() for word in words for text in _BETWEEN.split(word)]
    if not texts or len(texts) > MOST_FIGURES:
        raise InvalidInputError(
            "no figure was measured, or too many", given=f"{len(texts)}", allowed=f"1 to {MOST_FIGURES}, as {EXAMPLES}"
        )
    return tuple(_figure(text) for text in texts)


def _figure(text: str) -> MeasuredFigure:
    found = _FIGURE.fullmatch(text.strip().casefold())
    unit, each = ("", False) if found is None else _unit(found["unit"])
    name = "" if found is None else found["name"].strip()
    if found is None or unit not in _OF_UNIT or (name and name not in _NAMES):
        raise _strange(text)
    kind, factor = _OF_UNIT[unit]
    value = float(found["value"].replace(",", "").replace("_", "")) * factor
    metric = _NAMES[name] if name else None
    if kind in (Unit.TOKENS_PER_S, Unit.SEQUENCES_PER_S):
        metric, goes = Metric.TOKENS, metric is None
    elif kind in (Unit.SHARE, Unit.TFLOPS):
        metric, goes = Metric.MFU, metric in (None, Metric.MFU)
    else:
        goes = metric is None or metric.is_time
    if not goes or (each and kind in (Unit.SECONDS, Unit.SHARE)):
        raise _strange(text)
    if not 0.0 < value < math.inf or (kind is Unit.SHARE and value >= 1.0):
        raise InvalidInputError("the measured figure is out of range", given=text, allowed="above 0, and of an MFU below 100%")
    return MeasuredFigure(text.strip(), value, kind, metric, each)


def _unit(text: str) -> tuple[str, bool]:
    """The unit without its "a GPU", and whether it had that."""
    bare = _EACH.sub("", text.strip())
    return bare.strip().replace("/sec", "/s").replace("/second", "/s"), bare != text.strip()


def _strange(text: str) -> InvalidInputError:
    return InvalidInputError(
        "the measured figure is not understood",
        given=text,
        allowed=EXAMPLES,
        remedy="write a number, its unit, and in front of a time what it is of: step, ttft or tpot",
    )


@dataclass(frozen=True, slots=True)
class KindFigures:
    """The figures of a kind of workload, that of a time which does not say what it is of, the tokens of a sequence where those
    are counted, and figures as logs have them."""

    metrics: tuple[Metric, ...]
    untold: Metric | None
    sequence: Callable[[Any], int] | None
    example: str


OF_KIND: Mapping[str, KindFigures] = {
    "training": KindFigures(
        (Metric.STEP_TIME, Metric.TOKENS, Metric.MFU),
        Metric.STEP_TIME,
        lambda workload: workload.seq_len,
        "9.2s, 840tok/s/gpu, 'MFU 23%'",
    ),
    "serving": KindFigures((Metric.TOKENS, Metric.TTFT, Metric.TPOT), None, None, "ttft 1.2s, tpot 35ms, 900tok/s"),
}
"""Figures by the kind of workload."""
