"""Fit the kernel calibrations that Meshwright ships to measured tables, and print their errors on rows held out.

    python -m benchmarks.fit_kernels [--device h100_sxm] [--data ../shared/data/calibration] [--check]

Every curve is fitted to four fifths of its table's rows and scored on the rest; GEMM is also scored on (n, k) pairs of
which no row was seen. Writes costmodels/hardware/calibrations/kernels/*.json; with --check it only prints.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.fit_tables import ROOT, fit_arguments, is_table_of, random_split, registered_tables, scored
from meshwright.costmodels.calibration.kernel_file import read_fitted, write_fitted
from meshwright.costmodels.calibration.kernels import Fitted, KernelError, VectorKernel
from meshwright.costmodels.curves.attention import decodes_s, prefills_s
from meshwright.costmodels.curves.gemm import Silicon, gemms_s
from meshwright.costmodels.fitting.calibration import fit_decode, fit_gemm, fit_memory, fit_prefill
from meshwright.costmodels.hardware import device
from meshwright.costmodels.units import DType

OUTPUT = ROOT / "costmodels" / "hardware" / "calibrations" / "kernels"

# Calibration key -> (device of the catalogue, SMs of its data sheet).
DEVICES = {
    "a100_sxm": ("a100-sxm-80gb", 108),
    "h100_sxm": ("h100-sxm-80gb", 132),
    "h200_sxm": ("h200-sxm-141gb", 132),
    "b200_sxm": ("b200-sxm-180gb", 148),
    "gb200": ("gb200-186gb", 152),
}
# Kinds without a table come from here.
BASES = {"gb200": "b200_sxm"}
DTYPES = {"bfloat16": DType.BF16, "fp8": DType.FP8, "nvfp4": DType.FP4}
MEMORY_SOURCE = {"a100_sxm": "a100", "h100_sxm": "h100"}
MEMORY_CLOCK_S = 2.5e-6

# Seconds of one launch on the hosts of a device, and where they are from.
AMPERE_HOST = (
    5e-6,
    "one launch on the hosts of A100 nodes, by vTrain's runs (MICRO'24) and Megatron-LM's functional tests "
    "(costmodels/kernels/host_work.py)",
)
HOPPER_HOST = (
    4e-6,
    "Megatron-LM's functional tests: layers that wait for the host take 0.8 on DGX H100 of what they take on DGX A100",
)
HOSTS = {"a100_sxm": AMPERE_HOST}


def main() -> None:
    arguments = fit_arguments(__doc__, devices=DEVICES)
    for key in arguments.device or DEVICES:
        document = calibration_document(key, arguments.data)
        if not arguments.check:
            (OUTPUT / f"{key}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def calibration_document(key: str, data: Path) -> dict[str, Any]:
    name, cores = DEVICES[key]
    board = device(name)
    document: dict[str, Any] = {
        "schema": "meshwright.kernel-calibration/1",
        "key": key,
        "cores": cores,
        "host_launch_s": HOSTS.get(key, HOPPER_HOST)[0],
        "provenance": provenance(key, data),
    }
    if key in BASES:
        document["base"] = {
            "key": BASES[key], "gemm_efficiency": 1.0, "attention_efficiency": 1.0, "cache_bandwidth": 1.0,
            "corrections": "kept",
            "error": {"median": 0.08, "p95": 0.45, "basis": f"curves of {BASES[key]}, not measured on this board"},
        }  # fmt: skip
    gemm = pd.read_parquet(data / "gemm.parquet").query("system == @key")
    document["gemm"] = {}
    for table_dtype, dtype in DTYPES.items():
        rows = gemm[gemm.gemm_dtype == table_dtype]
        if len(rows):
            silicon = Silicon(board.peak(dtype), board.memory_bytes_per_s, dtype.size_bytes)
            document["gemm"][dtype.value] = fitted_gemm(f"{key} gemm {dtype}", rows, silicon, cores)
    for kind, table, fit, predict in (
        ("prefill_attention", "context_attention", fit_prefill, prefills_s),
        ("decode_attention", "generation_attention", fit_decode, decodes_s),
    ):
        rows = pd.read_parquet(data / f"{table}.parquet").query("system == @key")
        for table_dtype, dtype in DTYPES.items():
            chosen = attention_rows(kind, rows, table_dtype)
            for head_dim in sorted(chosen.head_dim.unique()):
                width = dtype.size_bytes
                peak = board.peak(dtype if kind == "prefill_attention" else DType.BF16)
                entry = fitted_attention(
                    f"{key} {kind} {dtype} head dim {head_dim}", chosen[chosen.head_dim == head_dim], fit, predict,
                    Silicon(peak, board.memory_bytes_per_s, width), cores,
                )  # fmt: skip
                document.setdefault(kind, {}).setdefault(dtype.value, {})[str(head_dim)] = entry
    document["memory_bound"] = memory_entries(key, data)
    return document


def memory_entries(key: str, data: Path) -> dict[str, Any]:
    """Fixed time and bandwidth share of kernels that only move memory; from the H100's where none were measured."""
    source = MEMORY_SOURCE.get(key, "h100")
    rows = pd.read_parquet(data / "vidur_mlp.parquet").query("gpu == @source")
    tokens, hidden = rows.num_tokens.to_numpy(float), rows.n_embd.to_numpy(float)
    ffn = (rows.n_expanded_embd / rows.num_tensor_parallel_workers).to_numpy(float)
    moved_bytes = {
        VectorKernel.STREAM: ("add_ms", 6 * tokens * hidden),
        VectorKernel.NORM: ("input_layernorm_ms", 4 * tokens * hidden),
        VectorKernel.ACTIVATION: ("mlp_act_ms", np.where(rows.use_gated_mlp, 6, 4) * tokens * ffn),
        VectorKernel.GATHER: ("emb_ms", 4 * tokens * hidden),
    }
    bytes_per_s = device(DEVICES[f"{source}_sxm"][0]).memory_bytes_per_s
    entries = {}
    for kernel, (column, moved) in moved_bytes.items():
        seconds = rows[column].to_numpy(float) * 1e-3
        # The source's clock ticks in microseconds: the shortest times say little.
        known = seconds > MEMORY_CLOCK_S
        train = random_split(int(known.sum()))
        curve = fit_memory(moved[known][train], seconds[known][train], bytes_per_s=bytes_per_s)
        entry = write_fitted(Fitted(curve, KernelError(0.0, 0.0, "")))
        ratio = (curve.launch_s + moved[known] / (curve.efficiency * bytes_per_s)) / seconds[known]
        entry["error"] = scored(f"{key} {kernel} (measured on {source})", ratio, ~train)
        if key not in MEMORY_SOURCE:
            entry["derived_from"] = f"{source}_sxm"
        entries[kernel.value] = entry
    return entries


def fitted_gemm(label: str, rows: pd.DataFrame, silicon: Silicon, cores: int) -> dict[str, Any]:
    m, n, k = (rows[column].to_numpy(float) for column in ("m", "n", "k"))
    seconds = rows.us.to_numpy(float) * 1e-6
    train = random_split(len(rows))
    curve = fit_gemm(m[train], n[train], k[train], seconds[train], silicon=silicon, cores=cores)
    entry = write_fitted(Fitted(curve, KernelError(0.0, 0.0, "")))
    stored = read_fitted(entry, type(curve)).curve
    ratio = gemms_s(m, n, k, np.ones_like(m), stored, silicon) / seconds
    entry["error"] = scored(label, ratio, ~train)
    entry["error"]["basis"] += "; " + unseen_pairs_error(label, m, n, k, seconds, silicon, cores)
    return entry


def unseen_pairs_error(label: str, m: Any, n: Any, k: Any, seconds: Any, silicon: Silicon, cores: int) -> str:
    """Error on weight shapes (n, k) that the fit has not seen at any m."""
    pairs, which = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
    train = random_split(len(pairs))[which.ravel()]
    curve = fit_gemm(m[train], n[train], k[train], seconds[train], silicon=silicon, cores=cores)
    error = scored(f"{label}, unseen (n, k)", gemms_s(m, n, k, np.ones_like(m), curve, silicon) / seconds, ~train)
    return f"{error['median']:.1%} and {error['p95']:.1%} on unseen (n, k)"


def attention_rows(kind: str, rows: pd.DataFrame, dtype: str) -> pd.DataFrame:
    if kind == "prefill_attention":
        return rows[(rows.attn_dtype == dtype) & (rows.kv_cache_dtype == dtype)]
    return rows[rows.kv_cache_dtype == dtype]


def fitted_attention(label: str, rows: pd.DataFrame, fit: Any, predict: Any, silicon: Silicon, cores: int) -> dict[str, Any]:
    batch, heads, kv_heads, head_dim = (
        rows[column].to_numpy(float) for column in ("batch_size", "num_heads", "num_key_value_heads", "head_dim")
    )
    if "isl" in rows:
        q_tokens = kv_tokens = rows.isl.to_numpy(float)
        pairs = q_tokens * (q_tokens + 1) / 2
    else:
        # A step reads the cached tokens and the new one.
        q_tokens, kv_tokens = np.ones(len(rows)), rows.kv_len.to_numpy(float) + 1
        pairs = kv_tokens
    shapes = np.stack([4 * pairs * batch * heads * head_dim, q_tokens, kv_tokens, batch, heads, kv_heads, head_dim], axis=1)
    seconds = rows.us.to_numpy(float) * 1e-6
    train = random_split(len(rows))
    curve = fit(shapes[train], seconds[train], silicon=silicon, cores=cores)
    entry = write_fitted(Fitted(curve, KernelError(0.0, 0.0, "")))
    entry["error"] = scored(label, predict(shapes, read_fitted(entry, type(curve)).curve, silicon) / seconds, ~train)
    return entry


def provenance(key: str, data: Path) -> dict[str, str]:
    """Files behind the tables of a device, from their register: name in the origin's package -> hash and licence."""
    files = registered_tables(data, is_table_of(key, "gemm", "attention"))
    table = hashlib.sha256((data / "vidur_mlp.parquet").read_bytes()).hexdigest()[:16]
    return files | {
        "vidur_mlp.parquet": f"sha256 {table}, microsoft/vidur data/profiling/compute, MIT",
        "host_launch_s": HOSTS.get(key, HOPPER_HOST)[1],
    }


if __name__ == "__main__":
    main()
