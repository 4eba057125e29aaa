"""Matrix products below 16 bits: what they gain, and what finding their scales costs."""

from __future__ import annotations

import pytest

from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import device
from meshwright.costmodels.kernels.compute import sustained_matmul_s, sustained_memory_s
from meshwright.costmodels.kernels.operator_time import OperatorTime, operator_time
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight
from meshwright.costmodels.units import DType

SIZES = {"batch": 1, "seq": 4096, "hidden": 8192, "ffn": 28672}
UP = Operator(
    "up",
    OperatorKind.MATMUL,
    (Tensor("x", ("batch", "seq", "hidden")),),
    (Tensor("y", ("batch", "seq", "ffn")),),
    (Weight("w", ("hidden", "ffn")),),
)


def time(recipe: MatmulRecipe, name: str = "b200") -> OperatorTime:
    return operator_time(UP, SIZES, device=device(name), dtype=DType.BF16, recipe=recipe)


def test_delayed_scaling_takes_the_times_of_fp8_products() -> None:
    h100, m, n, k = device("h100"), 4096, 28672, 8192
    found = time(MatmulRecipe.FP8_DELAYED, "h100")
    assert found.forward_s == pytest.approx(sustained_matmul_s(h100, DType.FP8, m, n, k))
    backward = sustained_matmul_s(h100, DType.FP8, m, k, n) + sustained_matmul_s(h100, DType.FP8, k, n, m)
    assert found.backward_s == pytest.approx(backward)
    # Hopper's matrix units are twice as fast in fp8.
    assert found.forward_s < 0.7 * time(MatmulRecipe.WORKING, "h100").forward_s


def test_current_scaling_reads_input_and_output_gradient_once_more() -> None:
    delayed, current = time(MatmulRecipe.FP8_DELAYED), time(MatmulRecipe.FP8_CURRENT)
    b200 = device("b200")
    assert current.forward_s - delayed.forward_s == pytest.approx(sustained_memory_s(b200, 2 * 4096 * 8192))
    assert current.backward_s - delayed.backward_s == pytest.approx(sustained_memory_s(b200, 2 * 4096 * 28672))


def test_four_bits_are_faster_than_eight_and_eight_than_sixteen() -> None:
    four, eight, sixteen = (time(r) for r in (MatmulRecipe.NVFP4, MatmulRecipe.MXFP8, MatmulRecipe.WORKING))
    assert four.backward_s < eight.backward_s < sixteen.backward_s


def test_a_device_without_the_format_is_refused() -> None:
    with pytest.raises(ClusterError, match="fp8"):
        time(MatmulRecipe.FP8_DELAYED, "a100")
