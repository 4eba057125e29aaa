"""Fit the calibrations of serving kernels (fused experts, MLA) to measured tables, and print held-out errors.

    python -m benchmarks.fit_serving_kernels [--data ../shared/data/calibration] [--check]

Experts are fitted to balanced rows of four fifths of the model shapes and scored on shapes never seen, then stored as fitted to
all; MLA over prompts and caches to four fifths of its rows. Writes costmodels/hardware/calibrations/serving/*.json; --check
only prints.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.fit_kernels import DEVICES
from benchmarks.fit_serving_experts import fit_experts
from benchmarks.fit_tables import ROOT, fit_arguments, is_table_of, random_split, registered_tables, scored
from meshwright.costmodels.calibration.kernel_file import read_fitted, write_fitted
from meshwright.costmodels.calibration.kernels import Fitted, KernelError
from meshwright.costmodels.curves.attention import decodes_s, prefills_s
from meshwright.costmodels.curves.gemm import ExpertCurve, ExpertWork, Silicon, experts_s
from meshwright.costmodels.fitting.calibration import fit_decode, fit_prefill
from meshwright.costmodels.hardware import device
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.attention import LATENT_CACHE_HEAD_DIM
from meshwright.costmodels.units import DType

OUTPUT = ROOT / "costmodels" / "hardware" / "calibrations" / "serving"

FORMATS = {
    "bfloat16": WeightFormat.BF16,
    "fp8": WeightFormat.FP8,
    "fp8_block": WeightFormat.FP8_BLOCK,
    "nvfp4": WeightFormat.NVFP4,
}
CACHES = {"bfloat16": DType.BF16, "fp8": DType.FP8}
SHAPE = ["hidden_size", "inter_size", "topk", "num_experts"]
FEWEST_SHAPES = 5
"""Model shapes of which a fifth is one or more."""

NOT_GATED = ((2688, 1856), (4096, 2688), (1024, 2688), (2048, 5120), (8192, 5120))
"""(hidden, width) of the Nemotron-H family, whose experts are two matrices with a squared ReLU between them."""

NOT_MEASURED = {
    "a800_sxm": ("a100_sxm", 108),
    "v100_sxm2": ("a100_sxm", 80),
    "l4": ("h100_sxm", 58),
    "h800_sxm": ("h100_sxm", 132),
    "mi300x": ("h100_sxm", 304),
    "ascend_910b": ("a100_sxm", 24),
    "gb200": ("b200_sxm", 152),
    "b300_sxm": ("b200_sxm", 148),
    "gb300": ("b200_sxm", 152),
}


def main() -> None:
    arguments = fit_arguments(__doc__)
    moe, mla = (pd.read_parquet(arguments.data / f"{name}.parquet") for name in ("moe", "mla"))
    documents = [measured(key, arguments.data, moe[moe.system == key], mla[mla.system == key]) for key in sorted(DEVICES)]
    documents = [document for document in documents if document["experts"]] + [derived(key) for key in NOT_MEASURED]
    if not arguments.check:
        for document in documents:
            (OUTPUT / f"{document['key']}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def measured(key: str, data: Path, moe: pd.DataFrame, mla: pd.DataFrame) -> dict[str, Any]:
    name, cores = DEVICES[key]
    board = device(name)
    document: dict[str, Any] = {"schema": "meshwright.serving-calibration/1", "key": key, "cores": cores}
    document["provenance"] = registered_tables(data, is_table_of(key, "moe", "mla"))
    document["experts"] = {}
    for table, weights in FORMATS.items():
        rows = moe[(moe.moe_dtype == table) & (moe.distribution == "balanced")]
        if len(rows):
            silicon = Silicon(board.peak(weights.computed_in(board)), board.memory_bytes_per_s, weights.size_bytes)
            document["experts"][weights.value] = fitted_experts(f"{key} experts {weights}", rows, silicon, cores)
    document["latent_decode"], document["latent_prefill"] = {}, {}
    for table, cache in CACHES.items():
        rows = mla[(mla.op == "generation_mla") & (mla.kv_cache_dtype == table)]
        if len(rows):
            silicon = Silicon(board.peak(DType.BF16), board.memory_bytes_per_s, cache.size_bytes)
            document["latent_decode"][cache.value] = fitted_latent(f"{key} MLA decode {cache}", rows, silicon, cores)
        rows = mla[(mla.op == "context_mla") & (mla.kv_cache_dtype == table) & (mla.step == 0)]
        if len(rows):
            silicon = Silicon(board.peak(DType.BF16), board.memory_bytes_per_s, DType.BF16.size_bytes)
            document["latent_prefill"][cache.value] = fitted_prompts(f"{key} MLA prefill {cache}", rows, silicon, cores)
    if not document["latent_decode"]:
        error = {"median": 0.2, "p95": 0.6, "basis": "curves of h100_sxm, not measured on this board"}
        document["base"] = {"key": "h100_sxm", "error": error}
    return document


def derived(key: str) -> dict[str, Any]:
    base, cores = NOT_MEASURED[key]
    error = {"median": 0.2, "p95": 0.6, "basis": f"curves of {base}, not measured on this board"}
    return {
        "schema": "meshwright.serving-calibration/1",
        "key": key,
        "cores": cores,
        "base": {"key": base, "error": error},
        "provenance": {"base": f"no measurement on this board: {base}'s shares of the data sheet's figures"},
    }


def fitted_experts(label: str, rows: pd.DataFrame, silicon: Silicon, cores: int) -> dict[str, Any]:
    work, seconds = expert_work(rows), rows.us.to_numpy(float) * 1e-6
    shapes = rows.groupby(SHAPE, observed=True).ngroup().to_numpy()
    count = int(shapes.max()) + 1
    # Too few model shapes to leave any out: rows are.
    train = random_split(count)[shapes] if count >= FEWEST_SHAPES else random_split(len(rows))
    held_out = "shapes never seen" if count >= FEWEST_SHAPES else "rows of shapes seen"
    seen = fit_experts(ExpertWork(*(column[train] for column in work)), seconds[train], silicon=silicon, cores=cores)
    error = scored(f"{label}, {held_out}", experts_s(work, seen, silicon) / seconds, ~train)
    entry = write_fitted(Fitted(fit_experts(work, seconds, silicon=silicon, cores=cores), KernelError(0.0, 0.0, "")))
    stored = read_fitted(entry, ExpertCurve).curve
    scored(f"{label}, as stored", experts_s(work, stored, silicon) / seconds, np.ones(len(rows), bool))
    entry["error"] = error | {"basis": f"{error['basis']}, of model {held_out}"}
    return entry


def expert_work(rows: pd.DataFrame) -> ExpertWork:
    """Balanced routing: rows are spread evenly over ranks, and over as many of their experts as there are rows."""
    tokens, experts, top_k, ep, hidden = (
        rows[column].to_numpy(float) for column in ("num_tokens", "num_experts", "topk", "moe_ep_size", "hidden_size")
    )
    routed = np.maximum(1.0, tokens * top_k / ep)
    plain = set(NOT_GATED)
    pairs = zip(rows.hidden_size, rows.inter_size, strict=True)
    return ExpertWork(
        rows=routed,
        active=np.maximum(1.0, np.minimum(experts / ep, routed)),
        local=experts / ep,
        hidden=hidden,
        width=rows.inter_size.to_numpy(float) / rows.moe_tp_size.to_numpy(float),
        matrices=np.array([2.0 if pair in plain else 3.0 for pair in pairs]),
    )


def fitted_latent(label: str, rows: pd.DataFrame, silicon: Silicon, cores: int) -> dict[str, Any]:
    batch, heads = rows.batch_size.to_numpy(float), rows.num_heads.to_numpy(float)
    keys = rows.step.to_numpy(float) + rows.isl.to_numpy(float)
    ones = np.ones(len(rows))
    # Scores over rank and rotary part (576), values over the rank (512).
    flops = 2.0 * batch * heads * keys * (576.0 + 512.0)
    shapes = np.stack([flops, ones, keys, batch, heads, ones, LATENT_CACHE_HEAD_DIM * ones], axis=1)
    seconds = rows.us.to_numpy(float) * 1e-6
    train = random_split(len(rows))
    curve = fit_decode(shapes[train], seconds[train], silicon=silicon, cores=cores)
    entry = write_fitted(Fitted(curve, KernelError(0.0, 0.0, "")))
    stored = read_fitted(entry, type(curve)).curve
    entry["error"] = scored(label, decodes_s(shapes, stored, silicon) / seconds, ~train)
    return entry


def fitted_prompts(label: str, rows: pd.DataFrame, silicon: Silicon, cores: int) -> dict[str, Any]:
    batch, heads, tokens = (rows[column].to_numpy(float) for column in ("batch_size", "num_heads", "isl"))
    # Keys of 192 numbers, values of 128: of a causal prompt every query sees half of the keys on average.
    flops = 2.0 * batch * heads * (192.0 + 128.0) * tokens * (tokens + 1.0) / 2.0
    shapes = np.stack([flops, tokens, tokens, batch, heads, heads, np.full(len(rows), (192.0 + 128.0) / 2.0)], axis=1)
    seconds = rows.us.to_numpy(float) * 1e-6
    train = random_split(len(rows))
    curve = fit_prefill(shapes[train], seconds[train], silicon=silicon, cores=cores)
    entry = write_fitted(Fitted(curve, KernelError(0.0, 0.0, "")))
    stored = read_fitted(entry, type(curve)).curve
    entry["error"] = scored(label, prefills_s(shapes, stored, silicon) / seconds, ~train)
    return entry


if __name__ == "__main__":
    main()
