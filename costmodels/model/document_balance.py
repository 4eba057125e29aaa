"""The slowest of ranks whose sequences are packed of documents: all have as many tokens, but not as much attention.

Mean and variance of a sequence's pairs are exact, by renewal equations over its tokens. Sequences are shuffled, and so
independent; sums over some of them are taken to follow the beta distribution with that mean and variance, between no pairs and
the most that the longest document leaves, and the largest of some ranks is the expected one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import betainc

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.documents import PackedDocuments, pairs_of, pieces
from meshwright.costmodels.model.operators import AttentionMask, Operator, attention_pairs, forward_flops

Floats = npt.NDArray[np.float64]

_POINTS = 4001
"""Points of the integral of an expected largest value: twice as many change the largest of 4 to 4,096 ranks by 1e-5 or less."""
_DEVIATIONS = 40.0
"""Standard deviations from the mean beyond which no value counts: the chance of one is below 1 / 40² (Chebyshev), and of a sum
over sequences far below."""


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """Attention of a model over packed documents: ``parts`` are masks, windows, and FLOPs a pair in all layers."""

    packed: PackedDocuments
    parts: tuple[tuple[AttentionMask, int | None, float], ...]


@dataclass(frozen=True, slots=True)
class PackMoments:
    """Attention of a sequence, in the most that it can have: mean and variance, between 0 and 1."""

    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class SharedWork:
    """The sequences of a step: ``ranks`` have ``microbatches`` of ``size`` each, on ``stages``; ranks that are ``in_step`` wait
    for one another in every micro-batch, others once a step."""

    ranks: int
    microbatches: int
    size: int
    stages: int = 1
    in_step: bool = False


def packed_attention(
    packed: PackedDocuments, layers: Iterable[Sequence[Operator]], dims: Mapping[str, int]
) -> PackedAttention | None:
    """Return the attention under masks of the operators of all layers; None where there is none."""
    sizes = {**dims, BATCH: 1, SEQ: packed.seq_len}
    parts: dict[tuple[AttentionMask, int | None], float] = {}
    for operator in (each for operators in layers for each in operators if packed.masks(each)):
        assert operator.mask is not None, "attention has a mask"
        of_pair = forward_flops(operator, sizes) / attention_pairs(operator, sizes)
        key = (operator.mask, operator.window)
        parts[key] = parts.get(key, 0.0) + of_pair
    return PackedAttention(packed, tuple((*key, weight) for key, weight in parts.items())) if parts else None


@lru_cache(maxsize=16)
def pack_moments(attention: PackedAttention) -> PackMoments:
    """Return the moments of a sequence's attention.

    With documents that begin at the start of a window of t tokens, the work in it has the mean g(t) = a(t) + E[g(t - l)], where
    a(t) is what the first document brings, and likewise the mean square (Cox 1962, chapter 4). A sequence begins inside a
    document, of which x tokens are left with the chance P(l >= x) / m. Work is counted less its mean a token, which all
    sequences have.
    """
    packed = attention.packed
    s = packed.seq_len
    tokens = np.arange(s + 1, dtype=np.float64)
    work = sum((weight * pairs_of(mask, window, tokens) for mask, window, weight in attention.parts), np.zeros(s + 1))
    # A pack of documents as long as the longest has the most for each token.
    longest = min(s, packed.lengths.tokens[-1])
    work /= s * float((work[1 : longest + 1] / tokens[1 : longest + 1]).max())
    mean = float(pieces(packed) @ work)
    work -= mean / s * tokens
    share = np.zeros(s + 1)
    whole = sum(packed.lengths.counts)
    for length, count in zip(packed.lengths.tokens, packed.lengths.counts, strict=True):
        if length <= s:
            share[length] = count / whole
    longer = np.maximum(1.0 - np.cumsum(share), 0.0)
    begins = _reciprocal(np.r_[1.0, -share[1:]])
    first = _product(begins, longer * work + np.cumsum(share * work))
    square = longer * work**2 + np.cumsum(share * work**2) + 2.0 * _product(share * work, first)
    second = _product(begins, square)
    left = longer[:-1] / packed.lengths.mean_tokens
    # left[x - 1] is the chance of x tokens; x = s stands for s and more.
    inside, x = left[: s - 1], np.arange(1, s)
    rest = 1.0 - float(inside.sum())
    squares = inside @ (work[x] ** 2 + 2.0 * work[x] * first[s - x] + second[s - x]) + rest * work[s] ** 2
    return PackMoments(mean, max(0.0, float(squares)))


def slowest_over_mean(moments: PackMoments, shared: SharedWork) -> float:
    """Return the attention of a mean micro-batch of the rank that all others wait for, over that of all ranks, at least 1.

    A pipeline fills and drains with its longest micro-batch, once for each further stage: the makespan of a flow shop whose
    jobs take as long on every machine (Ow 1985), m jobs' sum and (p - 1) of the longest.
    """
    m, p = shared.microbatches, shared.stages
    one = _expected_largest(moments, sequences=shared.size, among=shared.ranks)
    in_sum = one if shared.in_step else _expected_largest(moments, sequences=shared.size * m, among=shared.ranks)
    longest = one if m == 1 else _expected_largest(moments, sequences=shared.size, among=shared.ranks * m)
    if p == 1:
        longest = 0.0
    return max(1.0, (m * in_sum + (p - 1) * longest) / ((m + p - 1) * moments.mean))


@lru_cache(maxsize=4096)
def _expected_largest(moments: PackMoments, *, sequences: int, among: int) -> float:
    """Return the expected largest mean over some sequences, among so many independent ones."""
    mean, variance = moments.mean, moments.variance / sequences
    odds = mean * (1.0 - mean) / variance - 1.0 if variance > 0.0 else math.inf
    if among == 1 or not 0.0 < odds < 1e12:
        return mean
    spread = _DEVIATIONS * math.sqrt(variance)
    at = np.linspace(max(0.0, mean - spread), min(1.0, mean + spread), _POINTS)
    above = 1.0 - betainc(mean * odds, (1.0 - mean) * odds, at) ** among
    return float(at[0] + np.trapezoid(above, at))


def _product(a: Floats, b: Floats) -> Floats:
    """Return the first terms of the product of two power series of as many terms."""
    size = 1 << (2 * len(a) - 1).bit_length()
    return np.asarray(np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b, size), size)[: len(a)], np.float64)


def _reciprocal(series: Floats) -> Floats:
    """Return 1 over a power series that begins with 1, by Newton's iteration."""
    found = np.ones(1)
    while len(found) < len(series):
        known = min(2 * len(found), len(series))
        padded = np.r_[found, np.zeros(known - len(found))]
        found = 2.0 * padded - _product(_product(padded, padded), series[:known])
    return found
