"""Results of ``vllm bench serve`` and ``sglang.bench_serving``: the JSON of ``--save-result`` and ``--output-file``, or
JSON lines, the last of which counts, or the table that both print under ``Serving Benchmark Result``, the last one of a
log. TensorRT-LLM's ``benchmark_serving`` prints the same table.

Both write ``output_throughput`` (tokens generated a second). vLLM writes ``p95_ttft_ms`` and ``p95_tpot_ms`` where
``--metric-percentiles`` names 95; SGLang has no option for them. With ``--save-detailed`` (vLLM) or
``--output-details`` (SGLang) both write times of each request, from which the percentiles follow: ``ttfts`` in seconds,
``itls``, the seconds between tokens, and ``output_lens``, 0 of a request that failed. SGLang writes a rate without
limit as ``Infinity``, which is no JSON, vLLM as text.

The load: vLLM prints ``Traffic request rate`` and ``Maximum request concurrency`` before the table, and its arguments with the
model's name at the start (vllm/benchmarks/serve.py); SGLang prints both in the table (sglang/bench_serving.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.app.evidence.logs.logged import Logged
from meshwright.app.evidence.logs.results import documents, figure, name, number, rate, ratio
from meshwright.app.evidence.logs.stated import Figure, Stated, exactly

_FIGURES = {
    "tokens_per_s": ("output_throughput", 1.0),
    "ttft_p95_s": ("p95_ttft_ms", 1e-3),
    "tpot_p95_s": ("p95_tpot_ms", 1e-3),
}
"""Figures of a run: the benchmark's name, and what its unit is in ours."""

_TITLE = re.compile(r"= Serving Benchmark Result =")
_END = "=" * 40
"""Part of the line under the table; in its title there are fewer."""


def _printed_as(words: str) -> re.Pattern[str]:
    return re.compile(rf"\b{words}:\s{{1,80}}([0-9]+(?:\.[0-9]+)?|inf)\s*$")


_PRINTED = {
    "output_throughput": _printed_as(r"Output token throughput \(tok/s\)"),
    "p95_ttft_ms": _printed_as(r"P95 TTFT \(ms\)"),
    "p95_tpot_ms": _printed_as(r"P95 TPOT \(ms\)"),
    "completed": _printed_as("Successful requests"),
    "total_input_tokens": _printed_as("Total input tokens"),
    "total_output_tokens": _printed_as("Total generated tokens"),
    "request_throughput": _printed_as(r"Request throughput \(req/s\)"),
    "concurrency": _printed_as("Concurrency"),
}
"""The printed lines of the benchmark's names; "Peak output token throughput" is another figure, in small letters."""
_PRINTED_LOAD = {
    "request_rate": _printed_as(r"(?:Traffic request rate|Request rate configured \(RPS\))"),
    "max_concurrency": _printed_as(r"Max(?:imum)? request concurrency"),
}
"""The printed lines of the load, in the table or before it."""
_BURSTINESS = re.compile(r"\bBurstiness factor: ([0-9]+(?:\.[0-9]+)?)")
_MODEL = re.compile(r"\bmodel='([^']{1,300})'")

_PERCENT = 95


def read(lines: Sequence[str]) -> Logged:
    """Return what the result says of a run; nothing where this is no such result."""
    results = (each for each in documents(lines, '"output_throughput"') if "output_throughput" in each)
    result = next(results, None) or _printed(lines)
    figures = {own: number(result.get(theirs)) * unit for own, (theirs, unit) in _FIGURES.items()}
    for own, value in _percentiles(result).items():
        figures[own] = figures[own] or value
    figures = {own: value for own, value in figures.items() if value > 0.0}
    return Logged(figures=figures, stated=_stated(result)) if figures else Logged()


def _stated(result: Mapping[str, Any]) -> Stated:
    completed = figure(result.get("completed"))
    return Stated(
        model=name(result.get("model_id")),
        requests_per_s=rate(result.get("request_rate")),
        arrival_cv=_arrival_cv(result),
        max_concurrency=figure(result.get("max_concurrency")),
        mean_concurrency=figure(result.get("concurrency")),
        requests=completed,
        answered_per_s=figure(result.get("request_throughput")),
        prompt_tokens=ratio(figure(result.get("total_input_tokens")), completed),
        output_tokens=ratio(figure(result.get("total_output_tokens")), completed),
    )


def _arrival_cv(result: Mapping[str, Any]) -> Figure | None:
    """Gaps between requests are gamma-distributed with the burstiness as their shape."""
    shape = number(result.get("burstiness"))
    return exactly(shape**-0.5) if shape > 0.0 else None


def _percentiles(result: Mapping[str, Any]) -> dict[str, float]:
    """P95 of the times of single requests, where the result has them: to the first token, and between tokens as the mean of a
    request that has more than one."""
    columns = [result.get(column) for column in ("ttfts", "itls", "output_lens")]
    if not all(isinstance(column, list) for column in columns):
        return {}
    rows = [
        (number(first), [number(gap) for gap in gaps if number(gap) > 0.0], number(length))
        for first, gaps, length in zip(*columns, strict=False)
        if isinstance(gaps, list) and number(length) > 0.0
    ]
    times = {
        "ttft_p95_s": [first for first, _, _ in rows],
        "tpot_p95_s": [sum(gaps) / (length - 1.0) for _, gaps, length in rows if length > 1.0],
    }
    return {own: float(np.percentile(values, _PERCENT)) for own, values in times.items() if values}


def _printed(lines: Sequence[str]) -> Mapping[str, Any]:
    """The figures of the last printed table, by the benchmark's names, and the load that is printed before it."""
    titles = [place for place, line in enumerate(lines) if "Serving Benchmark Result" in line and _TITLE.search(line)]
    if not titles:
        return {}
    start = titles[-1] + 1
    end = next((place for place in range(start, len(lines)) if _END in lines[place]), len(lines))
    table, before = lines[start:end], lines[titles[-2] if len(titles) > 1 else 0 : start]
    found = _matches(table, _PRINTED)
    found |= _matches(before, _PRINTED_LOAD) | _matches(table, _PRINTED_LOAD)
    shapes = [match[1] for line in before if (match := _BURSTINESS.search(line))]
    models = [match[1] for line in lines[:start] if "Namespace(" in line and (match := _MODEL.search(line))]
    return found | ({"burstiness": shapes[-1]} if shapes else {}) | ({"model_id": models[-1]} if models else {})


def _matches(lines: Sequence[str], forms: Mapping[str, re.Pattern[str]]) -> dict[str, Any]:
    matches = {theirs: [found[1] for line in lines if (found := form.search(line))] for theirs, form in forms.items()}
    return {theirs: values[0] for theirs, values in matches.items() if values}
