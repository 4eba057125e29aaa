"""Logs of NeMo: ``iteration 9/99 | global_batch_size: 256 | global_step: 9 | train_step_timing in s: 7.126 | consumed_samples:
2560``, or a progress bar with ``global_step=99.00, consumed_samples=25600.0, train_step_timing in s=3.130``.

``global_step`` counts from 0, samples are those of all steps so far (nemo/lightning/megatron_parallel.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import Logged
from meshwright.app.evidence.logs.stated import Figure, Stated, exactly

_STEP = re.compile(r"\btrain_step_timing in s[=:] ?([0-9]+(?:\.[0-9]+)?)")
_BATCH = re.compile(r"\bglobal_batch_size[=:] ?([0-9]{1,15})\b")
_COUNTED = re.compile(r"\b(global_step|consumed_samples)[=:] ?([0-9]{1,15})\b")


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run."""
    timed = [(float(found[1]), line) for line in lines if (found := _STEP.search(line))]
    times_s = [time_s for time_s, _ in timed if time_s > 0.0]
    return Logged(step_times_s=times_s, stated=Stated(global_batch=_batch([line for _, line in timed])))


def _batch(lines: Sequence[str]) -> Figure | None:
    """The batch of the last line that tells it, or the samples of the last steps."""
    for line in reversed(lines):
        if (found := _BATCH.search(line)) is not None:
            return exactly(float(found[1]))
    counted = [dict(_COUNTED.findall(line)) for line in lines]
    known = [(int(each["global_step"]) + 1, int(each["consumed_samples"])) for each in counted if len(each) == 2]
    if not known:
        return None
    steps, samples = known[-1]
    before = next(((s, n) for s, n in reversed(known) if s < steps), (0, 0))
    return exactly((samples - before[1]) / (steps - before[0]))
