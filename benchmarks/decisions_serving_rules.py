"""Serving layouts that competed and were measured, the rules that choose among them, and what comes of each."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.serving_laws import Key, Laws, MeasuredLatency, Time
from meshwright.app.evidence.serving.report import ScoredPoint
from meshwright.costmodels.fitting.calibration import LatencyPoint, learned_latency
from meshwright.costmodels.serving.latency_law import LatencyLaw
from meshwright.solver.serving.trials import Kept, TrialPlan, best_next

FEWEST_LAYOUTS = 2


@dataclass(frozen=True)
class Layout:
    """A measured layout: tokens a second of a device as predicted and measured, and its latencies."""

    predicted_rate: float
    rate: float
    latency: MeasuredLatency
    time: Time = Time.TPOT

    @property
    def told(self) -> LatencyPoint:
        """The time that the target is of, simulated and measured."""
        return self.latency.of(self.time)

    @property
    def measured_s(self) -> float:
        """The same as measured."""
        return self.told.measured_s


@dataclass(frozen=True)
class Choice:
    """Layouts of one model on one device and engine under one load, and the target that half of them hold."""

    layouts: tuple[Layout, ...]

    @property
    def key(self) -> tuple[Key, bool]:
        """The deployment, and whether its layouts are pools: what decides its law."""
        first = self.layouts[0].latency
        return first.key, first.pools

    @property
    def time(self) -> Time:
        """The time that the target is of."""
        return self.layouts[0].time

    @property
    def target_s(self) -> float:
        """The median of what was measured: half of the layouts hold it."""
        return median(layout.measured_s for layout in self.layouts)

    @property
    def best_rate(self) -> float:
        """The most tokens a second of a device of a layout that holds the target."""
        return max(layout.rate for layout in self.layouts if layout.measured_s <= self.target_s)


@dataclass(frozen=True)
class Decisions:
    """The outcome of a rule: choices, the share that it has no plan for, the share whose pick broke the target, of all and of
    those that it has a plan for, and the mean loss of throughput of the other picks, of the best of two by the rule, and of the
    best of two and of three by expected gain."""

    rule: str
    choices: int
    without_plan: float
    broken: float
    broken_with_plan: float
    regret: float
    regret_of_two: float
    regret_by_gain: tuple[float, float]


LawOf = Callable[[Choice], LatencyLaw]


def choices_of(points: Iterable[MeasuredLatency], time: Time) -> list[Choice]:
    """Layouts that competed, one a layout: those of the same model, device, engine, format, lengths and clients."""
    members: dict[tuple[object, ...], dict[tuple[object, ...], Layout]] = defaultdict(dict)
    for point in points:
        run, said, rate = point.scored.measured.run, point.scored.simulated, measured_rate(point.scored)
        if said is None or rate is None or not run.n_gpus:
            continue
        asked = (run.model, run.gpu, run.engine, run.precision, run.mode, run.prompt_tokens, run.output_tokens, run.concurrency)
        layout = Layout(said.output_tokens_per_s / run.n_gpus, rate / run.n_gpus, point, time)
        members[asked].setdefault((run.tp, run.pp, run.attention_dp, run.ep, run.n_gpus), layout)
    return [Choice(tuple(each.values())) for each in members.values() if len(each) >= FEWEST_LAYOUTS]


def measured_rate(point: ScoredPoint) -> float | None:
    """Tokens a second of all clients: as measured, else as many answers at once as there are clients, each in its mean time."""
    run, outcome = point.measured.run, point.measured.outcome
    if outcome.output_tokens_per_s:
        return outcome.output_tokens_per_s
    if not (outcome.ttft_ms and outcome.tpot_ms and run.output_tokens and run.concurrency.isdigit()):
        return None
    answer_s = (outcome.ttft_ms + (run.output_tokens - 1) * outcome.tpot_ms) / 1e3
    return int(run.concurrency) * run.output_tokens / answer_s


def order(layouts: Sequence[Layout], target_s: float, law: LatencyLaw, confidence: float) -> list[Layout]:
    """The layouts in the order in which they are deployed: those that hold the target with a confidence, most predicted
    throughput first, then the nearest to it."""

    def promised_s(layout: Layout) -> float:
        return law.promised_s(layout.told.simulated_s, confidence)

    holds = [layout for layout in layouts if promised_s(layout) <= target_s]
    others = [layout for layout in layouts if layout not in holds]
    return sorted(holds, key=lambda each: -each.predicted_rate) + sorted(others, key=promised_s)


def decided(rule: str, choices: Sequence[Choice], law_of: LawOf, confidence: float | None) -> Decisions:
    """The outcome of a rule that knows a law: with a confidence, or where there is none by expected gain from the first on."""
    broken, planned, regrets, of_two, by_gain = [], [], [], [], []
    for choice in choices:
        law, target_s = law_of(choice), choice.target_s
        ordered = gained(choice, [], law, points=2) if confidence is None else order(choice.layouts, target_s, law, confidence)
        first = ordered[0]
        broken.append(first.measured_s > target_s)
        planned.append(confidence is None or law.promised_s(first.told.simulated_s, confidence) <= target_s)
        if not broken[-1]:
            regrets.append(1.0 - first.rate / choice.best_rate)
        told = learned_latency(law, [first.told], outside_sigma_s=choice.time.constant_sigma_s)
        rest = [layout for layout in choice.layouts if layout is not first]
        second = ordered[1] if confidence is None else order(rest, target_s, told, confidence)[0]
        of_two.append(regret_of([first, second], choice))
        third = gained(choice, [first], law, points=2)
        by_gain.append((regret_of(third[:2], choice), regret_of(third, choice)))
    gains = (fmean(two for two, _ in by_gain), fmean(three for _, three in by_gain))
    with_plan = [missed for missed, has_plan in zip(broken, planned, strict=True) if has_plan]
    without = 1.0 - fmean(planned)
    return Decisions(rule, len(choices), without, fmean(broken), fmean(with_plan), fmean(regrets), fmean(of_two), gains)


def gained(choice: Choice, ran: Sequence[Layout], law: LatencyLaw, *, points: int) -> list[Layout]:
    """The layouts that ran and so many more, each by expected gain given what those before it told."""
    known, free = list(ran), Kept(law, 0.0, math.inf)
    while points > 0 and len(known) < len(choice.layouts):
        told = learned_latency(law, [layout.told for layout in known], outside_sigma_s=choice.time.constant_sigma_s)
        candidates = []
        for layout in choice.layouts:
            tpot = Kept(told, told.median_s(layout.told.simulated_s), choice.target_s)
            has_kept = layout.measured_s <= choice.target_s if layout in known else None
            candidates.append(TrialPlan(layout.predicted_rate, free, tpot, has_kept))
        known.append(choice.layouts[best_next(candidates, [])])
        points -= 1
    return known


def regret_of(found: Sequence[Layout], choice: Choice) -> float:
    """The throughput that the best of some layouts that holds the target loses against the best; all of it where none holds."""
    held = [layout.rate for layout in found if layout.measured_s <= choice.target_s]
    return 1.0 - max(held) / choice.best_rate if held else 1.0


def told_by(points: int, choices: Sequence[Choice], laws: Mapping[tuple[Key, bool], Laws]) -> LawOf:
    """The law of each choice after so many points of its deployment under other loads, evenly spread over them."""
    by_key: dict[tuple[Key, bool], list[Choice]] = defaultdict(list)
    for choice in choices:
        by_key[choice.key].append(choice)

    def law_of(choice: Choice) -> LatencyLaw:
        others = [each for each in by_key[choice.key] if each is not choice]
        taken = [others[len(others) * (2 * n + 1) // (2 * points)] for n in range(points)] if len(others) >= points else []
        seen = [each.layouts[n % len(each.layouts)].told for n, each in enumerate(taken)]
        return learned_latency(laws[choice.key].of(choice.time), seen, outside_sigma_s=choice.time.constant_sigma_s)

    return law_of


def errors_of(choices: Sequence[Choice], law_of: LawOf) -> tuple[float, float]:
    """Mean error of medians, and the share of measured times below what is promised at 0.9."""
    pairs = [(law_of(choice), layout.told) for choice in choices for layout in choice.layouts]
    errors = [abs(law.median_s(told.simulated_s) / told.measured_s - 1.0) for law, told in pairs]
    return fmean(errors), fmean(told.measured_s <= law.promised_s(told.simulated_s, 0.9) for law, told in pairs)


FEWEST_PAIRS = 5
"""Pairs of a deployment from which its noise is told."""


def pairs_by_deployment(choices: Iterable[Choice]) -> dict[str, list[float]]:
    """By deployment the errors of pairs of layouts that competed: differences of the logarithms of measured over predicted
    throughput of a device, but for those that are predicted as one."""
    found: dict[str, list[float]] = defaultdict(list)
    for choice in choices:
        (engine, model, node), pools = choice.key
        for one, other in itertools.combinations(choice.layouts, 2):
            if one.predicted_rate != other.predicted_rate:
                error = math.log(one.rate / other.rate) - math.log(one.predicted_rate / other.predicted_rate)
                found[f"{engine} {model} {node}{' pools' if pools else ''}"].append(error)
    return {name: errors for name, errors in found.items() if len(errors) >= FEWEST_PAIRS}


def fitted_own(deployments: Iterable[Sequence[float]]) -> float:
    """The spread that each layout has of its own, deployments counting alike: the likeliest of Laplace's, as that of training
    (`decisions_noise`). Its spread is the root of 2 times the mean distance, and two layouts differ by the root of 2 times the
    own one."""
    return fmean(fmean(map(abs, errors)) for errors in deployments)


def noise_lines(choices: Iterable[Choice]) -> list[str]:
    """The noise of ranking, fitted to all deployments, and how much of one it holds that it has not seen."""
    found = pairs_by_deployment(choices)
    own, pairs = fitted_own(found.values()), sum(map(len, found.values()))
    within = []
    for name, errors in found.items():
        spread = math.sqrt(2.0) * fitted_own(others for other, others in found.items() if other != name)
        within.append(fmean(abs(error) <= spread for error in errors))
    return [
        noise_words(own, pairs, len(found)),
        f"Of a deployment that is left out of the fit, {fmean(within):.0%} of pairs lie within one such spread (68% if\n"
        f"normal, deployments counting alike), least {min(within):.0%}.",
    ]


def noise_words(own: float, pairs: int, deployments: int) -> str:
    """The sentence of the page on what ships."""
    reach = math.expm1(math.sqrt(2.0) * own)
    return (
        f"Fitted to {pairs:,} pairs of {deployments} deployments, which count alike: a spread of {own:.1%} that each\n"
        f"layout has of its own, so layouts whose objectives are predicted alike are equal within {reach:.0%}."
    )
