"""Logs of DeepSpeed: ``RunningAvgSamplesPerSec=58.7, CurrSamplesPerSec=61.3, MemAllocated=6.01GB, MaxMemAllocated=19.52GB``.

Samples are of all devices, a GB is 2**30 bytes (deepspeed/utils/timer.py, ThroughputTimer). Versions before 0.4 write one mean,
``0/10, SamplesPerSec=58.7``, some after it ``RunningAvgSamplesPerSec`` alone: of means the last counts. Pipelines write
``steps: 10 loss: 7.1 iter time (s): 1.234 samples/sec: 25.9`` (deepspeed/runtime/pipe/engine.py). Newer versions keep rates
back unless their logger is at INFO; with ``wall_clock_breakdown`` they print ``time (ms) | fwd: 2.0 | bwd: 8.5 | step: 6.6``,
the parts of a whole step, whose sum is its time without what loads data. The configuration is printed at the start,
``train_batch_size ............. 128`` (deepspeed/runtime/config.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import Logged, highest_bytes
from meshwright.app.evidence.logs.stated import Figure, Stated, exactly, printed

_RATE = re.compile(r"\b(Curr|RunningAvg|)SamplesPerSec=([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")
_ANY_RATE = re.compile(r"SamplesPerSec=[^,\s]{0,40}")
_PEAK = re.compile(r"MaxMemAllocated=([0-9]+(?:\.[0-9]+)?)GB")
_PIPELINE_STEP = re.compile(
    r"steps: [0-9]+ .{0,200}?iter time \(s\): ([0-9]+(?:\.[0-9]+)?)(?: samples/sec: ([0-9]+(?:\.[0-9]+)?))?"
)
_PARTS = re.compile(
    r"time \(ms\) \| (?:fwd|forward): ([0-9]+(?:\.[0-9]+)?) \| (?:bwd|backward): ([0-9]+(?:\.[0-9]+)?) \|"
    r".{0,200}?\bstep: ([0-9]+(?:\.[0-9]+)?)"
)
_SETTING = re.compile(r"\b(train_batch_size|world_size) \.{3,} ([0-9]{1,15})\s*$")
_GIB = 2**30
_MS = 1e-3


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run."""
    rates = _rates(lines)
    pipelined = [found for line in lines if (found := _PIPELINE_STEP.search(line))]
    steps = [float(found[1]) for found in pipelined]
    if not rates and not steps:
        parts = [found.groups() for line in lines if (found := _PARTS.search(line))]
        steps = [_MS * whole for each in parts if (whole := math.fsum(map(float, each))) > 0.0]
    peaks = [float(found[1]) * _GIB for line in lines if (found := _PEAK.search(line))]
    unread = "" if rates or steps else next((found[0] for line in lines if (found := _ANY_RATE.search(line))), "")
    return Logged(
        step_times_s=steps,
        sequences_per_s=rates,
        peak_memory_bytes=highest_bytes(peaks),
        stated=_stated(lines, _batch_of(pipelined)),
        unread=unread,
    )


def _rates(lines: Sequence[str]) -> list[float]:
    """Rates of steps where the log has them, else the last mean."""
    found = [each for line in lines if "SamplesPerSec=" in line for each in _RATE.finditer(line)]
    rates: dict[str, list[float]] = {"Curr": [], "RunningAvg": [], "": []}
    for each in found:
        if (rate := float(each[2])) > 0.0:
            rates[each[1]].append(rate)
    return rates["Curr"] or rates["RunningAvg"][-1:] or rates[""][-1:]


def _batch_of(pipelined: Sequence[re.Match[str]]) -> Figure | None:
    """The sequences of a pipeline's step: its time, times its rate."""
    if not pipelined or pipelined[-1][2] is None:
        return None
    time_s, rate = printed(pipelined[-1][1]), printed(pipelined[-1][2])
    return Figure(time_s.value * rate.value, time_s.low * rate.low, time_s.high * rate.high)


def _stated(lines: Sequence[str], batch: Figure | None) -> Stated:
    settings = {found[1]: exactly(float(found[2])) for line in lines if (found := _SETTING.search(line))}
    return Stated(global_batch=settings.get("train_batch_size", batch), devices=settings.get("world_size"))
