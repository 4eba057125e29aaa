"""The lines that the benchmark client of mini-sglang logs: ``Num requests: #512, Num tokens: #154112``, ``Duration: 258.31 s``,
``Throughput: 596.6 token/s, 1.982 req/s``.

Its tokens are moments, of which each request has one more than it has tokens: when it was sent (minisgl/benchmark/client.py).
It prints P50, P90 and P99 of latencies, no P95.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import Logged
from meshwright.app.evidence.logs.stated import Stated, exactly, printed

_COUNTS = re.compile(r"\bNum requests: #([0-9]{1,15}), Num tokens: #([0-9]{1,15})\b")
_DURATION = re.compile(r"\bDuration: {1,20}([0-9]{1,12}(?:\.[0-9]{1,9})?) s\b")
_THROUGHPUT = re.compile(r"\bThroughput: {1,20}[0-9.]{1,30} token/s, {1,20}([0-9]{1,12}(?:\.[0-9]{1,9})?) req/s")


def read(lines: Sequence[str]) -> Logged:
    """Return what the last result says of a run; nothing where there is none."""
    counts, durations, rates = (
        [found for line in lines if (found := form.search(line))] for form in (_COUNTS, _DURATION, _THROUGHPUT)
    )
    if not counts or not durations or not rates:
        return Logged()
    requests, duration_s = float(counts[-1][1]), float(durations[-1][1])
    tokens = float(counts[-1][2]) - requests
    if not (requests > 0.0 and tokens > 0.0 and duration_s > 0.0):
        return Logged()
    stated = Stated(requests=exactly(requests), answered_per_s=printed(rates[-1][1]), output_tokens=exactly(tokens / requests))
    return Logged(figures={"tokens_per_s": tokens / duration_s}, stated=stated)
