"""Grouped matrix operators (experts) and chunked attention."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.operators import (
    AttentionMask,
    Operator,
    OperatorKind,
    Tensor,
    Weight,
    attention_pairs,
    forward_flops,
    matmul_groups,
    matmul_shape,
)

SIZES = {"batch": 2, "seq": 128, "top_k": 4, "hidden": 64, "expert_ffn": 96, "experts": 16}
SLOTS = ("batch", "seq", "top_k")


def experts_up() -> Operator:
    return Operator(
        "experts_up_proj",
        OperatorKind.MATMUL,
        inputs=(Tensor("routed", (*SLOTS, "hidden")),),
        outputs=(Tensor("up", (*SLOTS, "expert_ffn")),),
        weights=(Weight("w_up", ("experts", "hidden", "expert_ffn")), Weight("b_up", ("experts", "expert_ffn"))),
    )


def test_each_row_meets_one_expert() -> None:
    assert experts_up().routed_dims == ("experts",)
    assert matmul_shape(experts_up(), SIZES) == (2 * 128 * 4, 96, 64)
    assert matmul_groups(experts_up(), SIZES) == 16


def test_flops_do_not_depend_on_the_number_of_experts() -> None:
    assert forward_flops(experts_up(), SIZES) == 2.0 * 2 * 128 * 4 * 64 * 96
    assert forward_flops(experts_up(), {**SIZES, "experts": 256}) == forward_flops(experts_up(), SIZES)


def test_matmul_without_routing_is_one_group() -> None:
    dense = Operator(
        "up_proj",
        OperatorKind.MATMUL,
        inputs=(Tensor("x", ("batch", "seq", "hidden")),),
        outputs=(Tensor("up", ("batch", "seq", "expert_ffn")),),
        weights=(Weight("w_up", ("hidden", "expert_ffn")),),
    )
    assert dense.routed_dims == ()
    assert matmul_groups(dense, SIZES) == 1


def attention(mask: AttentionMask, window: int | None) -> Operator:
    heads = ("batch", "seq", "heads", "head_dim")
    return Operator(
        "attention",
        OperatorKind.ATTENTION,
        inputs=tuple(Tensor(name, heads) for name in "qkv"),
        outputs=(Tensor("context", heads),),
        mask=mask,
        window=window,
    )


@given(tokens=st.integers(1, 60), chunk=st.integers(1, 70))
def test_chunked_pairs_are_those_counted_one_by_one(tokens: int, chunk: int) -> None:
    pairs = sum(1 for query in range(tokens) for key in range(query + 1) if key // chunk == query // chunk)
    assert attention_pairs(attention(AttentionMask.CHUNKED, chunk), {"seq": tokens}) == pairs


@given(tokens=st.integers(1, 60), window=st.integers(1, 70))
def test_windowed_pairs_are_those_counted_one_by_one(tokens: int, window: int) -> None:
    pairs = sum(1 for query in range(tokens) for key in range(query + 1) if query - key < window)
    assert attention_pairs(attention(AttentionMask.CAUSAL, window), {"seq": tokens}) == pairs


def test_chunked_mask_needs_its_chunk() -> None:
    with pytest.raises(ModelError, match="window"):
        attention(AttentionMask.CHUNKED, None)
