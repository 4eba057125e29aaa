"""State-space mixers over ranks of a sequence: states pass (LASP-2), or tokens are exchanged for heads (Megatron-LM)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup, group_topology
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.kernels.operator_time import OperatorTime
from meshwright.costmodels.model.implementation import ScanOverRanks
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.scan_over_ranks import (
    exchanged_sizes,
    group_copies,
    margin_s,
    mixer_exchange_s,
    state_bytes,
    state_passing_s,
    way_of_scan,
)
from meshwright.costmodels.units import DType
from tests.unit.solver.training.instances import mixer_block

SIZES = {
    "batch": 2,
    "seq": 1024,
    "hidden": 512,
    "ssm_heads": 16,
    "ssm_width": 64,
    "ssm_groups": 2,
    "ssm_state": 128,
    "kernel": 4,
}
NODE = node_type("dgx-h100")
CLUSTER = Cluster((NodeGroup("a", NODE, 2),))
ALL_HIDDEN, NOTHING = OperatorTime(1.0, 1.0), OperatorTime(0.0, 0.0)


def ranks(n: int) -> GroupTopology:
    return group_topology(CLUSTER, n=n, stride=1)


def operator(kind: OperatorKind) -> Operator:
    return next(operator for operator in mixer_block().operators if operator.kind is kind)


def passing_s(scan: Operator, sizes: dict[str, int], compute: OperatorTime, *, n: int = 8, parts: int = 2) -> OperatorTime:
    return state_passing_s(scan, sizes, compute, device=NODE.device, ranks=ranks(n), parts=parts)


def test_a_state_is_heads_times_width_times_state_in_fp32() -> None:
    assert state_bytes(operator(OperatorKind.SCAN), SIZES) == 2 * 16 * 64 * 128 * 4


def test_what_passes_does_not_depend_on_the_sequence() -> None:
    """Survey Table 8: d x d_state x CP, whatever the length."""
    scan = operator(OperatorKind.SCAN)
    short, long = passing_s(scan, SIZES, NOTHING), passing_s(scan, {**SIZES, "seq": 2**20}, NOTHING)
    assert short == long
    gathered = 8 * 2 * state_bytes(scan, SIZES)
    assert short.forward_s > collective_s(Collective.ALL_GATHER, gathered, ranks(8))
    assert short.forward_s == short.backward_s, "one all-gather in each direction"
    assert (
        passing_s(scan, SIZES, NOTHING, parts=1).forward_s < short.forward_s < passing_s(scan, SIZES, NOTHING, n=16).forward_s
    )


def test_products_inside_chunks_hide_the_gather() -> None:
    scan = operator(OperatorKind.SCAN)
    assert passing_s(scan, SIZES, ALL_HIDDEN).forward_s < passing_s(scan, SIZES, NOTHING).forward_s


def test_exchanges_grow_with_the_sequence_and_copies_of_groups() -> None:
    scan = operator(OperatorKind.SCAN)

    def exchange_s(sizes: dict[str, int]) -> float:
        return mixer_exchange_s(scan, sizes, device=NODE.device, dtype=DType.BF16, ranks=ranks(8)).forward_s

    long = {**SIZES, "seq": 2**17}
    assert 1.8 < exchange_s({**long, "seq": 2**18}) / exchange_s(long) < 2.1
    assert group_copies(SIZES, 8) == 4 and group_copies({**SIZES, "ssm_groups": 8}, 8) == 1
    wide = {**long, "ssm_groups": 8}
    assert exchange_s(long) == pytest.approx(exchange_s(wide)), "two groups for eight ranks are sent as eight"
    local = exchanged_sizes(SIZES, 8)
    assert (local["seq"], local["ssm_heads"], local["ssm_groups"]) == (8 * 1024, 2, 1)


def test_long_sequences_pass_states_and_short_ones_would_exchange() -> None:
    scan = operator(OperatorKind.SCAN)
    for seq, cheaper in ((256, "exchange"), (2**17, "states")):
        sizes = {**SIZES, "seq": seq, "ssm_state": 256}
        exchange_s = mixer_exchange_s(scan, sizes, device=NODE.device, dtype=DType.BF16, ranks=ranks(16)).forward_s
        states_s = passing_s(scan, sizes, NOTHING, n=16).forward_s
        assert (states_s < exchange_s) == (cheaper == "states"), seq


def test_a_convolution_gets_the_tokens_before_its_own() -> None:
    conv = operator(OperatorKind.CONVOLUTION)
    tokens = 2 * (16 * 64 + 2 * 2 * 128)
    each = margin_s(conv, SIZES, dtype=DType.BF16, ranks=ranks(8), parts=2)
    assert each.forward_s == each.backward_s == collective_s(Collective.SEND_RECV, tokens * 3 * 2 * 2.0, ranks(8))


def test_a_delta_rule_exchanges_heads() -> None:
    scan = operator(OperatorKind.SCAN)
    assert way_of_scan(scan, ScanOverRanks.STATES) is ScanOverRanks.STATES
    assert way_of_scan(scan, ScanOverRanks.HEADS) is ScanOverRanks.HEADS
    assert way_of_scan(replace(scan, flops_per_element=4.0), ScanOverRanks.STATES) is ScanOverRanks.HEADS
