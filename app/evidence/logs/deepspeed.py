"""Logs of DeepSpeed: ``RunningAvgSamplesPerSec=58.7, CurrSamplesPerSec=61.3, MemAllocated=6.01GB, MaxMemAllocated=19.52GB``.

Samples are of all devices, a GB is 2**30 bytes (deepspeed/utils/timer.py, ThroughputTimer). Pipelines write
``steps: 10 loss: 7.1 iter time (s): 1.234 samples/sec: 25.9`` (deepspeed/runtime/pipe/engine.py). Newer versions keep rates
back unless their logger is at INFO; with ``wall_clock_breakdown`` they print ``time (ms) | fwd: 2.0 | bwd: 8.5 | step: 6.6``,
the parts of a whole step, whose sum is its time without what loads data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import Logged, highest_bytes

_RATE = re.compile(r"CurrSamplesPerSec=([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")
_PEAK = re.compile(r"MaxMemAllocated=([0-9]+(?:\.[0-9]+)?)GB")
_PIPELINE_STEP = re.compile(r"steps: [0-9]+ .{0,200}?iter time \(s\): ([0-9]+(?:\.[0-9]+)?)")
_PARTS = re.compile(
    r"time \(ms\) \| (?:fwd|forward): ([0-9]+(?:\.[0-9]+)?) \| (?:bwd|backward): ([0-9]+(?:\.[0-9]+)?) \|"
    r".{0,200}?\bstep: ([0-9]+(?:\.[0-9]+)?)"
)
_GIB = 2**30
_MS = 1e-3


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run."""
    rates = [rate for line in lines if (found := _RATE.search(line)) and (rate := float(found[1])) > 0.0]
    steps = [float(found[1]) for line in lines if (found := _PIPELINE_STEP.search(line))]
    if not rates and not steps:
        parts = [found.groups() for line in lines if (found := _PARTS.search(line))]
        steps = [_MS * whole for each in parts if (whole := math.fsum(map(float, each))) > 0.0]
    peaks = [float(found[1]) * _GIB for line in lines if (found := _PEAK.search(line))]
    return Logged(step_times_s=steps, sequences_per_s=rates, peak_memory_bytes=highest_bytes(peaks))
