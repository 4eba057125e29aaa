"""The JSON of GuideLLM (``benchmarks.json``): a list of benchmarks, one for each load of a sweep.

``metrics`` of a benchmark holds distributions by the end of requests (``successful``), each with ``mean`` and ``percentiles``.
``inter_token_latency_ms`` is the mean of a request without its first token; ``time_per_output_token_ms`` counts that too.
The load is ``config.strategy``, ``args.strategy`` before 0.4: so many ``streams`` at once, or requests at a ``rate``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.app.evidence.logs.logged import Logged
from meshwright.app.evidence.logs.results import Json, at, documents, figure, name, number
from meshwright.app.evidence.logs.stated import Figure, Stated, exactly

_SYNCHRONOUS, _CONCURRENT, _THROUGHPUT, _CONSTANT, _POISSON = "synchronous", "concurrent", "throughput", "constant", "poisson"


def read(lines: Sequence[str]) -> Logged:
    """Return what the last benchmark says, with the others of the file; nothing where this is no such file."""
    for document in documents(lines, '"benchmarks"'):
        benchmarks = document.get("benchmarks")
        if isinstance(benchmarks, list):
            read_ones = [each for one in benchmarks if isinstance(one, dict) and (each := _logged(one, document)).figures]
            if read_ones:
                last = read_ones[-1]
                return Logged(figures=last.figures, stated=last.stated, others=tuple(read_ones[:-1]))
    return Logged()


def _logged(one: Json, document: Json) -> Logged:
    figures = {
        "tokens_per_s": _mean(one, "output_tokens_per_second"),
        "ttft_p95_s": _p95(one, "time_to_first_token_ms") * 1e-3,
        "tpot_p95_s": _p95(one, "inter_token_latency_ms") * 1e-3,
    }
    strategy = at(one, "config", "strategy") or at(one, "args", "strategy")
    kind = at(strategy, "type_")
    models = (at(one, "config", "backend", "model"), at(document, "args", "model"), at(one, "worker", "backend_model"))
    stated = Stated(
        model=next((found for each in models if (found := name(each))), None),
        requests_per_s=_rate(strategy, kind),
        arrival_cv={_CONSTANT: exactly(0.0), _POISSON: exactly(1.0)}.get(kind),
        max_concurrency=_most_at_once(strategy, kind),
        mean_concurrency=figure(_mean(one, "request_concurrency")),
        requests=figure(at(one, "metrics", "request_totals", "successful")),
        answered_per_s=figure(_mean(one, "requests_per_second")),
        prompt_tokens=figure(_mean(one, "prompt_token_count")),
        output_tokens=figure(_mean(one, "output_token_count")),
    )
    return Logged(figures={own: value for own, value in figures.items() if value > 0.0}, stated=stated)


def _rate(strategy: object, kind: object) -> Figure | None:
    return exactly(math.inf) if kind == _THROUGHPUT else figure(at(strategy, "rate")) if kind in (_CONSTANT, _POISSON) else None


def _most_at_once(strategy: object, kind: object) -> Figure | None:
    if kind == _SYNCHRONOUS:
        return exactly(1.0)
    return figure(at(strategy, "streams" if kind == _CONCURRENT else "max_concurrency"))


def _mean(one: Json, metric: str) -> float:
    return number(at(one, "metrics", metric, "successful", "mean"))


def _p95(one: Json, metric: str) -> float:
    return number(at(one, "metrics", metric, "successful", "percentiles", "p95"))
