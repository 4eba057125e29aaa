"""Selective scans and convolutions: work by the survey's section 5.3."""

from __future__ import annotations

import pytest

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight, forward_flops

SIZES = {"batch": 2, "seq": 1024, "ssm_heads": 128, "ssm_head_dim": 64, "ssm_groups": 8, "ssm_state": 128, "kernel": 4}
ROWS = ("batch", "seq")


def scan(chunk: int | None) -> Operator:
    x = Tensor("x", (*ROWS, "ssm_heads", "ssm_head_dim"))
    b, c = (Tensor(name, (*ROWS, "ssm_groups", "ssm_state")) for name in "bc")
    dt = Tensor("dt", (*ROWS, "ssm_heads"))
    y = Tensor("y", x.dims)
    return Operator("scan", OperatorKind.SCAN, inputs=(x, b, c, dt), outputs=(y,), chunk=chunk)


def test_chunked_scan_follows_the_steps_of_the_survey() -> None:
    b, s, h, p, n, chunk = 2, 1024, 128, 64, 128, 256
    chunks = s // chunk
    steps = (
        2 * b * chunks * h * chunk**2 * n,
        2 * b * chunks * h * chunk**2 * p,
        2 * b * chunks * h * chunk * p * n,
        2 * b * h * chunks * p * n,
        2 * b * chunks * h * p * n * chunk,
    )
    assert forward_flops(scan(chunk), SIZES) == pytest.approx(sum(steps))


def test_a_sequence_shorter_than_a_chunk_is_one_chunk() -> None:
    short = {**SIZES, "seq": 16}
    assert forward_flops(scan(256), short) == forward_flops(scan(16), short)


def test_scan_without_chunks_is_linear_in_tokens() -> None:
    assert forward_flops(scan(None), {**SIZES, "seq": 2048}) == 2 * forward_flops(scan(None), SIZES)


def test_depthwise_convolution_uses_each_kernel_element_once_a_token() -> None:
    x = Tensor("x", (*ROWS, "ssm_heads", "ssm_head_dim"))
    convolution = Operator(
        "conv",
        OperatorKind.CONVOLUTION,
        inputs=(x,),
        outputs=(Tensor("x_conv", x.dims),),
        weights=(
            Weight("kernel", ("ssm_heads", "ssm_head_dim", "kernel")),
            Weight("bias", ("ssm_heads", "ssm_head_dim")),
        ),
    )
    assert forward_flops(convolution, SIZES) == 2 * (2 * 1024) * 128 * 64 * 4


def test_chunk_goes_with_scans_only() -> None:
    x = Tensor("x", ROWS)
    with pytest.raises(ModelError, match="chunk"):
        Operator("act", OperatorKind.ELEMENTWISE, inputs=(x,), outputs=(Tensor("y", ROWS),), chunk=4)
