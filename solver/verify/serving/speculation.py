"""Rules of a plan whose engines verify drafted tokens."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.violation import Rule, Violation


def draft_bytes(request: ServingRequest) -> float:
    """Return the bytes that the draft takes of each device."""
    workload = request.workload
    return 0.0 if workload.speculation is None else workload.speculation.draft.memory_bytes


def proposed_tokens(plan: Plan, request: ServingRequest) -> int:
    """Tokens that the cache must take beside those of answers: the proposals of every sequence that may run."""
    workload, layout = request.workload, plan.serving
    assert layout is not None
    return 0 if workload.speculation is None else layout.max_num_seqs * workload.speculation.draft_tokens


def speculation_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """One pool without pipeline stages; a step has room for the last token of every sequence and its proposals."""
    workload, axes, layout = request.workload, plan.axes, plan.serving
    assert axes is not None and layout is not None
    if workload.speculation is None:
        return
    if plan.prefill is not None:
        yield Violation(Rule.SEARCH, "plan.prefill", "given; tokens are drafted by workers that do both phases only")
    if axes.pp != 1:
        yield Violation(Rule.AXES, "plan.axes.pp", f"{axes.pp}; tokens are drafted without pipeline stages only")
    needed = layout.max_num_seqs * (1 + workload.speculation.draft_tokens)
    if needed > layout.max_num_batched_tokens:
        given = f"{layout.max_num_batched_tokens}; {layout.max_num_seqs} sequences verify {needed} tokens in a step"
        yield Violation(Rule.UTILISATION, "plan.serving.max_num_batched_tokens", given)
