"""Workers of a plan that was given: their engine and batch limits, and whether they keep the promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.serving.memory import CacheBytes
from meshwright.solver.answer.layouts import Kinds, Replicas, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Predicted, Reason, SearchStats
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import Layout, worker_layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.promise.question import Found, Question
from meshwright.solver.serving.workers.goodput import goodput_of
from meshwright.solver.serving.workers.reasons import missed_targets


def judged(
    request: ServingRequest, predicted: Predicted | None, evaluator: Evaluator, candidate: Candidate, share: Share
) -> Found | Reason:
    """A plan's workers at the request's load, or of a goodput at the rate that they sustain; else the target that they miss."""
    measured = evaluator.measure_fully(candidate, share)
    if not measured.keeps:
        return missed_targets(evaluator, measured)
    found = Found(measured)
    if request.objective is not Objective.THROUGHPUT or evaluator.traffic.is_closed:
        return found
    claimed = share.load if predicted is None else predicted.tokens_per_s / evaluator.output.mean
    question = _question(candidate.engine, evaluator, share.replicas)
    return goodput_of(question, candidate, found, claimed_per_s=claimed)


def given_candidate(request: ServingRequest, workers: Workers) -> tuple[Evaluator, Candidate, Share]:
    """The engine and batch limits of a plan's workers, their share of the request's load, and what simulates them.

    Raises PlanFileError when the plan does not belong to the request.
    """
    evaluator = Evaluator(request.workload, promised_of(request), request.search.seed)
    return evaluator, *candidate_of(request, workers, evaluator)


def candidate_of(
    request: ServingRequest,
    workers: Workers,
    evaluator: Evaluator,
    *,
    among: Callable[[ServingRequest], Iterable[Layout]] = worker_layouts,
) -> tuple[Candidate, Share]:
    """The engine and batch limits of workers, whose layout is ``among`` those of the request, and their share of the
    evaluator's load."""
    layout = _layout(request, workers, among(request))
    builder = EngineBuilder(
        request,
        sequence_tokens=evaluator.longest_request,
        step_tokens=workers.max_num_batched_tokens,
        sequences=workers.max_num_seqs,
    )
    candidate = Candidate(builder.engine(layout), workers.max_num_batched_tokens, workers.max_num_seqs)
    return candidate, Share(evaluator.traffic.load, workers.count)


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """The room for caches on the devices of a worker, those of the fullest stage.

    weights_bytes, workspace_bytes, overhead_bytes   what is there beside caches
    free_bytes                                       what is left for caches; below zero where the rest does not fit
    longest_tokens                                   tokens of the longest request that fits alone
    logits                                           logits that are chosen from at once
    """

    weights_bytes: float
    workspace_bytes: float
    overhead_bytes: float
    free_bytes: float
    longest_tokens: int
    logits: float
    _cache: CacheBytes
    _step_tokens: int

    def needed_bytes(self, tokens: int) -> float:
        """Return the bytes of the cache of one request of so many tokens."""
        return self._cache.bytes_of(tokens, sequences=1, step_tokens=self._step_tokens)

    def longest_with(self, free_bytes: float) -> int:
        """Return the tokens of the longest request that fits alone into other room."""
        return self._cache.tokens_that_fit(free_bytes, sequences=1, step_tokens=self._step_tokens)


def cache_room(request: ServingRequest, workers: Workers) -> CacheRoom:
    """Return the room for caches of a plan's workers, whatever the load is.

    Raises PlanFileError when the plan does not belong to the request.
    """
    _, candidate, _ = given_candidate(request, workers)
    engine, limits = candidate.engine, {"step_tokens": candidate.step_tokens, "sequences": candidate.sequences}
    rooms = []
    for stage in engine.needs:
        fixed_bytes = engine.fixed_bytes(stage, **limits)
        free_bytes = engine.usable_bytes() - fixed_bytes
        longest = stage.cache.tokens_that_fit(free_bytes, sequences=1, step_tokens=candidate.step_tokens)
        workspace_bytes = fixed_bytes - stage.weights_bytes - engine.overhead_bytes
        rooms.append(
            CacheRoom(
                weights_bytes=stage.weights_bytes,
                workspace_bytes=workspace_bytes,
                overhead_bytes=engine.overhead_bytes,
                free_bytes=free_bytes,
                longest_tokens=longest,
                logits=candidate.sequences * engine.query_tokens * stage.logits,
                _cache=stage.cache,
                _step_tokens=candidate.step_tokens,
            )
        )
    return min(rooms, key=lambda room: (room.longest_tokens, room.free_bytes))


def _question(engine: Engine, evaluator: Evaluator, replicas: int) -> Question:
    return Question(
        engines=(engine,),
        evaluator=evaluator,
        load=evaluator.traffic.load,
        replicas=(replicas,),
    )


def one_plan_stats(evaluator: Evaluator) -> SearchStats:
    """Return the work of looking at one plan."""
    return SearchStats(candidates=1, evaluated=evaluator.simulations, seconds=0.0)


def _layout(request: ServingRequest, workers: Workers, among: Iterable[Layout]) -> Layout:
    """The layout that workers have; raises PlanFileError when it is none of this request."""
    if not workers.stages or not workers.stages[0].devices:
        raise PlanFileError("workers of a plan have stages, and stages have devices", given="none")
    for layout in among:
        if _has_degrees_and_place(workers, layout):
            _require_room(layout, workers, request)
            return layout
    raise PlanFileError(
        "the plan's layout does not fit the request's model and cluster",
        given=f"{in_words(workers.axes)}, first device {_first_device(workers)}",
        remedy="use degrees that divide the model and a node, and values that the search allows",
    )


def in_words(axes: Axes) -> str:
    """Return the degrees of axes that are not 1, as ``tp 16, pp 2``."""
    said = [f"{each.name} {degree}" for each in fields(axes) if (degree := getattr(axes, each.name)) not in (None, 1)]
    return ", ".join(said) or "one device"


def is_layout_of(plan: Plan, layout: Layout) -> bool:
    """Return True if a plan's replicas, or those of one of its kinds, do both phases in this layout."""
    match plan.layout:
        case Replicas() as replicas:
            return is_in_layout(replicas, layout)
        case Kinds() as several:
            return any(is_in_layout(kind.replicas, layout) for kind in several.kinds)
        case _:
            return False


def is_in_layout(replicas: Replicas, layout: Layout) -> bool:
    """Return True if replicas have this layout."""
    return bool(replicas.stages) and _has_degrees_and_place(replicas.workers, layout)


def _has_degrees_and_place(workers: Workers, layout: Layout) -> bool:
    grid, axes = layout.grid, workers.axes
    degrees = (grid.tp, grid.kvp, grid.attention_dp, grid.ep, grid.cp, layout.pp)
    same = degrees == (axes.tp, axes.kvp, axes.attention_dp, axes.ep, axes.cp, axes.pp)
    return same and layout.first_rank <= _first_device(workers) < layout.first_rank + layout.group.n_devices


def _first_device(workers: Workers) -> int:
    return min(devices.first for devices in workers.device_ranges)


def _require_room(layout: Layout, workers: Workers, request: ServingRequest) -> None:
    speculation = request.workload.speculation
    query_tokens = 1 if speculation is None else speculation.query_tokens
    if not 1 <= workers.count <= layout.most_replicas:
        raise PlanFileError(
            "the cluster has no room for the plan's replicas",
            given=workers.count,
            allowed=f"1 to {layout.most_replicas}",
        )
    per_slot = -(-workers.max_num_seqs // layout.pp)
    if workers.max_num_seqs < 1 or per_slot * query_tokens > workers.max_num_batched_tokens:
        raise PlanFileError(
            "impossible batch limits: a step must have room for every sequence's token and what is verified with it",
            given=(workers.max_num_seqs, workers.max_num_batched_tokens),
        )
