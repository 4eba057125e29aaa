"""Logs of Megatron-LM, of frameworks on Megatron Core, and of Megatron-DeepSpeed.

A step: `` iteration 10/ 100 | consumed samples: 5120 | elapsed time per iteration (ms): 7123.4 | ... |``; some forks write
``7123.4/7130.1``, the second being a mean. Memory, once: ``[Rank 0] (after 2 iterations) memory (MB) | allocated: ... | max
allocated: ... | reserved: ... | max reserved: 70072.0``, in 2**20 bytes (megatron/training/utils.py, report_memory).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import Logged, highest_bytes
from meshwright.costmodels.units import MIB

_STEP = re.compile(r"elapsed time per iteration \(ms\):\s*([0-9]+(?:\.[0-9]+)?)")
_MEMORY = "memory (MB) |"
_RESERVED = re.compile(r"max reserved:\s*([0-9]+(?:\.[0-9]+)?)")


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run."""
    steps = [float(found[1]) / 1e3 for line in lines if (found := _STEP.search(line))]
    peaks = [float(found[1]) * MIB for line in lines if _MEMORY in line and (found := _RESERVED.search(line))]
    return Logged(step_times_s=steps, peak_memory_bytes=highest_bytes(peaks))
