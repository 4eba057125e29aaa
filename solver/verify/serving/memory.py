"""Memory of serving workers: weights, caches and capacity of every stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.costmodels.model.dims import (
    BATCH,
    EXPERT_FFN,
    EXPERTS,
    FFN,
    HEADS,
    SEQ,
    SHARED_FFN,
    SSM_HEADS,
    SSM_INNER,
    VOCAB,
)
from meshwright.costmodels.model.operators import Operator
from meshwright.solver.answer.layouts import Workers
from meshwright.solver.answer.stage import Axes, Stage
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.rules import (
    REPLICATE,
    ModelSplit,
    capacity_violations,
    owned_parameters,
    picked_dims,
    tied_copies,
)
from meshwright.solver.verify.serving.degrees import kv_bytes_per_token, stage_ranks
from meshwright.solver.verify.serving.load import draft_bytes, mean_lengths, proposed_tokens
from meshwright.solver.verify.violation import Rule, Violation, at_most

_SPLIT_DIMS = (HEADS, FFN, SHARED_FFN, SSM_HEADS, SSM_INNER, VOCAB)


def memory_violations(workers: Workers, request: ServingRequest, *, mean_batch: float) -> Iterator[Violation]:
    """Weights, the cache of ``mean_batch`` requests at once, and capacity of every stage."""
    for index, stage in enumerate(workers.stages):
        where = f"plan.stages[{index}]"
        yield from _weight_violations(workers.axes, request, stage, where)
        yield from _kv_violations(workers, request, stage, where, mean_batch=mean_batch)
        yield from capacity_violations(request, stage, where)


@dataclass(frozen=True, slots=True)
class _ServingShare(ModelSplit):
    """Experts whole on ep groups of ranks, each split inside its group; copies of hot ones beside them."""

    expert_tp: int = 1
    copies: int = 0

    def local(self, block: str, operator: Operator) -> dict[str, int]:
        """Sizes of dims on one rank."""
        if not picked_dims(operator):
            return ModelSplit.local(self, block, operator)
        sizes = dict(self.sizes)
        sizes[EXPERTS] = (sizes[EXPERTS] + self.copies) // self.ep
        if EXPERT_FFN in sizes:
            sizes[EXPERT_FFN] //= self.expert_tp
        return sizes


def serving_share(axes: Axes, request: ServingRequest) -> ModelSplit:
    """Every operator split over tp x kvp by the first dim that engines split."""
    workload = request.workload
    strategies = {}
    for block in request.model.blocks:
        for operator in block.operators:
            dims = [dim for dim in _SPLIT_DIMS if dim in operator.dims]
            strategies[block.name, operator.name] = dims[0] if dims else REPLICATE
    return _ServingShare(
        tp=axes.tp * axes.kvp,
        strategies=strategies,
        sizes={**request.model.dims, BATCH: 1, SEQ: 1},
        ep=axes.ep,
        expert_tp=stage_ranks(axes) // axes.ep,
        copies=workload.experts.redundant_experts,
    )


def _weight_violations(axes: Axes, request: ServingRequest, stage: Stage, where: str) -> Iterator[Violation]:
    """At least every parameter in the narrow format; at most all in 16 bits, as quantised models keep norms and embeddings
    in it. The draft's own memory comes to both."""
    share = serving_share(axes, request)
    owned = sum(span.count * owned_parameters(request.model.block(span.block), share).total for span in stage.blocks)
    copies = tied_copies(request, stage, share)
    draft = draft_bytes(request)
    least = (owned + copies[0]) * request.workload.weight_format.size_bytes + draft
    most = (owned + copies[1]) * 2.0 + draft
    if not (at_most(least, stage.memory.weights_bytes) and at_most(stage.memory.weights_bytes, most)):
        given = f"{stage.memory.weights_bytes} bytes claimed, {owned} parameters take {least} to {most}"
        yield Violation(Rule.WEIGHTS, f"{where}.memory", given)


def _kv_violations(
    workers: Workers, request: ServingRequest, stage: Stage, where: str, *, mean_batch: float
) -> Iterator[Violation]:
    """The cache holds one whole request, and the mean batch at its mean length (prompt and half the output), with
    the proposals of every sequence; of what all prompts begin with it holds one copy."""
    workload = request.workload
    prompt, output = mean_lengths(workload)
    system = 0 if workload.prefix_cache is None else workload.prefix_cache.system_tokens
    batch = system + mean_batch * (max(prompt - system, 0.0) + output / 2)
    tokens = max(prompt + output, batch) + proposed_tokens(workers, request)
    needed = tokens * kv_bytes_per_token(workers.axes, request, stage)
    if not at_most(needed, stage.memory.kv_cache_bytes):
        given = f"{stage.memory.kv_cache_bytes} bytes claimed; {tokens:.0f} tokens at once take {needed}"
        yield Violation(Rule.KV_CACHE, f"{where}.memory", given)
