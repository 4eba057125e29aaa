"""Quantiles of a stage's memory: what runs take over what is counted of it, and the chance that a device has too little."""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.model.implementation import Implementation
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import StageMemory
from meshwright.solver.problem.launchers.trainers import TRAINERS
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.numbers import RELATIVE, agrees, at_most
from meshwright.solver.verify.violation import Rule, Violation

BEST_BY_HAND = "hand-fused"
"""The implementation where the launcher trains nothing."""


def quantile_violations(request: TrainingRequest, memory: StageMemory, where: str) -> Iterator[Violation]:
    """Yield violations of a stage: its median over what is counted, the quantile that the request asks for, and whether that
    fits."""
    law = _law(request)
    counted = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    tensors = counted + law.activations * memory.activations_bytes + law.transients * memory.transient_bytes
    counted += memory.activations_bytes + memory.transient_bytes
    buffers = memory.overhead_bytes if _keeps_buffers(request) else 0.0
    least, most = law.allocator * tensors, law.allocator * tensors + (law.allocator - 1.0) * buffers
    told = counted + memory.fragmentation_bytes
    if not (at_most(min(least, most), told) and at_most(told, max(least, most))):
        given = f"{memory.fragmentation_bytes} bytes beside {counted} counted ones, the implementation takes {least - counted}"
        yield Violation(Rule.OVERHEAD, f"{where}.fragmentation_bytes", given)
    unlearned = told + memory.overhead_bytes
    if not agrees(unlearned + memory.learned_bytes, law.scale * unlearned):
        given = f"{memory.learned_bytes} bytes, runs took {law.scale} times {unlearned}"
        yield Violation(Rule.OVERHEAD, f"{where}.learned_bytes", given)
    if memory.total_bytes <= memory.capacity_bytes:
        chance = _chance(law, memory.total_bytes, limit=memory.capacity_bytes)
        if not at_most(chance, request.search.risk):
            given = f"out of memory with a chance of {chance}, at most {request.search.risk} is allowed"
            yield Violation(Rule.RISK, where, given, limit="device_memory")


def risk_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Yield violations of what a plan says of its fullest device: in one run of twenty, and when it runs out of memory."""
    law, where, predicted = _law(request), "plan.predicted", plan.predicted
    assert predicted is not None, "answer_violations asks for it"
    p95 = predicted.peak_memory_p95_bytes
    # Plans of earlier versions say neither.
    if p95 is not None and not _is_quantile(law, p95, median=predicted.peak_memory_bytes, chance=0.05):
        given = f"{p95} bytes, the median is {predicted.peak_memory_bytes}, its spread {law.log_sigma}"
        yield Violation(Rule.PEAK_MEMORY, f"{where}.peak_memory_p95_bytes", given)
    memories = [stage.memory for stage in plan.stages]
    chance = max(_chance(law, memory.total_bytes, limit=memory.capacity_bytes) for memory in memories)
    told = predicted.chance_out_of_memory
    if told is not None and abs(told - chance) > RELATIVE:
        yield Violation(Rule.PEAK_MEMORY, f"{where}.chance_out_of_memory", f"{told}, the fullest stage has {chance}")


def stated_or_launchers(request: TrainingRequest) -> Implementation:
    """Return the implementation that the request states, else its launcher's, in any space."""
    stated, search = request.workload.implementation, request.search
    trainer = TRAINERS.get(search.launcher)
    launchers = implementation_profile(BEST_BY_HAND).implementation if trainer is None else trainer.implementation
    return launchers if stated is None else stated.over(launchers)


def _law(request: TrainingRequest) -> MemoryLaw:
    return stated_or_launchers(request).memory


def _keeps_buffers(request: TrainingRequest) -> bool:
    """Return True if tensors lie beside the state, which count as overhead."""
    implementation = stated_or_launchers(request)
    return implementation.state_buffers != "none" or implementation.head_gradients != "in-backward"


def _is_quantile(law: MemoryLaw, quantile: float, *, median: float, chance: float) -> bool:
    """Return True if a run of this median exceeds the quantile with that chance."""
    if law.log_sigma == 0.0:
        return agrees(quantile, median)
    return agrees(_chance(law, median, limit=quantile), chance)


def _chance(law: MemoryLaw, median: float, *, limit: float) -> float:
    if law.log_sigma == 0.0:
        return float(median > limit)
    return 0.5 * math.erfc(math.log(limit / median) / law.log_sigma / math.sqrt(2.0))
