"""Imported rows are exactly those of the tables: small ones made here, and the package's own where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.app.evidence.measuring.aiconfigurator import DEVICES, MODULE, import_device, installed_tables
from meshwright.costmodels.fitting.samples import SampleError, SampleKind, Samples

pa = pytest.importorskip("pyarrow")


def write(folder: Path, path: str, **columns: list[Any]) -> None:
    import pyarrow.parquet as pq

    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / path)


def tables(folder: Path, key: str, engine: str) -> None:
    """Tables of one device, a row to be kept and rows to be left out in each."""
    write(
        folder, f"{key}/gemm/{engine}/2.0/gemm_perf.parquet",
        gemm_dtype=["bfloat16", "fp8_block", "fp8"], m=[1, 2, 16], n=[32, 32, 64], k=[64, 64, 128], latency=[0.002, 9.0, 0.5],
    )  # fmt: skip
    write(
        folder, f"{key}/gemm/{engine}/1.9/gemm_perf.parquet", gemm_dtype=["bfloat16"], m=[9], n=[9], k=[9], latency=[9.0]
    )  # fmt: skip
    write(
        folder, f"{key}/attention/{engine}/2.0/context_attention_perf.parquet",
        batch_size=[2, 2, 2], isl=[128, 128, 128], num_heads=[8, 8, 8], num_key_value_heads=[2, 2, 2], head_dim=[64, 64, 64],
        window_size=[0, 64, 0], beam_width=[1, 1, 1], attn_dtype=["bfloat16", "bfloat16", "bfloat16"],
        kv_cache_dtype=["bfloat16", "bfloat16", "fp8"], step=[0, 0, 0], latency=[0.25, 9.0, 9.0],
    )  # fmt: skip
    write(
        folder, f"{key}/attention/{engine}/2.0/generation_attention_perf.parquet",
        batch_size=[4, 4], isl=[1, 1], num_heads=[8, 8], num_key_value_heads=[0, 2], head_dim=[128, 128], beam_width=[1, 4],
        attn_dtype=["bfloat16", "bfloat16"], kv_cache_dtype=["fp8", "fp8"], step=[1023, 1023], latency=[0.125, 9.0],
    )  # fmt: skip
    write(
        folder, f"{key}/comm/nccl/2.29.2/nccl_perf.parquet",
        op_name=["alltoall", "all_reduce", "all_reduce"], nccl_dtype=["half", "int8", "half"], num_gpus=[4, 4, 8],
        message_size=[512, 512, 1024], latency=[0.01, 9.0, 0.02],
    )  # fmt: skip


def rows_of(samples: Samples, kind: SampleKind, *names: str) -> list[tuple[Any, ...]]:
    rows = samples.of_kind(kind)
    return list(zip(*(getattr(rows, name).tolist() for name in names), strict=True))


@pytest.mark.parametrize("key", DEVICES)
def test_rows_become_samples_exactly(tmp_path: Path, key: str) -> None:
    tables(tmp_path, key, "sglang" if key == "a100_sxm" else "trtllm")
    tables(tmp_path, key, "aaa")
    samples = import_device(key, tmp_path, release="0.12.0")
    assert set(samples.device.tolist()) == {key}
    assert rows_of(samples, SampleKind.GEMM, "dtype", "m", "n", "k", "batch", "time_s") == [
        ("bf16", 1.0, 32.0, 64.0, 1.0, 0.002e-3),
        ("fp8", 16.0, 64.0, 128.0, 1.0, 0.5e-3),
    ]
    attention = ("dtype", "batch", "q_tokens", "kv_tokens", "heads", "kv_heads", "head_dim", "time_s")
    assert rows_of(samples, SampleKind.PREFILL_ATTENTION, *attention) == [("bf16", 2, 128, 128, 8, 2, 64, 0.25e-3)]
    assert rows_of(samples, SampleKind.DECODE_ATTENTION, *attention) == [("fp8", 4, 1, 1024, 8, 8, 128, 0.125e-3)]
    assert rows_of(samples, SampleKind.ALL_TO_ALL, "moved_bytes", "ranks", "time_s") == [(1024, 4, 0.01e-3)]
    assert rows_of(samples, SampleKind.ALL_REDUCE, "moved_bytes", "ranks", "time_s") == [(2048, 8, 0.02e-3)]
    assert not any("/aaa/" in source for source in samples.source.tolist())
    assert all("0.12.0" in source for source in samples.source.tolist())


def test_a_device_without_tables(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="no tables"):
        import_device("h100_sxm", tmp_path, release="0.12.0")


@pytest.mark.parametrize("key", DEVICES)
def test_the_installed_package_is_read_whole(key: str) -> None:
    pytest.importorskip(MODULE)
    import pyarrow.parquet as pq

    folder = installed_tables()
    samples = import_device(key, folder, release="installed")
    for kind in (SampleKind.GEMM, SampleKind.PREFILL_ATTENTION, SampleKind.DECODE_ATTENTION, SampleKind.ALL_REDUCE):
        assert len(samples.of_kind(kind)) > 20
    products = samples.of_kind(SampleKind.GEMM)
    path = products.source[0].partition("(")[2].rstrip(")")
    table = pq.read_table(folder / path).to_pydict()
    wanted = {
        (m, n, k): latency
        for dtype, m, n, k, latency in zip(*(table[c] for c in ("gemm_dtype", "m", "n", "k", "latency")), strict=True)
        if dtype == "bfloat16"
    }
    bf16 = products.where(products.dtype == "bf16")
    assert len(bf16) == len(wanted)
    for index in np.linspace(0, len(bf16) - 1, 50).astype(int):
        shape = (int(bf16.m[index]), int(bf16.n[index]), int(bf16.k[index]))
        assert bf16.time_s[index] == pytest.approx(wanted[shape] * 1e-3, rel=1e-12)
