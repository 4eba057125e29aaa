"""The vocabulary: every symbol and unit used in names, defined once.

Symbols (survey section 5, Helix appendix A)
    b     micro-batch size: sequences a replica runs at once
    s     sequence length in tokens
    h     hidden size                  a    query heads        k    key/value heads
    d_h   head dimension               I    feed-forward size  V    vocabulary size
    dp, tp, pp, cp, ep                 degrees of data, tensor, pipeline, context and expert parallelism
    m     micro-batches per step and replica
    kvp, tpa, tpf                      KV parallel, attention-TP and FFN-TP degrees of Helix

An *axis* is an axis of the device mesh; a *dim* is a dimension of a tensor.

Units stand in names: ``_bytes``, ``_flops``, ``_s``, ``_us``, ``_bytes_per_s``, ``_w``. One multiply-add is two FLOPs.
A gigabyte is 10**9 bytes, a GiB 2**30; device memory in data sheets is in GiB although written GB (checked against
``torch.cuda.mem_get_info``), link speeds are in 10**9 bytes/s.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Annotated

from annotated_types import Ge, Gt, Interval, Len

MIB = 2**20
GIB = 2**30

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(ge=0.0, le=1.0)]
Name = Annotated[str, Len(1, 200)]

STRICT_RECORD = {"extra": "forbid", "allow_inf_nan": False, "strict": True}
"""Pydantic settings of every record that is read at an edge (a plain dict, so that records need no Pydantic)."""


class OverTime(Enum):
    """What a figure does where all times are longer by one factor. One that says neither stays."""

    GROWS = "grows"
    SHRINKS = "shrinks"

    def scaled(self, value: float, factor: float) -> float:
        """The figure where times are ``factor`` times as long."""
        return value * factor if self is OverTime.GROWS else value / factor


Seconds = Annotated[float, OverTime.GROWS]
Joules = Annotated[float, OverTime.GROWS]
"""Of a step: devices draw their power for longer."""
PerMillionTokens = Annotated[float, OverTime.GROWS]
"""A price: devices are paid for by the hour."""
PerSecond = Annotated[float, OverTime.SHRINKS]
ShareOfPeak = Annotated[float, OverTime.SHRINKS]


class DType(StrEnum):
    """Number formats of weights, activations and states."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"
    INT4 = "int4"

    @property
    def size_bytes(self) -> float:
        """Bytes an element takes in memory (scales of block formats not included)."""
        return _DTYPE_BYTES[self]


_DTYPE_BYTES = {
    DType.FP32: 4.0,
    DType.TF32: 4.0,
    DType.BF16: 2.0,
    DType.FP16: 2.0,
    DType.FP8: 1.0,
    DType.INT8: 1.0,
    DType.FP4: 0.5,
    DType.INT4: 0.5,
}
