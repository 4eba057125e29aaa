"""The bytes that kernels between matrix products move, counted by hand, and the order of implementations."""

from __future__ import annotations

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.calibration.kernels import VectorKernel
from meshwright.costmodels.hardware import device
from meshwright.costmodels.kernels.operator_time import attention_slowdown, operator_time
from meshwright.costmodels.kernels.vector_traffic import OperatorTraffic, vector_traffic
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.implementation import FlashAttention, Implementation, LossKernels, VectorKernels
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.units import DType

GRAPH = model("llama-3.1-8b")
SIZES = {**GRAPH.dims, BATCH: 1, SEQ: 4096}
STREAM_ELEMENTS = 4096 * GRAPH.dims["hidden"]
VECTOR = (OperatorKind.NORM, OperatorKind.ELEMENTWISE, OperatorKind.LOSS, OperatorKind.EMBEDDING)


def traffic(operator: Operator, kernels: VectorKernels, dtype: DType = DType.BF16) -> OperatorTraffic:
    loss = Implementation(kernels).loss
    return vector_traffic(operator, SIZES, dtype=dtype, kernels=kernels, curve=VectorKernel.STREAM, loss=loss)


def bytes_an_element(name: str, kernels: VectorKernels, elements: int, block: str = "layer") -> tuple[float, float]:
    moved = traffic(GRAPH.block(block).operator(name), kernels)
    forward, backward = (sum(k.bytes_moved for k in kernels) for kernels in (moved.forward, moved.backward))
    return forward / elements, backward / elements


def test_an_eager_rms_norm_moves_nine_times_what_a_fused_one_does() -> None:
    # Casts 6 + 6, square 8, mean 4, scale 8, weight 4 bytes an element against one read and one write of two.
    assert bytes_an_element("attn_norm", VectorKernels.EAGER, STREAM_ELEMENTS) == (36, 84)
    assert bytes_an_element("attn_norm", VectorKernels.FUSED, STREAM_ELEMENTS) == (4, 6)
    assert bytes_an_element("attn_norm", VectorKernels.FUSED_NORMS, STREAM_ELEMENTS) == (4, 6)


def test_an_eager_gated_activation_is_a_function_and_a_product() -> None:
    elements = 4096 * GRAPH.dims["ffn"]
    assert bytes_an_element("act", VectorKernels.EAGER, elements) == (10, 18)
    assert bytes_an_element("act", VectorKernels.FUSED, elements) == (6, 10)


def test_a_vocabulary_parallel_loss_works_in_fp32_step_by_step() -> None:
    elements = 4096 * GRAPH.dims["vocab"]
    assert bytes_an_element("loss", VectorKernels.FUSED, elements, "head") == (38, 14)
    assert bytes_an_element("loss", VectorKernels.EAGER, elements, "head") == (14, 22)


def test_a_compiler_of_layers_leaves_the_loss_eager_unless_told() -> None:
    assert Implementation(VectorKernels.COMPILED).loss is LossKernels.EAGER
    assert Implementation(VectorKernels.FUSED).loss is LossKernels.BY_HAND
    assert Implementation(VectorKernels.COMPILED, stated_loss=LossKernels.COMPILED).loss is LossKernels.COMPILED


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2-xl", "gemma-2-9b"])
def test_more_fusion_never_moves_more(name: str) -> None:
    graph = model(name)
    sizes = {**graph.dims, BATCH: 2, SEQ: 1024}
    for operator in graph.block("layer" if name != "gemma-2-9b" else graph.layers[1]).operators:
        if operator.kind not in VECTOR:
            continue
        moved = {}
        for kernels in VectorKernels:
            found = vector_traffic(operator, sizes, dtype=DType.BF16, kernels=kernels, curve=VectorKernel.STREAM)
            moved[kernels] = sum(kernel.bytes_moved for kernel in (*found.forward, *found.backward))
        order = [VectorKernels.COMPILED, VectorKernels.FUSED, VectorKernels.FUSED_NORMS, VectorKernels.EAGER]
        assert [moved[kernels] for kernels in order] == sorted(moved.values()), operator.name


def test_nothing_is_cast_where_activations_are_fp32() -> None:
    norm = GRAPH.block("layer").operator("attn_norm")
    half, full = (traffic(norm, VectorKernels.EAGER, dtype) for dtype in (DType.BF16, DType.FP32))
    assert len(half.forward) - len(full.forward) == 2
    assert len(half.backward) - len(full.backward) == 2


def test_eager_layers_take_longer_and_matrix_products_do_not() -> None:
    def seconds(name: str, kernels: VectorKernels) -> float:
        operator = GRAPH.block("layer").operator(name)
        time = operator_time(operator, SIZES, device=device("a100"), dtype=DType.BF16, kernels=kernels)
        return time.forward_s + time.backward_s

    assert seconds("attn_norm", VectorKernels.EAGER) > 3 * seconds("attn_norm", VectorKernels.FUSED)
    assert seconds("o_proj", VectorKernels.EAGER) == seconds("o_proj", VectorKernels.FUSED)


def test_generations_of_attention_follow_their_papers() -> None:
    a100, h100 = device("a100"), device("h100")
    assert attention_slowdown(FlashAttention.NATIVE, h100).forward == 1
    assert attention_slowdown(FlashAttention.FLASH_2, a100).forward == 1
    assert 1.7 < attention_slowdown(FlashAttention.FLASH_1, a100).backward < 3.0
    assert 1.3 < attention_slowdown(FlashAttention.FLASH_1_TRITON, a100).forward < 2.5
    on_h100 = attention_slowdown(FlashAttention.FLASH_2, h100)
    assert 1.5 < on_h100.backward < on_h100.forward < 2.0
