"""Requests whose devices hold a model on one stage only with some of its layers recomputed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.planned import planned

PLENTY_BYTES = 10**13


def layered_request(seed: int) -> TrainingRequest:
    """A random request on one stage, with memory between what all layers recomputed need and none."""
    rng, asked = np.random.default_rng([seed, 5]), random_request(seed)
    launcher = asked.search.launcher if asked.search.space is Space.FREE else Launcher.MEGATRON_LM
    narrow = {"tp": (1,), "cp": (1,), "pp": (1,), "zero_stages": (0, 1), "microbatch": (1,)}
    # Memory lies between two medians.
    search = Search(space=asked.search.space, launcher=launcher, risk=0.5, **narrow)  # type: ignore[arg-type]
    workload = replace(asked.workload, global_batch=2 * asked.cluster.n_devices)
    asked = replace(asked, search=search, workload=workload)
    least, most = (_peak_bytes(asked, mode) for mode in (Recompute.FULL, Recompute.NONE))
    return with_memory(asked, int((least + rng.uniform(0.1, 0.9) * (most - least)) / (1.0 - asked.cluster.memory_reserve)))


def piped_request(seed: int) -> TrainingRequest:
    """A random request on two stages of up to a dozen layers under one schedule, that may recompute one to three layers of each
    part, with memory between what all layers recomputed need and none."""
    rng, asked = np.random.default_rng([seed, 7]), layered_request(seed)
    runs = tuple(
        replace(run, repeat=run.repeat * (1 if run.block in ("embedding", "head") else 2)) for run in asked.model.chain
    )
    schedule = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)[int(rng.integers(2))]
    modes = (Recompute.NONE, Recompute.FULL)
    search = replace(
        asked.search, pp=(2,), recompute=modes, recompute_layers=(1, 2, 3), schedules=(schedule,), zero_stages=(1,)
    )
    asked = replace(asked, search=search, model=replace(asked.model, chain=runs))
    least, most = (_peak_bytes(asked, mode) for mode in modes[::-1])
    return with_memory(asked, int((least + rng.uniform(0.2, 0.8) * (most - least)) / (1.0 - asked.cluster.memory_reserve)))


def with_memory(request: TrainingRequest, memory_bytes: int) -> TrainingRequest:
    """The request with so much memory on every device."""
    groups = (
        replace(group, node=replace(group.node, device=replace(group.node.device, memory_bytes=memory_bytes)))
        for group in request.cluster.groups
    )
    return replace(request, cluster=Cluster(tuple(groups), memory_reserve=request.cluster.memory_reserve))


def _peak_bytes(request: TrainingRequest, mode: Recompute) -> float:
    """Return the memory that the fullest device needs under a mode of all layers, with ZeRO-1."""
    search = replace(request.search, recompute=(mode,), zero_stages=(1,))
    plan = planned(with_memory(replace(request, search=search), PLENTY_BYTES))
    assert plan.predicted is not None
    return plan.predicted.peak_memory_bytes
