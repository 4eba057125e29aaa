"""Results of GenAI-Perf and AIPerf: ``profile_export_genai_perf.json`` and ``profile_export_aiperf.json``, and the table that
GenAI-Perf prints, whose rows are statistics (``Time To First Token (ms)``) and whose columns are ``avg``, ``min``, ``max``,
``p99``, ``p90`` and ``p75``.

Each statistic of the JSON has a ``unit`` and ``avg`` to ``p99``; ``inter_token_latency`` is the mean of a request, without its
first token. ``input_config`` holds the load: at its top in old versions, under ``perf_analyzer.stimulus`` in newer ones, under
``loadgen`` in AIPerf. A console log has it in the command line that is printed at the start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from meshwright.app.evidence.logs.logged import Logged
from meshwright.app.evidence.logs.results import Json, at, documents, figure, name, number
from meshwright.app.evidence.logs.stated import Stated

_SECONDS = {"ms": 1e-3, "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}
_FIGURES = {"ttft_p95_s": "time_to_first_token", "tpot_p95_s": "inter_token_latency"}
_RATE = "output_token_throughput"

_CELLS = re.compile("[│|┃]")
_UNIT = re.compile(r"^(.{1,80}?)(?: \(([^()]{1,40})\))?$")
_COLUMNS_OF = "statistic"
_TOTAL = re.compile(
    r"^\s*(output token throughput|request throughput) \((?:per sec|tokens/sec|requests/sec)\): ([0-9][0-9,.]{0,30})\s*$"
)
_CONCURRENCY = re.compile(r"--concurrency(?:-range)?[ =]([0-9]{1,9})\b")
_REQUEST_RATE = re.compile(r"--request-rate(?:-range)?[ =]([0-9]{1,9}(?:\.[0-9]{1,9})?)\b")
_MODEL = re.compile(r"\b(?:perf_analyzer|genai-perf profile|aiperf profile)\b.{0,200}?\s(?:-m|--model)[ =]([^\s'\"]{1,300})")


def read(lines: Sequence[str]) -> Logged:
    """Return what the result says of a run; nothing where this is no such result."""
    for document in documents(lines, f'"{_RATE}"'):
        if isinstance(document.get(_RATE), dict):
            return _logged(document, at(document, "input_config"))
    table = _table(lines)
    return _logged(table, _command(lines)) if _RATE in table else Logged()


def _logged(statistics: Json, asked: object) -> Logged:
    figures = {"tokens_per_s": number(at(statistics, _RATE, "avg"))}
    for own, theirs in _FIGURES.items():
        unit = at(statistics, theirs, "unit")
        figures[own] = number(at(statistics, theirs, "p95")) * _SECONDS.get(str(unit), _SECONDS["ms"])
    loads = [asked, at(asked, "loadgen"), at(asked, "perf_analyzer", "stimulus")]
    names = [at(asked, "model"), at(asked, "model_names"), at(asked, "endpoint", "model_names")]
    stated = Stated(
        model=next((found for each in names if (found := name(each))), None),
        requests_per_s=next((rate for each in loads if (rate := figure(at(each, "request_rate")))), None),
        max_concurrency=next((limit for each in loads if (limit := figure(at(each, "concurrency")))), None),
        requests=figure(at(statistics, "request_count", "avg")),
        answered_per_s=figure(at(statistics, "request_throughput", "avg")),
        prompt_tokens=figure(at(statistics, "input_sequence_length", "avg")),
        output_tokens=figure(at(statistics, "output_sequence_length", "avg")),
    )
    return Logged(figures={own: value for own, value in figures.items() if value > 0.0}, stated=stated)


def _table(lines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The last printed table, its statistics by the names that they have in the JSON."""
    columns: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        total = _TOTAL.match(line.lower()) if columns else None
        if total is not None:
            found[total[1].replace(" ", "_")] = {"avg": total[2]}
        if not columns and _COLUMNS_OF not in line.lower():
            continue
        cells = [cell.strip().lower() for cell in _CELLS.split(line)]
        if len(cells) < 3:
            continue
        if cells[1] == _COLUMNS_OF:
            columns, found = cells[2:], {}
            continue
        match = _UNIT.match(cells[1]) if columns else None
        if match is not None:
            found[match[1].replace(" ", "_")] = {"unit": match[2], **dict(zip(columns, cells[2:], strict=False))}
    return found


def _command(lines: Sequence[str]) -> dict[str, Any]:
    """What the command line says that a console log begins with."""
    said: dict[str, Any] = {}
    for line in lines:
        if "perf" not in line or "-" not in line:
            continue
        for theirs, form in (("concurrency", _CONCURRENCY), ("request_rate", _REQUEST_RATE), ("model", _MODEL)):
            if (match := form.search(line)) is not None:
                said[theirs] = match[1]
    return said
