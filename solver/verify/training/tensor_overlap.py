"""The rules on products over tp that are cut into chunks, whose gathers and scatters run beside them."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costmodels.model.dims import HIDDEN
from meshwright.costmodels.model.implementation import TensorOverlap
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.problem.choices import Space, TpOverlap
from meshwright.solver.problem.launchers.trainer import CutProducts
from meshwright.solver.problem.launchers.trainers import TRAINERS
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.launchers import BUFFERS, Of
from meshwright.solver.verify.numbers import at_most
from meshwright.solver.verify.rules.devices import devices_by_group
from meshwright.solver.verify.violation import Rule, Violation


def overlap_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """A way that the request allows; chunks only of what is gathered and scattered, by launchers that can, with buffers."""
    allowed = (request.search.tp_overlap if plan.axes.tp > 1 else ()) or (TpOverlap.EXPOSED,)
    if plan.tp_overlap not in allowed:
        given = f"{plan.tp_overlap}, with tp {plan.axes.tp} the request allows {', '.join(allowed)}"
        yield Violation(Rule.SEARCH, "plan.tp_overlap", given)
    if plan.tp_overlap is TpOverlap.EXPOSED:
        return
    if not plan.sequence_parallel or plan.axes.tp == 1:
        given = "chunked, but without sequence parallelism over tp nothing is gathered or scattered"
        yield Violation(Rule.SEQUENCE, "plan.tp_overlap", given)
    if request.search.system is not None:
        given = f"{request.search.system} does not search chunked products"
        yield Violation(Rule.SEARCH, "plan.tp_overlap", given)
    if request.search.space is Space.LAUNCHABLE:
        yield from _launcher_violations(plan, request)
    yield from _buffer_violations(plan, request)


def _launcher_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    launcher, axes, workload = request.search.launcher, plan.axes, request.workload
    cuts = _cuts(request)
    if cuts is None:
        yield Violation(Rule.LAUNCHER, "plan.tp_overlap", f"{launcher}: it cuts no products into chunks")
    links = {group.node.intra.name for stage in plan.stages for group, _ in devices_by_group(request.cluster, stage.devices)}
    for link in sorted(name for name in links if "nvlink" not in name.lower()):
        yield Violation(Rule.LAUNCHER, "plan.tp_overlap", f"{launcher}: chunks travel over NVLink, the nodes have {link}")
    if cuts is None:
        return
    if any(stage.zero_stage > cuts.max_zero for stage in plan.stages):
        given = f"{launcher}: chunks beside its FSDP (ZeRO-2 and 3), which refuses the order of launches that they need"
        yield Violation(Rule.LAUNCHER, "plan.tp_overlap", given)
    rows = workload.seq_len // axes.cp
    if rows % (axes.tp * cuts.rows_a_rank):
        given = f"{launcher}: {rows} rows do not make {cuts.rows_a_rank} parts for each of {axes.tp} ranks"
        yield Violation(Rule.LAUNCHER, "plan.tp_overlap", given)


def _cuts(request: TrainingRequest) -> CutProducts | None:
    limits = None if request.search.space is Space.FREE else TRAINERS.get(request.search.launcher)
    return None if limits is None else limits.cut_products


def _buffer_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Buffers of the residual stream's size stay allocated beside what the framework takes."""
    axes, workload = plan.axes, request.workload
    tokens = plan.microbatch.size * workload.seq_len // axes.cp
    stream = tokens * request.model.dims[HIDDEN] * workload.precision.size_bytes
    cuts = _cuts(request)
    buffers = BUFFERS[TensorOverlap.USERBUFFERS if cuts is None else cuts.tensor_overlap]
    held = stream * buffers.count / (axes.tp if buffers.of is Of.RANK else 1)
    for index, stage in enumerate(plan.stages):
        if not at_most(held, stage.memory.overhead_bytes):
            given = f"{stage.memory.overhead_bytes} bytes claimed, buffers of chunked products alone take {held}"
            yield Violation(Rule.OVERHEAD, f"plan.stages[{index}].memory.overhead_bytes", given)
