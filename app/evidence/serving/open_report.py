"""Rows of open loops against what is promised of them: by percentile, by law, each submitter left out of the law that it is
judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from meshwright.app.evidence.serving.deployment import Deployment
from meshwright.app.evidence.serving.open_loops import FEWER_REQUESTS, NEAR_KNEE, OpenLoop, open_loop
from meshwright.app.evidence.serving.replay import default_constants
from meshwright.app.evidence.serving.rows import MeasuredPoint
from meshwright.app.evidence.training.cells import NotPredictedError, of_one_row
from meshwright.costmodels.fitting.calibration import COVERED, quantile
from meshwright.costmodels.serving.latency_law import BOTH_PHASES

FRONT_END_PER_S = 100.0
"""Requests per second of a worker above which its front end (tokens to text, HTTP) may be the bottleneck, of which there is no
model: rows of one device at one rate then differ by 13 times in their first tokens."""

SHARES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
"""Percentiles that are compared, and the quantiles they are."""

ILL_CONDITIONED = (
    f"Near the knee (above {NEAR_KNEE:.0%} of predicted capacity) times are ill-conditioned: a few percent of step time are "
    "multiples of a wait, so their ratios say little; the factor on step times still does"
)

_DIGITS = 2


@dataclass(frozen=True, eq=False)
class OpenPoint:
    """An open loop beside what is simulated of it.

    ttft, tpot   predicted over measured, by percentile
    utilisation  requests per second over predicted capacity
    slowdown     factor on step times with which the measured P95 per output token is what is simulated
    goodput      largest predicted rate within the row's limits, over its rate; None without limits
    today        whether P95 to the first token and per output token were below what a law of closed loops promises at 0.9
    """

    line: int
    submitter: str
    system: str
    model: str
    node: str
    stated: bool
    utilisation: float
    ttft: Mapping[str, float]
    tpot: Mapping[str, float]
    slowdown: float | None
    goodput: float | None
    today: tuple[bool, bool]
    each_per_s: float
    ttft_p95_s: float
    loop: OpenLoop
    _slowed: dict[float, float] = field(default_factory=dict)

    @property
    def near_knee(self) -> bool:
        """True where times are ill-conditioned."""
        return self.utilisation > NEAR_KNEE

    @property
    def of_front_end(self) -> bool:
        """True where the front end may be the bottleneck."""
        return self.each_per_s > FRONT_END_PER_S

    def ttft_error(self, slowdown: float) -> float:
        """Logarithm of measured over simulated P95 to the first token, with step times that many times as long."""
        factor = round(slowdown, _DIGITS)
        if factor not in self._slowed:
            simulated_s, _ = self.loop.times_s(0.95, slowdown=factor, requests=FEWER_REQUESTS)
            self._slowed[factor] = math.log(self.ttft_p95_s / (simulated_s + self.loop.outside_s))
        return self._slowed[factor]


@dataclass(frozen=True, slots=True)
class OpenLaw:
    """Spreads of the law of open loops (natural logarithms): of step times, and of first tokens beside them."""

    step_sigma: float
    ttft_sigma: float
    rows: int
    submitters: int

    def slowdown(self, confidence: float = COVERED) -> float:
        """Return the factor on step times that holds with a chance."""
        return math.exp(NormalDist().inv_cdf(confidence) * self.step_sigma)

    def keeps(self, point: OpenPoint, confidence: float = COVERED) -> tuple[bool, bool]:
        """Return whether P95 to the first token and per output token are below what is promised with a chance."""
        slowdown = self.slowdown(confidence)
        most = NormalDist().inv_cdf(confidence) * self.ttft_sigma
        later = point.slowdown is not None and point.slowdown <= slowdown
        return point.ttft_error(slowdown) <= most, later


def open_point(measured: MeasuredPoint, deployed: Deployment) -> OpenPoint | None:
    """Return an open loop with its predictions; None of a row of another kind, without 95th percentiles, or not predicted."""
    try:
        with of_one_row():
            return _open_point(measured, deployed)
    except NotPredictedError:
        return None


def _open_point(measured: MeasuredPoint, deployed: Deployment) -> OpenPoint | None:
    run, outcome = measured.run, measured.outcome
    first, later = outcome.ttft.p95, outcome.tpot.p95
    if deployed.requests_per_s is None or first is None or later is None:
        return None
    loop = open_loop(deployed, default_constants(deployed.engine))
    result = loop.run()
    simulated = {
        name: (float(np.quantile(result.ttft_s, share)) + loop.outside_s, float(np.quantile(result.tpot_s, share)))
        for name, share in SHARES
    }
    ttft_s, tpot_s = simulated["p95"]
    limits = (run.ttft_limit_p99_ms, run.tpot_limit_p99_ms)
    law = BOTH_PHASES
    return OpenPoint(
        line=run.line,
        submitter=run.submitter or run.source,
        system=run.system,
        model=deployed.model,
        node=deployed.node,
        stated=deployed.stated,
        utilisation=loop.utilisation,
        ttft={name: simulated[name][0] * 1e3 / told for name, _ in SHARES if (told := getattr(outcome.ttft, name))},
        tpot={name: simulated[name][1] * 1e3 / told for name, _ in SHARES if (told := getattr(outcome.tpot, name))},
        slowdown=loop.slowdown_of(later / 1e3),
        goodput=None if limits[0] is None or limits[1] is None else loop.goodput_of(limits[0] / 1e3, limits[1] / 1e3),
        today=(first / 1e3 <= ttft_s * law.ttft.factor(COVERED), later / 1e3 <= tpot_s * law.tpot.factor(COVERED)),
        each_per_s=loop.load.requests_per_s,
        ttft_p95_s=first / 1e3,
        loop=loop,
    )


def fitted_open_law(points: Iterable[OpenPoint]) -> OpenLaw | None:
    """Return the law of open loops, submitters counting alike; None where no row is below the knee.

    Step times: nine of ten rows below the knee need no larger factor. First tokens: nine of ten rows whose front end is no
    bottleneck lie below what is simulated with step times so much longer.
    """
    below = [point for point in points if not point.near_knee and point.slowdown is not None]
    if not below:
        return None
    steps = _by_submitter(below, lambda point: math.log(point.slowdown or 1.0))
    one = NormalDist().inv_cdf(COVERED)
    step_sigma = max(0.0, quantile(steps, COVERED)) / one
    slowdown = math.exp(one * step_sigma)
    plain = [point for point in below if not point.of_front_end] or below
    first = _by_submitter(plain, lambda point: point.ttft_error(slowdown))
    return OpenLaw(step_sigma, max(0.0, quantile(first, COVERED)) / one, len(below), len(steps))


def laws_left_out(points: Sequence[OpenPoint]) -> dict[str, OpenLaw]:
    """Return the law of each submitter, fitted to the rows of all others; none where others have no rows below the knee."""
    fitted = {name: fitted_open_law(p for p in points if p.submitter != name) for name in {p.submitter for p in points}}
    return {name: law for name, law in fitted.items() if law is not None}


def _by_submitter(points: Sequence[OpenPoint], error: Callable[[OpenPoint], float]) -> list[list[float]]:
    found: dict[str, list[float]] = {}
    for point in points:
        found.setdefault(point.submitter, []).append(error(point))
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of ratios, and the quantiles between which eight of ten lie."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class OpenScore:
    """The scores of open loops of one kind: predicted over measured by percentile, and shares of rows below what is promised at
    0.9, to the first token and per output token, by the law of closed loops and by that of other submitters' open ones."""

    group: str
    rows: int
    ttft: Mapping[str, Spread]
    tpot: Mapping[str, Spread]
    goodput: Spread | None
    slowdown: Spread | None
    kept_today: tuple[float, float]
    kept: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class OpenReport:
    """The open loops of a table, copies of one measurement counted once, and the law fitted to all of them."""

    law: OpenLaw | None
    scores: tuple[OpenScore, ...]
    points: tuple[OpenPoint, ...] = ()


def open_report(points: Iterable[OpenPoint], *, law: OpenLaw | None = None) -> OpenReport | None:
    """Return the scores of open loops: all, below the knee, of these those of a front end, near the knee; None of no rows.

    Each row is judged by ``law``, or by one fitted to the rows of other submitters.
    """
    distinct = {(p.model, p.node, p.system, p.each_per_s, p.ttft_p95_s, *sorted(p.tpot.items())): p for p in points}
    known = tuple(distinct.values())
    if not known:
        return None
    left_out = laws_left_out(known) if law is None else {point.submitter: law for point in known}
    groups = {
        "all": known,
        "below the knee": [p for p in known if not p.near_knee],
        "of these, over 100 requests/s of a worker": [p for p in known if not p.near_knee and p.of_front_end],
        "near the knee": [p for p in known if p.near_knee],
    }
    scores = tuple(_score(name, members, left_out) for name, members in groups.items() if members)
    return OpenReport(law or fitted_open_law(known), scores, known)


def _score(name: str, points: Sequence[OpenPoint], laws: Mapping[str, OpenLaw]) -> OpenScore:
    judged = [promised(p, laws[p.submitter]) for p in points if p.submitter in laws]
    return OpenScore(
        group=name,
        rows=len(points),
        ttft=_spreads([p.ttft for p in points]),
        tpot=_spreads([p.tpot for p in points]),
        goodput=_spread([p.goodput for p in points]),
        slowdown=_spread([p.slowdown for p in points]),
        kept_today=_shares([p.today for p in points]),
        kept=_shares(judged) if judged else None,
    )


def promised(point: OpenPoint, law: OpenLaw) -> tuple[bool, bool]:
    """Return whether P95 to the first token and per output token are below the larger of what both laws promise at 0.9, as
    plans have it."""
    first, later = law.keeps(point)
    return first or point.today[0], later or point.today[1]


def _shares(kept: Sequence[tuple[bool, bool]]) -> tuple[float, float]:
    first, later = zip(*kept, strict=True)
    return sum(first) / len(kept), sum(later) / len(kept)


def _spreads(ratios: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    found = {name: _spread([each.get(name) for each in ratios]) for name, _ in SHARES}
    return {name: spread for name, spread in found.items() if spread is not None}


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(*(float(q) for q in np.quantile(known, (0.5, 0.1, 0.9)))) if known else None


def open_document(report: OpenReport) -> dict[str, Any]:
    """The report as a JSON document."""
    left_out = ("loop", "_slowed")
    points = [
        {name: getattr(point, name) for name in OpenPoint.__dataclass_fields__ if name not in left_out}
        for point in report.points
    ]
    law = None if report.law is None else asdict(report.law)
    return {"law": law, "scores": [asdict(score) for score in report.scores], "points": points}
