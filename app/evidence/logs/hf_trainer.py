"""Metrics of the Hugging Face Trainer: the printed dictionary, the table of ``log_metrics``, and ``all_results.json``.

Rates are means over the whole run. Memory is there with ``skip_memory_metrics=False``: the peak is what was allocated before
and during initialisation and training, and the peak above that (transformers/trainer_utils.py, TrainerMemoryTracker). Tables
print it in MB of 2**20 bytes, JSON in bytes. Newer versions print numbers of the dictionary as text of four digits, with
an exponent where they are large: ``'train_samples_per_second': '1.802e+04'``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import Logged, highest_bytes
from meshwright.costmodels.units import MIB

_METRIC = re.compile(
    r"['\"]?\b(train_samples_per_second|train_steps_per_second|before_init_mem_gpu|init_mem_gpu_alloc_delta|"
    r"train_mem_gpu_alloc_delta|train_mem_gpu_peaked_delta)\b['\"]?\s*[:=|]\s*['\"]?([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?)(MB)?"
)
_PEAK = "train_mem_gpu_peaked_delta"
_PARTS = ("before_init_mem_gpu", "init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta", _PEAK)


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run."""
    said: dict[str, float] = {}
    for line in lines:
        for found in _METRIC.finditer(line):
            said[found[1]] = float(found[2]) * (MIB if found[3] else 1)
    rate, steps = said.get("train_samples_per_second", 0.0), said.get("train_steps_per_second", 0.0)
    peak = highest_bytes([sum(said.get(name, 0.0) for name in _PARTS)]) if said.get(_PEAK) else None
    return Logged(
        # The rate of samples is rounded to fewer parts of itself than the rate of steps.
        sequences_per_s=[rate] if rate > 0.0 else [],
        step_times_s=[1.0 / steps] if steps > 0.0 and not rate > 0.0 else [],
        peak_memory_bytes=peak,
    )
