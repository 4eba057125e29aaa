"""The kernels that a profile runs, as PyTorch calls on prepared tensors. Imported only where PyTorch is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from meshwright.app.measuring.profile_shapes import Backend, Shape
from meshwright.costmodels.fitting.samples import COLLECTIVE_KINDS, SampleKind
from meshwright.costmodels.units import DType

Run = Callable[[], Any]

TORCH_DTYPES = {DType.FP32: "float32", DType.BF16: "bfloat16", DType.FP16: "float16"}

ROW = 1024
"""Elements of a row that norms reduce and gathers read."""

LAUNCHES = 100
"""Kernels launched in a row to time one launch."""


class Kernels:
    """The kernels of one rank; joined with the others by Gloo on CPUs, by NCCL on GPUs."""

    def __init__(self, backend: Backend, rank: int, ranks: int, store: str):
        import torch

        self._torch, self._backend, self._rank, self._ranks = torch, backend, rank, ranks
        self._device = torch.device("cuda", rank) if backend is Backend.CUDA else torch.device("cpu")
        if backend is Backend.CUDA:
            torch.cuda.set_device(self._device)
        self._groups: dict[int, Any] = {}
        if ranks > 1:
            name = "nccl" if backend is Backend.CUDA else "gloo"
            torch.distributed.init_process_group(name, init_method=f"file://{store}", rank=rank, world_size=ranks)
            for size in range(2, ranks + 1):
                if ranks % size == 0:
                    self._groups[size] = self._my_group(size)

    def close(self) -> None:
        """Leave the other ranks."""
        if self._ranks > 1:
            self._torch.distributed.destroy_process_group()

    def prepared(self, shape: Shape) -> Run:
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
        if self._backend is Backend.CUDA:
            start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3
        began_s = time.perf_counter()
        run()
        return time.perf_counter() - began_s

    def per_run(self, shape: Shape) -> int:
        """Kernels that one call of a shape runs one after another: a send/recv goes there and back."""
        return {SampleKind.LAUNCH: LAUNCHES, SampleKind.SEND_RECV: 2}.get(shape.kind, 1)

    def synchronise(self) -> None:
        """Wait for the device's work."""
        if self._backend is Backend.CUDA:
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

    def _tensor(self, shape: Shape, *sizes: int) -> Any:
        dtype = getattr(self._torch, TORCH_DTYPES[shape.dtype])
        return self._torch.randn(*sizes, device=self._device, dtype=dtype)

    def _product(self, shape: Shape) -> Run:
        a, b = self._tensor(shape, shape.m, shape.k), self._tensor(shape, shape.n, shape.k)
        # Weights are kept as (n, k), as torch.nn.Linear keeps them.
        return lambda: self._torch.nn.functional.linear(a, b)

    def _attention(self, shape: Shape) -> Run:
        query, key, value = self._attention_inputs(shape)
        attend = self._torch.nn.functional.scaled_dot_product_attention
        causal = shape.kind is SampleKind.PREFILL_ATTENTION
        return lambda: attend(query, key, value, is_causal=causal, enable_gqa=shape.kv_heads != shape.heads)

    def _attention_backward(self, shape: Shape) -> Run:
        inputs = [tensor.requires_grad_() for tensor in self._attention_inputs(shape)]
        output = self._torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
        gradient = self._torch.randn_like(output)
        return lambda: self._torch.autograd.grad(output, inputs, gradient, retain_graph=True)

    def _attention_inputs(self, shape: Shape) -> list[Any]:
        sizes = ((shape.heads, shape.q_tokens), (shape.kv_heads, shape.kv_tokens), (shape.kv_heads, shape.kv_tokens))
        return [self._tensor(shape, shape.batch, heads, tokens, shape.head_dim) for heads, tokens in sizes]

    def _stream(self, shape: Shape) -> Run:
        a, b = (self._rows(shape, arrays=3) for _ in range(2))
        return lambda: a + b

    def _norm(self, shape: Shape) -> Run:
        rows = self._rows(shape, arrays=2)
        weight = self._tensor(shape, ROW)
        return lambda: self._torch.nn.functional.layer_norm(rows, (ROW,), weight, weight)

    def _activation(self, shape: Shape) -> Run:
        rows = self._rows(shape, arrays=2)
        return lambda: self._torch.nn.functional.gelu(rows)

    def _gather(self, shape: Shape) -> Run:
        table = self._rows(shape, arrays=2)
        index = self._torch.randint(0, table.shape[0], (table.shape[0],), device=self._device)
        return lambda: self._torch.nn.functional.embedding(index, table)

    def _launch(self, shape: Shape) -> Run:
        tensor = self._tensor(shape, 1)

        def launch() -> None:
            for _ in range(LAUNCHES):
                tensor.add_(1.0)

        return launch

    def _rows(self, shape: Shape, *, arrays: int) -> Any:
        """Rows of one of the ``arrays`` that a kernel reads and writes, so that it moves the shape's bytes."""
        rows = max(1, round(shape.moved_bytes / (arrays * ROW * shape.dtype.size_bytes)))
        return self._tensor(shape, rows, ROW)

    def _collective(self, shape: Shape) -> Run:
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
