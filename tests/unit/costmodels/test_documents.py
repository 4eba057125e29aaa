"""Documents packed into sequences: the pieces that these hold, and the attention within them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.kernels.operator_time import operator_time
from meshwright.costmodels.model.documents import DocumentLengths, PackedDocuments, flops_of_documents, pairs_of, pieces
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor, attention_pairs, forward_flops
from meshwright.costmodels.units import DType
from tests.support.packing import simulated_packs

SIZES = {"batch": 2, "seq": 512, "heads": 8, "kv_heads": 2, "head_dim": 64}


def attention(mask: AttentionMask = AttentionMask.CAUSAL, window: int | None = None) -> Operator:
    """A fused attention of one sequence."""
    query, key, value = (
        Tensor(name, ("batch", "seq", heads, "head_dim"))
        for name, heads in (("q", "heads"), ("k", "kv_heads"), ("v", "kv_heads"))
    )
    output = Tensor("o", query.dims)
    return Operator("core", OperatorKind.ATTENTION, (query, key, value), (output,), mask=mask, window=window)


KINDS = [
    attention(),
    attention(window=20),
    attention(AttentionMask.FULL),
    attention(AttentionMask.FULL, window=20),
    attention(AttentionMask.CHUNKED, window=20),
]


@st.composite
def histograms(draw: st.DrawFn) -> DocumentLengths:
    """A few lengths, below and above those of sequences."""
    tokens = sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=5)))
    return DocumentLengths(tuple(tokens), tuple(draw(st.integers(1, 9)) for _ in tokens))


@given(histograms(), st.integers(1, 120))
def test_pieces_fill_a_sequence(lengths: DocumentLengths, seq_len: int) -> None:
    held = pieces(PackedDocuments(lengths, seq_len))
    assert held.min() >= 0
    assert sum(tokens * number for tokens, number in enumerate(held)) == pytest.approx(seq_len)


@given(histograms(), st.integers(1, 120))
def test_pieces_are_those_of_every_place_of_each_document(lengths: DocumentLengths, seq_len: int) -> None:
    counted = [0.0] * (seq_len + 1)
    for tokens, count in zip(lengths.tokens, lengths.counts, strict=True):
        for start in range(seq_len):
            left, room = tokens, seq_len - start
            while left:
                counted[min(left, room)] += count / (sum(lengths.counts) * lengths.mean_tokens)
                left, room = left - min(left, room), seq_len
    assert pieces(PackedDocuments(lengths, seq_len)) == pytest.approx(counted)


@pytest.mark.parametrize("operator", KINDS)
def test_pairs_of_arrays_are_those_of_numbers(operator: Operator) -> None:
    lengths = np.arange(1, 90, dtype=np.float64)
    expected = [attention_pairs(operator, {**SIZES, "seq": tokens}) for tokens in range(1, 90)]
    assert pairs_of(operator.mask, operator.window, lengths) == pytest.approx(expected)


@pytest.mark.parametrize("operator", KINDS)
def test_one_document_a_sequence_is_no_mask(operator: Operator) -> None:
    whole = PackedDocuments(DocumentLengths((512 * 10_000_000,), (3,)), 512)
    assert flops_of_documents(operator, SIZES, whole) == pytest.approx(forward_flops(operator, SIZES), rel=1e-6)
    assert whole.documents == pytest.approx(1.0, abs=1e-6)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("operator", KINDS)
@pytest.mark.parametrize(
    "lengths",
    [DocumentLengths((7, 40, 300), (60, 30, 10)), DocumentLengths((100,), (1,)), DocumentLengths((3, 2000), (50, 1))],
)
def test_the_mean_is_that_of_simulated_packs(operator: Operator, lengths: DocumentLengths) -> None:
    packed = PackedDocuments(lengths, 512)
    simulated = simulated_packs(lengths, 512, packs=20_000, seed=7)
    pairs = [sum(attention_pairs(operator, {**SIZES, "seq": n}) for n in pack) for pack in simulated]
    assert packed.mean_pairs(operator) == pytest.approx(sum(pairs) / len(pairs), rel=0.02)
    assert packed.documents == pytest.approx(sum(map(len, simulated)) / len(simulated), rel=0.02)


def test_attention_over_documents_takes_less_and_at_the_limit_as_much() -> None:
    h100 = node_type("dgx-h100").device
    sizes = {**SIZES, "batch": 1, "seq": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128}

    def seconds(*tokens: int) -> float:
        packed = PackedDocuments(DocumentLengths(tokens, (1,) * len(tokens)), 8192)
        found = operator_time(attention(), sizes, device=h100, dtype=DType.BF16, documents=packed)
        return found.forward_s + found.backward_s

    plain = operator_time(attention(), sizes, device=h100, dtype=DType.BF16)
    assert seconds(512) < seconds(512, 2048) < seconds(2048) < seconds(8192) < plain.forward_s + plain.backward_s
    assert seconds(8192 * 1_000_000) == pytest.approx(plain.forward_s + plain.backward_s, rel=1e-3)
    assert seconds(512) < 0.2 * seconds(8192 * 1_000_000)


def test_operators_that_see_no_other_token_are_as_before() -> None:
    packed = PackedDocuments(DocumentLengths((7,), (1,)), 512)
    cross = attention(AttentionMask.FULL)
    key = Tensor("k", ("batch", "encoded", "kv_heads", "head_dim"))
    cross = Operator("cross", OperatorKind.ATTENTION, (cross.inputs[0], key, key), cross.outputs, mask=AttentionMask.FULL)
    assert packed.masks(attention()) and not packed.masks(cross)


@pytest.mark.parametrize(("tokens", "counts"), [((1, 2), (1,)), ((2, 1), (1, 1)), ((2, 2), (1, 1))])
def test_histograms_that_are_none_are_refused(tokens: tuple[int, ...], counts: tuple[int, ...]) -> None:
    with pytest.raises(WorkloadError):
        DocumentLengths(tokens, counts)
