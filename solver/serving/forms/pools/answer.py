"""From two pools to the Plan that is handed out: the decode pool's layout, and the prefill pool's beside it."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.costmodels.cluster.cluster import price_per_hour
from meshwright.solver.answer.layouts import EngineLoad, Pools, PrefillWorkers, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, Predicted, RunnerUp, SearchStats, Status
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.calibrations import calibrations_used
from meshwright.solver.serving.engines.layouts import SPACE
from meshwright.solver.serving.forms.pools.pools import MeasuredPools, PlacedPools
from meshwright.solver.serving.promise.candidates import room_note
from meshwright.solver.serving.promise.certificates import DRAFTED, UNITS, bounded_certificate
from meshwright.solver.serving.promise.evaluation import REQUESTS, Evaluator
from meshwright.solver.serving.promise.promised import KeptPlan, kept_plan, promised_of, with_latencies
from meshwright.solver.serving.workers.answer import (
    axes_of,
    decode_point,
    decode_stage_s,
    prompt_point,
    prompt_stage_s,
    stage_memory_of,
    stages_of,
)

POOLS_PROOF = (
    f"prefill and decode pools, each of them: {SPACE}; batch limits of each phase are those with most room. A pair counts "
    f"when the 95% upper confidence limits of its simulated P95 ({REQUESTS} requests, one seed), with the error of simulated "
    "times of pools at slo.confidence, meet the targets. Others are refused by memory, by a request alone, by a throughput "
    "bound of any schedule, by one phase simulated by itself, or by simulation of both; fewer workers and higher rates are "
    "taken never to be better, and decode workers that miss under the arrivals of the whole system to miss behind prefill "
    "workers too"
)

POOLS_GOODPUT = (
    ". The rate is the highest of a grid of 1% at which, and at all of its rates below, the targets are met (simulated down to "
    "half)"
)


POOLS_ENERGY = ". Energy is that of each phase simulated by itself"


def pools_plan(
    request: ServingRequest,
    found: MeasuredPools,
    *,
    evaluator: Evaluator,
    certificate: Certificate,
    stats: SearchStats,
    notes: Sequence[str],
) -> Plan:
    """The plan of pools that keep the promise."""
    pools = found.placed
    prefill, decode = pools.prefill, pools.decode
    tokens_per_s = found.load * evaluator.output.mean
    step_s = decode_stage_s(decode, evaluator)
    load = max(prefill.utilisation, decode.utilisation)
    prompt_s = prompt_stage_s(prefill, evaluator)
    points = prompt_point(prefill, evaluator), decode_point(decode, evaluator)
    layout = Pools(
        prefill=PrefillWorkers(
            workers=prefill.share.replicas,
            axes=axes_of(prefill.candidate.engine.layout, prefill.share.replicas),
            stages=stages_of(prefill, prompt_s, first_rank=pools.prefill_first),
            max_num_seqs=prefill.candidate.sequences,
            max_num_batched_tokens=prefill.candidate.step_tokens,
            utilisation=prefill.utilisation,
            transfer_s=found.mean_transfer_s,
        ),
        decode=Replicas(
            axes=axes_of(decode.candidate.engine.layout, decode.share.replicas),
            stages=stages_of(decode, step_s, first_rank=pools.decode_first),
            load=EngineLoad(
                replicas=decode.share.replicas,
                max_num_seqs=decode.candidate.sequences,
                max_num_batched_tokens=decode.candidate.step_tokens,
                utilisation=decode.utilisation,
                prefill_time_s=float(prompt_s.sum()),
                decode_step_s=float(step_s.sum()),
                mean_batch=found.mean_batch,
            ),
        ),
    )
    promised = promised_of(request, pools=True)
    predicted = Predicted(
        tokens_per_s=tokens_per_s,
        peak_memory_bytes=max(m.total_bytes for pool in (prefill, decode) for m in stage_memory_of(pool)),
        cost_per_million_tokens=_cost_per_million_tokens(pools, tokens_per_s),
        energy_per_token_j=pools.energy_per_token_j,
        power_w=pools.energy_per_token_j * tokens_per_s,
    )
    return Plan(
        kind="serving",
        feasible=True,
        certificate=certificate,
        devices=pools.devices,
        search=stats,
        calibration=calibrations_used(request, points),
        model=request.model.name,
        predicted=with_latencies(predicted, promised, ttft=found.ttft, tpot=found.tpot),
        layout=layout,
        notes=(*notes, room_note(promised, ttft=found.ttft, tpot=found.tpot, load=load)),
    )


def pools_objective(request: ServingRequest, found: MeasuredPools) -> float:
    """The figure that the request's objective minimises."""
    if request.objective is Objective.THROUGHPUT:
        return 1.0 / found.load
    if request.objective is Objective.COST:
        return _price_per_hour(found.placed) or 0.0
    if request.objective is Objective.ENERGY:
        return found.placed.energy_per_token_j
    return float(found.placed.devices)


def pools_certificate(request: ServingRequest, found: MeasuredPools, *, bound: float, space: str) -> Certificate:
    """Return the certificate of a search."""
    more = {Objective.THROUGHPUT: POOLS_GOODPUT, Objective.ENERGY: POOLS_ENERGY}
    drafted = "" if request.workload.speculation is None else DRAFTED
    proof = POOLS_PROOF + more.get(request.objective, "") + drafted + space
    return bounded_certificate(request, pools_objective(request, found), bound, proof)


def predicted_certificate(request: ServingRequest, found: MeasuredPools) -> Certificate:
    """Return the certificate that given pools keep the promise, which says nothing about others."""
    objective = pools_objective(request, found)
    return Certificate(Status.FEASIBLE, objective, None, None, UNITS[request.objective], "this plan only")


def pools_runner_up(request: ServingRequest, found: MeasuredPools, why: str) -> RunnerUp:
    """Pools that lost."""
    figures = f"simulated P95 TTFT {found.ttft.value * 1e3:.0f} ms, P95 TPOT {found.tpot.value * 1e3:.1f} ms"
    return RunnerUp(found.placed.name, pools_objective(request, found), f"{why}: {figures}")


def pools_kept(request: ServingRequest, found: MeasuredPools) -> KeptPlan:
    """Pools that keep the promise, as they are compared with an answer."""
    both = (found.placed.prefill, found.placed.decode)
    return kept_plan(
        found.placed.name,
        objective=pools_objective(request, found),
        splits=1 + sum(each.candidate.engine.layout.splits for each in both),
        promised=promised_of(request, pools=True),
        ttft=found.ttft,
        tpot=found.tpot,
        peak_memory_bytes=max(memory.total_bytes for pool in both for memory in stage_memory_of(pool)),
    )


def _price_per_hour(pools: PlacedPools) -> float | None:
    layouts = [(pool.candidate.engine.layout, pool.share.replicas) for pool in (pools.prefill, pools.decode)]
    return price_per_hour((layout.group.node.device, replicas * layout.devices) for layout, replicas in layouts)


def _cost_per_million_tokens(pools: PlacedPools, tokens_per_s: float) -> float | None:
    per_hour = _price_per_hour(pools)
    return None if per_hour is None else per_hour / 3600.0 / tokens_per_s * 1e6
