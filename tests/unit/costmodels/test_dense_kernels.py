"""Products of two activations, and those inside convolutions."""

from __future__ import annotations

import pytest

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.kernels.compute import sustained_matmul_s
from meshwright.costmodels.kernels.operator_time import convolution_products_s, operator_time, product_s, unaligned_attention_s
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight, forward_flops, product_shape
from meshwright.costmodels.units import DType

DEVICE = node_type("dgx-h100").device
SIZES = {"batch": 4, "seq": 512, "keys": 256, "heads": 8, "head_dim": 64, "c": 64, "o": 128, "h": 32, "w": 32, "kh": 3, "kw": 3}


def scores() -> Operator:
    query = Tensor("q", ("batch", "seq", "heads", "head_dim"))
    key = Tensor("k", ("batch", "keys", "heads", "head_dim"))
    return Operator("scores", OperatorKind.PRODUCT, (query, key), (Tensor("s", ("batch", "seq", "heads", "keys")),))


def test_scores_are_one_product_a_head_and_sequence() -> None:
    assert product_shape(scores(), SIZES) == (512, 256, 64, 4 * 8)
    assert forward_flops(scores(), SIZES) == 2 * 512 * 256 * 64 * 32
    forward, backward = product_s(scores(), SIZES, device=DEVICE, dtype=DType.BF16)
    assert forward == sustained_matmul_s(DEVICE, DType.BF16, 512, 256, 64, batch=32)
    # One product for the gradient of the queries, one for that of the keys.
    assert backward == sum(sustained_matmul_s(DEVICE, DType.BF16, *s, batch=32) for s in ((512, 64, 256), (64, 256, 512)))


def test_a_product_has_two_inputs_and_no_weights() -> None:
    first, second = scores().inputs
    with pytest.raises(ModelError, match="two activations"):
        Operator("one", OperatorKind.PRODUCT, (first,), scores().outputs)
    with pytest.raises(ModelError, match="two activations"):
        Operator("weighted", OperatorKind.PRODUCT, (first, second), scores().outputs, (Weight("w", ("head_dim",)),))


def convolution(kernel: tuple[str, ...], channels: str = "o") -> Operator:
    read = Tensor("x", ("batch", "c", "h", "w"))
    written = Tensor("y", ("batch", channels, "h", "w"))
    return Operator("conv", OperatorKind.CONVOLUTION, (read,), (written,), (Weight("kernel", (channels, *kernel)),))


def test_a_convolution_is_an_implicit_product_over_channels_and_kernel() -> None:
    forward, _ = convolution_products_s(convolution(("c", "kh", "kw")), SIZES, device=DEVICE, dtype=DType.BF16)
    assert forward == sustained_matmul_s(DEVICE, DType.BF16, 4 * 32 * 32, 128, 64 * 9)


def test_a_depthwise_convolution_only_moves_its_tensors() -> None:
    assert convolution_products_s(convolution(("kh", "kw"), "c"), SIZES, device=DEVICE, dtype=DType.BF16) == (0.0, 0.0)


def test_a_convolution_takes_at_least_its_products_and_at_least_its_traffic() -> None:
    for batch, channels in ((4, 4096), (4096, 1)):
        sizes = SIZES | {"batch": batch, "c": channels, "o": channels}
        operator = convolution(("c", "kh", "kw"))
        products_s, _ = convolution_products_s(operator, sizes, device=DEVICE, dtype=DType.BF16)
        moved_s = 2 * batch * channels * 32 * 32 * 2 / DEVICE.memory_bytes_per_s
        taken_s = operator_time(operator, sizes, device=DEVICE, dtype=DType.BF16).forward_s
        assert taken_s >= max(products_s, moved_s)
        assert taken_s == products_s or channels == 1


def unfused(name: str) -> Operator:
    """A product of attention without a fused kernel: scores of queries and keys, or their product with the values."""
    query = Tensor("q", ("batch", "seq", "heads", "head_dim"))
    pairs = Tensor("p", ("batch", "heads", "seq", "seq"))
    inputs, output = ((query, query), pairs) if name == "scores" else ((pairs, query), query)
    return Operator(name, OperatorKind.NORM, inputs, (output,))


@pytest.mark.parametrize("name", ["scores", "context"])
def test_heads_that_matrix_units_cannot_read_run_on_vector_units_in_fp32(name: str) -> None:
    def seconds(head_dim: int, dtype: DType = DType.FP16) -> tuple[float, float]:
        time = operator_time(unfused(name), SIZES | {"seq": 2048, "head_dim": head_dim}, device=DEVICE, dtype=dtype)
        return time.forward_s, time.backward_s

    # 104 and 112 columns of 2 bytes are rows of whole 16 bytes: memory alone decides. 108 are 13.5 times 16.
    slow, aligned = seconds(108), (seconds(104), seconds(112))
    shape = (2048, 2048, 108) if name == "scores" else (2048, 108, 2048)
    product = sustained_matmul_s(DEVICE, DType.FP32, *shape, batch=4 * 8)
    assert slow == (pytest.approx(product), pytest.approx(2 * product))
    assert aligned[0] < aligned[1] and 3 * aligned[1][0] < slow[0]
    assert seconds(108, DType.FP32)[0] < slow[0]


def test_other_vector_operators_do_not_depend_on_heads_of_whole_rows() -> None:
    softmax = Operator(
        "softmax", OperatorKind.NORM, unfused("scores").outputs, (Tensor("q", ("batch", "heads", "seq", "seq")),)
    )
    sizes = SIZES | {"seq": 2041, "head_dim": 108}
    assert unaligned_attention_s(softmax, sizes, device=DEVICE, dtype=DType.BF16) == 0.0
