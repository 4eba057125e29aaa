"""Pools of prefill and decode workers as points of throughput of a device against tokens per second of a user.

They are rate-matched: decode workers' places never empty, and just so many prefill workers that they compute prompts as fast
as these are answered. Of each decode worker and batch the numbers of workers that give most throughput a device are taken, any
that the cluster has room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.queueing.analytic.percentiles import most_running, rates_at
from meshwright.costmodels.queueing.load import Load
from meshwright.solver.answer.frontier import InteractivityPoint, PromptWorkers
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import Layout
from meshwright.solver.serving.forms.pools.pools import placed
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.workers.answer import axes_of


@dataclass(frozen=True, eq=False)
class _Worker:
    """A worker of a phase with its batch limits: requests that it serves a second, and output tokens/s of a user."""

    candidate: Candidate
    requests_per_s: float
    tokens_per_s_per_user: float = 0.0
    batch: float = 0.0

    @property
    def layout(self) -> Layout:
        """Its layout."""
        return self.candidate.engine.layout


def pools_points(
    evaluator: Evaluator, prefill: Sequence[Engine], decode: Sequence[Engine], load: Load
) -> Iterator[InteractivityPoint]:
    """Rate-matched pools: of workers alike in size those that serve most, to each user and batch."""
    prompts = _fastest([worker for engine in prefill for worker in _prompt_workers(evaluator, engine, load)])
    for answers in _undominated([worker for engine in decode for worker in _answer_workers(evaluator, engine, load)]):
        for computing in prompts:
            point = _matched(computing, answers, load)
            if point is not None:
                yield point


def _prompt_workers(evaluator: Evaluator, engine: Engine, load: Load) -> Iterator[_Worker]:
    for candidate in {c.step_tokens: c for c in evaluator.candidates(engine)}.values():
        prompt_s = float(rates_at(engine.times, load, candidate.limits, np.ones(1)).prefill_s[0])
        yield _Worker(candidate, engine.layout.schedulers / prompt_s)


def _answer_workers(evaluator: Evaluator, engine: Engine, load: Load) -> Iterator[_Worker]:
    """Decode workers at every limit of sequences, with the smallest step that holds a token of each."""
    least = {c.sequences: c for c in sorted(evaluator.candidates(engine), key=lambda c: -c.step_tokens)}
    for candidate in least.values():
        size = float(most_running(load, candidate.limits))
        round_s = float(rates_at(engine.times, load, candidate.limits, np.array([size])).round_s[0])
        groups = engine.layout.schedulers
        yield _Worker(candidate, groups * size / ((load.output.mean - 1.0) * round_s), 1.0 / round_s, groups * size)


def _fastest(workers: list[_Worker]) -> list[_Worker]:
    """Of prefill workers on as many devices of a node group the fastest one."""
    best: dict[tuple[str, int], _Worker] = {}
    for worker in workers:
        key = (worker.layout.group.name, worker.layout.devices)
        if key not in best or worker.requests_per_s > best[key].requests_per_s:
            best[key] = worker
    return list(best.values())


def _undominated(workers: list[_Worker]) -> list[_Worker]:
    """Decode workers that no other on as many devices of the node group beats in requests and in tokens/s of a user."""
    kept: list[_Worker] = []
    fastest: dict[tuple[str, int], float] = {}
    for worker in sorted(workers, key=lambda w: (-w.requests_per_s, -w.tokens_per_s_per_user)):
        key = (worker.layout.group.name, worker.layout.devices)
        if worker.tokens_per_s_per_user > fastest.get(key, 0.0):
            fastest[key] = worker.tokens_per_s_per_user
            kept.append(worker)
    return kept


def _matched(prompts: _Worker, answers: _Worker, load: Load) -> InteractivityPoint | None:
    """The numbers of workers of most throughput a device; None where not even one decode worker can be kept busy."""
    p, d = prompts.layout, answers.layout
    decode = np.arange(1, d.most_replicas + 1)
    prefill = np.ceil(decode * answers.requests_per_s / prompts.requests_per_s * (1.0 - 1e-12)).astype(np.int64)
    devices = prefill * p.devices + decode * d.devices
    throughput = decode * answers.requests_per_s * load.output.mean / devices
    for index in np.argsort(-throughput, kind="stable"):
        workers, computing = int(decode[index]), int(prefill[index])
        if placed(p, computing, d, workers) is None:
            continue
        candidate, limits = answers.candidate, prompts.candidate
        return InteractivityPoint(
            summary=f"{computing} x {p.name} prefill + {workers} x {d.name} decode",
            group=d.group.name,
            axes=axes_of(d, 1),
            devices=int(devices[index]),
            batch=workers * answers.batch,
            max_num_seqs=candidate.sequences,
            max_num_batched_tokens=candidate.step_tokens,
            tokens_per_s_per_device=float(throughput[index]),
            tokens_per_s_per_user=answers.tokens_per_s_per_user,
            workers=workers,
            prefill=PromptWorkers(p.group.name, axes_of(p, 1), computing, limits.step_tokens),
        )
    return None
