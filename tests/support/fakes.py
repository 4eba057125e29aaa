"""Stand-ins for the solver: plans of the right form without a search, slow ones, and ones that fail."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from meshwright.app.base.solving import OnBeat, ignore_beat
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.document import plan_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import PlanRecord
from meshwright.solver.answer.predicted import (
    UNFINISHED_SEARCH,
    Band,
    CalibrationUse,
    Certificate,
    Predicted,
    Reason,
    RunnerUp,
    SearchStats,
    Status,
    TimeBreakdown,
)
from meshwright.solver.answer.stage import Axes, DeviceRange, LayerSpan, Microbatch, Stage, StageMemory
from meshwright.solver.control import Progress
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.request import PlanRequest

GIB = 2.0**30


def stage_memory(total_gib: float = 40.0) -> StageMemory:
    """Memory of a stage that holds about this much."""
    part = total_gib * GIB / 4
    return StageMemory(part, part, part, part / 2, part / 4, part / 4, capacity_bytes=76 * GIB)


def feasible_plan(request: PlanRequest, *, pp: int = 2) -> Plan:
    """A plan of ``pp`` equal stages; its figures are made up."""
    n_devices = request.cluster.n_devices
    pp = min(pp, n_devices)
    per_stage = n_devices // pp
    stages = tuple(
        Stage(
            blocks=(LayerSpan("layer", 16 * i, 16),),
            devices=(DeviceRange(per_stage * i, per_stage),),
            axes=Axes(dp=per_stage),
            recompute=Recompute.SELECTIVE,
            zero_stage=1,
            time_s=0.25,
            extra_s=0.1,
            in_flight=pp - i,
            memory=stage_memory(40.0 - i),
        )
        for i in range(pp)
    )
    return plan_of(
        PlanRecord(
            kind="training",
            feasible=True,
            certificate=Certificate(Status.OPTIMAL, 16.0, 16.0, 0.0, "s", "launchable"),
            devices=n_devices,
            search=SearchStats(candidates=120, evaluated=60, seconds=0.5),
            calibration=(CalibrationUse("h100_sxm/1", "h100-sxm-80gb", 0.06, 0.14, "held-out GEMM rows"),),
            model=request.model.name,
            predicted=Predicted(
                tokens_per_s=65_536.0,
                peak_memory_bytes=40 * GIB,
                step_time_s=16.0,
                mfu=0.452,
                bands={"tokens_per_s": Band(60_000.0, 70_000.0, "calibration")},
            ),
            axes=Axes(dp=per_stage, pp=pp),
            stages=stages,
            schedule="1f1b",
            microbatch=Microbatch(size=1, count=16),
            breakdown=TimeBreakdown(12.0, 0.5, 0.8, 0.0, 0.2, 0.5, 1.5, 0.5),
            runners_up=(RunnerUp("dp 8", 16.8, "5% slower: gradients are reduced across all devices"),),
        )
    )


def infeasible_plan(request: PlanRequest) -> Plan:
    """The answer no, for memory."""
    return Plan(
        kind="training",
        feasible=False,
        certificate=Certificate(Status.INFEASIBLE, None, None, None, "s", "launchable"),
        devices=request.cluster.n_devices,
        search=SearchStats(candidates=12, evaluated=0, seconds=0.01),
        calibration=(),
        model=request.model.name,
        reason=Reason(
            constraint="device memory",
            need=400 * GIB,
            have=76 * GIB,
            unit="bytes",
            message="weights and optimizer state alone do not fit",
            stage=0,
            remedies=("use at least 6 nodes", "use devices with more memory"),
        ),
    )


def undecided_plan(request: PlanRequest) -> Plan:
    """The answer of a search that was stopped too early."""
    reason = Reason(UNFINISHED_SEARCH, 2.0, 1.0, "candidates", "whether there is a plan is not known")
    none = infeasible_plan(request)
    return replace(none, certificate=replace(none.certificate, status=Status.UNDECIDED), reason=reason)


class FakeSolver:
    """Answers with ``feasible_plan`` and counts its calls; waits for ``gate`` first, raises ``failure`` if there is one."""

    def __init__(self, *, gate: threading.Event | None = None, failure: Exception | None = None):
        self.calls = 0
        self.closed = False
        self.progress: Progress | None = None
        self._gate = gate
        self._failure = failure

    def __call__(self, request: PlanRequest, on_beat: OnBeat = ignore_beat) -> Plan:
        self.calls += 1
        if self._gate is not None:
            deadline_s = time.monotonic() + 30
            while not self._gate.wait(0.02):
                assert time.monotonic() < deadline_s
                on_beat(self.progress)
        if self._failure is not None:
            raise self._failure
        return feasible_plan(request)

    def close(self) -> None:
        self.closed = True


def fake_predict(request: PlanRequest, plan: Plan) -> Plan:
    """The plan as it is but for its digest, if it has the request's devices."""
    if plan.devices != request.cluster.n_devices:
        raise InvalidInputError("the plan is for another cluster", given=plan.devices, allowed=str(request.cluster.n_devices))
    return replace(plan, digest="")
