"""Mamba-2's scan without fused kernels: what it moves, keeps and launches."""

from __future__ import annotations

import pytest

from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.kernels.operator_time import operator_time
from meshwright.costmodels.kernels.step_by_step_scan import (
    scan_elements,
    step_by_step_kept_bytes,
    step_by_step_launches,
    step_by_step_traffic,
)
from meshwright.costmodels.model.implementation import ScanKernels
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight
from meshwright.costmodels.units import DType

SIZES = {"batch": 1, "seq": 4096, "heads": 64, "width": 64, "groups": 8, "state": 128, "kernel": 4}
ROWS = ("batch", "seq")
CHUNK = 64


def scan(chunk: int | None = CHUNK) -> Operator:
    x = Tensor("x", (*ROWS, "heads", "width"))
    b, c = (Tensor(name, (*ROWS, "groups", "state")) for name in "bc")
    return Operator(
        "scan", OperatorKind.SCAN, inputs=(x, b, c, Tensor("dt", (*ROWS, "heads"))), outputs=(Tensor("y", x.dims),), chunk=chunk
    )


def convolution() -> Operator:
    x = Tensor("x", (*ROWS, "heads", "width"))
    weight = Weight("w", ("heads", "width", "kernel"))
    return Operator("conv", OperatorKind.CONVOLUTION, (x,), (Tensor("x_conv", x.dims),), (weight,))


def test_elements_of_a_scan() -> None:
    found = scan_elements(scan(), SIZES)
    tokens, heads, width, state = 4096, 64, 64, 128
    assert found.inner == tokens * heads * width
    assert found.repeated == tokens * heads * state, "B and C have a copy for each head, not for each group"
    assert found.scores == tokens * heads * CHUNK
    assert found.states == tokens // CHUNK * heads * width * state


def test_backward_keeps_what_grows_with_the_state() -> None:
    of = scan_elements(scan(), SIZES)
    assert step_by_step_kept_bytes(scan(), SIZES, DType.BF16) == 2 * (3 * of.repeated + 2 * of.states + 2 * of.inner)
    wider = {**SIZES, "state": 256}
    more = step_by_step_kept_bytes(scan(), wider, DType.BF16) - step_by_step_kept_bytes(scan(), SIZES, DType.BF16)
    assert more == 2 * (3 * of.repeated + 2 * of.states)
    assert step_by_step_kept_bytes(convolution(), SIZES, DType.BF16) == 0


def test_heads_share_nothing_so_half_of_them_move_and_keep_half() -> None:
    half = {**SIZES, "heads": 32, "groups": 4}
    whole, part = (step_by_step_traffic(scan(), sizes, DType.BF16) for sizes in (SIZES, half))
    assert whole is not None and part is not None
    for each in ("forward", "backward"):
        moved = [sum(kernel.bytes_moved for kernel in getattr(traffic, each)) for traffic in (whole, part)]
        assert moved[0] == pytest.approx(2 * moved[1])
    assert step_by_step_kept_bytes(scan(), SIZES, DType.BF16) == 2 * step_by_step_kept_bytes(scan(), half, DType.BF16)


@pytest.mark.parametrize("operator", [scan(), convolution()])
def test_every_kernel_counted_is_launched(operator: Operator) -> None:
    traffic = step_by_step_traffic(operator, SIZES, DType.BF16)
    assert traffic is not None
    assert step_by_step_launches(operator) == (len(traffic.forward), len(traffic.backward))


@pytest.mark.parametrize("operator", [scan(), convolution()])
def test_step_by_step_is_slower_than_fused(operator: Operator) -> None:
    device = node_type("ascend-910b-host").device
    fused, steps = (operator_time(operator, SIZES, device=device, dtype=DType.BF16, scan=kernels) for kernels in ScanKernels)
    assert steps.forward_s > fused.forward_s
    assert steps.backward_s > fused.backward_s


def test_a_scan_token_by_token_runs_as_one_kernel_either_way() -> None:
    assert step_by_step_traffic(scan(None), SIZES, DType.BF16) is None
    assert step_by_step_launches(scan(None)) is None
    assert step_by_step_kept_bytes(scan(None), SIZES, DType.BF16) == 0
