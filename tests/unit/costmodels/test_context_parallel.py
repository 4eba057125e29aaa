"""Attention over several ranks of a sequence: what exchanging heads costs beside a ring."""

from __future__ import annotations

import pytest

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup, group_topology
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.kernels.operator_time import OperatorTime, operator_time
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor, forward_flops
from meshwright.costmodels.network.scan_over_ranks import head_exchange_s, ring_s, sizes_after_exchange
from meshwright.costmodels.units import DType

Q, K, V, OUT = (Tensor(name, ("batch", "seq", heads, "head_dim")) for name, heads in
                (("q", "heads"), ("k", "kv_heads"), ("v", "kv_heads"), ("out", "heads")))  # fmt: skip
ATTENTION = Operator("attention", OperatorKind.ATTENTION, (Q, K, V), (OUT,), mask=AttentionMask.CAUSAL)
CLUSTER = Cluster((NodeGroup("a", node_type("dgx-h100"), 4),))
DEVICE = CLUSTER.groups[0].node.device


def sizes(*, tokens: int, heads: int = 32, kv_heads: int = 8) -> dict[str, int]:
    return {"batch": 1, "seq": tokens, "heads": heads, "kv_heads": kv_heads, "head_dim": 128}


def ranks(n: int, stride: int = 1) -> GroupTopology:
    return group_topology(CLUSTER, n=n, stride=stride)


def exchange(n: int, **local: int) -> OperatorTime:
    return head_exchange_s(ATTENTION, sizes(**local), device=DEVICE, dtype=DType.BF16, ranks=ranks(n))


def test_ranks_that_exchanged_heads_see_more_tokens_of_fewer_heads_and_do_as_much() -> None:
    own = sizes(tokens=4096)
    attended = sizes_after_exchange(own, 4)
    assert attended == sizes(tokens=4 * 4096, heads=8, kv_heads=2)
    assert sizes_after_exchange(own, 1) == own
    # A ring of 8 over shares of 4,096 tokens, and an exchange of 4 inside a ring of 2: the same pairs of queries and keys.
    in_ring = forward_flops(ATTENTION, own, 8 * own["seq"])
    assert forward_flops(ATTENTION, attended, 2 * attended["seq"]) == pytest.approx(in_ring, rel=1e-4)


def test_traffic_is_that_of_queries_keys_values_and_outputs() -> None:
    """Survey Table 3, TPUP: 4 (n-1)/n^2 b s d_h (a + k); times of long messages follow their bytes."""
    equal, few = exchange(4, tokens=65536, kv_heads=32), exchange(4, tokens=65536, kv_heads=8)
    assert equal.forward_s / few.forward_s == pytest.approx((32 + 32) / (32 + 8), rel=0.03)
    assert few.backward_s / few.forward_s == pytest.approx((3 * 32 + 2 * 8) / (2 * 32 + 2 * 8), rel=0.03), "outputs go twice"


def test_a_ring_hides_under_attention_and_an_exchange_does_not() -> None:
    local = sizes(tokens=16384)
    kernels = operator_time(ATTENTION, local, device=DEVICE, dtype=DType.BF16, cp=8)
    long = ring_s(ATTENTION, local, kernels, dtype=DType.BF16, ring=ranks(8))
    bare = ring_s(ATTENTION, local, OperatorTime(0.0, 0.0), dtype=DType.BF16, ring=ranks(8))
    assert long.forward_s < 0.5 * bare.forward_s
    assert bare.backward_s > bare.forward_s, "gradients of keys and values travel, too"
    assert exchange(8, tokens=16384).forward_s > exchange(8, tokens=8192).forward_s
