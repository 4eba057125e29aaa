"""Laws of operator times: gradient accumulation, and softmax against weighted norms."""

from __future__ import annotations

import pytest

from meshwright.costmodels.hardware import device
from meshwright.costmodels.kernels.operator_time import operator_time
from meshwright.costmodels.model.implementation import TrainedWeights
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight
from meshwright.costmodels.units import DType

SIZES = {"batch": 1, "seq": 2048, "hidden": 4096, "ffn": 16384}
A100 = device("a100")
STREAM = Tensor("x", ("batch", "seq", "hidden"))


def projection(*weights: Weight) -> Operator:
    return Operator("up", OperatorKind.MATMUL, (STREAM,), (Tensor("y", ("batch", "seq", "ffn")),), weights)


def backward_s(operator: Operator, gradient_dtype: DType | None) -> float:
    return operator_time(operator, SIZES, device=A100, dtype=DType.BF16, gradient_dtype=gradient_dtype).backward_s


def test_accumulation_moves_the_sum_in_and_out_instead_of_writing_a_gradient() -> None:
    weight = projection(Weight("w", ("hidden", "ffn")))
    elements = SIZES["hidden"] * SIZES["ffn"]
    plain, fp32 = backward_s(weight, None), backward_s(weight, DType.FP32)
    # 4 + 4 bytes instead of 2; streaming kernels reach 60 to 95% of the data sheet's bandwidth.
    least_s = elements * 6 / A100.memory_bytes_per_s
    assert least_s / 0.95 < fp32 - plain < least_s / 0.6
    assert backward_s(weight, DType.BF16) - plain == pytest.approx((fp32 - plain) / 3)


def test_accumulation_leaves_the_forward_pass_alone_and_counts_tied_weights() -> None:
    own, tied = projection(Weight("w", ("hidden", "ffn"))), projection(Weight("w", ("hidden", "ffn"), tied_to="a/b/c"))
    forward = {
        operator_time(own, SIZES, device=A100, dtype=DType.BF16, gradient_dtype=given).forward_s
        for given in (None, DType.BF16, DType.FP32)
    }
    assert len(forward) == 1
    assert backward_s(own, DType.FP32) == backward_s(tied, DType.FP32)


def test_a_softmax_is_no_slower_than_a_norm_of_the_same_size() -> None:
    out = (Tensor("y", STREAM.dims),)
    softmax = Operator("softmax", OperatorKind.NORM, (STREAM,), out)
    norm = Operator("norm", OperatorKind.NORM, (STREAM,), out, (Weight("weight", ("hidden",)),))
    softmax_s, norm_s = (operator_time(op, SIZES, device=A100, dtype=DType.BF16) for op in (softmax, norm))
    assert softmax_s.forward_s <= norm_s.forward_s
    assert softmax_s.backward_s <= norm_s.backward_s


def test_frozen_weights_have_no_gradient_and_adapters_only_move_memory() -> None:
    operator = projection(Weight("w", ("hidden", "ffn")))
    whole, adapters = (
        operator_time(operator, SIZES, device=A100, dtype=DType.BF16, gradient_dtype=DType.FP32, trained=trained)
        for trained in (TrainedWeights.ALL, TrainedWeights.ADAPTERS)
    )
    # Input and output go through memory for the thin products: 8 MiB and 32 MiB here, far from the products' own time.
    assert whole.forward_s < adapters.forward_s < 1.5 * whole.forward_s
    assert 0.5 * whole.backward_s < adapters.backward_s < 0.8 * whole.backward_s
