"""Measured tables of the PyPI package aiconfigurator-core (Apache-2.0) as samples.

Of each device the newest tables of one engine are read, so that all its kernels come from one library. Rows of sliding
windows and beam search are left out: their kernels are others. Times are in milliseconds there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.app.base.errors import MissingExtraError
from meshwright.costmodels.fitting.samples import COLUMNS, TEXT_COLUMNS, SampleError, SampleKind, Samples, check_samples, joined
from meshwright.costmodels.units import DType

PACKAGE = "aiconfigurator-core"
MODULE = "aiconfigurator_core"
EXTRA = "import"

DEVICES = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200")
"""Keys of the devices that are read; the package names its folders the same way."""

DEFAULT_ENGINE = "trtllm"

ENGINES = {"a100_sxm": "sglang"}
"""Engines whose tables are read, where not TensorRT-LLM's: on A100 that is an old release with a quarter of the products."""

DTYPES = {"bfloat16": DType.BF16, "fp8": DType.FP8, "nvfp4": DType.FP4}
"""Formats that are read; block-scaled and weight-only formats have no curve of their own."""

COLLECTIVES = {
    "all_reduce": SampleKind.ALL_REDUCE,
    "all_gather": SampleKind.ALL_GATHER,
    "reduce_scatter": SampleKind.REDUCE_SCATTER,
    "alltoall": SampleKind.ALL_TO_ALL,
}

HALF_BYTES = 2
"""NCCL tables count elements; the rows of "half" have two bytes each."""

Columns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A kind of table: its file under a device's folder, and how its rows become samples."""

    pattern: str
    read: Callable[[Columns], Columns]


def installed_tables() -> Path:
    """The folder of the installed package's tables; raises MissingExtraError when the package is not installed."""
    found = find_spec(MODULE)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError("Its measured tables", package=PACKAGE, extra=EXTRA)
    return Path(found.submodule_search_locations[0]) / "systems" / "data"


def package_version() -> str:
    """Version of the installed package."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "of unknown version"


def import_device(key: str, folder: Path, *, release: str) -> Samples:
    """All samples of a device in a folder of tables; raises SampleError when it has none."""
    parts = []
    for table in TABLES:
        path = _best_table(key, folder / key, table.pattern)
        if path is not None:
            rows = _read_parquet(path)
            samples = _samples(table.read(rows), key, path.relative_to(folder).as_posix(), release)
            if samples is not None:
                parts.append(samples)
    if not parts:
        raise SampleError("there are no tables of this device", given=key, allowed=", ".join(DEVICES))
    return joined(parts)


def _best_table(key: str, folder: Path, pattern: str) -> Path | None:
    """The newest table of the device's engine, else of the first engine by name that has one."""
    newest = {path.parent.parent.name: path for path in sorted(folder.glob(pattern), key=_release)}
    preferred = ENGINES.get(key, DEFAULT_ENGINE)
    return newest.get(preferred) or next((newest[engine] for engine in sorted(newest)), None)


def _release(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.parent.name))


def _samples(columns: Columns, key: str, path: str, release: str) -> Samples | None:
    count = len(columns["time_s"])
    if not count:
        return None
    engine, run = path.split("/")[2:4]
    texts = {"device": key, "software": f"{engine} {run}", "source": f"{PACKAGE} {release} ({path})"}
    filled = {name: np.full(count, texts[name]) for name in texts}
    for name in COLUMNS:
        if name not in filled and name not in columns:
            filled[name] = np.zeros(count) if name not in TEXT_COLUMNS else np.full(count, "")
    samples = Samples(**{**filled, **columns})
    check_samples(samples)
    return samples


def _products(rows: Columns) -> Columns:
    kept = _formats(rows["gemm_dtype"])
    return {
        "kind": np.full(int(kept.sum()), SampleKind.GEMM.value),
        "dtype": _renamed(rows["gemm_dtype"][kept]),
        "m": _floats(rows["m"][kept]),
        "n": _floats(rows["n"][kept]),
        "k": _floats(rows["k"][kept]),
        "batch": np.ones(int(kept.sum())),
        "time_s": _seconds(rows, kept),
    }


def _prefill(rows: Columns) -> Columns:
    """Whole prompts, computed and cached in one format."""
    kept = _plain(rows) & _formats(rows["attn_dtype"]) & (rows["attn_dtype"] == rows["kv_cache_dtype"])
    tokens = _floats(rows["isl"][kept])
    return _attention(rows, kept, SampleKind.PREFILL_ATTENTION, "attn_dtype", tokens, tokens)


def _decode(rows: Columns) -> Columns:
    """One new token over the prompt and the steps before it, itself included; by the format of the cache."""
    kept = _plain(rows) & _formats(rows["kv_cache_dtype"])
    cached = _floats(rows["isl"][kept]) + _floats(rows["step"][kept])
    return _attention(rows, kept, SampleKind.DECODE_ATTENTION, "kv_cache_dtype", np.ones(int(kept.sum())), cached)


def _attention(rows: Columns, kept: Any, kind: SampleKind, dtype: str, queries: Any, keys: Any) -> Columns:
    return {
        "kind": np.full(int(kept.sum()), kind.value),
        "dtype": _renamed(rows[dtype][kept]),
        "batch": _floats(rows["batch_size"][kept]),
        "q_tokens": queries,
        "kv_tokens": keys,
        "heads": _floats(rows["num_heads"][kept]),
        # Zero key/value heads stand for as many as there are query heads.
        "kv_heads": np.where(
            _floats(rows["num_key_value_heads"][kept]) > 0,
            _floats(rows["num_key_value_heads"][kept]),
            _floats(rows["num_heads"][kept]),
        ),
        "head_dim": _floats(rows["head_dim"][kept]),
        "time_s": _seconds(rows, kept),
    }


def _collectives(rows: Columns) -> Columns:
    kept = (rows["nccl_dtype"] == "half") & np.isin(rows["op_name"], list(COLLECTIVES))
    return {
        "kind": np.array([COLLECTIVES[name].value for name in rows["op_name"][kept].tolist()], np.str_),
        "dtype": np.full(int(kept.sum()), DType.BF16.value),
        "moved_bytes": _floats(rows["message_size"][kept]) * HALF_BYTES,
        "ranks": _floats(rows["num_gpus"][kept]),
        "time_s": _seconds(rows, kept),
    }


TABLES = (
    Table("gemm/*/*/gemm_perf.parquet", _products),
    Table("attention/*/*/context_attention_perf.parquet", _prefill),
    Table("attention/*/*/generation_attention_perf.parquet", _decode),
    Table("comm/nccl/*/nccl_perf.parquet", _collectives),
)


def _plain(rows: Columns) -> Any:
    """Rows without sliding window and beam search."""
    kept = rows["beam_width"] == 1
    return kept & (rows["window_size"] == 0) if "window_size" in rows else kept


def _formats(dtypes: Any) -> Any:
    return np.isin(dtypes, list(DTYPES))


def _renamed(dtypes: Any) -> Any:
    return np.array([DTYPES[name].value for name in dtypes.tolist()], np.str_)


def _floats(values: Any) -> Any:
    return np.asarray(values, np.float64)


def _seconds(rows: Columns, kept: Any) -> Any:
    return _floats(rows["latency"][kept]) * 1e-3


def _read_parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("Its measured tables", package="pyarrow", extra=EXTRA) from None
    table = parquet.read_table(path)
    return {name: _column(table.column(name)) for name in table.column_names}


def _column(column: Any) -> Any:
    """A column as an array: text as numpy text, numbers as they are."""
    values = column.to_pylist()
    return np.array(["" if v is None else v for v in values], np.str_) if _is_text(values) else np.array(values)


def _is_text(values: list[Any]) -> bool:
    return any(isinstance(value, str) for value in values[:100])
