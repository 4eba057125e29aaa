"""Measuring kernels and collectives with PyTorch on the machine at hand.

All ranks measure the same shape at the same time: where ranks share cores, memory or power, as on a CPU, a kernel takes as
long as it will in a job of so many ranks. A time is the median of repeats, averaged over ranks.

On a CPU ranks compete for cores, and so does what joins them. Where threads outnumber cores, a kernel takes the processor
time that it uses, times the threads for each core: no core is idle while another rank can run. A collective is timed between
matrix products, as a training step runs it: it starts when the last rank's time slice has ended, its own threads wait for a
core, and nothing it moves is in a cache.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.app.errors import MissingExtraError
from meshwright.app.measuring.profile_kernels import Kernels, Run
from meshwright.app.measuring.profile_shapes import Backend, Shape, shapes_of
from meshwright.costmodels.fitting.samples import COLLECTIVE_KINDS, SampleError, SampleKind, Samples, samples_of
from meshwright.costmodels.units import DType

WARM_UP = 2
PRODUCTS_S = 0.01
"""Computation between two collectives: longer than a time slice of Linux's scheduler (2.8 ms times 1 + log2 of the cores)."""
PRODUCT = Shape(SampleKind.GEMM, DType.FP32, m=128, n=512, k=512, batch=1)
FEWEST_REPEATS = 5
MOST_REPEATS = 200
JOIN_S = 60.0

OnMeasured = Callable[[int, int, str], None]
"""Told after each shape: how many are done, of how many, and what was measured."""


@dataclass(frozen=True, slots=True)
class ProfileTask:
    """The measurements that a profile takes.

    key        calibration key that the measurements are for
    ranks      processes that measure at once
    threads    CPU threads of each
    repeat_s   seconds that one shape is repeated for, at least five times
    most       shapes measured at most, spread over all of the kinds asked for; None for all of them
    within_s   seconds after which no further shape is begun; shapes are then measured in an order that spreads over all of
               them, so that those left out leave no size unmeasured
    """

    key: str
    backend: Backend
    kinds: frozenset[SampleKind]
    ranks: int
    threads: int
    repeat_s: float
    most: int | None = None
    within_s: float | None = None


def profile(task: ProfileTask, on_measured: OnMeasured) -> Samples:
    """Measure the shapes of the task; raises MissingExtraError without PyTorch, SampleError where it can't run."""
    torch = import_torch()
    _check(task, torch)
    if not shapes_of(task.backend, task.kinds, ranks=task.ranks):
        raise SampleError("there is nothing to measure", given=sorted(task.kinds), remedy="collectives need at least two ranks")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        # Fresh processes: a fork of one that runs threads may hang.
        context = multiprocessing.get_context("spawn")
        others = [context.Process(target=_measure_as, args=(rank, task, store), daemon=True) for rank in range(1, task.ranks)]
        for process in others:
            process.start()
        try:
            measured = _measure(0, task, store, on_measured)
            for process in others:
                process.join(JOIN_S)
        finally:
            for process in others:
                process.kill()
    software, source = f"torch {torch.__version__}", _source(task, torch)
    rows = [
        {**asdict(shape), "kind": shape.kind.value, "dtype": shape.dtype.value, "device": task.key, "time_s": time_s,
         "software": software, "source": source}
        for shape, time_s in measured
    ]  # fmt: skip
    return samples_of(rows)


def import_torch() -> Any:
    """PyTorch; raises MissingExtraError when it is not installed."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("Measurements", package="torch", extra="profile") from None
    return torch


def _check(task: ProfileTask, torch: Any) -> None:
    if task.backend is Backend.CUDA:
        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if available < task.ranks:
            raise SampleError("PyTorch sees too few CUDA devices", given=available, allowed=f"{task.ranks}, one for each rank")


def _source(task: ProfileTask, torch: Any) -> str:
    on_gpu = task.backend is Backend.CUDA
    name = torch.cuda.get_device_name(0) if on_gpu else f"{_cpu_name()}, {task.threads} threads"
    return f"meshwright calibrate profile: {name}, {task.ranks} ranks at once"


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _measure_as(rank: int, task: ProfileTask, store: str) -> None:
    _measure(rank, task, store, lambda done, total, what: None)


def _measure(rank: int, task: ProfileTask, store: str, on_measured: OnMeasured) -> list[tuple[Shape, float]]:
    """Shapes in their order, each with its seconds, averaged over the ranks that measure with this one."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(task.threads)
    kernels = Kernels(task.backend, rank, task.ranks, store)
    try:
        shapes = shapes_of(task.backend, task.kinds, ranks=task.ranks)
        order = range(len(shapes)) if task.most is None and task.within_s is None else spread(len(shapes))[: task.most]
        middles: dict[int, float] = {}
        began_s = time.perf_counter()
        for done, place in enumerate(order, start=1):
            middles[place] = _middle_s(kernels, shapes[place], task)
            on_measured(done, len(order), shapes[place].kind.value)
            # All ranks end together: the first one's clock decides.
            if task.within_s is not None and kernels.agreed(int(time.perf_counter() - began_s >= task.within_s)):
                break
        places = sorted(middles)
        seconds = kernels.mean_over_ranks([middles[place] for place in places])
        return [(shapes[place], time_s) for place, time_s in zip(places, seconds, strict=True)]
    finally:
        kernels.close()
        torch.set_num_threads(threads)


def spread(count: int) -> list[int]:
    """The numbers from 0 to count - 1 in an order of which every beginning is spread over all of them.

    Steps of the golden section, whose multiples are nowhere denser than they must be (three-distance theorem).
    """
    if count < 3:
        return list(range(count))
    step = next(step for step in range(round(count * (math.sqrt(5) - 1) / 2), 0, -1) if math.gcd(step, count) == 1)
    return [number * step % count for number in range(count)]


def _middle_s(kernels: Kernels, shape: Shape, task: ProfileTask) -> float:
    run = kernels.prepared(shape)
    for _ in range(WARM_UP):
        run()
    kernels.wait_for_ranks()
    began_s = time.perf_counter()
    run()
    kernels.synchronise()
    repeats = kernels.agreed(_repeats(time.perf_counter() - began_s, task))
    kernels.wait_for_ranks()
    if task.backend is Backend.CUDA or (shape.kind not in COLLECTIVE_KINDS and _threads_a_core(task) == 1.0):
        return statistics.median([kernels.timed_s(run) / kernels.per_run(shape) for _ in range(repeats)])
    if shape.kind in COLLECTIVE_KINDS:
        return _between_products_s(kernels, run, task) / kernels.per_run(shape)
    began_s = time.process_time()
    for _ in range(repeats):
        run()
    # A clock of processor time may tick too slowly to see a short kernel at all.
    used_s = max(time.process_time() - began_s, time.get_clock_info("process_time").resolution)
    return used_s / repeats / task.threads * _threads_a_core(task)


def _between_products_s(kernels: Kernels, collective: Run, task: ProfileTask) -> float:
    """Seconds that a collective adds to computation: what a loop of both takes over the computation in it."""
    product = kernels.prepared(PRODUCT)
    began_s = time.perf_counter()
    product()
    products = kernels.agreed(max(1, round(PRODUCTS_S / (time.perf_counter() - began_s))))
    computed_s = 0.0
    kernels.wait_for_ranks()
    began_s = time.perf_counter()
    for _ in range(FEWEST_REPEATS):
        computing_s = time.thread_time()
        for _ in range(products):
            product()
        computed_s += time.thread_time() - computing_s
        collective()
    added_s = time.perf_counter() - began_s - computed_s * _threads_a_core(task)
    alone_s = statistics.fmean([kernels.timed_s(collective) for _ in range(FEWEST_REPEATS)])
    # Work of its own never makes a collective shorter; where it seems to, the clock's noise is larger than the waiting.
    return max(added_s / FEWEST_REPEATS, alone_s)


def _repeats(once_s: float, task: ProfileTask) -> int:
    return int(min(MOST_REPEATS, max(FEWEST_REPEATS, task.repeat_s / max(once_s, 1e-7))))


def _threads_a_core(task: ProfileTask) -> float:
    """Threads that compute on each core of this machine, at least one."""
    return max(1.0, task.ranks * task.threads / len(os.sched_getaffinity(0)))
