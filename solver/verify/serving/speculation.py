"""Rules of workers that verify drafted tokens."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.solver.answer.workers import Workers
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.violation import Rule, Violation


def draft_bytes(request: ServingRequest) -> float:
    """Return the bytes that the draft takes of each device."""
    workload = request.workload
    return 0.0 if workload.speculation is None else workload.speculation.draft.memory_bytes


def proposed_tokens(workers: Workers, request: ServingRequest) -> int:
    """Tokens that the cache must take beside those of answers: the proposals of every sequence that may run."""
    speculation = request.workload.speculation
    return 0 if speculation is None else workers.max_num_seqs * speculation.draft_tokens


def speculation_violations(workers: Workers, request: ServingRequest) -> Iterator[Violation]:
    """No pipeline stages, no ranks that share prompts; a step has room for the last token of every sequence and its
    proposals."""
    speculation, axes = request.workload.speculation, workers.axes
    if speculation is None:
        return
    if axes.pp != 1:
        yield Violation(Rule.AXES, "plan.axes.pp", f"{axes.pp}; tokens are drafted without pipeline stages only")
    if axes.cp != 1:
        yield Violation(Rule.AXES, "plan.axes.cp", f"{axes.cp}; tokens are drafted without ranks that share prompts only")
    needed = workers.max_num_seqs * (1 + speculation.draft_tokens)
    if needed > workers.max_num_batched_tokens:
        given = f"{workers.max_num_batched_tokens}; {workers.max_num_seqs} sequences verify {needed} tokens in a step"
        yield Violation(Rule.BATCH, "plan.serving.max_num_batched_tokens", given)
