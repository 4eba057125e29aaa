"""After one run, what is predicted at that run's load lies between what it was and what was measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

from meshwright.app.base.solving import predict_at_rate, predict_here, solve_here
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.learned import run_group
from meshwright.app.requests.resolve import request_document
from meshwright.app.service.runs import learned_from, observation
from meshwright.app.store.runs import FIGURES_OF, StoredRun, read_run
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.request import ServingRequest
from tests.laws.law import Law
from tests.support.requests_given import resolved, serving, training

ROUNDED = 2e-6
"""How near a search for the likeliest time outside of a simulation ends (`learned_latency`)."""

_SEARCH = {"tp": [1, 2], "pp": [1], "dp": [1, 4]}
_WORK = {
    "kind": "serving",
    "prompt_tokens": {"fixed": 500},
    "output_tokens": {"fixed": 40},
}
_NODE = {"catalog": "dgx-h100", "nodes": 1}


@cache
def _answered(objective: str) -> AnsweredRequest:
    """A plan that is found for an objective, of training or of serving at 3 requests/s."""
    if objective == "training":
        request = resolved(training())
    else:
        arrivals = (
            {"process": "closed", "concurrency": 4} if objective == "clients" else {"process": "poisson", "requests_per_s": 3.0}
        )
        named = "throughput" if objective == "clients" else objective
        request = resolved(
            serving(cluster=_NODE, workload=_WORK | {"arrivals": arrivals}, slo={}, objective=named, search=_SEARCH)
        )
    plan = solve_here(request)
    return AnsweredRequest(replace(plan, digest=keyed_request(request).digest), request)


def _predicted(answered: AnsweredRequest, rate: float | None) -> dict[str, float]:
    """The figures of a plan at a rate, at the one that was asked without."""
    request, plan = answered.request, answered.plan
    is_open = isinstance(request, ServingRequest) and request.workload.arrivals.process == "poisson"
    told = predict_at_rate(request, plan, rate) if is_open else predict_here(request, plan)
    assert told.predicted is not None
    return {name: getattr(told.predicted, name) for name in FIGURES_OF[plan.kind] if name != "tokens_per_s"}


def moves_towards_the_run(objective: str, figure: int, off: float, rate: float | None) -> None:
    answered = _answered(objective)
    if objective in ("training", "clients"):
        rate = None
    before = _predicted(answered, rate)
    name = sorted(before)[figure % len(before)]
    measured = before[name] * off
    if name == "peak_memory_bytes":
        # A whole number of bytes that the device has, beside what an allocator does not count.
        measured = min(round(measured), answered.request.cluster.groups[0].node.device.memory_bytes)
        if answered.plan.kind == "serving":
            return
    document = {"plan": answered.plan.digest, name: measured} | ({} if rate is None else {"requests_per_s": rate})
    seen = observation(read_run(document), answered)
    group = run_group(request_document(answered.request))
    assert group is not None
    row = {each: getattr(seen.row, each) for each in type(seen.row).__dataclass_fields__}
    learned = learned_from(group, (StoredRun(**row, id=1),))
    assert learned is not None, "a run with a time teaches"
    told = replace(answered, request=resolved(request_document(answered.request) | {"calibrations": [learned.document]}))
    after = _predicted(told, rate)[name]
    counted = json.loads(seen.row.predicted)
    assert math.isclose(counted[name], before[name], rel_tol=1e-9), "a run is compared with its own load's figures"
    allowed = measured if name != "peak_memory_bytes" else measured + counted["overhead_bytes"]
    low, high = sorted((before[name], allowed))
    assert low * (1 - ROUNDED) <= after <= high * (1 + ROUNDED), (name, before[name], after, allowed)


LAW = Law(
    sentence="After one run, what is predicted at that run's load lies between what it was and what was measured.",
    drawn={
        "objective": st.sampled_from(["throughput", "devices", "training", "clients"]),
        "figure": st.integers(0, 3),
        "off": st.floats(math.log(0.2), math.log(5.0)).map(math.exp),
        "rate": st.none() | st.floats(0.5, 12.0),
    },
    check=moves_towards_the_run,
    few=25,
    many=800,
    most=6000,
    draw_s=0.05,
)
