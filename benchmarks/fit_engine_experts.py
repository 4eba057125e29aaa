"""Fit the expert kernels that each serving engine runs, and print errors on model shapes never seen.

    pip install aiconfigurator-core==0.12.0
    python -m benchmarks.fit_engine_experts [--tables .../aiconfigurator_core/systems/data] [--check]

The same layer of experts takes three times as long in one engine's kernels as in another's (CUTLASS and TRTLLM-gen, Triton,
DeepGEMM), so each has its own curves: balanced rows of the tables that the package has for the engine. Adds them to
costmodels/hardware/calibrations/serving/*.json under ``engine_experts``; --check only prints.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.fit_kernels import DEVICES
from benchmarks.fit_serving_kernels import OUTPUT, fitted_experts
from meshwright.costmodels.curves.gemm import Silicon
from meshwright.costmodels.hardware import device
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import ServingEngine


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one file: those of a number format, timed with one kernel (all kernels of the format where it names none)."""

    file: str
    dtype: str
    kernel: str | None = None


TRTLLM_GEN_FP8 = Table("moe/sglang/0.5.14", "fp8_block", "sglang_flashinfer_trtllm_moe")
"""FlashInfer's name for kernels of TensorRT-LLM, which its own table lacks (MoeConfig backend TRTLLM)."""

HOPPER: dict[ServingEngine, dict[WeightFormat, Table]] = {
    ServingEngine.VLLM: {
        WeightFormat.BF16: Table("moe/vllm/0.24.0", "bfloat16"),
        WeightFormat.FP8: Table("moe/vllm/0.24.0", "fp8"),
        WeightFormat.FP8_BLOCK: Table("moe/vllm/0.24.0", "fp8_block"),
        WeightFormat.MXFP4: Table(
            "moe/vllm/0.24.0", "w4a16_mxfp4", "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic"
        ),
    },
    ServingEngine.SGLANG: {
        WeightFormat.BF16: Table("moe/sglang/0.5.14", "bfloat16", "sglang_fused_moe_triton"),
        WeightFormat.FP8_BLOCK: Table("moe/sglang/0.5.14", "fp8_block", "sglang_fused_moe_triton"),
        WeightFormat.MXFP4: Table("moe/sglang/0.5.14", "w4a16_mxfp4", "sglang_fused_moe_triton"),
    },
    ServingEngine.TENSORRT_LLM: {WeightFormat.MXFP4: Table("moe/trtllm/1.3.0rc20", "w4a16_mxfp4", "moe_torch_flow")},
}

BLACKWELL: dict[ServingEngine, dict[WeightFormat, Table]] = {
    ServingEngine.VLLM: {
        WeightFormat.BF16: Table("moe/vllm/0.24.0", "bfloat16"),
        WeightFormat.FP8: Table("moe/vllm/0.24.0", "fp8"),
        WeightFormat.FP8_BLOCK: Table("moe/vllm/0.24.0", "fp8_block"),
        WeightFormat.NVFP4: Table("moe/vllm/0.19.0", "nvfp4"),
    },
    ServingEngine.SGLANG: {
        WeightFormat.BF16: Table("moe/sglang/0.5.14", "bfloat16", "sglang_flashinfer_trtllm_moe"),
        WeightFormat.FP8_BLOCK: TRTLLM_GEN_FP8,
        WeightFormat.NVFP4: Table("moe/sglang/0.5.14", "nvfp4", "sglang_flashinfer_trtllm_moe"),
    },
    ServingEngine.TENSORRT_LLM: {
        WeightFormat.FP8_BLOCK: TRTLLM_GEN_FP8,
        WeightFormat.NVFP4: Table("moe/trtllm/1.3.0rc20", "nvfp4", "moe_torch_flow_min_latency"),
    },
}

BOARDS = {"h100_sxm": HOPPER, "h200_sxm": HOPPER, "b200_sxm": BLACKWELL}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=installed_tables())
    parser.add_argument("--check", action="store_true", help="print errors, write nothing")
    arguments = parser.parse_args()
    if arguments.tables is None or not arguments.tables.is_dir():
        parser.exit(2, "no measured tables: install aiconfigurator-core==0.12.0 or pass --tables\n")
    for key, engines in BOARDS.items():
        path = OUTPUT / f"{key}.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        document["engine_experts"] = {
            engine.value: {
                weights.value: fitted(key, engine, weights, table, arguments.tables) for weights, table in tables.items()
            }
            for engine, tables in engines.items()
        }
        files = {table.file for tables in engines.values() for table in tables.values()}
        document["provenance"] |= {
            f"{key}/{file}/moe_perf.parquet": provenance(arguments.tables, key, file) for file in sorted(files)
        }
        if not arguments.check:
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def installed_tables() -> Path | None:
    """Where the installed package keeps its tables."""
    found = importlib.util.find_spec("aiconfigurator_core")
    return None if found is None or found.origin is None else Path(found.origin).parent / "systems" / "data"


def fitted(key: str, engine: ServingEngine, weights: WeightFormat, table: Table, tables: Path) -> dict[str, Any]:
    """The entry of one curve."""
    name, cores = DEVICES[key]
    board = device(name)
    rows = pd.read_parquet(tables / key / table.file / "moe_perf.parquet")
    rows = rows[(rows.moe_dtype == table.dtype) & (rows.distribution == "balanced")]
    if table.kernel is not None:
        rows = rows[rows.kernel_source == table.kernel]
    rows = rows.assign(us=rows.latency * 1e3)
    silicon = Silicon(board.peak(weights.computed_in(board)), board.memory_bytes_per_s, weights.size_bytes)
    return fitted_experts(f"{key} {engine} experts {weights}", rows, silicon, cores)


def provenance(tables: Path, key: str, file: str) -> str:
    """Digest and licence of a file."""
    digest = hashlib.sha256((tables / key / file / "moe_perf.parquet").read_bytes()).hexdigest()[:16]
    return f"sha256 {digest}, aiconfigurator-core 0.12.0, Apache-2.0"


if __name__ == "__main__":
    main()
