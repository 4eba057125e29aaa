"""Results of ``vllm bench serve --save-result`` and ``sglang.bench_serving --output-file``: JSON, or JSON lines, the last of
which counts.

Both write ``output_throughput`` (tokens generated a second) and, for the percentiles that were asked for, ``p95_ttft_ms`` and
``p95_tpot_ms``; vLLM writes a percentile where ``--metric-percentiles`` names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.app.documents.text import parse_document
from meshwright.app.runs.logs.logged import Logged
from meshwright.costmodels.errors import InvalidInputError

_FIGURES = {
    "tokens_per_s": ("output_throughput", 1.0),
    "ttft_p95_s": ("p95_ttft_ms", 1e-3),
    "tpot_p95_s": ("p95_tpot_ms", 1e-3),
}
"""Figures of a run: the benchmark's name, and what its unit is in ours."""


def read(lines: Sequence[str]) -> Logged:
    """Return what the result says of a run; nothing where this is no such result."""
    result = _result(lines)
    figures = {name: _number(result.get(theirs)) * unit for name, (theirs, unit) in _FIGURES.items()}
    return Logged(figures={name: value for name, value in figures.items() if value > 0.0})


def _result(lines: Sequence[str]) -> Mapping[str, Any]:
    text = "\n".join(lines).strip()
    if not text.startswith("{"):
        return {}
    for candidate in (text, text.rsplit("\n", 1)[-1]):
        try:
            document = parse_document(candidate.encode(), what="benchmark result")
        except InvalidInputError:
            continue
        if isinstance(document, dict) and "output_throughput" in document:
            return document
    return {}


def _number(value: object) -> float:
    """The value, 0 where it is no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
