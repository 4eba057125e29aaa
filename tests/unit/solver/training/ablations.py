"""Searches without one of the choices that a training search has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.costmodels.memory.training_state import Tier
from meshwright.costmodels.pipeline import TOKEN_SLICED, Schedule
from meshwright.solver.problem.choices import (
    BatchShares,
    Gradients,
    GroupOrder,
    Launcher,
    Recompute,
    Space,
    StageDegrees,
    TpOverlap,
)
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search
from tests.unit.solver.training.instances import modes_of

ONE_PART_A_RANK = (
    Schedule.GPIPE,
    Schedule.ONE_F_ONE_B,
    Schedule.EAGER_ONE_F_ONE_B,
    Schedule.ZB_H1,
    Schedule.ZB_H2,
    Schedule.DUALPIPE,
)


def memory_ablations(request: TrainingRequest) -> Iterator[tuple[str, Search]]:
    """The request's search without each memory choice that is closed unless asked for, where going without is among its own."""
    search = request.search
    if search.optimizers:
        yield "optimizers", replace(search, optimizers=())
    if Gradients.KEPT in search.gradients:
        yield "released gradients", replace(search, gradients=())
    if 0.0 in search.offload_optimizer:
        yield "optimizer states on the host", replace(search, offload_optimizer=())
    if 0.0 in search.offload_activations:
        yield "activations on the host", replace(search, offload_activations=())
    if 0.0 in search.offload_weights:
        yield "weights on the host", replace(search, offload_weights=())
    if 0.0 in search.offload_gradients:
        yield "gradients on the host", replace(search, offload_gradients=())
    if Tier.HOST in search.offload_optimizer_to:
        yield "optimizer states on drives", replace(search, offload_optimizer_to=())
    if Tier.HOST in search.offload_weights_to:
        yield "weights on drives", replace(search, offload_weights_to=())


def ablations(request: TrainingRequest) -> Iterator[tuple[str, Search]]:
    """The request's search without each choice in turn, where it has the choice and something is left."""
    search, n = request.search, request.cluster.n_devices
    divisors = tuple(d for d in range(2, n + 1) if n % d == 0)
    without_axis = {
        "dp": replace(search, dp=(1,)),
        "tp": replace(search, tp=(1,)),
        **({"pp": replace(search, pp=(1,))} if not search.pp or 1 in search.pp else {}),
        "cp": replace(search, cp=(1,)),
        "ep": replace(search, ep=(1,)),
        "experts of one rank": replace(search, etp=divisors),
        "exchanges of heads": replace(search, ulysses=(1,)),
    }
    yield from without_axis.items()
    if not search.zero_stages or 3 in search.zero_stages:
        yield "sharding within groups", replace(search, shard_ranks=(1, *divisors))
    yield from memory_ablations(request)
    if search.stage_degrees is StageDegrees.ANY:
        yield "stages that differ", replace(search, stage_degrees=StageDegrees.SAME)
    if search.batch_shares is BatchShares.BY_GROUP:
        yield "replicas by node group", replace(search, batch_shares=BatchShares.EVEN)
    if search.idle_groups:
        yield "idle devices", replace(search, idle_groups=())
    of_whole = tuple(schedule for schedule in search.schedules if schedule not in TOKEN_SLICED)
    if 1 in search.token_slices and (of_whole or not search.schedules):
        yield "token slices", replace(search, token_slices=(), schedules=of_whole)
    if not search.tp_overlap or TpOverlap.EXPOSED in search.tp_overlap:
        yield "chunked products", replace(search, tp_overlap=(TpOverlap.EXPOSED,))
    yield "gathered keys", replace(search, cp_keys=(CpKeys.RING,))
    yield "orders of node groups", replace(search, group_order=GroupOrder.GIVEN)
    for mode in Recompute:
        left = tuple(m for m in search.recompute or modes_of(search.space, search.launcher) if m is not mode)
        if left:
            yield f"recompute {mode.value}", replace(search, recompute=left)
    for stage in range(4):
        stages = tuple(s for s in search.zero_stages or range(4) if s != stage)
        if stages:
            yield f"ZeRO-{stage}", replace(search, zero_stages=stages)
    left_schedules = tuple(s for s in search.schedules or tuple(Schedule) if s in ONE_PART_A_RANK)
    if left_schedules:
        yield "several parts a rank", replace(search, schedules=left_schedules)
    if not search.schedules and (search.space is Space.FREE or search.launcher is not Launcher.DEEPSPEED):
        yield "schedules beside 1F1B", replace(search, schedules=(Schedule.ONE_F_ONE_B,))
