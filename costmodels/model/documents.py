"""Documents of many lengths in sequences of one length: how much attention their masks leave.

Documents are laid end to end, in random order, and cut where a sequence is full: no token is padding. A mask keeps attention
within each document. Which pieces of documents a sequence then holds follows exactly from the histogram of lengths, as the
tokens before its start are as many as any (renewal theory: Cox 1962, chapter 5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Len
from scipy.special import betainc

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import (
    AttentionMask,
    Operator,
    OperatorKind,
    attention_pairs,
    forward_flops,
    key_tokens,
    query_tokens,
)
from meshwright.costmodels.units import STRICT_RECORD, PositiveInt

Floats = npt.NDArray[np.float64]


class Fill(StrEnum):
    """The way in which sequences hold documents."""

    PACKED = "packed"
    """End to end, cut where a sequence is full; masks keep attention within each."""
    PADDED = "padded"
    """One in each sequence, filled up to its length, and cut off where it is longer; padding is computed as tokens are."""


MAX_LENGTHS = 1024
"""Lengths that a histogram may have."""
MAX_PACKED_TOKENS = 1 << 20
"""Tokens of a sequence that documents may be packed into: figures are worked out token by token."""


@dataclass(frozen=True)
class DocumentLengths:
    """A histogram of documents: ``counts`` of them have each of these numbers of ``tokens``, in ascending order, and ``fill``
    says how sequences hold them."""

    __pydantic_config__ = STRICT_RECORD

    tokens: Annotated[tuple[PositiveInt, ...], Len(1, MAX_LENGTHS)]
    counts: Annotated[tuple[PositiveInt, ...], Len(1, MAX_LENGTHS)]
    fill: Fill = Fill.PACKED

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.counts):
            raise WorkloadError(
                "lengths of documents need a count each",
                given=f"{len(self.tokens)} tokens, {len(self.counts)} counts",
                allowed="as many counts as tokens",
            )
        if any(a >= b for a, b in zip(self.tokens, self.tokens[1:], strict=False)):
            raise WorkloadError("lengths of documents are in ascending order, each once", given=list(self.tokens)[:10])

    def __hash__(self) -> int:
        # It is part of many cache keys, and long.
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.tokens, self.counts, self.fill))

    @property
    def mean_tokens(self) -> float:
        """Tokens of a document, on average."""
        return sum(n * tokens for n, tokens in zip(self.counts, self.tokens, strict=True)) / sum(self.counts)

    def useful_tokens(self, seq_len: int) -> float:
        """Return the tokens of a sequence that are of documents and no padding, on average."""
        if self.fill is Fill.PACKED:
            return float(seq_len)
        return sum(n * min(tokens, seq_len) for n, tokens in zip(self.counts, self.tokens, strict=True)) / sum(self.counts)


@dataclass(frozen=True, slots=True)
class PackedDocuments:
    """Documents packed into sequences of ``seq_len`` tokens."""

    lengths: DocumentLengths
    seq_len: int

    def masks(self, operator: Operator) -> bool:
        """Return True for attention among the tokens of a sequence, which sees its own document alone."""
        return operator.kind is OperatorKind.ATTENTION and query_tokens(operator) == key_tokens(operator) == SEQ

    def mean_pairs(self, operator: Operator) -> float:
        """Return the query-key pairs of a sequence, on average, that an ATTENTION's mask and those of documents leave."""
        return _mean_pairs(self, operator.mask, operator.window)

    @property
    def documents(self) -> float:
        """Pieces of documents that a sequence holds, on average."""
        return float(pieces(self).sum())

    @property
    def document_tokens(self) -> float:
        """Tokens of the document that a token is part of, on average: equal documents of this length have as many pairs."""
        return _document_tokens(self)


def flops_of_documents(operator: Operator, sizes: Mapping[str, int], documents: PackedDocuments | None) -> float:
    """Return the FLOPs of the forward pass under local sizes, of sequences packed of documents if there are any."""
    whole = forward_flops(operator, sizes)
    if documents is None or not documents.masks(operator):
        return whole
    return whole * documents.mean_pairs(operator) / attention_pairs(operator, {**sizes, SEQ: documents.seq_len})


def pairs_of(mask: AttentionMask | None, window: int | None, tokens: Floats) -> Floats:
    """Return the pairs of documents of so many tokens (`operators.attention_pairs`, for arrays)."""
    seen = tokens if window is None else np.minimum(tokens, window)
    if mask is AttentionMask.FULL:
        return tokens * seen
    if mask is AttentionMask.CHUNKED and window is not None:
        chunks, rest = np.divmod(tokens, window)
        return np.asarray(chunks * (window * (window + 1) / 2.0) + rest * (rest + 1.0) / 2.0, np.float64)
    return seen * (seen + 1.0) / 2.0 + (tokens - seen) * seen


@lru_cache(maxsize=64)
def pieces(packed: PackedDocuments) -> Floats:
    """``[x]``: how many pieces of x tokens a sequence holds, on average; of 0 tokens none.

    Whole documents start at any of the seq_len - x + 1 places that leave room for them. One that is cut ends a sequence with
    its first x tokens, or begins one with its last x, as often for each x below its length. Longer ones fill whole sequences.
    """
    s = packed.seq_len
    share, longer, mean = _distribution(packed)
    x = np.arange(s + 1, dtype=np.float64)
    found = (share * (s - x + 1.0) + 2.0 * longer) / mean
    found[0] = 0.0
    tokens, counts = (np.array(each, np.float64) for each in (packed.lengths.tokens, packed.lengths.counts))
    found[s] = float((counts * np.maximum(tokens - s + 1.0, 0.0)).sum() / counts.sum()) / mean
    found.setflags(write=False)
    return found


def _distribution(packed: PackedDocuments) -> tuple[Floats, Floats, float]:
    """``[x]``: the share of documents of x tokens, 0 to seq_len, and of longer ones; and the mean length."""
    s, whole = packed.seq_len, sum(packed.lengths.counts)
    share = np.zeros(s + 1)
    for tokens, count in zip(packed.lengths.tokens, packed.lengths.counts, strict=True):
        if tokens <= s:
            share[tokens] = count / whole
    return share, np.maximum(1.0 - np.cumsum(share), 0.0), packed.lengths.mean_tokens


@lru_cache(maxsize=256)
def _mean_pairs(packed: PackedDocuments, mask: AttentionMask | None, window: int | None) -> float:
    x = np.arange(packed.seq_len + 1, dtype=np.float64)
    return float(pieces(packed) @ pairs_of(mask, window, x))


@lru_cache(maxsize=64)
def _document_tokens(packed: PackedDocuments) -> float:
    x = np.arange(packed.seq_len + 1, dtype=np.float64)
    return float(pieces(packed) @ x**2) / packed.seq_len


# The slowest of ranks whose sequences are packed of documents: all have as many tokens, but not as much attention.
#
# Mean and variance of a sequence's pairs are exact, by renewal equations over its tokens. Sequences
# are shuffled, and so independent; sums over some of them are taken to follow the beta distribution
# with that mean and variance, between no pairs and the most that the longest document leaves, and
# the largest of some ranks is the expected one.

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
