"""Constants of `costmodels.calibration.kernel_file`: devices whose calibration is known, predicted as if they had none.

Run from the root of the repository: python -m benchmarks.borrowed_calibrations

Each target takes another device's kernels by data sheet, without corrections of measured sizes. Its times are compared with
those of its own calibration. Across generations, products and attention run at a share of the source's rates: the one for
which the mean over targets of the logarithm of their median ratio is zero. A target's error is taken with the share that the
other targets give, never with its own. Printed shares follow from the shipped ones: repeat until they stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np

from meshwright.costmodels.calibration.kernel_file import (
    ACROSS_GENERATIONS,
    ATTENTION_SHARE,
    MATRIX_SHARE,
    WITHIN_GENERATION,
    borrowed_name,
)
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.hardware import device
from meshwright.costmodels.kernels.compute import attention_forward_s, decode_attention_s, matmul_s, memory_bound_s
from meshwright.costmodels.units import DType

SISTERS = (("h100", "h200"), ("h200", "h100"), ("b200", "gb200"), ("gb200", "b200"))
"""Target and source, both measured, of one generation."""

MEASURED = (("a100", "h100"), ("h100", "a100"), ("b200", "h200"))
"""Both measured: the target, and the nearest source of another generation."""

REPORTED = (("v100", "a100"), ("l4", "a100"), ("mi300x", "h100"), ("ascend-910b", "a100"))
"""Targets whose products and attention have their share of peak from reports of runs; the rest of them was never measured."""

ROWS, WIDTHS = (128, 1024, 4096, 16384), (1024, 4096, 8192, 14336)
KINDS = ("matrix", "attention", "decode", "memory")
REDUCED = ("matrix", "attention")

LogRatios = Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of the comparison: shares of the source's rates, and (median, 95th percentile) of the errors, by kind."""

    shares: Mapping[str, float]
    within: Mapping[str, tuple[float, float]]
    across: Mapping[str, tuple[float, float]]


def measure() -> Measured:
    """The shares and errors of borrowed calibrations."""
    sisters = [log_ratios(target, source) for target, source in SISTERS]
    others = [log_ratios(target, source) for target, source in (*MEASURED, *REPORTED)]
    shipped = {"matrix": MATRIX_SHARE, "attention": ATTENTION_SHARE}
    shares = {kind: shipped[kind] * math.exp(_mean_loss(kind, others)) for kind in REDUCED}
    within = {kind: _errors([ratio for target in sisters for ratio in target[kind]]) for kind in KINDS}
    across = {}
    for kind in KINDS:
        if kind in REDUCED:
            held_out = [(target, [other for other in others if other is not target]) for target in others]
            left = [ratio - _mean_loss(kind, rest) for target, rest in held_out for ratio in target[kind]]
        else:
            left = [ratio for target in others[: len(MEASURED)] for ratio in target[kind]]
        across[kind] = _errors(left)
    return Measured(shares, within, across)


def log_ratios(target: str, source: str) -> LogRatios:
    """Logarithms of the borrowed times over the target's own, by kind."""
    own = device(target)
    name = borrowed_name(own.calibration, device(source).calibration)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for (kind, own_s), (_, borrowed_s) in zip(_times(own), _times(replace(own, calibration=name)), strict=True):
        found[kind].append(math.log(borrowed_s / own_s))
    return found


def _times(of: Device) -> Iterator[tuple[str, float]]:
    """Kind and seconds of every shape, in 16 bits."""
    dtype = DType.BF16 if DType.BF16 in of.peak_flops else DType.FP16
    for m, n, k in product(ROWS, WIDTHS, WIDTHS):
        yield "matrix", float(matmul_s(of, dtype, m, n, k))
    for tokens, heads in product((2048, 4096, 8192, 32768), (8, 32)):
        sizes = {"q_tokens": tokens, "kv_tokens": tokens, "heads": heads}
        flops = 2.0 * tokens * tokens * heads * 128
        yield "attention", float(attention_forward_s(of, dtype, flops=flops, head_dim=128, **sizes))
    for batch, tokens in product((1, 16, 128), (1024, 8192, 32768)):
        sizes = {"batch": batch, "kv_tokens": tokens, "kv_heads": 8, "heads": 32}
        yield "decode", float(decode_attention_s(of, dtype, head_dim=128, **sizes))
    for moved_bytes in (1e6, 1e7, 1e8, 1e9):
        yield "memory", float(memory_bound_s(of, moved_bytes))


def _mean_loss(kind: str, targets: Sequence[LogRatios]) -> float:
    return float(np.mean([np.median(target[kind]) for target in targets]))


def _errors(logarithms: Sequence[float]) -> tuple[float, float]:
    relative = np.abs(np.expm1(logarithms))
    return round(float(np.median(relative)), 3), round(float(np.percentile(relative, 95)), 3)


if __name__ == "__main__":
    measured = measure()
    print({kind: round(share, 3) for kind, share in measured.shares.items()})
    print("within a generation", measured.within, asdict(WITHIN_GENERATION))
    print("across generations ", measured.across, asdict(ACROSS_GENERATIONS))
