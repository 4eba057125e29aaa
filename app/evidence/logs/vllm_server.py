"""Logs of a vLLM server, which writes a line every few seconds for each engine (vllm/v1/metrics/loggers.py).

``Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 1055.3 tokens/s, Running: 18 reqs,
Waiting: 43 reqs, GPU KV cache usage: 95.9%, ...``. Each rank of data parallelism is an engine; a line may be of all of
them together, ``4 Engines Aggregated: ...``. Older versions name no engine, and write ``Swapped`` and ``Pending`` after
``Running``. A line is the mean since the one before it. Lines without a running request say nothing of the speed, and
the first that has one may have begun before its requests did. A server does not print the time to the first token, nor
that between tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

from meshwright.app.evidence.logs.logged import WARM_UP_STEPS, Logged

_WINDOW = re.compile(
    r"(?:Engine (?P<engine>[0-9]{1,6}): |(?P<engines>[0-9]{1,6}) Engines Aggregated: )?"
    r"Avg prompt throughput: [0-9.]{1,20} tokens/s, "
    r"Avg generation throughput: (?P<rate>[0-9]{1,15}(?:\.[0-9]{1,9})?) tokens/s, "
    r"Running: (?P<running>[0-9]{1,9}) reqs"
)


def read(lines: Sequence[str]) -> Logged:
    """Return what the lines say of a run: the mean rate of each engine while requests ran, all engines together."""
    windows: dict[str, list[float]] = {}
    engines: dict[str, int] = {}
    for line in lines:
        found = _WINDOW.search(line)
        if found is None or int(found["running"]) == 0:
            continue
        name = found["engine"] or ""
        windows.setdefault(name, []).append(float(found["rate"]))
        engines[name] = int(found["engines"] or 1)
    rate = sum(fmean(rates[WARM_UP_STEPS:] or rates) for rates in windows.values())
    return Logged(served_tokens_per_s=rate, engines=sum(engines.values())) if rate > 0.0 else Logged()
