"""Logs of torchtitan: ``step: 10  loss:  7.1234  grad_norm:  2.3456  memory: 47.59GiB(60.11%)  tps: 3,210  tflops: ...``.

``memory`` is the peak that the allocator reserved, ``tps`` tokens a second and device (torchtitan/components/metrics.py);
some devices have no memory, or 0.00GiB of it. Lines may hold terminal colours. The workload stands at the start: ``local batch
size 1, global batch size 8, gradient accumulation steps 1, sequence length 8192`` and ``device mesh with parallelism: pp=1,
dp_replicate=1, dp_shard=8, cp=1, tp=1``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import Logged, highest_bytes
from meshwright.app.evidence.logs.stated import Figure, Stated, exactly

_COLOUR = re.compile(r"\x1b\[[0-9;]{0,30}m")
_STEP = re.compile(
    r"\bstep:\s{0,20}[0-9]+\s.{0,200}?(?:\bmemory:\s{0,20}([0-9]+(?:\.[0-9]+)?)GiB(?:\([0-9.]{1,20}%\))?\s{1,20})?"
    r"\btps:\s{0,20}([0-9][0-9,]*(?:\.[0-9]+)?)"
)
_WORKLOAD = re.compile(
    r"\blocal batch size [0-9]{1,15}, global batch size ([0-9]{1,15})\b(?:.{0,80}?\bsequence length ([0-9]{1,15}))?"
)
_MESH = re.compile(r"\bdevice mesh with parallelism: ((?:[a-z_]{1,20}=[0-9]{1,9},? ?){1,12})")
_AXIS = re.compile(r"\b([a-z_]{1,20})=([0-9]{1,9})")
_OLD_MESH = re.compile(r"\bdevice mesh with \[[^\[\]]{0,100}\], \[([0-9, ]{1,100})\]")
_WITHIN_OTHERS = ("ep", "etp")
"""Axes whose ranks are ranks of the others too."""
_GIB = 2**30


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run."""
    plain = [_COLOUR.sub("", line) for line in lines]
    found = [step for line in plain if "tps:" in line and (step := _STEP.search(line))]
    rates = [rate for step in found if (rate := float(step[2].replace(",", ""))) > 0.0]
    peaks = [float(step[1]) * _GIB for step in found if step[1] is not None]
    return Logged(tokens_per_s_per_device=rates, peak_memory_bytes=highest_bytes(peaks), stated=_stated(plain))


def _stated(lines: Sequence[str]) -> Stated:
    workload = next((found for line in lines if (found := _WORKLOAD.search(line))), None)
    batch = None if workload is None else exactly(float(workload[1]))
    seq_len = None if workload is None or workload[2] is None else exactly(float(workload[2]))
    return Stated(global_batch=batch, seq_len=seq_len, devices=_devices(lines))


def _devices(lines: Sequence[str]) -> Figure | None:
    for line in lines:
        if (mesh := _MESH.search(line)) is not None:
            degrees = [int(degree) for axis, degree in _AXIS.findall(mesh[1]) if axis not in _WITHIN_OTHERS]
        elif (mesh := _OLD_MESH.search(line)) is not None:
            degrees = [int(degree) for degree in mesh[1].replace(",", " ").split()]
        else:
            continue
        return exactly(float(math.prod(degrees)))
    return None
