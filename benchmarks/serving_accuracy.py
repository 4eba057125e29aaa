"""Predicted against measured TTFT and TPOT of public serving benchmarks: nothing here was fitted to these rows.

Run from the root of the repository: python benchmarks/serving_accuracy.py [path of measured.csv]
Rows: aggregated serving of dense models at fixed concurrency, one replica. A plain roofline stands beside the model.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from app.catalog import model
from costmodels.cluster import Cluster, NodeGroup
from costmodels.engine_profile import ENGINE_SGLANG, ENGINE_TENSORRT_LLM, ENGINE_VLLM
from costmodels.hardware import node_type
from costmodels.queueing.load import RequestStream
from costmodels.queueing.simulation import Admission, BatchLimits, Scheduling, Window, simulate_closed_loop
from costmodels.units import DType
from solver.request import Arrivals, FixedLength, PlanRequest, ServingWorkload
from solver.serving.engine import Engine, EngineBuilder
from solver.serving.layouts import Layout

MEASURED = Path("../shared/data/serving/measured.csv")

MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
}
NODES = {"h100_sxm": "dgx-h100", "h200_sxm": "dgx-h200", "b200_sxm": "dgx-b200"}

STEP_TOKENS = 8192
"""Default token limit of a step on 80 GB devices and larger: vLLM 0.12 server, SGLang 0.5 chunks, TensorRT-LLM 1.0."""

SCHEDULING = {
    "vllm": Scheduling.CHUNKED_PREFILL,
    "trtllm": Scheduling.CHUNKED_PREFILL,
    # SGLang runs a prefill batch before any decode batch unless --enable-mixed-chunk is given.
    "sglang": Scheduling.PREFILL_FIRST,
}

ADMISSION = {
    "vllm": Admission.PREEMPT,
    "sglang": Admission.PREEMPT,
    # Default capacity policy GUARANTEED_NO_EVICT.
    "trtllm": Admission.RESERVE,
}

PROFILES = {"vllm": ENGINE_VLLM, "trtllm": ENGINE_TENSORRT_LLM, "sglang": ENGINE_SGLANG}

REQUESTS_PER_CLIENT = 10
"""As InferenceX runs vLLM's benchmark_serving: ten prompts a client."""

INFERENCEX_SHORTEST = 0.8
"""InferenceX draws lengths uniform in 80% to 100% of the nominal ones (--random-range-ratio 0.8); other rows state nothing, so
their lengths are taken as fixed."""


COLUMNS = (
    "rows",
    "n",
    "refused",
    "TTFT as mean",
    "TTFT as median",
    "TPOT",
    "TPOT bias",
    "TTFT bias",
    "roofline TTFT",
    "roofline TPOT",
)


@dataclass(frozen=True, slots=True)
class Row:
    """A measured point. An empty precision is taken as the checkpoint's own, bf16."""

    model: str
    gpu: str
    engine: str
    precision: DType
    tp: int
    prompt: int
    output: int
    concurrency: int
    ttft_ms: float
    tpot_ms: float
    shortest: float

    @property
    def group(self) -> str:
        """Rows that are reported together."""
        return f"{self.model} {self.gpu} {self.engine} {self.precision.value}"


def read_rows(path: Path) -> list[Row]:
    """Rows of dense models that the model can answer for."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_row(entry) for entry in csv.DictReader(file) if _usable(entry)]


def _usable(entry: Mapping[str, str]) -> bool:
    known = entry["model"] in MODELS and entry["gpu"] in NODES and entry["mode"] == "agg"
    numbers = all(entry[name].isdigit() for name in ("tp", "concurrency", "isl", "osl"))
    return known and numbers and bool(entry["ttft_ms"]) and bool(entry["tpot_ms"])


def _row(entry: Mapping[str, str]) -> Row:
    return Row(
        model=MODELS[entry["model"]],
        gpu=entry["gpu"],
        engine=entry["engine"],
        precision=DType(entry["precision"] or "bf16"),
        tp=int(entry["tp"]),
        prompt=int(entry["isl"]),
        output=int(entry["osl"]),
        concurrency=int(entry["concurrency"]),
        ttft_ms=float(entry["ttft_ms"]),
        tpot_ms=float(entry["tpot_ms"]),
        # Rows dumped from the InferenceX data base carry the date of the dump.
        shortest=INFERENCEX_SHORTEST if "source_file=2026-" in entry["note"] else 1.0,
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """Predicted figures in milliseconds."""

    ttft_mean_ms: float
    ttft_median_ms: float
    tpot_mean_ms: float


def predict(row: Row) -> Figures | None:
    """The simulator's answer under closed-loop load; None when the model says that the row does not fit in memory."""
    engine = _engine(row.model, row.gpu, row.tp, row.precision, row.engine)
    sequences = max(row.concurrency, 1)
    kv_tokens = engine.kv_tokens(step_tokens=STEP_TOKENS, sequences=sequences)
    if kv_tokens < row.prompt + row.output:
        return None
    count = row.concurrency * REQUESTS_PER_CLIENT
    uniform = np.random.Generator(np.random.PCG64(0)).uniform(row.shortest, 1.0, (2, count))
    lengths = (np.rint(uniform[0] * row.prompt).astype(np.int64), np.rint(uniform[1] * row.output).astype(np.int64))
    stream = RequestStream(np.zeros(count), *lengths)
    limits = BatchLimits(sequences, STEP_TOKENS, kv_tokens, SCHEDULING[row.engine], ADMISSION[row.engine])
    result = simulate_closed_loop(engine.times, stream, limits, concurrency=row.concurrency, window=Window(0.0, 0.0))
    ttft = result.ttft_s * 1e3
    return Figures(float(np.mean(ttft)), float(np.median(ttft)), float(np.mean(result.tpot_s)) * 1e3)


def roofline(row: Row) -> Figures:
    """A plain roofline: prefill at peak FLOP/s, decode at full bandwidth, one prompt at a time."""
    graph, device = model(row.model), node_type(NODES[row.gpu]).device
    weights = graph.parameters() * row.precision.size_bytes
    kv_token = 2 * len(graph.layers) * graph.dims["kv_heads"] * graph.dims["head_dim"] * 2.0
    prefill_s = 2.0 * graph.parameters() * row.prompt / (row.tp * device.peak(row.precision))
    moved = weights + row.concurrency * kv_token * (row.prompt + row.output / 2)
    tpot_ms = moved / (row.tp * device.memory_bytes_per_s) * 1e3
    return Figures(prefill_s * 1e3, prefill_s * 1e3, tpot_ms)


@cache
def _engine(name: str, gpu: str, tp: int, precision: DType, engine: str) -> Engine:
    cluster = Cluster((NodeGroup("node", node_type(NODES[gpu]), 1),))
    arrivals = Arrivals(process="poisson", requests_per_s=1.0)
    # NVIDIA's fp8 checkpoints, which TensorRT-LLM runs, quantise the cache too; others keep it in 16 bits.
    kv_dtype = DType.FP8 if engine == "trtllm" and precision is DType.FP8 else DType.BF16
    workload = ServingWorkload("serving", arrivals, FixedLength(1), FixedLength(1), precision, kv_dtype)
    request = PlanRequest(model(name), cluster, workload)
    builder = EngineBuilder(request, sequence_tokens=16_384, step_tokens=STEP_TOKENS, sequences=1024, profile=PROFILES[engine])
    return builder.engine(Layout(cluster.groups[0], 0, tp, 1))


def report(rows: Iterable[Row]) -> str:
    """A Markdown table by group: mean (and median) absolute percentage error, and the median signed error as bias."""
    errors: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    unanswered: dict[str, int] = defaultdict(int)
    for row in rows:
        figures, plain = predict(row), roofline(row)
        if figures is None:
            unanswered[row.group] += 1
            continue
        entry = (
            _error(figures.ttft_mean_ms, row.ttft_ms),
            _error(figures.ttft_median_ms, row.ttft_ms),
            _error(figures.tpot_mean_ms, row.tpot_ms),
            _error(plain.ttft_mean_ms, row.ttft_ms),
            _error(plain.tpot_mean_ms, row.tpot_ms),
            figures.tpot_mean_ms / row.tpot_ms - 1.0,
            figures.ttft_mean_ms / row.ttft_ms - 1.0,
        )
        errors[row.group].append(entry)
        errors["all"].append(entry)
    header = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"
    return "\n".join([header, *(_line(group, errors[group], unanswered.get(group, 0)) for group in sorted(errors))])


def _error(predicted: float, measured: float) -> float:
    return abs(predicted / measured - 1.0)


def _line(group: str, entries: list[tuple[float, ...]], refused: int) -> str:
    mean, bias = np.mean(entries, axis=0), np.median(entries, axis=0)
    cells = [group, str(len(entries)), str(refused)]
    cells += [f"{value:.0%} ({middle:.0%})" for value, middle in zip(mean[:3], bias[:3], strict=True)]
    cells += [f"{bias[5]:+.0%}", f"{bias[6]:+.0%}", *(f"{value:.0%}" for value in mean[3:5])]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else MEASURED
    if not path.exists():
        sys.exit(f"{path} is not there; give the path of measured.csv")
    rows = read_rows(path)
    print(report(rows))


if __name__ == "__main__":
    main()
