"""Fit the collective calibrations that Meshwright ships to measured NCCL tables, and print their cross-validated error.

    python -m benchmarks.fit_collectives [--data ../shared/data/calibration] [--check]

Each fifth message size of a series (device, collective, group size) is left out in turn and predicted from the others;
the shipped constants are fitted to all. Writes costmodels/hardware/calibrations/collectives/*.json.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.fit_tables import ROOT, fit_arguments, registered_tables
from meshwright.costmodels.calibration.collectives import Collective, GroupCurve
from meshwright.costmodels.fitting.collectives import Series, fit_group, held_out_errors, written
from meshwright.costmodels.hardware import node_type

OUTPUT = ROOT / "costmodels" / "hardware" / "calibrations" / "collectives"

# Calibration key -> (node type whose fabric was measured, NCCL version of the table, vidur topology of its send/recv).
DEVICES = {
    "a100_sxm": ("dgx-a100", "2.27.3", "a100_dgx"),
    "h100_sxm": ("dgx-h100", "2.29.2", "h100_dgx"),
    "h200_sxm": ("dgx-h200", "2.29.2", "h100_dgx"),
    "b200_sxm": ("dgx-b200", "2.29.2", None),
    "gb200": ("gb200-nvl72", "2.29.2", None),
}
OPERATIONS = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
}
# A GB200 host has four GPUs, and no larger group of the rack was measured: eight ranks as on the B200's switch.
LARGER_GROUPS_FROM = {"gb200": "b200_sxm"}
# NVIDIA/nccl-tests issue 212: 370 of 450 GB/s after the protocol's overhead.
LINK_SHARE = 0.82


def main() -> None:
    arguments = fit_arguments(__doc__)
    for key in DEVICES:
        document = calibration_document(key, arguments.data)
        if not arguments.check:
            (OUTPUT / f"{key}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def calibration_document(key: str, data: Path) -> dict[str, Any]:
    curves, errors = fitted_curves(key, data)
    for larger in [LARGER_GROUPS_FROM[key]] if key in LARGER_GROUPS_FROM else []:
        for kind, by_size in fitted_curves(larger, data)[0].items():
            curves[kind] = {**{n: curve for n, curve in by_size.items() if n > max(curves[kind])}, **curves[kind]}
    error = np.concatenate(errors)
    median, p95 = float(np.median(error)), float(np.quantile(error, 0.95))
    print(f"{key:10s} {len(error)} sizes left out: median {median:.1%}  p95 {p95:.1%}")
    return {
        "schema": "meshwright.collective-calibration/1",
        "key": key,
        "link_share": LINK_SHARE,
        "curves": {
            kind.value: {str(n): written(curve) for n, curve in sorted(by_size.items())} for kind, by_size in curves.items()
        },
        "error": {"median": round(median, 4), "p95": round(p95, 4), "basis": f"{len(error)} message sizes, each left out once"},
        "provenance": provenance(key, data),
    }


def fitted_curves(key: str, data: Path) -> tuple[dict[Collective, dict[int, GroupCurve]], list[Any]]:
    curves: dict[Collective, dict[int, GroupCurve]] = {}
    errors = []
    bytes_per_s = node_type(DEVICES[key][0]).intra.bytes_per_s
    for (kind, n), (message_bytes, seconds) in sorted(series_of(key, data).items()):
        series = Series(kind, n, message_bytes, seconds)
        curves.setdefault(kind, {})[n] = fit_group(series, bytes_per_s=bytes_per_s)
        if kind is not Collective.SEND_RECV:
            errors.append(held_out_errors(series, bytes_per_s=bytes_per_s))
    return curves, errors


def series_of(key: str, data: Path) -> dict[tuple[Collective, int], tuple[Any, Any]]:
    """Message bytes and seconds by collective and group size."""
    _, version, topology = DEVICES[key]
    table = pd.read_parquet(data / "nccl.parquet")
    table = table[(table.system == key) & (table.nccl_table == version) & (table.nccl_dtype == "half")]
    series = {
        (OPERATIONS[name], int(n)): (rows.message_size.to_numpy(float) * 2.0, rows.us.to_numpy(float) * 1e-6)
        for (name, n), rows in table.groupby(["op_name", "num_gpus"])
    }
    if topology is not None:
        pairs = pd.read_parquet(data / "vidur_network.parquet")
        pairs = pairs[(pairs.topology == topology) & (pairs.collective == "send_recv") & (pairs.devices_per_node == 2)]
        medians = pairs.groupby("size").ms.median()
        series[(Collective.SEND_RECV, 2)] = (medians.index.to_numpy(float), medians.to_numpy() * 1e-3)
    return series


def provenance(key: str, data: Path) -> dict[str, str]:
    """Files behind a device's curves: name in the origin's package -> hash and licence."""
    wanted = {f"{k}/comm/nccl/{DEVICES[k][1]}/nccl_perf.parquet" for k in (key, LARGER_GROUPS_FROM.get(key, key))}
    files = registered_tables(data, wanted.__contains__)
    if DEVICES[key][2] is not None:
        table = hashlib.sha256((data / "vidur_network.parquet").read_bytes()).hexdigest()[:16]
        files["vidur_network.parquet"] = f"sha256 {table}, microsoft/vidur data/profiling/network (send/recv), MIT"
    return files


if __name__ == "__main__":
    main()
