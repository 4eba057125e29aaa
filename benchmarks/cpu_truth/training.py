"""Runs of the plans under PyTorch on CPU ranks joined by Gloo: seconds of a training step, the slowest rank deciding."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from model import LAYERS, VOCAB, Transformer, loss_of, split_loss_of
from plans import GLOBAL_BATCH, SEQ_LEN, TruthPlan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from meshwright.solver.problem.choices import Recompute

Step = Callable[[], None]
WARM_UP_STEPS = 1


def measure(plans: list[TruthPlan], *, steps: int) -> dict[str, list[float]]:
    """Seconds of ``steps`` steps of each plan by name; the plans all have the same number of ranks."""
    ranks = plans[0].ranks
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        answers = context.SimpleQueue()
        store = os.path.join(folder, "store")
        processes = [context.Process(target=_run, args=(rank, ranks, plans, steps, store, answers)) for rank in range(ranks)]
        for process in processes:
            process.start()
        try:
            measured: dict[str, list[float]] = answers.get()
        finally:
            for process in processes:
                process.join(60)
                process.kill()
    return measured


def _run(rank: int, ranks: int, plans: list[TruthPlan], steps: int, store: str, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    measured = {}
    for plan in plans:
        step = _step_of(plan, rank)
        for _ in range(WARM_UP_STEPS):
            step()
        seconds = []
        for _ in range(steps):
            dist.barrier()
            began_s = time.perf_counter()
            step()
            dist.barrier()
            seconds.append(time.perf_counter() - began_s)
        measured[plan.name] = seconds
        dist.barrier()
    if rank == 0:
        answers.put(measured)
    dist.destroy_process_group()


def _step_of(plan: TruthPlan, rank: int) -> Step:
    tokens = torch.randint(
        0, VOCAB, (GLOBAL_BATCH // plan.dp, SEQ_LEN + 1), generator=torch.Generator().manual_seed(rank // plan.tp)
    )
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    recompute = plan.recompute is Recompute.FULL
    if plan.pp > 1:
        return _pipeline_step(plan, rank, inputs, targets, recompute=recompute)
    model: torch.nn.Module
    loss = loss_of
    if plan.zero_stage == 3:
        model = Transformer(recompute=recompute)
        mesh = init_device_mesh("cpu", (plan.dp,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        replicas, group = _groups(plan, rank)
        model = Transformer(recompute=recompute, group=group, degree=plan.tp)
        if group is not None:
            loss = partial(split_loss_of, group=group, first_row=model.first_row)
        if plan.dp > 1:
            model = DistributedDataParallel(model, process_group=replicas)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _groups(plan: TruthPlan, rank: int) -> tuple[Any, Any]:
    """The replicas of this rank's shard, and the ranks that split its layers; every rank makes every group."""
    replicas = [dist.new_group(list(range(shard, plan.ranks, plan.tp))) for shard in range(plan.tp)]
    shards = [dist.new_group(list(range(first, first + plan.tp))) for first in range(0, plan.ranks, plan.tp)]
    return replicas[rank % plan.tp], shards[rank // plan.tp] if plan.tp > 1 else None


def _pipeline_step(plan: TruthPlan, rank: int, inputs: Any, targets: Any, *, recompute: bool) -> Step:
    each = LAYERS // plan.pp
    part = Transformer(recompute=recompute, first=rank * each, last=(rank + 1) * each)
    stage = PipelineStage(part, rank, plan.pp, torch.device("cpu"))
    schedule = Schedule1F1B(stage, plan.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
