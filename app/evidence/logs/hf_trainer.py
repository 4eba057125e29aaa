"""Metrics of the Hugging Face Trainer and of what is built on it (TRL, Axolotl): the printed dictionary, the table of
``log_metrics``, ``all_results.json`` and ``trainer_state.json``.

Rates are means over the whole run. Memory is there with ``skip_memory_metrics=False``: the peak is what was allocated before
and during initialisation and training, and the peak above that (transformers/trainer_utils.py, TrainerMemoryTracker). Tables
print it in MB of 2**20 bytes, JSON in bytes. Newer versions print numbers of the dictionary as text of four digits, with
an exponent where they are large: ``'train_samples_per_second': '1.802e+04'``. Axolotl prints ``'memory/device_reserved (GiB)'``
and ``'tokens/train_per_sec_per_gpu'`` of each step, the latter of tokens that have a loss, which says nothing of the others.

The workload: ``Total train batch size (w. parallel, distributed & accumulation) = 128``, else the quotient of both rates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from meshwright.app.evidence.logs.logged import Logged, highest_bytes
from meshwright.app.evidence.logs.stated import Figure, Stated, exactly, quotient
from meshwright.costmodels.units import GIB, MIB

_METRIC = re.compile(
    r"['\"]?\b(train_samples_per_second|train_steps_per_second|train_runtime|epoch|before_init_mem_gpu|init_mem_gpu_alloc_delta|"
    r"train_mem_gpu_alloc_delta|train_mem_gpu_peaked_delta|num_input_tokens_seen|global_step)\b['\"]?"
    r"\s{0,40}[:=|]\s{0,40}['\"]?([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?)(MB)?(?![0-9.:])"
)
_BATCH = re.compile(r"\bTotal train batch size \(w\. parallel, distributed & accumulation\) = ([0-9][0-9,]{0,15})\b")
_STEP_MEMORY = re.compile(
    r"['\"]memory/(?:max_active|max_allocated|device_reserved) \(GiB\)['\"]: ?['\"]?([0-9]+(?:\.[0-9]+)?)"
)
_STEP_RATE = re.compile(r"['\"]tokens_per_second_per_gpu['\"]: ?['\"]?([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?)")
_TRAINED_RATE = re.compile(r"['\"]tokens/train_per_sec_per_gpu['\"]: ?['\"]?[0-9.e+]{1,30}")
_PEAK = "train_mem_gpu_peaked_delta"
_PARTS = ("before_init_mem_gpu", "init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta", _PEAK)
_HALF_OF_LAST = 0.5e-3
"""Half of the last digit of a rate, which the Trainer rounds to three behind the point."""
_TEXT_DIGITS = 4
"""Digits of a number of the printed dictionary, in versions that print text."""


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run."""
    said, digits = _metrics(lines)
    rate, steps = said.get("train_samples_per_second", 0.0), said.get("train_steps_per_second", 0.0)
    has_summary = rate > 0.0 or steps > 0.0
    step_rates = [] if has_summary else [float(found[1]) for line in lines for found in _STEP_RATE.finditer(line)]
    allocated = [sum(said.get(name, 0.0) for name in _PARTS)] if said.get(_PEAK) else []
    of_steps = [float(found[1]) * GIB for line in lines if "(GiB)" in line for found in _STEP_MEMORY.finditer(line)]
    trained = next((found[0] for line in lines if (found := _TRAINED_RATE.search(line))), "")
    return Logged(
        # The rate of samples is rounded to fewer parts of itself than the rate of steps.
        sequences_per_s=[rate] if rate > 0.0 else [],
        step_times_s=[1.0 / steps] if steps > 0.0 and not rate > 0.0 else [],
        tokens_per_s_per_device=[each for each in step_rates if each > 0.0],
        peak_memory_bytes=highest_bytes([*allocated, *of_steps]),
        stated=Stated(global_batch=_batch(lines, said, digits), tokens_per_step=_tokens_per_step(said)),
        unread="" if has_summary or step_rates else trained,
    )


def _metrics(lines: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
    """The metrics as numbers, those in MB as bytes, and as they were written."""
    said: dict[str, float] = {}
    digits: dict[str, str] = {}
    for line in lines:
        for found in _METRIC.finditer(line):
            said[found[1]], digits[found[1]] = float(found[2]) * (MIB if found[3] else 1), found[2]
    return said, digits


def _batch(lines: Sequence[str], said: Mapping[str, float], digits: Mapping[str, str]) -> Figure | None:
    """The sequences of a step: as they were printed, else those of a second over its steps."""
    for line in lines:
        if (found := _BATCH.search(line)) is not None:
            return exactly(float(found[1].replace(",", "")))
    names = ("train_samples_per_second", "train_steps_per_second")
    if not all(name in said for name in names):
        return None
    found_batch = quotient(*(_rounded(digits[name]) for name in names))
    if found_batch is None:
        return None
    # The last step of an epoch may have as little as one sequence.
    steps, epochs = said["train_steps_per_second"] * said.get("train_runtime", 0.0), said.get("epoch", 0.0)
    short = min(epochs / steps, 0.5) if steps > 0.0 else 0.0
    return Figure(found_batch.value, found_batch.low, found_batch.high / (1.0 - short))


def _rounded(digits: str) -> Figure:
    """The figure that a number was rounded to: three digits behind its point, then perhaps four digits in all."""
    value = float(digits)
    n_digits = len(digits.partition("e")[0].replace(".", "").lstrip("0"))
    half = _HALF_OF_LAST
    if "e" in digits or n_digits <= _TEXT_DIGITS:
        half = max(half, 0.5 * 10.0 ** (math.floor(math.log10(value)) + 1 - _TEXT_DIGITS)) if 0.0 < value < math.inf else half
    return Figure(value, value - half, value + half)


def _tokens_per_step(said: Mapping[str, float]) -> Figure | None:
    """Tokens of a step, where the state of the trainer has counted them."""
    tokens, steps = said.get("num_input_tokens_seen", 0.0), said.get("global_step", 0.0)
    return exactly(tokens / steps) if tokens > 0.0 and steps > 0.0 else None
