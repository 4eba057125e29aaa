"""Output tokens per second of a device against those of a user, over all layouts and batch limits, in steady state.

The chart by which inference engines are compared: a larger batch serves more tokens a device and fewer to each user. A point
is a replica whose batch is always full (``costmodels.queueing.analytic.percentiles.steady_batches``): no queue, no percentiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from meshwright.costmodels.queueing.analytic.percentiles import most_running, rates_at, steady_batches
from meshwright.costmodels.queueing.load import Load
from meshwright.solver.answer.frontier import InteractivityPoint
from meshwright.solver.control import Stop
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.question import Question
from meshwright.solver.serving.workers.answer import axes_of


def swept_points(
    question: Question, others: Sequence[Callable[[Load], Iterable[InteractivityPoint]]], stop: Stop
) -> tuple[InteractivityPoint, ...] | None:
    """Steady states that no other of the question's engines and batch limits, nor of ``others``, beats in both figures, most
    throughput first.

    None when ``stop`` is met first. Without a second output token nobody waits for one: there are no points then.
    """
    evaluator = question.evaluator
    if evaluator.output.mean <= 1.0:
        return ()
    load = evaluator.traffic.load_of(Share(question.load))
    points: list[InteractivityPoint] = []
    for engine in question.engines:
        if stop():
            return None
        if question.counts(engine, 1, engine.layout.most_replicas):
            points = undominated([*points, *_points(evaluator.candidates(engine), load)])
    for of_form in others:
        for point in of_form(load):
            # A chart without some of its points would look like a whole one.
            if stop():
                return None
            points.append(point)
    return tuple(undominated(points))


def user_tokens_per_s(decode: Measured, evaluator: Evaluator, *, phases: ServingMode) -> float:
    """Output tokens per second of a user at the mean batch of the workers that decode.

    Prompts come in between where the same workers compute them.
    """
    load, candidate = evaluator.traffic.load_of(Share(1.0)), decode.candidate
    rates = rates_at(candidate.engine.times, load, candidate.limits, np.array([max(1.0, decode.mean_batch)]))
    tpot_s = rates.round_s if phases is ServingMode.DISAGGREGATED else steady_batches(rates, load).tpot_s
    return 1.0 / float(tpot_s[0])


def undominated(points: Iterable[InteractivityPoint]) -> list[InteractivityPoint]:
    """Points that no other equals or beats in both figures, most throughput first; of equals the first one given."""
    kept: list[InteractivityPoint] = []
    for point in sorted(points, key=lambda p: (-p.tokens_per_s_per_device, -p.tokens_per_s_per_user)):
        if not kept or point.tokens_per_s_per_user > kept[-1].tokens_per_s_per_user:
            kept.append(point)
    return kept


def _points(candidates: list[Candidate], load: Load) -> Iterator[InteractivityPoint]:
    """The steady state of every candidate of an engine, its batch as full as limits and cache allow."""
    by_step_tokens: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        by_step_tokens.setdefault(candidate.step_tokens, []).append(candidate)
    for group in by_step_tokens.values():
        yield from _steady(group, load)


def _steady(candidates: list[Candidate], load: Load) -> list[InteractivityPoint]:
    """Points of candidates of one engine and limit of tokens; none for batches that prompts are too slow to keep full."""
    first, sizes = candidates[0], np.array([float(most_running(load, candidate.limits)) for candidate in candidates])
    states = steady_batches(rates_at(first.engine.times, load, first.limits, sizes), load)
    layout = first.engine.layout
    groups = layout.schedulers
    return [
        InteractivityPoint(
            summary=layout.name,
            group=layout.group.name,
            axes=axes_of(layout, 1),
            devices=layout.devices,
            batch=float(size) * groups,
            max_num_seqs=candidate.sequences,
            max_num_batched_tokens=candidate.step_tokens,
            tokens_per_s_per_device=float(requests_per_s) * groups * load.output.mean / layout.devices,
            tokens_per_s_per_user=1.0 / float(tpot_s),
        )
        for candidate, size, requests_per_s, tpot_s, prompts_share in zip(
            candidates, sizes, states.requests_per_s, states.tpot_s, states.prompts_share, strict=True
        )
        if prompts_share <= 1.0
    ]
