"""The slowest of ranks with packed documents, against packs that are made."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.model.documents import (
    DocumentLengths,
    PackedAttention,
    PackedDocuments,
    SharedWork,
    pack_moments,
    pairs_of,
    slowest_over_mean,
)
from meshwright.costmodels.model.operators import AttentionMask
from tests.support.packing import simulated_packs

CAUSAL = ((AttentionMask.CAUSAL, None, 1.0),)
MIXED = (*CAUSAL, (AttentionMask.CAUSAL, 40, 3.0), (AttentionMask.FULL, None, 0.5))
HISTOGRAMS = [
    DocumentLengths((7, 40, 300), (60, 30, 10)),
    DocumentLengths((100,), (1,)),
    DocumentLengths((3, 2000), (50, 1)),
    DocumentLengths((200, 1000, 6000), (70, 25, 5)),
]


def attention(
    lengths: DocumentLengths, seq_len: int, parts: tuple[tuple[AttentionMask, int | None, float], ...] = CAUSAL
) -> PackedAttention:
    """The attention of sequences that are packed of documents."""
    return PackedAttention(PackedDocuments(lengths, seq_len), parts)


def works(of: PackedAttention, packs: int) -> np.ndarray:
    """The attention of simulated packs, shuffled, over that of whole sequences."""
    s = of.packed.seq_len
    tokens = np.arange(s + 1, dtype=np.float64)
    each = sum((w * pairs_of(mask, window, tokens) for mask, window, w in of.parts), np.zeros(s + 1))
    made = [each[pack].sum() / each[s] for pack in simulated_packs(of.packed.lengths, s, packs=packs, seed=11)]
    return np.random.default_rng(3).permutation(np.array(made))


@given(st.sets(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 7))
@settings(deadline=None)
def test_moments_are_those_of_every_row_of_documents(tokens: set[int], seq_len: int) -> None:
    lengths = DocumentLengths(tuple(sorted(tokens)), (1,) * len(tokens))
    of = attention(lengths, seq_len)
    pairs = pairs_of(AttentionMask.CAUSAL, None, np.arange(seq_len + 1, dtype=np.float64))
    mean = square = 0.0
    for first in sorted(tokens):
        for left in range(1, first + 1):
            # A sequence begins in a document in proportion to its tokens, with any number of them left.
            for others in itertools.product(sorted(tokens), repeat=seq_len):
                room, work = seq_len, 0.0
                for document in (left, *others):
                    work, room = work + pairs[min(document, room)], room - min(document, room)
                chance = 1.0 / sum(tokens) / len(tokens) ** seq_len
                mean, square = mean + chance * work / pairs[seq_len], square + chance * (work / pairs[seq_len]) ** 2
    found = pack_moments(of)
    # The most is that of the longest document, for each token.
    most = seq_len * (min(max(tokens), seq_len) + 1) / 2 / pairs[seq_len]
    assert found.mean * most == pytest.approx(mean)
    assert found.variance * most**2 == pytest.approx(square - mean**2, abs=1e-9)


@pytest.mark.parametrize("parts", [CAUSAL, MIXED])
@pytest.mark.parametrize("lengths", HISTOGRAMS)
def test_moments_are_those_of_simulated_packs(
    lengths: DocumentLengths, parts: tuple[tuple[AttentionMask, int | None, float], ...]
) -> None:
    of = attention(lengths, 512, parts)
    made, found = works(of, 40_000), pack_moments(of)
    assert found.variance**0.5 / found.mean == pytest.approx(made.std() / made.mean(), rel=0.04, abs=1e-3)
    assert found.mean <= 1.0


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("lengths", HISTOGRAMS)
@pytest.mark.parametrize(("ranks", "microbatches", "size"), [(8, 1, 1), (8, 4, 2), (64, 2, 1), (64, 8, 1)])
def test_the_slowest_rank_is_that_of_simulated_packs(
    lengths: DocumentLengths, ranks: int, microbatches: int, size: int
) -> None:
    of = attention(lengths, 2048)
    steps = 40_000 // (ranks * microbatches * size)
    made = works(of, steps * ranks * microbatches * size).reshape(steps, ranks, microbatches, size).sum(axis=3)
    each = float(made.mean())
    moments = pack_moments(of)
    once = slowest_over_mean(moments, SharedWork(ranks, microbatches, size))
    in_step = slowest_over_mean(moments, SharedWork(ranks, microbatches, size, in_step=True))
    assert once == pytest.approx(made.sum(axis=2).max(axis=1).mean() / (microbatches * each), rel=0.05)
    assert in_step == pytest.approx(made.max(axis=1).mean() / each, rel=0.05)
    assert 1.0 <= once <= in_step
    longest = made.max(axis=(1, 2)).mean()
    in_pipeline = slowest_over_mean(moments, SharedWork(ranks, microbatches, size, stages=4))
    expected = (made.sum(axis=2).max(axis=1).mean() + 3 * longest) / ((microbatches + 3) * each)
    assert in_pipeline == pytest.approx(expected, rel=0.05)


def test_one_rank_waits_for_none_and_more_wait_longer() -> None:
    moments = pack_moments(attention(HISTOGRAMS[3], 4096))
    waits = [slowest_over_mean(moments, SharedWork(ranks, 4, 1)) for ranks in (1, 2, 8, 64, 1024)]
    assert waits[0] == 1.0
    assert all(a < b for a, b in itertools.pairwise(waits))
    shorter = [slowest_over_mean(moments, SharedWork(64, number, 1)) for number in (1, 4, 64)]
    assert all(a > b for a, b in itertools.pairwise(shorter))
