"""Measured times of kernels and collectives: what calibrations are fitted to. One row a measurement, column by column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.calibration.collectives import Collective
from meshwright.costmodels.calibration.kernels import KernelKind, VectorKernel
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import DType

Floats = NDArray[np.float64]
Texts = NDArray[np.str_]
Rows = NDArray[np.bool_]


class SampleError(InvalidInputError):
    """Measured times that can't be used."""


class SampleKind(StrEnum):
    """The kind of a measured sample. Attention is causal over whole sequences; decode reads the cache and the new token."""

    GEMM = "gemm"
    PREFILL_ATTENTION = "prefill_attention"
    ATTENTION_BACKWARD = "attention_backward"
    DECODE_ATTENTION = "decode_attention"
    STREAM = "stream"
    NORM = "norm"
    ACTIVATION = "activation"
    GATHER = "gather"
    LAUNCH = "launch"
    """The host's time to launch one kernel that has nothing to do."""
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"
    BROADCAST = "broadcast"


VECTOR_KINDS = {SampleKind(kernel.value): kernel for kernel in VectorKernel if kernel.value in tuple(SampleKind)}
COLLECTIVE_KINDS = {SampleKind(kind.value): kind for kind in Collective}
ATTENTION_KINDS = {
    SampleKind.PREFILL_ATTENTION: KernelKind.PREFILL_ATTENTION,
    SampleKind.ATTENTION_BACKWARD: KernelKind.ATTENTION_BACKWARD,
    SampleKind.DECODE_ATTENTION: KernelKind.DECODE_ATTENTION,
}

_ATTENTION_SIZES = ("batch", "q_tokens", "kv_tokens", "heads", "kv_heads", "head_dim")
SIZES: dict[SampleKind, tuple[str, ...]] = {
    SampleKind.GEMM: ("m", "n", "k", "batch"),
    **dict.fromkeys(ATTENTION_KINDS, _ATTENTION_SIZES),
    **dict.fromkeys(VECTOR_KINDS, ("moved_bytes",)),
    SampleKind.LAUNCH: (),
    **dict.fromkeys(COLLECTIVE_KINDS, ("moved_bytes", "ranks")),
}
"""The sizes that a row of each kind has; the others are 0."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Measurements; arrays of one length.

    device               calibration key of the device ("h100_sxm")
    kind, dtype          SampleKind; DType of the inputs (decode attention: of the cache)
    m, n, k, batch       of a product (m, k) x (k, n), ``batch`` times
    q_tokens ... head_dim  of attention over ``batch`` sequences
    moved_bytes          bytes that a vector kernel reads and writes; the whole tensor of a collective
                         (``costmodels.network.collectives``)
    ranks                of a collective, all inside one node
    time_s               seconds
    software, source     versions it ran with; where the measurement comes from
    """

    device: Texts
    kind: Texts
    dtype: Texts
    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    q_tokens: Floats
    kv_tokens: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: Floats
    moved_bytes: Floats
    ranks: Floats
    time_s: Floats
    software: Texts
    source: Texts

    def __len__(self) -> int:
        return len(self.time_s)

    def where(self, rows: Rows) -> Samples:
        """The rows that a mask names."""
        return Samples(**{name: getattr(self, name)[rows] for name in COLUMNS})

    def of_kind(self, kind: SampleKind) -> Samples:
        """The rows of one kind."""
        return self.where(self.kind == kind.value)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Rows as plain values in the order of COLUMNS, whole numbers as such."""
        columns = [getattr(self, name) for name in COLUMNS]
        plain = [[_plain(value) for value in column.tolist()] for column in columns]
        return zip(*plain, strict=True)


COLUMNS = tuple(field.name for field in fields(Samples))
TEXT_COLUMNS = ("device", "kind", "dtype", "software", "source")


WIDE_TEXT = 64
"""Characters that any text may have: in a row of 20 bytes all of them padded take 64 times its text."""
PADDED = 2**22
"""Characters of a padded column that are no matter: 16 MiB."""
MOST_PADDING = 8
"""Characters of a larger padded column for each that is written: 32 bytes."""


def samples_of(rows: list[dict[str, Any]]) -> Samples:
    """Samples of rows that name the columns they have; sizes left out are 0. Raises SampleError at the first bad row."""
    if not rows:
        raise SampleError("there are no measurements in it", allowed="at least one row")
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        if name in TEXT_COLUMNS:
            columns[name] = _texts(name, [str(row.get(name, "")) for row in rows])
        else:
            columns[name] = np.array([float(row.get(name, 0.0)) for row in rows], np.float64)
    samples = Samples(**columns)
    check_samples(samples)
    return samples


def _texts(column: str, texts: list[str]) -> Texts:
    """Texts as an array, in which each takes the room of the longest; raises SampleError where that is mostly padding."""
    longest, written = max(map(len, texts)), sum(map(len, texts))
    if longest > WIDE_TEXT and longest * len(texts) > max(PADDED, MOST_PADDING * written):
        allowed = f"at most {WIDE_TEXT} beside so many shorter ones"
        raise SampleError(f"the longest {column} has too many characters", given=longest, allowed=allowed)
    return np.array(texts, np.str_)


def joined(parts: list[Samples]) -> Samples:
    """The rows of all parts, in order."""
    return Samples(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS})


def check_samples(samples: Samples) -> None:
    """Refuse rows of unknown kinds or formats, sizes that are missing or no positive numbers, and times of nothing."""
    _all_in("kind", samples.kind, tuple(SampleKind))
    _all_in("dtype", samples.dtype, tuple(DType))
    _all_positive("time_s", samples.time_s, np.ones(len(samples), bool))
    for kind, sizes in SIZES.items():
        chosen = samples.kind == kind.value
        for name in sizes:
            _all_positive(name, getattr(samples, name), chosen)
    if (samples.device == "").any():
        raise SampleError("a row names no device", given=f"row {int(np.argmax(samples.device == '')) + 1}")


def _all_in(column: str, values: Texts, allowed: tuple[str, ...]) -> None:
    known = np.isin(values, np.array([str(value) for value in allowed]))
    if not known.all():
        row = int(np.argmax(~known))
        raise SampleError(f"row {row + 1}: unknown {column}", given=str(values[row]), allowed=", ".join(allowed))


def _all_positive(column: str, values: Floats, chosen: Rows) -> None:
    bad = chosen & ~(np.isfinite(values) & (values > 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise SampleError(f"row {row + 1}: {column} can't be used", given=float(values[row]), allowed="a positive number")


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
