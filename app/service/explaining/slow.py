"""The measured speed of a command against the predicted one, and the causes that reproduce it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.launching.parts.stated import Stated, StatedTraining
from meshwright.app.service.explaining.causes import Case, Extent, SpeedCause
from meshwright.app.service.explaining.measured import OF_KIND, MeasuredFigure, Metric, Unit
from meshwright.app.service.explaining.serving_causes import CAUSES as SERVING_CAUSES
from meshwright.app.service.explaining.serving_causes import ServingCase
from meshwright.app.service.explaining.training_causes import CAUSES as TRAINING_CAUSES
from meshwright.app.service.explaining.training_causes import TrainingCase
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.request import PlanRequest, ServingRequest, TrainingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals

NEGLIGIBLE = math.log(1.02)
"""A cause that changes a figure by less can't matter."""
CLOSE = 0.01
"""How near a factor brings the figure to the measured one, as its logarithm: log figures have three digits."""
MOST_STEPS = 8
"""Predictions in the search of one factor: log-time over log-factor bends once, and regula falsi takes 2 to 6 steps to 1%."""
HALF = 0.5
"""A cause explains a gap of which it makes up half at least, where the rest is within the band."""
COUNTING_ERROR = 0.05
"""90% band of the tokens/s of an open load where no calibration gives one: Poisson counts of 1,000 requests."""
FREE_FACTOR = 0.2
"""Half bands that a cause whose factor was fitted stands behind one that reproduces the figure by itself."""
LIKELY = 1.0
"""Half bands by which a flag of the command brings a cause forward."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured figure beside the predicted one and its band, in the units of predictions."""

    text: str
    metric: Metric
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def slowness(self) -> float:
        """Logarithm of how many times slower the measured run is; below 0 where it is faster."""
        return _slowness(self.metric, self.measured, self.predicted)

    @property
    def is_within(self) -> bool:
        """True if the measured figure lies inside the band."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class NamedCause:
    """A cause of a gap.

    name      its name in documents
    what      what it is, in words
    factor    the factor that reproduces the figure best; None of a cause that has none
    figure    the compared figure under it, by the prediction
    share     how much of the gap it makes up; up to 1 of one that explains it
    explains  whether the measured figures lie in the band of a prediction under it
    check     what to look at
    """

    name: str
    what: str
    factor: float | None
    figure: float
    share: float
    explains: bool
    check: str


@dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """The answer to a measured speed: figures that were compared, the one that is farthest off first, and causes by rank.

    Causes are empty where all figures are within their bands.
    """

    compared: tuple[Compared, ...]
    causes: tuple[NamedCause, ...]

    @property
    def gap(self) -> Compared:
        """The figure that is farthest outside of its band, or nearest to its end."""
        return self.compared[0]

    @property
    def is_as_predicted(self) -> bool:
        """True if every figure is within its band."""
        return all(each.is_within for each in self.compared)


OUTSIDE = "outside-of-steps"
"""The name of what no cost model prices: time between steps."""


def measured_answer(
    figures: Sequence[MeasuredFigure],
    request: PlanRequest,
    plan: Plan,
    stated: Stated,
) -> MeasuredAnswer:
    """Return what explains measured figures of a plan that was predicted for a request.

    At most one prediction for each cause that has no factor, and 1 + `MOST_STEPS` for each that has one. Raises
    InvalidInputError for figures that do not go with the workload.
    """
    compared = tuple(sorted(compared_figures(figures, request, plan), key=_outside, reverse=True))
    answer = MeasuredAnswer(compared, ())
    if answer.is_as_predicted:
        return answer
    flags = frozenset(flag.table_name for flag in stated.given)
    return replace(answer, causes=_CAUSES[request.workload.kind](request, stated, plan, compared, flags))


def _causes_of_training(
    request: TrainingRequest, stated: StatedTraining, plan: Plan, compared: Sequence[Compared], flags: frozenset[str]
) -> tuple[NamedCause, ...]:
    found = _ranked(TRAINING_CAUSES, TrainingCase(request, stated, plan), compared, flags)
    return (*found, *_outside_of_steps(compared[0]))


def _causes_of_serving(
    request: ServingRequest, stated: Stated, plan: Plan, compared: Sequence[Compared], flags: frozenset[str]
) -> tuple[NamedCause, ...]:
    return _ranked(SERVING_CAUSES, ServingCase(request, plan), compared, flags)


_CAUSES: Mapping[str, Callable[[Any, Any, Plan, Sequence[Compared], frozenset[str]], tuple[NamedCause, ...]]] = {
    "training": _causes_of_training,
    "serving": _causes_of_serving,
}
"""What ranks the causes of each kind of workload."""


def compared_figures(figures: Sequence[MeasuredFigure], request: PlanRequest, plan: Plan) -> tuple[Compared, ...]:
    """Return measured figures beside the predicted ones; raises InvalidInputError for some that do not go together."""
    predicted = plan.predicted
    assert predicted is not None, "a plan with figures"
    known = OF_KIND[request.workload.kind]
    found = []
    for figure in figures:
        metric = figure.metric or known.untold
        if metric not in known.metrics or (figure.unit is Unit.SEQUENCES_PER_S and known.sequence is None):
            raise InvalidInputError(
                f"the measured figure is none of {request.workload.kind}", given=figure.text, allowed=known.example
            )
        value = getattr(predicted, metric.value)
        if value is None or value <= 0.0:
            raise InvalidInputError("the prediction has no such figure", given=figure.text, remedy="measure another")
        low, high = _band(request, predicted, metric)
        found.append(Compared(figure.text, metric, _in_units(figure, request, plan), value, value * low, value * high))
    if len({each.metric for each in found}) < len(found):
        raise InvalidInputError("a figure is measured twice", given=", ".join(each.text for each in figures))
    return tuple(found)


def _in_units(figure: MeasuredFigure, request: PlanRequest, plan: Plan) -> float:
    """The measured value in the unit of its metric, of all devices."""
    devices, sequence = plan.devices if figure.each else 1, OF_KIND[request.workload.kind].sequence
    if figure.unit is Unit.SEQUENCES_PER_S and sequence is not None:
        return figure.value * devices * sequence(request.workload)
    if figure.unit is Unit.TFLOPS:
        nodes = [group.node for group in request.cluster.groups]
        each = 1 if figure.each else plan.devices
        return figure.value * 1e12 / each / nodes[0].device.peak(request.workload.precision)
    return figure.value * devices


def _band(request: PlanRequest, predicted: Predicted, metric: Metric) -> tuple[float, float]:
    """Ends of the band of a figure as shares of it.

    MFU has that of tokens/s. The tokens/s of clients that wait for their answers have that of the time per token.
    """
    bands = predicted.bands
    name = metric.value
    if name not in bands and metric is Metric.MFU and Metric.TOKENS.value in bands:
        name = Metric.TOKENS.value
    value = getattr(predicted, name)
    if name in bands and value:
        return bands[name].low / value, bands[name].high / value
    tpot = bands.get(Metric.TPOT.value)
    if isinstance(request, ServingRequest) and isinstance(request.workload.arrivals, ClosedArrivals) and tpot:
        tpot_s = predicted.tpot_p95_s or 0.0
        return tpot_s / tpot.high, tpot_s / tpot.low
    return 1.0 - COUNTING_ERROR, 1.0 + COUNTING_ERROR


def _slowness(metric: Metric, value: float, predicted: float) -> float:
    ratio = math.log(value / predicted)
    return ratio if metric.is_time else -ratio


def _outside(compared: Compared) -> float:
    """How many half bands a figure is away from the predicted one."""
    return abs(compared.slowness) / _half_band(compared, compared.slowness)


def _half_band(compared: Compared, slowness: float) -> float:
    """The half of the band, as a logarithm, on the side of a slowness."""
    upper = (slowness >= 0.0) == compared.metric.is_time
    end = compared.high if upper else compared.low
    return max(abs(math.log(end / compared.predicted)), CLOSE) if end > 0.0 else CLOSE


# Every cause of a table, priced.


def _ranked(
    causes: Sequence[SpeedCause[Case]], base: Case, compared: Sequence[Compared], flags: frozenset[str]
) -> tuple[NamedCause, ...]:
    """The causes that matter, by how well they reproduce the measured figures: those that do first, then the larger."""
    found = []
    for cause in causes:
        priced = _priced(cause, base, compared)
        if priced is not None:
            found.append(_judged(cause, base, priced, compared, flags))
    named = sorted((each for each in found if each is not None), key=lambda item: item[0])
    return tuple(each for _, each in named)


@dataclass(frozen=True, slots=True)
class _Priced:
    """The figures under a cause, its factor, and how far it can go."""

    figures: Predicted
    factor: float
    extent: Extent | None


def _priced(cause: SpeedCause[Case], base: Case, compared: Sequence[Compared]) -> _Priced | None:
    """The cause at the factor that comes nearest to the measured figures; None where it can't be, or does not matter."""
    if cause.extent is None:
        figures = _figures(cause, base, 1.0)
        return None if figures is None else _Priced(figures, 1.0, None)
    extent = cause.extent(base)
    if extent.most <= 1.0:
        return None
    figures = _figures(cause, base, extent.most)
    # Where it goes too far to fit or to keep up, a smaller factor may do.
    if figures is not None and _toward(compared[0], figures) < NEGLIGIBLE:
        return None
    return _solved(cause, base, compared, extent, figures)


def _solved(
    cause: SpeedCause[Case], base: Case, compared: Sequence[Compared], extent: Extent, farthest: Predicted | None
) -> _Priced | None:
    """The factor that comes nearest to the measured figures; None where no factor can be.

    Regula falsi over logarithms looks for the figure that is farthest off. A factor under which nothing
    runs counts as twice too far.
    """
    gap, wanted = compared[0], abs(compared[0].slowness)
    low, below, high = 0.0, -wanted, math.log(extent.most)
    best = None if farthest is None else _Priced(farthest, extent.most, extent)
    above, side = wanted if farthest is None else _toward(gap, farthest) - wanted, 0
    for _ in range(MOST_STEPS):
        if above <= CLOSE:
            break
        at = low + (high - low) * -below / (above - below)
        figures = _figures(cause, base, math.exp(at))
        off = wanted if figures is None else _toward(gap, figures) - wanted
        if figures is not None and (best is None or _distance(compared, figures) < _distance(compared, best.figures)):
            best = _Priced(figures, math.exp(at), extent)
        if abs(off) < CLOSE:
            break
        # An end that stays twice counts half (the Illinois rule), so that a bend does not hold the search up.
        if off < 0.0:
            low, below, above = at, off, above / 2.0 if side < 0 else above
        else:
            high, above, below = at, off, below / 2.0 if side > 0 else below
        side = -1 if off < 0.0 else 1
    return best


def _distance(compared: Sequence[Compared], figures: Predicted) -> float:
    """How many half bands the measured figures are away from those under a cause, at most."""
    return max(
        abs(each.slowness - _slowness(each.metric, _figure_of(figures, each.metric), each.predicted))
        / _half_band(each, each.slowness)
        for each in compared
    )


def _toward(gap: Compared, figures: Predicted) -> float:
    """How far figures have moved towards the measured one, as a logarithm."""
    moved = _slowness(gap.metric, _figure_of(figures, gap.metric), gap.predicted)
    return moved if gap.slowness >= 0.0 else -moved


def _figure_of(figures: Predicted, metric: Metric) -> float:
    value = getattr(figures, metric.value)
    assert isinstance(value, float), "figures of one kind of workload are there under any change"
    return value


def _figures(cause: SpeedCause[Case], base: Case, factor: float) -> Predicted | None:
    """The figures under a cause; None where it does not apply or can't be."""
    try:
        changed = cause.change(base, factor)
        return None if changed is None else changed.predicted()
    except InvalidInputError:
        return None


def _judged(
    cause: SpeedCause[Case],
    base: Case,
    priced: _Priced,
    compared: Sequence[Compared],
    flags: frozenset[str],
) -> tuple[tuple[bool, float], NamedCause] | None:
    """The cause and its place among others; None of one that does not matter, or would cost more than is missing."""
    gap = compared[0]
    moved, wanted = _toward(gap, priced.figures), abs(gap.slowness)
    distance = _distance(compared, priced.figures)
    explains = distance <= 1.0 and moved >= HALF * wanted
    if moved < NEGLIGIBLE or (not explains and moved > wanted + CLOSE):
        return None
    # To a tenth of a half band: a search ends within 1%, and the order of the table decides among equals.
    score = round(distance, 1) + _unlikely(priced) - (LIKELY if cause.flags & flags else 0.0)
    named = NamedCause(
        name=cause.name,
        what=cause.said(base, priced.factor),
        factor=None if priced.extent is None else priced.factor,
        figure=_figure_of(priced.figures, gap.metric),
        share=min(1.0, moved / wanted),
        explains=explains,
        check=cause.check,
    )
    return (not explains, score if explains else -moved), named


def _unlikely(priced: _Priced) -> float:
    """What a fitted factor costs a cause, more of one that is not usual."""
    if priced.extent is None:
        return 0.0
    under, over = math.log(priced.extent.least / priced.factor), math.log(priced.factor / priced.extent.usual)
    return FREE_FACTOR + max(0.0, under, over)


def _outside_of_steps(gap: Compared) -> tuple[NamedCause, ...]:
    """Time between steps, which makes up any gap of a run that is slower: named last."""
    if gap.slowness <= 0.0:
        return ()
    share = 1.0 - math.exp(-gap.slowness)
    what = f"{share:.0%} of the time passes outside of steps: loading data, checkpoints, evaluation, waiting for other ranks"
    check = "one run with synthetic data and without checkpoints; torch.profiler: is the device idle in DataLoader.__next__?"
    return (NamedCause(OUTSIDE, what, None, gap.measured, 1.0, True, check),)
