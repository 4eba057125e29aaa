"""Made-up measurements whose constants are known."""

from __future__ import annotations

from typing import Any

from meshwright.costmodels.fitting.samples import SampleKind, Samples, samples_of

BYTES_PER_S = 1e11
LINK_BYTES_PER_S = 1e10


def row(kind: SampleKind, time_s: float, **sizes: Any) -> dict[str, Any]:
    return {
        "device": "toy",
        "kind": kind.value,
        "dtype": "fp32",
        "time_s": time_s,
        "software": "toy 1",
        "source": "made up",
        **sizes,
    }


def stream_s(moved_bytes: float) -> float:
    return 3e-6 + moved_bytes / (0.8 * BYTES_PER_S)


def vector_rows() -> list[dict[str, Any]]:
    kinds = (SampleKind.STREAM, SampleKind.NORM, SampleKind.ACTIVATION, SampleKind.GATHER)
    return [row(kind, stream_s(2.0**size), moved_bytes=2**size) for kind in kinds for size in range(12, 28)]


def product_rows() -> list[dict[str, Any]]:
    """Products at half of 1 TFLOP/s with a launch of 4 us."""
    sizes = (64, 128, 256, 512)
    return [
        row(SampleKind.GEMM, 4e-6 + 2.0 * m * n * k / 5e11, m=m, n=n, k=k, batch=1) for m in sizes for n in sizes for k in sizes
    ]


def all_reduce_s(message_bytes: float, ranks: int) -> float:
    return 2e-5 * ranks + 2 * (ranks - 1) / ranks * message_bytes / (0.5 * LINK_BYTES_PER_S)


def collective_rows() -> list[dict[str, Any]]:
    return [
        row(SampleKind.ALL_REDUCE, all_reduce_s(2.0**size, ranks), moved_bytes=2**size, ranks=ranks)
        for ranks in (2, 4)
        for size in range(10, 28)
    ]


def attention_rows() -> list[dict[str, Any]]:
    """Forward attention at a quarter of 1 TFLOP/s with a launch of 10 us."""
    return [
        row(
            SampleKind.PREFILL_ATTENTION, 1e-5 + 2.0 * batch * heads * head_dim * tokens * (tokens + 1) / 2.5e11,
            batch=batch, q_tokens=tokens, kv_tokens=tokens, heads=heads, kv_heads=heads, head_dim=head_dim,
        )
        for head_dim in (128,) for batch in (1, 4) for heads in (4, 32) for tokens in (64, 256, 1024)
    ]  # fmt: skip


def toy_samples() -> Samples:
    return samples_of([*vector_rows(), *product_rows(), *attention_rows(), *collective_rows()])
