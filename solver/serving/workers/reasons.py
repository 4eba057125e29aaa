"""Why a serving request has no plan: the tightest constraint in numbers, and what would help."""

from __future__ import annotations

import math

from meshwright.costmodels.model.dims import HEADS
from meshwright.costmodels.queueing.results import Percentile
from meshwright.costmodels.serving.latency_law import LatencyLaw
from meshwright.solver.answer.predicted import Reason
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import SEQUENCES, STEP_TOKENS
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import Promised
from meshwright.solver.serving.promise.question import Question
from meshwright.solver.serving.workers.goodput import largest_goodput


def no_layout(request: ServingRequest) -> Reason:
    """No degrees divide the model, or the restrictions of the search leave nothing."""
    heads = request.model.dims.get(HEADS, 0)
    allowed = ", ".join(map(str, request.search.tp)) or "any in a node"
    return Reason(
        constraint="divisibility",
        need=1.0,
        have=0.0,
        unit="layouts",
        message=f"no allowed tp ({allowed}) and pp divide the model's {heads} heads and fit in the cluster",
        remedies=("allow more values of search.tp and search.pp", "use nodes with more devices"),
    )


def why_infeasible(question: Question) -> Reason:
    """The constraint that refuses all engines: memory, a target missed by a request alone, or the arrival rate."""
    evaluator = question.evaluator
    fitting = [engine for engine in question.engines if evaluator.candidates(engine)]
    if not fitting:
        return _memory(question)
    late = late_alone(evaluator, fitting)
    return _rate(question) if late is None else late


def memory_shortfall(engine: Engine, *, step_tokens: int, sequences: int, tokens: int) -> Reason:
    """By how much the fullest stage of an engine lacks memory for its weights and the cache of ``tokens`` tokens."""
    have = engine.usable_bytes()
    needs = [
        engine.fixed_bytes(stage, step_tokens=step_tokens, sequences=sequences)
        + stage.cache.bytes_of(tokens, sequences=sequences, step_tokens=step_tokens)
        for stage in engine.needs
    ]
    stage = max(range(len(needs)), key=lambda i: needs[i])
    weights = engine.needs[stage].weights_bytes
    return Reason(
        constraint="memory",
        need=needs[stage],
        have=have,
        unit="bytes",
        message=(
            f"a device of {engine.layout.name} needs {needs[stage] / 1e9:.1f} GB ({weights / 1e9:.1f} GB of weights, the cache "
            f"of one request of {tokens} tokens, workspace); the engine may use {have / 1e9:.1f} GB"
        ),
        stage=stage,
        remedies=(
            "spread the model over more devices (search.tp, search.pp)",
            "use precision fp8",
            "use devices with more memory",
        ),
    )


def missed_targets(evaluator: Evaluator, measured: Measured) -> Reason:
    """Return the target that a simulated layout misses by most."""
    return missed_figures(evaluator.promised, ttft=measured.ttft, tpot=measured.tpot, utilisation=measured.utilisation)


def missed_figures(promised: Promised, *, ttft: Percentile, tpot: Percentile, utilisation: float) -> Reason:
    """Return the target that simulated figures miss by most."""
    law = promised.law
    figures = (
        ("p95_ttft", "P95 TTFT", *_told(law.ttft, ttft, promised.confidence), promised.ttft_s),
        ("p95_tpot", "P95 TPOT", *_told(law.tpot, tpot, promised.confidence), promised.tpot_s),
        ("utilisation", "", utilisation, utilisation, 1.0),
    )
    constraint, name, value, high, target = max(figures, key=_share_taken)
    remedies = ("lower the arrival rate", "add replicas", "relax the target")
    if not name:
        message = f"arrivals are {value:.2f} times what the engines keep up with"
        return Reason(constraint, max(value, math.nextafter(1.0, 2.0)), 1.0, "x", message, remedies=remedies)
    upper = f"up to {high * 1e3:.1f} ms at {_confidence(promised)}" if math.isfinite(high) else "no upper confidence limit"
    message = f"{name}: {value * 1e3:.1f} ms ({upper}) against {target * 1e3:g} ms"
    need = high if math.isfinite(high) else max(value, math.nextafter(target, math.inf))
    return Reason(constraint, need * 1e3, target * 1e3, "ms", message, remedies=remedies)


def _told(law: LatencyLaw, simulated: Percentile, confidence: float) -> tuple[float, float]:
    """The median of a measured percentile, and what is promised of it."""
    return law.median_s(simulated.value), law.promised_s(simulated.high, confidence)


def _share_taken(figure: tuple[str, str, float, float, float]) -> float:
    *_, high, target = figure
    return 0.0 if target == math.inf else high / target


def _confidence(promised: Promised) -> str:
    return f"slo.confidence {promised.confidence:g}"


def _memory(question: Question) -> Reason:
    tokens = question.evaluator.longest_request

    def shortfall(engine: Engine) -> Reason:
        return memory_shortfall(engine, step_tokens=STEP_TOKENS[0], sequences=SEQUENCES[0], tokens=tokens)

    return min((shortfall(engine) for engine in question.engines), key=lambda reason: reason.need / reason.have)


def late_alone(evaluator: Evaluator, engines: list[Engine]) -> Reason | None:
    """The target that even a request alone misses on every engine, all of which fit in memory; None when some meets both."""
    targets, promised = evaluator.targets, evaluator.promised
    points = [
        (evaluator.alone(candidate.engine, candidate.step_tokens), candidate)
        for engine in engines
        for candidate in _one_for_each_step_size(evaluator.candidates(engine))
    ]
    tpot, tpot_at = min(((alone.tpot_s, c) for alone, c in points), key=lambda p: (p[0], p[1].key))
    if tpot > targets.tpot_s:
        return _late("p95_tpot", "P95 TPOT", tpot, promised, tpot_at)
    ttft, ttft_at = min(((alone.ttft_s, c) for alone, c in points), key=lambda p: (p[0], p[1].key))
    if ttft > targets.ttft_s:
        return _late("p95_ttft", "P95 TTFT", ttft, promised, ttft_at)
    if any(alone.ttft_s <= targets.ttft_s and alone.tpot_s <= targets.tpot_s for alone, _ in points):
        return None
    in_time = [(alone.ttft_s, c) for alone, c in points if alone.tpot_s <= targets.tpot_s]
    ttft, ttft_at = min(in_time, key=lambda p: (p[0], p[1].key))
    return _late("p95_ttft", "P95 TTFT of layouts that meet P95 TPOT", ttft, promised, ttft_at)


def _one_for_each_step_size(candidates: list[Candidate]) -> list[Candidate]:
    return list({candidate.step_tokens: candidate for candidate in candidates}.values())


def _late(constraint: str, name: str, simulated_s: float, promised: Promised, at: Candidate) -> Reason:
    device = at.engine.layout.group.node.device.name
    of_first = constraint == "p95_ttft"
    law, target_s = (promised.law.ttft, promised.ttft_s) if of_first else (promised.law.tpot, promised.tpot_s)
    best_s = law.promised_s(simulated_s, promised.confidence)
    return Reason(
        constraint=constraint,
        need=best_s * 1e3,
        have=target_s * 1e3,
        unit="ms",
        message=(
            f"{name}: best possible {law.median_s(simulated_s) * 1e3:.1f} ms at {at.engine.layout.name} on {device}, with no "
            f"other request, up to {best_s * 1e3:.1f} ms at {_confidence(promised)}, against {target_s * 1e3:g} ms"
        ),
        remedies=(
            f"relax {constraint}_ms to more than {best_s * 1e3:.0f}",
            "ask for less slo.confidence",
            "use precision fp8",
            "use faster devices or larger nodes",
        ),
    )


def _rate(question: Question) -> Reason:
    """Every engine meets the targets alone, none under the requested load: how high a load they keep."""
    best = largest_goodput(question).best
    constraint, unit = ("concurrency", "clients") if question.evaluator.traffic.is_closed else ("requests_per_s", "requests/s")
    have = 0.0 if best is None else best.load
    remedies = ["relax the targets"]
    if best is None:
        message = "no layout keeps the targets under any load worth the name"
    else:
        message = (
            f"all devices together keep the targets up to {have:.3g} {unit} ({best.replicas} x {best.engine.layout.name}), "
            f"{question.load:g} are asked for"
        )
        needed = math.ceil(best.devices * question.load / have)
        remedies.insert(0, f"use about {needed} devices")
    # On the grid of loads the best may just reach the load that was refused.
    need = max(question.load, math.nextafter(have, math.inf))
    return Reason(constraint, need, have, unit, message, remedies=tuple(remedies))
