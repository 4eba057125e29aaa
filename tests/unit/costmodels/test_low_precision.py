"""Matrix products below 16 bits: what they gain, and what finding their scales costs."""

from __future__ import annotations

import pytest

from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import device
from meshwright.costmodels.hardware.generations import Speedup
from meshwright.costmodels.kernels.compute import sustained_matmul_s, sustained_memory_s
from meshwright.costmodels.kernels.operator_time import OperatorTime, operator_time
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor, Weight
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


ATTENTION = Operator(
    "attention",
    OperatorKind.ATTENTION,
    tuple(Tensor(name, ("batch", "seq", heads, "head_dim")) for name, heads in (("q", "heads"), ("k", "kv"), ("v", "kv"))),
    (Tensor("context", ("batch", "seq", "heads", "head_dim")),),
    mask=AttentionMask.CAUSAL,
)


def attended(recipe: MatmulRecipe, name: str, tokens: int) -> OperatorTime:
    sizes = {"batch": 1, "seq": tokens, "heads": 64, "kv": 8, "head_dim": 128}
    return operator_time(ATTENTION, sizes, device=device(name), dtype=DType.BF16, recipe=recipe)


@pytest.mark.parametrize(
    ("name", "tokens", "forward", "backward"),
    [("h200", 8192, 1.497, 0.795), ("gb200", 8192, 1.301, 1.092), ("gb200", 1024, 1.289, 0.94), ("mi300x", 8192, 1.0, 1.0)],
)
def test_attention_in_fp8_gains_what_was_measured_and_pays_its_casts(
    name: str, tokens: int, forward: float, backward: float
) -> None:
    working, fp8 = (attended(recipe, name, tokens) for recipe in (MatmulRecipe.WORKING, MatmulRecipe.FP8_DELAYED))
    # Queries and output have 64 heads each, keys and values 8; 2 bytes are read and 1 written, or the other way round.
    casts_s = sustained_memory_s(device(name), tokens * 128 * (64 + 8 + 8 + 64) * 3)
    assert fp8.forward_s == pytest.approx(working.forward_s / forward + casts_s)
    assert fp8.backward_s == pytest.approx(working.backward_s / backward + casts_s)


def test_a_speedup_grows_between_measured_lengths_and_is_refused_without_them() -> None:
    speedup = Speedup((1024, 4096), (1.0, 2.0), (3.0, 1.0))
    assert speedup.at(2048) == pytest.approx((1.5, 2.0))
    assert speedup.at(64) == (1.0, 3.0) and speedup.at(2**20) == (2.0, 1.0)
    for tokens, forward in (((), ()), ((2048, 1024), (1.0, 1.0)), ((1024,), (0.0,)), ((1024,), (1.0, 1.0))):
        with pytest.raises(ClusterError, match="speedup"):
            Speedup(tokens, forward, forward)


def test_a_device_without_the_format_is_refused() -> None:
    with pytest.raises(ClusterError, match="fp8"):
        time(MatmulRecipe.FP8_DELAYED, "a100")
