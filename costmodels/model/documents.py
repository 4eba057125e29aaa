"""Documents of many lengths in sequences of one length: how much attention their masks leave.

Documents are laid end to end, in random order, and cut where a sequence is full: no token is padding. A mask keeps attention
within each document. Which pieces of documents a sequence then holds follows exactly from the histogram of lengths, as the
tokens before its start are as many as any (renewal theory: Cox 1962, chapter 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Len

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.dims import SEQ
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
