"""Tables of open loops: requests that arrive by themselves at a rate, as benchmarks of servers publish them.

Such a table names its columns as result files do (`accelerator`, `framework`, `rate_req_s`); each line is turned into the cells
of a table of serving points, so that one reader reads both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from meshwright.app.evidence.training.cells import Cells, read_header, read_table

OPEN_COLUMNS = (
    "source",
    "accelerator",
    "nodes",
    "acc_per_node",
    "framework",
    "model",
    "mean_in_tokens",
    "mean_out_tokens",
    "arrival",
    "rate_req_s",
    "tokens_s",
    "ttft_p95_ms",
    "tpot_p95_ms",
)
"""The schema of open loops: these columns, in any order."""

TIMES = tuple(f"{time}_{statistic}_ms" for time in ("ttft", "tpot") for statistic in ("mean", "p50", "p90", "p95", "p99"))
"""Columns of the statistics of both times."""

LIMITS = ("slo_ttft_p99_ms", "slo_tpot_p99_ms")
"""Columns of the 99th percentiles that a row had to keep."""

OPEN_OPTIONAL_COLUMNS = (
    *("submitter", "system", "dataset", "plan", "config", "router"),
    *(name for name in TIMES if name not in OPEN_COLUMNS),
    *LIMITS,
)
"""Columns that such a table may have besides."""

ALL_QUEUED = "max_load(all queued)"
"""Concurrency of rows whose requests are all queued at the start."""

_ENGINES = (("vllm", "vllm"), ("sglang", "sglang"), ("tensorrt", "trtllm"))
"""Words of a framework by which an engine is known."""

_REMARKS = re.compile(r"\b(virtualized|server edition|superchip|-NPS1|-SPX|-CTS|-\d+W)\b|-NPS1|-SPX|-CTS|-\d+W", re.IGNORECASE)
"""Parts of an accelerator's name that say nothing of its kernels: partitions, cooling, power, virtual machines."""

_FLAGS = {
    "max_num_tokens": "--max_num_tokens",
    "max_batch_size": "--max_batch_size",
    "kvcache_free_gpu_mem_frac": "--kv_cache_free_gpu_memory_fraction",
}
"""Words of a plan and the flags of trtllm-serve that they are."""


def is_open_table(header: tuple[str, ...]) -> bool:
    """Return True if a table's columns are those of open loops."""
    return set(OPEN_COLUMNS) <= set(header)


def open_cells(path: Path) -> Iterator[Cells]:
    """Yield the lines of a table of open loops as cells of serving points."""
    for cells in read_table(path, OPEN_COLUMNS, what="measured open loops", optional=OPEN_OPTIONAL_COLUMNS):
        yield Cells(cells.line, _translated(cells))


def ignored_open_columns(path: Path) -> tuple[str, ...]:
    """Columns of a table of open loops that nothing is read from, sorted."""
    return tuple(sorted(set(read_header(path)) - {*OPEN_COLUMNS, *OPEN_OPTIONAL_COLUMNS}))


def words_of_plan(text: str) -> dict[str, str]:
    """Return the words `name=value` of a plan; of one that is said twice the last, since runtime flags follow build flags."""
    pairs = (word.partition("=") for word in text.split())
    return {name: value for name, _, value in pairs if value}


def _translated(cells: Cells) -> dict[str, str]:
    """The cells of a row of an open loop under the names of serving points."""
    plan, framework = words_of_plan(cells.text("plan")), cells.text("framework").casefold()
    engine = next((name for word, name in _ENGINES if word in framework), "")
    flags = [f"{flag} {plan[word]}" for word, flag in _FLAGS.items() if word in plan]
    queued = cells.text("arrival").casefold().startswith("all queued")
    rate, tokens_per_s = cells.number("rate_req_s"), cells.number("tokens_s")
    # What is generated is tokens/s over the rate; a data set's mean stands for it where one is missing.
    output = tokens_per_s / rate if rate and tokens_per_s else cells.number("mean_out_tokens")
    prompt, each = cells.number("mean_in_tokens"), cells.count("acc_per_node") or 0
    devices = (cells.count("nodes") or 1) * each
    return {
        "source": cells.text("source"),
        "model": _model(cells.text("model")),
        "gpu": " ".join(_REMARKS.sub("", cells.text("accelerator")).split()),
        "n_gpus": str(devices) if devices else "",
        "engine": engine,
        "precision": plan.get("precision", ""),
        "mode": "agg",
        "tp": plan.get("tensor_parallelism", ""),
        "pp": plan.get("pipeline_parallelism", ""),
        "dp_attn": "",
        "ep": "",
        "isl": "" if prompt is None else str(max(1, round(prompt))),
        "osl": "" if output is None else str(max(1, round(output))),
        "concurrency": ALL_QUEUED if queued else "",
        "arrival": "queued" if queued else "poisson",
        "output_tok_s": cells.text("tokens_s"),
        "ttft_ms": cells.text("ttft_mean_ms"),
        "tpot_ms": cells.text("tpot_mean_ms"),
        "note": cells.text("config"),
        "launch": f"trtllm-serve model {' '.join(flags)}" if engine == "trtllm" and flags else "",
        **{name: cells.text(name) for name in ("rate_req_s", "router", "dataset", "submitter", "system", *TIMES, *LIMITS)},
    }


def _model(text: str) -> str:
    """The model of a benchmark's name, without the accuracy that it asks for (llama2-70b-99.9) and its division (-edge)."""
    name = re.sub(r"(-99(\.9)?|-edge)$", "", text).replace("_", ".")
    return re.sub(r"^llama(\d)", r"llama-\1", name)
