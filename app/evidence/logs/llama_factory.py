"""``trainer_log.jsonl`` of LLaMA-Factory: ``{"current_steps": 900, "total_steps": 906, "loss": 0.03, "elapsed_time": "1:44:23",
"remaining_time": "0:00:41", "throughput": 5223.12, "total_tokens": 1234567}``.

``elapsed_time`` is in whole seconds from the start of the training, ``total_tokens`` of all devices
(src/llamafactory/train/callbacks.py, LogCallback).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import WARM_UP_STEPS, Logged
from meshwright.app.evidence.logs.stated import Figure, Stated, exactly

_STEPS = re.compile(r'"current_steps": ?([0-9]{1,12})\b')
_ELAPSED = re.compile(r'"elapsed_time": ?"(?:([0-9]{1,6}) days?, )?([0-9]{1,6}):([0-9]{2}):([0-9]{2})"')
_TOKENS = re.compile(r'"total_tokens": ?([0-9]{1,18})\b')
_FEWEST_SECONDS = 20.0
"""Between two lines, so that whole seconds tell a step's time within 5%."""


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run: the time of a step and its tokens, from the first lines to the last."""
    told = [
        (int(found[1]), elapsed_s, line) for line in lines if (found := _STEPS.search(line)) and (elapsed_s := _elapsed_s(line))
    ]
    if not told:
        return Logged()
    first, last = told[min(WARM_UP_STEPS, len(told) - 1)], told[-1]
    if last[0] - first[0] <= 0 or last[1] - first[1] < _FEWEST_SECONDS:
        first = (0, 0.0, "")
    steps, seconds = last[0] - first[0], last[1] - first[1]
    if steps <= 0 or seconds < _FEWEST_SECONDS:
        return Logged(unread=f"{last[0]} steps in {last[1]:.0f} s, counted in whole seconds")
    return Logged(step_times_s=[seconds / steps], stated=Stated(tokens_per_step=_tokens_per_step(first[2], last[2], steps)))


def _elapsed_s(line: str) -> float:
    found = _ELAPSED.search(line)
    if found is None:
        return 0.0
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _tokens_per_step(first: str, last: str, steps: int) -> Figure | None:
    begun, ended = _TOKENS.search(first), _TOKENS.search(last)
    if ended is None or (first and begun is None):
        return None
    return exactly((float(ended[1]) - (float(begun[1]) if begun else 0.0)) / steps)
