"""A log beside the plan that its run is to be stored of: where the two are not of one workload, and what ran then."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.app.base.plan_words import rates_of
from meshwright.app.base.solving import predict_here
from meshwright.app.evidence.logs.stated import Figure, Stated
from meshwright.app.models.catalog import model
from meshwright.app.models.catalog.copies import copy_of
from meshwright.app.requests.limits import Entry
from meshwright.app.requests.plan_documents import answer_document
from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.app.store.fleet import canonical_digest
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.queueing.load import TokenCount
from meshwright.solver.answer.layouts import OfWorkers, Uniform
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest, ServingWorkload, TrainingRequest, TrainingWorkload
from meshwright.solver.problem.serving_load import (
    ClosedArrivals,
    EmpiricalLength,
    GammaArrivals,
    LognormalLength,
    PoissonArrivals,
    ScheduleArrivals,
    TraceArrivals,
)
from meshwright.solver.problem.token_counts import token_count

RATE_OFF = 0.02
"""Relative difference of two request rates that are one: clients round theirs."""
CV_OFF = 0.05
"""Difference of two coefficients of variation that are one."""
ANSWERED_OFF = 0.25
"""Relative difference of the rate of answers from that of requests in a short run, whose last answers take their time."""
KEPT_UP = 0.9
"""Share of the requested rate from which a limit of requests at once has not been felt."""
TOKENS_OFF = 0.05
"""Relative difference of mean lengths that are one: tokenizers and templates count a few tokens more or fewer."""
SAMPLING_DEVIATIONS = 3.0
"""Standard deviations that the mean of drawn lengths may be off besides."""
ASSUMED_REQUESTS = 100.0
"""Requests of a benchmark that does not say how many it sent."""
LEAST_BUSY = 0.5
"""Share of a limit of requests at once that is used on average, at least: a run begins and ends with fewer."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A figure in which a log is not of the plan's workload.

    what, logged, planned   the figure's name, what the log states, what the plan is for
    option                  of a command that plans the log's workload
    workload                the fields of the log's workload; empty where it can't be of another request of the plan's layout
    """

    what: str
    logged: str
    planned: str
    option: str = ""
    workload: Mapping[str, Any] = field(default_factory=dict)


def require_match(stated: Stated, answered: AnsweredRequest) -> None:
    """Raise InvalidInputError, with both figures, where a log is of another workload than the plan."""
    found = mismatches(stated, answered)
    if found:
        options = " ".join(each.option for each in found if each.option)
        plan = f"plan what ran ({options})" if options else "name the plan that ran"
        as_run = ", or give --as-run" if all(each.workload for each in found) else ""
        raise _refused(found, f"{plan}{as_run}")


def workload_as_run(stated: Stated, answered: AnsweredRequest) -> dict[str, Any]:
    """Return the fields of the workload in which the log differs from the plan; raises InvalidInputError where it differs in
    what the plan's layout can't be predicted for."""
    found = mismatches(stated, answered)
    fixed = [each for each in found if not each.workload]
    if fixed:
        raise _refused(fixed, "name the plan that ran: --as-run changes batch, lengths and load alone")
    changes: dict[str, Any] = {}
    for each in found:
        changes |= each.workload
    return changes


def _refused(found: list[Mismatch], remedy: str) -> InvalidInputError:
    return InvalidInputError(
        "the log is not of the plan's workload",
        given="; ".join(f"{each.what} {each.logged}" for each in found),
        allowed="what the plan is for: " + "; ".join(f"{each.what} {each.planned}" for each in found),
        remedy=remedy,
    )


def mismatches(stated: Stated, answered: AnsweredRequest) -> list[Mismatch]:
    """Return each figure that a log states and in which it is of another workload than the plan."""
    kind = _LOGS[answered.request.workload.kind]
    return [*_devices_and_model(stated, answered), *kind.mismatches(stated, answered.plan, answered.request)]


def not_compared(stated: Stated, answered: AnsweredRequest) -> list[str]:
    """Return the names of figures that decide a workload and that a log does not state."""
    told = _LOGS[answered.request.workload.kind].told(stated, answered.request.workload)
    unknown = stated.model if stated.model and copy_of(stated.model) is None else ""
    return [*(each for each, known in told.items() if known is None), *([f"model ({unknown})"] if unknown else [])]


def _devices_and_model(stated: Stated, answered: AnsweredRequest) -> Iterator[Mismatch]:
    if stated.devices is not None and not stated.devices.allows(answered.plan.devices):
        yield Mismatch("devices", str(stated.devices), str(answered.plan.devices))
    layout = answered.plan.layout
    if stated.engine_devices is not None and isinstance(layout, OfWorkers):
        # Engines count ranks of attention groups, shared prompts and split caches among those of tp.
        sizes = sorted({_ranks(each.axes) for each in layout.all_workers})
        if not any(stated.engine_devices.allows(size) for size in sizes):
            yield Mismatch("tp x pp of an engine", str(stated.engine_devices), " or ".join(map(str, sizes)))
    if stated.model is not None and _is_another(stated.model, answered.request.model.name):
        yield Mismatch("model", stated.model, answered.request.model.name)


def _ranks(axes: Axes) -> int:
    return axes.tp * axes.pp * axes.cp * axes.kvp * axes.attention_dp


def _is_another(logged: str, planned: str) -> bool:
    """True of two names that are known, of models that are not the same: names that are not known tell nothing."""
    ours, theirs = copy_of(planned), copy_of(logged)
    if ours is None or theirs is None or not (ours.is_sure and theirs.is_sure) or ours.name == theirs.name:
        return False
    return replace(model(ours.name), name="") != replace(model(theirs.name), name="")


# Training: batch, sequence length.


def _told_of_training(stated: Stated, workload: TrainingWorkload) -> dict[str, object]:
    """The figures that decide the workload, as far as a log states them."""
    return {
        "batch": stated.global_batch or stated.tokens_per_step,
        "sequence length": stated.seq_len or stated.tokens_per_step,
    }


def _training(stated: Stated, plan: Plan, request: TrainingRequest) -> Iterator[Mismatch]:
    workload = request.workload
    batch, seq_len, tokens = stated.global_batch, stated.seq_len, stated.tokens_per_step
    if batch is not None and not batch.allows(workload.global_batch):
        yield Mismatch("global batch", str(batch), str(workload.global_batch), *_changed("--batch", "global_batch", batch))
    if seq_len is not None and not seq_len.allows(workload.seq_len):
        yield Mismatch("sequence length", str(seq_len), str(workload.seq_len), *_changed("--seq", "seq_len", seq_len))
    planned = float(workload.global_batch * workload.seq_len)
    told_apart = batch is not None and seq_len is not None
    if tokens is None or told_apart or workload.lengths is not None or tokens.value == planned:
        return
    if abs(tokens.value - planned) > TOKENS_OFF * planned:
        yield Mismatch("tokens of a step", f"{tokens.value:.6g}", f"{planned:.6g}")


def _changed(option: str, name: str, stated: Figure) -> tuple[str, dict[str, Any]]:
    """The option and the field of a workload that has a stated whole number; nothing where there is none such."""
    whole = round(stated.value) if 1.0 <= stated.value < 2.0**53 else 0
    return (f"{option} {whole}", {name: whole}) if whole and stated.allows(whole) else ("", {})


# Serving: load, lengths.


def _told_of_serving(stated: Stated, workload: ServingWorkload) -> dict[str, object]:
    """The figures that decide the load and its lengths, as far as a log states them."""
    is_closed = isinstance(workload.arrivals, ClosedArrivals)
    load = (stated.requests_per_s, stated.max_concurrency, stated.mean_concurrency if is_closed else stated.answered_per_s)
    return {"load": next((each for each in load if each), None), "lengths": stated.prompt_tokens and stated.output_tokens}


def _serving(stated: Stated, plan: Plan, request: ServingRequest) -> Iterator[Mismatch]:
    highest = rates_of(plan, request)
    yield from _load(stated, request.workload, () if highest is None else (highest.most,))
    for name, option, mean in (
        ("prompt_tokens", "--isl", stated.prompt_tokens),
        ("output_tokens", "--osl", stated.output_tokens),
    ):
        planned = _planned_count(request.workload, name)
        if mean is None or _is_mean_of(mean.value, planned, stated.requests):
            continue
        what = "mean tokens of a prompt" if name == "prompt_tokens" else "mean tokens of an answer"
        length = _as_long(request.workload, name, mean.value)
        changed = {} if length is None else {name: length}
        yield Mismatch(what, f"{mean.value:.6g}", f"{planned.mean:.6g}", f"{option} {max(1, round(mean.value))}", changed)


def _planned_count(workload: ServingWorkload, name: str) -> TokenCount:
    if isinstance(workload.arrivals, TraceArrivals):
        return TokenCount.empirical(getattr(workload.arrivals, name))
    length = getattr(workload, name)
    assert length is not None, "only a trace has lengths of its own"
    return token_count(length)


def _is_mean_of(mean: float, planned: TokenCount, requests: Figure | None) -> bool:
    """True if so many lengths that are drawn from the plan's may have this mean."""
    count = max(1.0, requests.value if requests is not None else ASSUMED_REQUESTS)
    variation = math.sqrt(max(0.0, planned.second_moment / planned.mean**2 - 1.0))
    off = TOKENS_OFF + SAMPLING_DEVIATIONS * variation / math.sqrt(count)
    return abs(mean - planned.mean) <= off * planned.mean


def _as_long(workload: ServingWorkload, name: str, mean: float) -> dict[str, float] | None:
    """Lengths of this mean, fixed or lognormal as the plan's are; None where the plan's are those of a list or a trace."""
    if isinstance(workload.arrivals, TraceArrivals):
        return None
    length = getattr(workload, name)
    if isinstance(length, EmpiricalLength):
        return None
    if isinstance(length, LognormalLength):
        return {"mean": mean, "p95": mean * length.p95 / length.mean}
    return {"fixed": max(1, round(mean))}


@dataclass(frozen=True, slots=True)
class _SentLoad:
    """The load that a log says was sent: at a rate, or so many requests at once."""

    requests_per_s: Figure | None
    at_once: float | None
    words: str


def _load(stated: Stated, workload: ServingWorkload, besides: Sequence[float]) -> Iterator[Mismatch]:
    """The load, which may also be one of the rates ``besides`` the one that was asked for."""
    arrivals, sent = workload.arrivals, _sent(stated)
    if isinstance(arrivals, ClosedArrivals):
        yield from _closed(stated, sent, arrivals)
        return
    planned = f"{arrivals.requests_per_s:g} requests/s"
    if sent is not None:
        rates = [each.requests_per_s for each in arrivals.intervals] if isinstance(arrivals, ScheduleArrivals) else []
        if not any(_is_rate(sent.requests_per_s, each) for each in (arrivals.requests_per_s, *rates, *besides)):
            option, changed = _to_load(sent)
            yield Mismatch("load", sent.words, planned, option, {} if isinstance(arrivals, TraceArrivals) else changed)
        planned_cv, cv = _planned_cv(workload), stated.arrival_cv
        if (
            sent.requests_per_s is not None
            and planned_cv is not None
            and cv is not None
            and abs(cv.value - planned_cv) > CV_OFF
        ):
            yield Mismatch("coefficient of variation of arrivals", f"{cv.value:.3g}", f"{planned_cv:.3g}")
    elif stated.answered_per_s is not None:
        answered_per_s = stated.answered_per_s.value
        if abs(answered_per_s - arrivals.requests_per_s) > ANSWERED_OFF * arrivals.requests_per_s:
            yield Mismatch("load", f"{answered_per_s:.4g} requests/s answered", planned, f"--rate {answered_per_s:.4g}")


def _planned_cv(workload: ServingWorkload) -> float | None:
    match workload.arrivals:
        case PoissonArrivals():
            return 1.0
        case GammaArrivals():
            return workload.arrivals.cv
    return None


def _closed(stated: Stated, sent: _SentLoad | None, arrivals: ClosedArrivals) -> Iterator[Mismatch]:
    planned, mean = f"{arrivals.concurrency} requests at once", stated.mean_concurrency
    if sent is not None and not stated.is_queued:
        if sent.at_once != arrivals.concurrency:
            yield Mismatch("load", sent.words, planned, *_to_load(sent))
    elif mean is not None and not LEAST_BUSY <= mean.value / arrivals.concurrency <= 1.0 + RATE_OFF:
        yield Mismatch("load", f"{mean} requests at once on average", planned, f"--concurrency {math.ceil(mean.value)}")
    each = arrivals.requests_per_client
    if each is not None and stated.requests is not None and stated.requests.value != each * arrivals.concurrency:
        yield Mismatch("requests of the run", str(stated.requests), str(each * arrivals.concurrency))


def _sent(stated: Stated) -> _SentLoad | None:
    """The load that a log states; None where it states none."""
    sent, limit, answered = stated.requests_per_s, stated.max_concurrency, stated.answered_per_s
    if stated.is_queued:
        mean = "" if stated.mean_concurrency is None else f", {stated.mean_concurrency} on average"
        return _SentLoad(None, None, f"as many requests at once as the engine lets in{mean}")
    if sent is not None and math.isfinite(sent.value):
        if limit is None or (answered is not None and answered.value >= KEPT_UP * sent.value):
            return _SentLoad(sent, None, f"{sent} requests/s")
        return _SentLoad(None, limit.value, f"{limit} requests at once, at most {sent} requests/s")
    if limit is not None:
        return _SentLoad(None, limit.value, f"{limit} requests at once")
    if sent is None:
        return None
    if stated.requests is None:
        return _SentLoad(None, None, "all requests at once")
    return _SentLoad(None, stated.requests.value, f"all {stated.requests} requests at once")


def _to_load(sent: _SentLoad) -> tuple[str, dict[str, Any]]:
    """The option and the field of a workload that has this load; nothing where there is none such."""
    if sent.requests_per_s is not None:
        rate = sent.requests_per_s.value
        return f"--rate {rate:g}", {"arrivals": {"process": "poisson", "requests_per_s": rate}}
    if sent.at_once is not None and sent.at_once == round(sent.at_once):
        at_once = round(sent.at_once)
        return f"--concurrency {at_once}", {"arrivals": {"process": "closed", "concurrency": at_once}}
    return "", {}


def _is_rate(stated: Figure | None, planned: float) -> bool:
    return stated is not None and abs(stated.value - planned) <= RATE_OFF * planned


def rate_besides(stated: Stated, answered: AnsweredRequest) -> float | None:
    """The requests a second that a log says were sent, where they are not those that its plan was asked for."""
    request, sent = answered.request, _sent(stated)
    if not isinstance(request, ServingRequest) or sent is None or sent.requests_per_s is None:
        return None
    arrivals = request.workload.arrivals
    if isinstance(arrivals, ClosedArrivals) or _is_rate(sent.requests_per_s, arrivals.requests_per_s):
        return None
    return sent.requests_per_s.value


def as_run(stated: Stated, answered: AnsweredRequest) -> AnsweredRequest:
    """The same layout predicted anew for the workload that a log states, under a digest of its own: a run of it is no run of
    the plan. The plan itself where the log is of its workload.

    Raises InvalidInputError where the layout can't run that workload, or would not fit.
    """
    changes = workload_as_run(stated, answered)
    if not changes:
        return answered
    document = request_document(answered.request)
    # Targets and objective are the plan's; a run that misses them ran all the same, and at its own load, not at the highest.
    changed = {"slo": {"confidence": document["slo"]["confidence"]}, "workload": document["workload"] | changes}
    kind = _LOGS[answered.request.workload.kind]
    changed |= kind.changed
    asked = resolve_request({**document, **changed}, files=NoFiles(), entry=Entry.STORED)
    plan = predict_here(asked, kind.as_run(answered.plan, asked))
    if plan.reason is not None:
        raise InvalidInputError(
            "the plan's layout is predicted not to run the log's workload",
            given=plan.reason.message,
            remedy="plan what ran, and name that plan",
        )
    ran = AnsweredRequest(plan, asked)
    return replace(ran, plan=replace(plan, digest=canonical_digest({"as_run": answer_document(ran)})))


def _with_batch(plan: Plan, request: TrainingRequest) -> Plan:
    """The plan with as many micro-batches as the batch of a request takes."""
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


# What differs by the kind of workload.


@dataclass(frozen=True, slots=True)
class KindLogs:
    """How logs of a kind of workload are compared with plans.

    mismatches  figures of another workload than the plan's
    told        figures that decide the workload, as far as a log states them
    changed     fields of the request of what ran besides
    as_run      the plan's layout as it ran that request
    """

    mismatches: Callable[[Stated, Plan, Any], Iterator[Mismatch]]
    told: Callable[[Stated, Any], dict[str, object]]
    changed: Mapping[str, str]
    as_run: Callable[[Plan, Any], Plan]


_LOGS: Mapping[str, KindLogs] = {
    "training": KindLogs(_training, _told_of_training, {}, _with_batch),
    "serving": KindLogs(_serving, _told_of_serving, {"objective": Objective.DEVICES.value}, lambda plan, request: plan),
}
"""Logs by the kind of workload."""
