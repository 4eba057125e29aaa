"""Logs of torchtitan: ``step: 10  loss:  7.1234  grad_norm:  2.3456  memory: 47.59GiB(60.11%)  tps: 3,210  tflops: ...``.

``memory`` is the peak that the allocator reserved, ``tps`` tokens a second and device (torchtitan/components/metrics.py).
Lines may hold terminal colours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import Logged, highest_bytes

_COLOUR = re.compile(r"\x1b\[[0-9;]{0,12}m")
_STEP = re.compile(
    r"step:\s*[0-9]+\s.{0,200}?memory:\s*([0-9]+(?:\.[0-9]+)?)GiB\([0-9.]+%\)\s+tps:\s*([0-9][0-9,]*(?:\.[0-9]+)?)"
)
_GIB = 2**30


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run."""
    found = [step for line in lines if (step := _STEP.search(_COLOUR.sub("", line)))]
    rates = [rate for step in found if (rate := float(step[2].replace(",", ""))) > 0.0]
    peaks = [float(step[1]) * _GIB for step in found]
    return Logged(tokens_per_s_per_device=rates, peak_memory_bytes=highest_bytes(peaks))
