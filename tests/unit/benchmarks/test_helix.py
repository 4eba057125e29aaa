"""Formulas of Helix Parallelism, and laws of decoding with a split cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.helix_formulas import (
    DecodeHardware,
    DecodeShape,
    Layouts,
    hop_b_s,
    kv_read_s,
    lockstep_s,
    memory_used_bytes,
    token_s,
    weight_read_s,
)

WIDTHS = np.array([1, 2, 4, 8, 16, 32, 64])
DENSE = DecodeShape(
    layers=80, moe_layers=0, hidden=8192, heads=64, kv_heads=8, cache_elements=256, pair_flops=512.0, value_elements=128,
    split_elements=8192 * 8192, kv_elements=2 * 8192 * 128, copied_elements=0.0, output_elements=8192 * 8192, ffn=28672,
    shared_ffn=0, experts=0, top_k=0, expert_ffn=0, attention_kernels=6, ffn_kernels=4, moe_kernels=0,
)  # fmt: skip
BARE = DecodeHardware(
    flops_per_s=1e18, memory_bytes_per_s=8e12, memory_bytes=1.8e11, link_bytes_per_s=1e18, element_bytes=0.5, start_s=0.0,
    collective_s=0.0, doubling_s=0.0,
)  # fmt: skip


def kv(tokens: float | np.ndarray = 1e6, tpa: object = 1, kvp: object = 1) -> np.ndarray:
    return kv_read_s(
        batch=8, kv_heads=8, head_size=128, tokens=tokens, tpa=tpa, kvp=kvp, element_bytes=0.5, memory_bytes_per_s=8e12
    )  # type: ignore[arg-type]


def layout(
    tpa: int, kvp: int, tpf: int, *, batch: int = 8, pp: int = 1, hop_b: int = 1, groups: int = 1, ep: int = 1
) -> Layouts:
    return Layouts(*(np.array([float(value)]) for value in (tpa, kvp, groups, tpf, ep, pp, batch, hop_b)))


def test_figure_1_by_hand() -> None:
    # 8 sequences x 2 x ceil(8/TPA) heads x 128 x 1e6 tokens x half a byte at 8 TB/s.
    assert kv()[()] == pytest.approx(8 * 2 * 8 * 128 * 1e6 * 0.5 / 8e12)
    by_tp = kv(tpa=WIDTHS)
    assert by_tp[3:] == pytest.approx(by_tp[3])
    assert by_tp[:4] == pytest.approx(by_tp[0] / WIDTHS[:4])
    assert kv(tokens=1e6 * WIDTHS, tpa=8) == pytest.approx(kv(tpa=8) * WIDTHS)
    assert kv(tpa=8, kvp=WIDTHS) == pytest.approx(kv(tpa=8) / WIDTHS)


def test_weights_of_a_layer_by_hand() -> None:
    seconds = weight_read_s(
        hidden=16384, query_heads=128, kv_heads=8, head_size=128, ffn=65536, tpa=np.array([8, 8]), tpf=np.array([8, 64]),
        element_bytes=0.5, memory_bytes_per_s=8e12,
    )  # fmt: skip
    attention = 2 * 16384 * 16 * 128 + 2 * 16384 * 1 * 128
    expected = [(attention + 3 * 16384 * 65536 / tpf) * 0.5 / 8e12 for tpf in (8, 64)]
    assert seconds == pytest.approx(expected)


def test_figure_3() -> None:
    assert lockstep_s(8, 2.0, 1.2) == pytest.approx(25.6)
    assert hop_b_s(8, 2.0, 1.2) == pytest.approx(17.2)


@given(st.integers(1, 64), st.floats(0.01, 10.0), st.floats(0.0, 10.0))
def test_overlap_never_hurts_and_never_beats_either_part(requests: int, compute_s: float, communicate_s: float) -> None:
    overlapped = float(hop_b_s(requests, compute_s, communicate_s))
    assert overlapped <= float(lockstep_s(requests, compute_s, communicate_s)) * (1 + 1e-12)
    assert overlapped >= requests * max(compute_s, communicate_s) * (1 - 1e-12)


def test_a_token_is_what_appendix_a_reads_where_nothing_else_costs() -> None:
    read_s = kv_read_s(batch=8, kv_heads=8, head_size=128, tokens=1e6, tpa=8, kvp=8, element_bytes=0.5, memory_bytes_per_s=8e12)
    # Appendix A counts the output projection with the query's, over TPA ranks; section 2.1.2 splits it over all of them.
    weights = weight_read_s(
        hidden=8192, query_heads=64, kv_heads=8, head_size=128, ffn=28672, tpa=8, tpf=64, element_bytes=0.5,
        memory_bytes_per_s=8e12,
    )  # fmt: skip
    output_s = 8192 * 8192 * 0.5 / 8e12
    expected = 80 * (read_s + weights - output_s / 8 + output_s / 64)
    assert token_s(DENSE, BARE, layout(8, 8, 64), context=1e6)[0] == pytest.approx(float(expected))


def test_memory_holds_weights_once_and_caches_split() -> None:
    whole = memory_used_bytes(DENSE, BARE, layout(1, 1, 1, batch=1), context=1e6)[0]
    weights = 80 * (2 * 8192 * 8192 + 8 * 2 * 8192 * 128 + 3 * 8192 * 28672) * 0.5
    assert whole == pytest.approx(weights + 80 * 8 * 256 * 1e6 * 0.5)
    # Two stages of half the layers hold two batches in flight.
    assert memory_used_bytes(DENSE, BARE, layout(1, 1, 1, batch=1, pp=2), context=1e6)[0] == pytest.approx(
        weights / 2 + 80 * 8 * 256 * 1e6 * 0.5
    )
    spread = memory_used_bytes(DENSE, BARE, layout(8, 8, 64, batch=1), context=1e6)[0]
    assert spread == pytest.approx(
        80 * ((8192 * 8192 + 8 * 2 * 8192 * 128) / 8 + 8192 * 8192 / 64 + 3 * 8192 * 28672 / 64 + 256 * 1e6 / 8) * 0.5
    )


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 128))
def test_hop_b_and_more_kvp_ranks_never_slow_attention(tpa: int, kvp: int, batch: int) -> None:
    fast = DecodeHardware(4e15, 8e12, 1.8e11, 6e11, 0.5, 1.7e-6, 3.8e-6, 0.6e-6)
    on, off = (token_s(DENSE, fast, layout(tpa, kvp, tpa * kvp, batch=batch, hop_b=h), context=1e6)[0] for h in (1, 0))
    assert on <= off * (1 + 1e-12)
    bare = [token_s(DENSE, BARE, layout(tpa, k, tpa * k, batch=batch), context=1e6)[0] for k in (kvp, 2 * kvp)]
    assert bare[1] < bare[0]
