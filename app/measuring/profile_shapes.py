"""The shapes that a profile measures: spread over what training and serving run, small enough for the device at hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.fitting.samples import SampleKind
from meshwright.costmodels.units import DType


class Backend(StrEnum):
    """Where PyTorch runs."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Shape:
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
    Backend.CPU: Range(
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
    Backend.CUDA: Range(
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


def shapes_of(backend: Backend, kinds: frozenset[SampleKind], *, ranks: int) -> tuple[Shape, ...]:
    """Every shape of the kinds asked for, in a fixed order; collectives over each group size that divides ``ranks``."""
    sizes = RANGES[backend]
    found = itertools.chain(
        _products(sizes), _attention(sizes), _vectors(sizes), _launches(backend, kinds), _collectives(sizes, ranks)
    )
    return tuple(shape for shape in found if shape.kind in kinds)


def _products(sizes: Range) -> Iterator[Shape]:
    for dtype, m, n, k in itertools.product(sizes.dtypes, sizes.rows, sizes.sides, sizes.sides):
        if 2.0 * m * n * k <= sizes.most_flops:
            yield Shape(SampleKind.GEMM, dtype, m=m, n=n, k=k, batch=1)


def _attention(sizes: Range) -> Iterator[Shape]:
    grid = itertools.product(sizes.dtypes, sizes.head_dims, sizes.heads, sizes.batches, sizes.tokens)
    for dtype, head_dim, heads, batch, tokens in grid:
        prefill = Shape(
            SampleKind.PREFILL_ATTENTION, dtype, batch=batch, q_tokens=tokens, kv_tokens=tokens, heads=heads, kv_heads=heads,
            head_dim=head_dim,
        )  # fmt: skip
        if 2.0 * batch * heads * head_dim * tokens**2 <= sizes.most_flops:
            yield prefill
            yield _of_kind(prefill, SampleKind.ATTENTION_BACKWARD, q_tokens=tokens)
        yield _of_kind(prefill, SampleKind.DECODE_ATTENTION, q_tokens=1)


def _of_kind(shape: Shape, kind: SampleKind, *, q_tokens: int) -> Shape:
    return Shape(
        kind, shape.dtype, batch=shape.batch, q_tokens=q_tokens, kv_tokens=shape.kv_tokens, heads=shape.heads,
        kv_heads=shape.kv_heads, head_dim=shape.head_dim,
    )  # fmt: skip


def _vectors(sizes: Range) -> Iterator[Shape]:
    kinds = (SampleKind.STREAM, SampleKind.NORM, SampleKind.ACTIVATION, SampleKind.GATHER)
    for kind, moved in itertools.product(kinds, sizes.vector_bytes):
        yield Shape(kind, sizes.dtypes[0], moved_bytes=moved)


def _launches(backend: Backend, kinds: frozenset[SampleKind]) -> Iterator[Shape]:
    """A CPU's kernels run where they are launched, and their own times hold the launch: it is measured if alone asked for."""
    if backend is Backend.CUDA or kinds == {SampleKind.LAUNCH}:
        yield Shape(SampleKind.LAUNCH, DType.FP32)


def _collectives(sizes: Range, ranks: int) -> Iterator[Shape]:
    kinds = (
        SampleKind.ALL_REDUCE, SampleKind.ALL_GATHER, SampleKind.REDUCE_SCATTER, SampleKind.ALL_TO_ALL, SampleKind.SEND_RECV,
        SampleKind.BROADCAST,
    )  # fmt: skip
    groups = [size for size in range(2, ranks + 1) if ranks % size == 0]
    for kind, size, moved in itertools.product(kinds, groups, sizes.message_bytes):
        if kind is not SampleKind.SEND_RECV or size == 2:
            yield Shape(kind, sizes.dtypes[0], moved_bytes=moved, ranks=size)
