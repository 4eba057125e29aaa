"""Measuring kernels and collectives with PyTorch on the machine at hand.

All ranks measure the same shape at the same time: where ranks share cores, memory or power, as on a CPU, a kernel takes as
long as it will in a job of so many ranks. A time is the median of repeats, averaged over ranks.

On a CPU ranks compete for cores, and so does what joins them. Where threads outnumber cores, a kernel takes the processor
time that it uses, times the threads for each core: no core is idle while another rank can run. A collective is timed between
matrix products, as a training step runs it: it starts when the last rank's time slice has ended, its own threads wait for a
core, and nothing it moves is in a cache.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from meshwright.app.base.errors import MissingExtraError
from meshwright.app.base.settings import SAFE_PATH
from meshwright.costmodels.fitting.samples import COLLECTIVE_KINDS, SampleError, SampleKind, Samples, samples_of
from meshwright.costmodels.units import DType

# The shapes that a profile measures: spread over what training and serving run, small enough for the device at hand.


class ProfilingDevice(StrEnum):
    """Where PyTorch runs."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class KernelShape:
    """One measurement to make; sizes that the kind does not have are 0 (``costmodels.fitting.samples.Samples``)."""

    kind: SampleKind
    dtype: DType
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 0
    q_tokens: int = 0
    kv_tokens: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    moved_bytes: int = 0
    ranks: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes of a backend's shapes, and the most work that one of them may be.

    rows, sides      m, and n and k of products
    tokens           of attention; batches, heads and head_dims of it
    vector_bytes     that a vector kernel moves
    message_bytes    of collectives
    most_flops       of one product or attention
    """

    dtypes: tuple[DType, ...]
    rows: tuple[int, ...]
    sides: tuple[int, ...]
    tokens: tuple[int, ...]
    batches: tuple[int, ...]
    heads: tuple[int, ...]
    head_dims: tuple[int, ...]
    vector_bytes: tuple[int, ...]
    message_bytes: tuple[int, ...]
    most_flops: float


def _powers(first: int, last: int) -> tuple[int, ...]:
    """2**first to 2**last."""
    return tuple(2**exponent for exponent in range(first, last + 1))


RANGES = {
    ProfilingDevice.CPU: Range(
        dtypes=(DType.FP32,),
        rows=(16, 64, 128, 256, 512, 1024, 2048),
        sides=(64, 128, 256, 512, 1024, 2048),
        tokens=(64, 128, 256, 512),
        batches=(1, 2, 4, 8),
        heads=(2, 4, 8),
        head_dims=(64,),
        vector_bytes=_powers(14, 26),
        message_bytes=_powers(10, 25),
        most_flops=6e8,
    ),
    ProfilingDevice.CUDA: Range(
        dtypes=(DType.BF16, DType.FP16),
        rows=(1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        sides=(128, 512, 1024, 2048, 4096, 6144, 8192, 14336, 16384),
        tokens=(128, 512, 1024, 2048, 4096, 8192),
        batches=(1, 4, 16),
        heads=(8, 32, 64),
        head_dims=(64, 128),
        vector_bytes=_powers(16, 31),
        message_bytes=_powers(10, 30),
        most_flops=5e12,
    ),
}


def shapes_of(backend: ProfilingDevice, kinds: frozenset[SampleKind], *, ranks: int) -> tuple[KernelShape, ...]:
    """Every shape of the kinds asked for, in a fixed order; collectives over each group size that divides ``ranks``."""
    sizes = RANGES[backend]
    found = itertools.chain(
        _products(sizes), _attention(sizes), _vectors(sizes), _launches(backend, kinds), _collectives(sizes, ranks)
    )
    return tuple(shape for shape in found if shape.kind in kinds)


def _products(sizes: Range) -> Iterator[KernelShape]:
    for dtype, m, n, k in itertools.product(sizes.dtypes, sizes.rows, sizes.sides, sizes.sides):
        if 2.0 * m * n * k <= sizes.most_flops:
            yield KernelShape(SampleKind.GEMM, dtype, m=m, n=n, k=k, batch=1)


def _attention(sizes: Range) -> Iterator[KernelShape]:
    grid = itertools.product(sizes.dtypes, sizes.head_dims, sizes.heads, sizes.batches, sizes.tokens)
    for dtype, head_dim, heads, batch, tokens in grid:
        prefill = KernelShape(
            SampleKind.PREFILL_ATTENTION, dtype, batch=batch, q_tokens=tokens, kv_tokens=tokens, heads=heads, kv_heads=heads,
            head_dim=head_dim,
        )  # fmt: skip
        if 2.0 * batch * heads * head_dim * tokens**2 <= sizes.most_flops:
            yield prefill
            yield _of_kind(prefill, SampleKind.ATTENTION_BACKWARD, q_tokens=tokens)
        yield _of_kind(prefill, SampleKind.DECODE_ATTENTION, q_tokens=1)


def _of_kind(shape: KernelShape, kind: SampleKind, *, q_tokens: int) -> KernelShape:
    return KernelShape(
        kind, shape.dtype, batch=shape.batch, q_tokens=q_tokens, kv_tokens=shape.kv_tokens, heads=shape.heads,
        kv_heads=shape.kv_heads, head_dim=shape.head_dim,
    )  # fmt: skip


def _vectors(sizes: Range) -> Iterator[KernelShape]:
    kinds = (SampleKind.STREAM, SampleKind.NORM, SampleKind.ACTIVATION, SampleKind.GATHER)
    for kind, moved in itertools.product(kinds, sizes.vector_bytes):
        yield KernelShape(kind, sizes.dtypes[0], moved_bytes=moved)


def _launches(backend: ProfilingDevice, kinds: frozenset[SampleKind]) -> Iterator[KernelShape]:
    """A CPU's kernels run where they are launched, and their own times hold the launch: it is measured if alone asked for."""
    if backend is ProfilingDevice.CUDA or kinds == {SampleKind.LAUNCH}:
        yield KernelShape(SampleKind.LAUNCH, DType.FP32)


def _collectives(sizes: Range, ranks: int) -> Iterator[KernelShape]:
    kinds = (
        SampleKind.ALL_REDUCE, SampleKind.ALL_GATHER, SampleKind.REDUCE_SCATTER, SampleKind.ALL_TO_ALL, SampleKind.SEND_RECV,
        SampleKind.BROADCAST,
    )  # fmt: skip
    groups = [size for size in range(2, ranks + 1) if ranks % size == 0]
    for kind, size, moved in itertools.product(kinds, groups, sizes.message_bytes):
        if kind is not SampleKind.SEND_RECV or size == 2:
            yield KernelShape(kind, sizes.dtypes[0], moved_bytes=moved, ranks=size)


# The kernels that a profile runs, as PyTorch calls on prepared tensors. Imported only where PyTorch is installed.

Run = Callable[[], Any]

TORCH_DTYPES = {DType.FP32: "float32", DType.BF16: "bfloat16", DType.FP16: "float16"}

ROW = 1024
"""Elements of a row that norms reduce and gathers read."""

LAUNCHES = 100
"""Kernels launched in a row to time one launch."""


class Kernels:
    """The kernels of one rank; joined with the others by Gloo on CPUs, by NCCL on GPUs."""

    def __init__(self, backend: ProfilingDevice, rank: int, ranks: int, store: str):
        import torch

        self._torch, self._backend, self._rank, self._ranks = torch, backend, rank, ranks
        self._device = torch.device("cuda", rank) if backend is ProfilingDevice.CUDA else torch.device("cpu")
        if backend is ProfilingDevice.CUDA:
            torch.cuda.set_device(self._device)
        self._groups: dict[int, Any] = {}
        if ranks > 1:
            name = "nccl" if backend is ProfilingDevice.CUDA else "gloo"
            torch.distributed.init_process_group(name, init_method=f"file://{store}", rank=rank, world_size=ranks)
            for size in range(2, ranks + 1):
                if ranks % size == 0:
                    self._groups[size] = self._my_group(size)

    def close(self) -> None:
        """Leave the other ranks."""
        if self._ranks > 1:
            self._torch.distributed.destroy_process_group()

    def prepared(self, shape: KernelShape) -> Run:
        """A call that runs the shape's kernel once, its tensors made already."""
        torch = self._torch
        torch.manual_seed(self._rank)
        if shape.kind in COLLECTIVE_KINDS:
            return self._collective(shape)
        return {
            SampleKind.GEMM: self._product,
            SampleKind.PREFILL_ATTENTION: self._attention,
            SampleKind.DECODE_ATTENTION: self._attention,
            SampleKind.ATTENTION_BACKWARD: self._attention_backward,
            SampleKind.STREAM: self._stream,
            SampleKind.NORM: self._norm,
            SampleKind.ACTIVATION: self._activation,
            SampleKind.GATHER: self._gather,
            SampleKind.LAUNCH: self._launch,
        }[shape.kind](shape)

    def timed_s(self, run: Run) -> float:
        """Seconds of one call, the device's work included."""
        if self._backend is ProfilingDevice.CUDA:
            start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3
        began_s = time.perf_counter()
        run()
        return time.perf_counter() - began_s

    def per_run(self, shape: KernelShape) -> int:
        """Kernels that one call of a shape runs one after another: a send/recv goes there and back."""
        return {SampleKind.LAUNCH: LAUNCHES, SampleKind.SEND_RECV: 2}.get(shape.kind, 1)

    def synchronise(self) -> None:
        """Wait for the device's work."""
        if self._backend is ProfilingDevice.CUDA:
            self._torch.cuda.synchronize()

    def wait_for_ranks(self) -> None:
        """Let every rank come to this point."""
        if self._ranks > 1:
            self._torch.distributed.barrier()
        self.synchronise()

    def agreed(self, repeats: int) -> int:
        """The first rank's number of repeats: collectives need the same on every rank."""
        return int(self._from_first(float(repeats)))

    def mean_over_ranks(self, values: list[float]) -> list[float]:
        """The average of each value over the ranks."""
        if self._ranks == 1:
            return values
        held = self._torch.tensor(values, dtype=self._torch.float64, device=self._device)
        self._torch.distributed.all_reduce(held)
        return [float(value) / self._ranks for value in held.tolist()]

    def _from_first(self, value: float) -> float:
        if self._ranks == 1:
            return value
        held = self._torch.tensor([value], dtype=self._torch.float64, device=self._device)
        self._torch.distributed.broadcast(held, src=0)
        return float(held.item())

    def _my_group(self, size: int) -> Any:
        """The group of so many neighbours that this rank is in; every rank makes every group."""
        groups = [self._torch.distributed.new_group(list(range(first, first + size))) for first in range(0, self._ranks, size)]
        return groups[self._rank // size]

    def _tensor(self, shape: KernelShape, *sizes: int) -> Any:
        dtype = getattr(self._torch, TORCH_DTYPES[shape.dtype])
        return self._torch.randn(*sizes, device=self._device, dtype=dtype)

    def _product(self, shape: KernelShape) -> Run:
        a, b = self._tensor(shape, shape.m, shape.k), self._tensor(shape, shape.n, shape.k)
        # Weights are kept as (n, k), as torch.nn.Linear keeps them.
        return lambda: self._torch.nn.functional.linear(a, b)

    def _attention(self, shape: KernelShape) -> Run:
        query, key, value = self._attention_inputs(shape)
        attend = self._torch.nn.functional.scaled_dot_product_attention
        causal = shape.kind is SampleKind.PREFILL_ATTENTION
        return lambda: attend(query, key, value, is_causal=causal, enable_gqa=shape.kv_heads != shape.heads)

    def _attention_backward(self, shape: KernelShape) -> Run:
        inputs = [tensor.requires_grad_() for tensor in self._attention_inputs(shape)]
        output = self._torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
        gradient = self._torch.randn_like(output)
        return lambda: self._torch.autograd.grad(output, inputs, gradient, retain_graph=True)

    def _attention_inputs(self, shape: KernelShape) -> list[Any]:
        sizes = ((shape.heads, shape.q_tokens), (shape.kv_heads, shape.kv_tokens), (shape.kv_heads, shape.kv_tokens))
        return [self._tensor(shape, shape.batch, heads, tokens, shape.head_dim) for heads, tokens in sizes]

    def _stream(self, shape: KernelShape) -> Run:
        a, b = (self._rows(shape, arrays=3) for _ in range(2))
        return lambda: a + b

    def _norm(self, shape: KernelShape) -> Run:
        rows = self._rows(shape, arrays=2)
        weight = self._tensor(shape, ROW)
        return lambda: self._torch.nn.functional.layer_norm(rows, (ROW,), weight, weight)

    def _activation(self, shape: KernelShape) -> Run:
        rows = self._rows(shape, arrays=2)
        return lambda: self._torch.nn.functional.gelu(rows)

    def _gather(self, shape: KernelShape) -> Run:
        table = self._rows(shape, arrays=2)
        index = self._torch.randint(0, table.shape[0], (table.shape[0],), device=self._device)
        return lambda: self._torch.nn.functional.embedding(index, table)

    def _launch(self, shape: KernelShape) -> Run:
        tensor = self._tensor(shape, 1)

        def launch() -> None:
            for _ in range(LAUNCHES):
                tensor.add_(1.0)

        return launch

    def _rows(self, shape: KernelShape, *, arrays: int) -> Any:
        """Rows of one of the ``arrays`` that a kernel reads and writes, so that it moves the shape's bytes."""
        rows = max(1, round(shape.moved_bytes / (arrays * ROW * shape.dtype.size_bytes)))
        return self._tensor(shape, rows, ROW)

    def _collective(self, shape: KernelShape) -> Run:
        distributed, group = self._torch.distributed, self._groups[shape.ranks]
        elements = int(shape.moved_bytes / shape.dtype.size_bytes)
        whole, part = self._tensor(shape, elements), self._tensor(shape, max(1, elements // shape.ranks))
        first = self._rank // shape.ranks * shape.ranks
        match shape.kind:
            case SampleKind.ALL_REDUCE:
                return lambda: distributed.all_reduce(whole, group=group)
            case SampleKind.ALL_GATHER:
                return lambda: distributed.all_gather_into_tensor(whole, part, group=group)
            case SampleKind.REDUCE_SCATTER:
                return lambda: distributed.reduce_scatter_tensor(part, whole, group=group)
            case SampleKind.ALL_TO_ALL:
                other = self._tensor(shape, elements)
                return lambda: distributed.all_to_all_single(other, whole, group=group)
            case SampleKind.BROADCAST:
                return lambda: distributed.broadcast(whole, src=first, group=group)
        peer = first + 1 - self._rank % shape.ranks
        if self._rank == first:
            return lambda: self._there_and_back(whole, peer)
        return lambda: self._back_and_there(whole, peer)

    def _there_and_back(self, tensor: Any, peer: int) -> None:
        self._torch.distributed.send(tensor, peer)
        self._torch.distributed.recv(tensor, peer)

    def _back_and_there(self, tensor: Any, peer: int) -> None:
        self._torch.distributed.recv(tensor, peer)
        self._torch.distributed.send(tensor, peer)


WARM_UP = 2
PRODUCTS_S = 0.01
"""Computation between two collectives: longer than a time slice of Linux's scheduler (2.8 ms times 1 + log2 of the cores)."""
PRODUCT = KernelShape(SampleKind.GEMM, DType.FP32, m=128, n=512, k=512, batch=1)
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
    backend: ProfilingDevice
    kinds: frozenset[SampleKind]
    ranks: int
    threads: int
    repeat_s: float
    most: int | None = None
    within_s: float | None = None


@contextmanager
def _safe_path() -> Iterator[None]:
    """Have Python that is started here import nothing from the current folder: what lies there is a stranger's."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


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
        with _safe_path():
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
    if task.backend is ProfilingDevice.CUDA:
        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if available < task.ranks:
            raise SampleError("PyTorch sees too few CUDA devices", given=available, allowed=f"{task.ranks}, one for each rank")


def _source(task: ProfileTask, torch: Any) -> str:
    on_gpu = task.backend is ProfilingDevice.CUDA
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


def _measure(rank: int, task: ProfileTask, store: str, on_measured: OnMeasured) -> list[tuple[KernelShape, float]]:
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


def _middle_s(kernels: Kernels, shape: KernelShape, task: ProfileTask) -> float:
    run = kernels.prepared(shape)
    for _ in range(WARM_UP):
        run()
    kernels.wait_for_ranks()
    began_s = time.perf_counter()
    run()
    kernels.synchronise()
    repeats = kernels.agreed(_repeats(time.perf_counter() - began_s, task))
    kernels.wait_for_ranks()
    if task.backend is ProfilingDevice.CUDA or (shape.kind not in COLLECTIVE_KINDS and _threads_a_core(task) == 1.0):
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
