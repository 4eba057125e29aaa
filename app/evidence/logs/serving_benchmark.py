"""Results of ``vllm bench serve`` and ``sglang.bench_serving``: the JSON of ``--save-result`` and ``--output-file``, or
JSON lines, the last of which counts, or the table that both print under ``Serving Benchmark Result``, the last one of a
log.

Both write ``output_throughput`` (tokens generated a second). vLLM writes ``p95_ttft_ms`` and ``p95_tpot_ms`` where
``--metric-percentiles`` names 95; SGLang has no option for them. With ``--save-detailed`` (vLLM) or
``--output-details`` (SGLang) both write times of each request, from which the percentiles follow: ``ttfts`` in seconds,
``itls``, the seconds between tokens, and ``output_lens``, 0 of a request that failed. SGLang writes a rate without
limit as ``Infinity``, which is no JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.app.base.documents import NonFinite, parse_document
from meshwright.app.evidence.logs.logged import Logged
from meshwright.costmodels.errors import InvalidInputError

_FIGURES = {
    "tokens_per_s": ("output_throughput", 1.0),
    "ttft_p95_s": ("p95_ttft_ms", 1e-3),
    "tpot_p95_s": ("p95_tpot_ms", 1e-3),
}
"""Figures of a run: the benchmark's name, and what its unit is in ours."""

_TITLE = re.compile(r"=+ Serving Benchmark Result =+")
_PRINTED = {
    "output_throughput": re.compile(r"\bOutput token throughput \(tok/s\):\s+([0-9]+(?:\.[0-9]+)?)\s*$"),
    "p95_ttft_ms": re.compile(r"\bP95 TTFT \(ms\):\s+([0-9]+(?:\.[0-9]+)?)\s*$"),
    "p95_tpot_ms": re.compile(r"\bP95 TPOT \(ms\):\s+([0-9]+(?:\.[0-9]+)?)\s*$"),
}
"""The printed lines of the benchmark's names; "Peak output token throughput" is another figure, in small letters."""

_PERCENT = 95


def read(lines: Sequence[str]) -> Logged:
    """Return what the result says of a run; nothing where this is no such result."""
    result = _result(lines)
    figures = {name: _number(result.get(theirs)) * unit for name, (theirs, unit) in _FIGURES.items()}
    for name, value in _percentiles(result).items():
        figures[name] = figures[name] or value
    return Logged(figures={name: value for name, value in figures.items() if value > 0.0})


def _percentiles(result: Mapping[str, Any]) -> dict[str, float]:
    """P95 of the times of single requests, where the result has them: to the first token, and between tokens as the mean of a
    request that has more than one."""
    columns = [result.get(name) for name in ("ttfts", "itls", "output_lens")]
    if not all(isinstance(column, list) for column in columns):
        return {}
    rows = [
        (_number(first), [_number(gap) for gap in gaps if _number(gap) > 0.0], _number(length))
        for first, gaps, length in zip(*columns, strict=False)
        if isinstance(gaps, list) and _number(length) > 0.0
    ]
    times = {
        "ttft_p95_s": [first for first, _, _ in rows],
        "tpot_p95_s": [sum(gaps) / (length - 1.0) for _, gaps, length in rows if length > 1.0],
    }
    return {name: float(np.percentile(values, _PERCENT)) for name, values in times.items() if values}


def _result(lines: Sequence[str]) -> Mapping[str, Any]:
    text = "\n".join(lines).strip()
    if not text.startswith("{"):
        return _printed(lines)
    for candidate in (text, text.rsplit("\n", 1)[-1]):
        try:
            document = parse_document(candidate.encode(), what="benchmark result", non_finite=NonFinite.AS_TEXT)
        except InvalidInputError:
            continue
        if isinstance(document, dict) and "output_throughput" in document:
            return document
    return {}


def _printed(lines: Sequence[str]) -> Mapping[str, Any]:
    """The figures of the last printed table, by the benchmark's names."""
    titles = [place for place, line in enumerate(lines) if _TITLE.search(line)]
    if not titles:
        return {}
    table = lines[titles[-1] + 1 :]
    matches = {name: [found[1] for line in table if (found := form.search(line))] for name, form in _PRINTED.items()}
    return {name: float(values[0]) for name, values in matches.items() if values}


def _number(value: object) -> float:
    """The value, 0 where it is no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
