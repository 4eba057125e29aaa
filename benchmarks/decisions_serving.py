"""Decisions among measured serving layouts: which one a rule deploys, and what comes of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles

from meshwright.app.validation.serving.report import ScoredPoint, validate_serving

FEWEST_LAYOUTS = 2
QUANTILE = 90
"""The hundredth of other models' errors that the margin covers."""


@dataclass(frozen=True)
class Layout:
    """A measured layout: tokens a second of a device and time per output token, predicted and measured."""

    predicted_rate: float
    predicted_tpot_ms: float
    rate: float
    tpot_ms: float


@dataclass(frozen=True)
class Choice:
    """Layouts of one model on one device and engine under one load, and the target that half of them hold."""

    model: str
    layouts: tuple[Layout, ...]

    @property
    def target_ms(self) -> float:
        """The median of what was measured: half of the layouts hold it."""
        return median(layout.tpot_ms for layout in self.layouts)

    @property
    def best_rate(self) -> float:
        """The most tokens a second of a device of a layout that holds the target."""
        return max(layout.rate for layout in self.layouts if layout.tpot_ms <= self.target_ms)


@dataclass(frozen=True)
class ServingResult:
    """The outcome of a rule: choices, the share whose pick broke the target, and the mean loss of throughput of the other picks
    and of the best of the first two."""

    rule: str
    choices: int
    broken: float
    regret: float
    regret_of_two: float


def serving_results(path: Path) -> list[ServingResult]:
    """The results of picking by predicted throughput alone, with the target as predicted, and with a margin on it."""
    choices = choices_of(validate_serving(path).points)
    margins = {choice.model: margin_without(choice.model, choices) for choice in choices}
    infinite = dict.fromkeys(margins, 0.0)
    plain = dict.fromkeys(margins, 1.0)
    return [
        result("most predicted throughput, target not looked at", choices, infinite),
        result("of those predicted to hold the target (today)", choices, plain),
        result("of those predicted to hold it in nine of ten cases", choices, margins),
    ]


def choices_of(points: Sequence[ScoredPoint]) -> list[Choice]:
    """Layouts that competed, one a layout: those of the same model, device, engine, format, lengths and clients."""
    members: dict[tuple[object, ...], dict[tuple[object, ...], Layout]] = defaultdict(dict)
    for point in points:
        run, outcome, said = point.measured.run, point.measured.outcome, point.calibrated
        rate = measured_rate(point)
        if said is None or rate is None or not outcome.tpot_ms or not run.n_gpus:
            continue
        asked = (run.model, run.gpu, run.engine, run.precision, run.mode, run.prompt_tokens, run.output_tokens, run.concurrency)
        layout = Layout(said.output_tokens_per_s / run.n_gpus, said.tpot_ms, rate / run.n_gpus, outcome.tpot_ms)
        members[asked].setdefault((run.tp, run.pp, run.attention_dp, run.ep, run.n_gpus), layout)
    return [Choice(str(asked[0]), tuple(each.values())) for asked, each in members.items() if len(each) >= FEWEST_LAYOUTS]


def measured_rate(point: ScoredPoint) -> float | None:
    """Tokens a second of all clients: as measured, else as many answers at once as there are clients, each in its mean time."""
    run, outcome = point.measured.run, point.measured.outcome
    if outcome.output_tokens_per_s:
        return outcome.output_tokens_per_s
    if not (outcome.ttft_ms and outcome.tpot_ms and run.output_tokens and run.concurrency.isdigit()):
        return None
    answer_s = (outcome.ttft_ms + (run.output_tokens - 1) * outcome.tpot_ms) / 1e3
    return int(run.concurrency) * run.output_tokens / answer_s


def margin_without(model: str, choices: Sequence[Choice]) -> float:
    """Measured over predicted time per output token that nine of ten layouts of other models stay below."""
    ratios = [
        layout.tpot_ms / layout.predicted_tpot_ms for choice in choices if choice.model != model for layout in choice.layouts
    ]
    return quantiles(ratios, n=100)[QUANTILE - 1]


def order(choice: Choice, margin: float) -> list[Layout]:
    """The layouts in the order in which they are deployed: those predicted to hold the target, then the nearest to it."""
    holds = [layout for layout in choice.layouts if layout.predicted_tpot_ms * margin <= choice.target_ms]
    others = [layout for layout in choice.layouts if layout not in holds]
    return sorted(holds, key=lambda each: -each.predicted_rate) + sorted(others, key=lambda each: each.predicted_tpot_ms)


def result(rule: str, choices: Sequence[Choice], margins: dict[str, float]) -> ServingResult:
    """The outcome of a rule."""
    broken, regrets, of_two = [], [], []
    for choice in choices:
        first, second = order(choice, margins[choice.model])[:2]
        broken.append(first.tpot_ms > choice.target_ms)
        if not broken[-1]:
            regrets.append(1.0 - first.rate / choice.best_rate)
        held = [each.rate for each in (first, second) if each.tpot_ms <= choice.target_ms]
        if held:
            of_two.append(1.0 - max(held) / choice.best_rate)
    return ServingResult(rule, len(choices), fmean(broken), fmean(regrets or [math.nan]), fmean(of_two or [math.nan]))
