"""Logs of Megatron-LM, of frameworks on Megatron Core (Megatron-Bridge among them), and of Megatron-DeepSpeed.

A step: `` iteration 10/ 100 | consumed samples: 5120 | elapsed time per iteration (ms): 7123.4 | ... |``; some forks write
``7123.4/7130.1``, the second being a mean. Memory, once: ``[Rank 0] (after 2 iterations) memory (MB) | allocated: ... | max
allocated: ... | reserved: ... | max reserved: 70072.0``, in 2**20 bytes (megatron/training/utils.py, report_memory).
Megatron-Bridge writes ``Step Time : 7.12s GPU utilization: 402.7MODEL_TFLOP/s/GPU`` beside each line.

The workload: ``global batch size: 128`` of each line, ``actual seqlen: 4096`` of Megatron-DeepSpeed's, and at the start
``seq_length ........ 8192`` and others of all arguments. While a batch grows, steps of the last one count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import Logged, highest_bytes
from meshwright.app.evidence.logs.stated import Figure, Stated, exactly
from meshwright.costmodels.units import MIB

_STEP = re.compile(r"elapsed time per iteration \(ms\):\s*([0-9]+(?:\.[0-9]+)?)")
_STEP_TIME = re.compile(r"\bStep Time ?: ?([0-9]+(?:\.[0-9]+)?)s\b")
_BATCH = re.compile(r"\bglobal batch size:\s*([0-9]{1,15})\b")
_SEQ_LEN = re.compile(r"\bactual seqlen:\s*([0-9]{1,15})\b")
_ARGUMENT = re.compile(r"\b(global_batch_size|seq_length|encoder_seq_length|world_size) \.{3,} ([0-9]{1,15})\s*$")
_WORLD = re.compile(r"\busing world size: ([0-9]{1,15})\b")
_MEMORY = "memory (MB) |"
_RESERVED = re.compile(r"max reserved:\s*([0-9]+(?:\.[0-9]+)?)")


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run."""
    steps = [(float(found[1]) / 1e3, _of(_BATCH, line)) for line in lines if (found := _STEP.search(line))]
    batch = steps[-1][1] if steps else None
    times_s = [time_s for time_s, of_batch in steps if of_batch == batch]
    if not steps:
        times_s = [float(found[1]) for line in lines if (found := _STEP_TIME.search(line))]
    peaks = [float(found[1]) * MIB for line in lines if _MEMORY in line and (found := _RESERVED.search(line))]
    return Logged(step_times_s=times_s, peak_memory_bytes=highest_bytes(peaks), stated=_stated(lines, batch))


def _stated(lines: Sequence[str], batch: float | None) -> Stated:
    arguments = {found[1]: float(found[2]) for line in lines if (found := _ARGUMENT.search(line))}
    seq_len = next((each for line in reversed(lines) if (each := _of(_SEQ_LEN, line)) is not None), None)
    world = next((each for line in lines if (each := _of(_WORLD, line)) is not None), None)
    return Stated(
        global_batch=_first(batch, arguments.get("global_batch_size")),
        seq_len=_first(seq_len, arguments.get("seq_length"), arguments.get("encoder_seq_length")),
        devices=_first(arguments.get("world_size"), world),
    )


def _first(*values: float | None) -> Figure | None:
    return next((exactly(value) for value in values if value is not None), None)


def _of(form: re.Pattern[str], line: str) -> float | None:
    found = form.search(line)
    return None if found is None else float(found[1])
