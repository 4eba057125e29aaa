"""A plan's layout under the workload that a log states: what ran, where it was not what the plan is for."""

from __future__ import annotations

from dataclasses import replace

from meshwright.app.base.solving import predict_here
from meshwright.app.evidence.logs.matching import workload_as_run
from meshwright.app.evidence.logs.stated import Stated
from meshwright.app.requests.limits import Entry
from meshwright.app.requests.plan_documents import answer_document
from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.app.store.fleet import canonical_digest
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.layouts import Uniform
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.problem.request import PlanRequest, TrainingRequest


def as_run(stated: Stated, answered: AnsweredRequest) -> AnsweredRequest:
    """The same layout predicted anew for the workload that a log states, under a digest of its own: a run of it is no run of
    the plan. The plan itself where the log is of its workload.

    Raises InvalidInputError where the layout can't run that workload, or would not fit.
    """
    changes = workload_as_run(stated, answered)
    if not changes:
        return answered
    document = request_document(answered.request)
    # Targets are the plan's; a run that misses them ran all the same.
    targets = {"confidence": document["slo"]["confidence"]}
    asked = resolve_request(
        {**document, "slo": targets, "workload": document["workload"] | changes}, files=NoFiles(), entry=Entry.STORED
    )
    plan = predict_here(asked, _with_batch(answered.plan, asked))
    if plan.reason is not None:
        raise InvalidInputError(
            "the plan's layout is predicted not to run the log's workload",
            given=plan.reason.message,
            remedy="plan what ran, and name that plan",
        )
    ran = AnsweredRequest(plan, asked)
    return replace(ran, plan=replace(plan, digest=canonical_digest({"as_run": answer_document(ran)})))


def _with_batch(plan: Plan, request: PlanRequest) -> Plan:
    """The plan with as many micro-batches as the batch of a request takes."""
    if not isinstance(request, TrainingRequest):
        return plan
    layout, batch = plan.layout, request.workload.global_batch
    if not isinstance(layout, Uniform):
        return plan
    micro, dp = layout.pipelines.microbatch, layout.pipelines.axes.dp
    count, rest = divmod(batch, micro.size * dp)
    if rest or count == 0:
        raise InvalidInputError(
            "the plan's layout can't train on the log's batch",
            given=f"{batch} sequences",
            allowed=f"a multiple of dp x micro-batch, {dp} x {micro.size}",
            remedy="name the plan that ran",
        )
    pipelines = replace(layout.pipelines, microbatch=replace(micro, count=count))
    return replace(plan, layout=replace(layout, pipelines=pipelines))
