"""Every way in which state of a small request's plans may lie, straight from what launchers have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.costmodels.memory.training_state import Offload, Optimizer, Tier
from meshwright.solver.problem.choices import Gradients, Space
from meshwright.solver.problem.request import TrainingRequest

LAUNCHERS_OPTIMIZERS = {
    "megatron-lm": tuple(Optimizer),
    "deepspeed": (Optimizer.ADAMW, Optimizer.SGD_MOMENTUM, Optimizer.MUON),
    "torchtitan": (Optimizer.ADAMW,),
}


@dataclass(frozen=True)
class Place:
    """Shares on the host, the optimizer (None for the workload's), and how long gradients live."""

    offload: Offload
    optimizer: Optimizer | None
    gradients: Gradients


def every_place(request: TrainingRequest, zero: int | None, m: int) -> Iterator[Place]:
    """Every choice beside a ZeRO stage (None for one rank) and a number of micro-batches."""
    for optimizer, offload in itertools.product(every_optimizer(request, zero), every_offload(request, zero)):
        if (optimizer or request.workload.optimizer) is Optimizer.MUON and offload.optimizer:
            continue
        for gradients in request.search.gradients or (Gradients.KEPT,):
            may_go = m == 1 and request.search.space is Space.FREE and not offload.optimizer and not offload.gradients
            if gradients is Gradients.KEPT or may_go:
                yield Place(offload, optimizer, gradients)


def every_optimizer(request: TrainingRequest, zero: int | None) -> Iterator[Optimizer | None]:
    """The workload's own, unless others alone are named, and those that the launcher has: moments of few bits where states are
    sharded, Megatron-LM's Muon where they are not."""
    search, workload = request.search, request.workload
    launcher = search.launcher if search.space is Space.LAUNCHABLE else None
    for one in search.optimizers or (workload.optimizer,):
        if launcher == "megatron-lm" and one is Optimizer.MUON and zero not in (None, 0):
            continue
        if one is workload.optimizer:
            yield None
            continue
        if launcher is not None and one not in LAUNCHERS_OPTIMIZERS[launcher]:
            continue
        if launcher == "megatron-lm" and one in (Optimizer.ADAMW_8BIT, Optimizer.ADAMW_BF16) and zero == 0:
            continue
        yield one


def every_offload(request: TrainingRequest, zero: int | None) -> Iterator[Offload]:
    """Shares on the host that the request allows and the launcher has, of what a device does not share with others: of
    optimizer states that are sharded, or one rank's (no ZeRO stage), in parts where it can."""
    search = request.search
    named = (search.offload_optimizer, search.offload_activations, search.offload_weights, search.offload_gradients)
    for optimizer, activations, weights, gradients in itertools.product(*(shares or (0.0,) for shares in named)):
        if (weights and zero in (0, 1, 2)) or (gradients and zero in (0, 1)):
            continue
        if search.space is Space.LAUNCHABLE and (optimizer or activations or weights or gradients):
            if activations or zero == 0:
                continue
            if search.launcher == "torchtitan" and not (zero == 3 and optimizer == weights == gradients == 1):
                continue
            if search.launcher == "megatron-lm" and (weights or gradients):
                continue
            if search.launcher == "deepspeed":
                if (0 < optimizer < 1 and zero != 3) or (weights and (weights < 1 or zero is None)):
                    continue
                if gradients and (gradients != optimizer or zero is None):
                    continue
        states_on = search.offload_optimizer_to if optimizer and search.offload_optimizer_to else (Tier.HOST,)
        weights_on = search.offload_weights_to if weights and search.offload_weights_to else (Tier.HOST,)
        for optimizer_to, weights_to in itertools.product(states_on, weights_on):
            drives = Tier.NVME in (optimizer_to, weights_to)
            if drives and any(group.node.nvme is None for group in request.cluster.groups):
                continue
            is_deepspeeds = search.launcher == "deepspeed" and zero == 3 and optimizer in (0, 1)
            if drives and search.space is Space.LAUNCHABLE and not is_deepspeeds:
                continue
            yield Offload(optimizer, activations, weights, gradients, optimizer_to, weights_to)
