"""The report of ``trtllm-bench throughput`` and ``latency``: ``Total Output Throughput (tokens/sec): 5530.7382``, and with
``--streaming`` percentiles of single requests, ``[TTFT] P95    : 101978.4566`` in milliseconds.

It sends requests as fast as they are let in: ``Issue Rate (req/sec)`` is that of filling the queue. How many are let in is not
printed; ``Number of concurrent requests`` is a mean (tensorrt_llm/bench/dataclasses/reporting.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from meshwright.app.evidence.logs.logged import Logged
from meshwright.app.evidence.logs.results import figure
from meshwright.app.evidence.logs.stated import Stated, exactly

_LINE = re.compile(
    r"(Model|Number of requests|Number of concurrent requests|Average Input Length \(tokens\)|"
    r"Average Output Length \(tokens\)|[TP]P Size|Request Throughput \(req/sec\)|"
    r"Total Output Throughput \(tokens/sec\)|\[TTFT\] P95|\[TPOT\] P95)\s{0,80}:\s{1,80}(\S{1,300})\s*$"
)
_OVERVIEW = "= PERFORMANCE OVERVIEW"
_TIMES = ("Total Output Throughput (tokens/sec)", "[TTFT] P95", "[TPOT] P95")


def read(lines: Sequence[str]) -> Logged:
    """Return what the last report says of a run; nothing where there is none."""
    said: dict[str, str] = {}
    for line in lines:
        if _OVERVIEW in line:
            said = {each: value for each, value in said.items() if each not in _TIMES}
        elif ":" in line and (found := _LINE.search(line)) is not None:
            said[found[1]] = found[2]
    tokens_per_s, ttft, tpot = (figure(said.get(each)) for each in _TIMES)
    if tokens_per_s is None:
        return Logged()
    figures = {"tokens_per_s": tokens_per_s.value}
    figures |= {own: each.value / 1e3 for own, each in (("ttft_p95_s", ttft), ("tpot_p95_s", tpot)) if each is not None}
    return Logged(figures=figures, stated=_stated(said))


def _stated(said: Mapping[str, str]) -> Stated:
    degrees = [figure(said.get(each)) for each in ("TP Size", "PP Size")]
    return Stated(
        model=said.get("Model"),
        engine_devices=exactly(math.prod(each.value for each in degrees if each is not None)) if any(degrees) else None,
        is_queued=True,
        mean_concurrency=figure(said.get("Number of concurrent requests")),
        requests=figure(said.get("Number of requests")),
        answered_per_s=figure(said.get("Request Throughput (req/sec)")),
        prompt_tokens=figure(said.get("Average Input Length (tokens)")),
        output_tokens=figure(said.get("Average Output Length (tokens)")),
    )
