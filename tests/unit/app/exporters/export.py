"""Shared by the tests of export and others: GOLDEN, golden_export."""

from __future__ import annotations

from pathlib import Path

from meshwright.app.launching.exporters import Export, export
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher, Recompute
from tests.unit.app.exporters.plans import serving, training

GOLDEN = Path(__file__).parent / "golden"


def golden_export(launcher: Launcher) -> Export:
    match launcher:
        case Launcher.MEGATRON_LM | Launcher.MEGATRON_BRIDGE | Launcher.NEMO:
            plan = training(
                dp=2, tp=2, pp=4, cp=2, layers=[7, 9, 9, 7], zero_stage=1, sequence_parallel=True, microbatch=2,
                recompute=(Recompute.SELECTIVE,),
            )  # fmt: skip
        case Launcher.DEEPSPEED:
            plan = training(dp=4, tp=2, zero_stage=3, microbatch=2, recompute=(Recompute.FULL,))
        case Launcher.TORCHTITAN:
            plan = training(
                dp=4, tp=2, pp=2, layers=[15, 17], zero_stage=2, sequence_parallel=True, recompute=(Recompute.FULL,)
            )
        case Launcher.PYTORCH:
            plan = training(dp=2, tp=2, pp=2, zero_stage=3, sequence_parallel=True, recompute=(Recompute.FULL,))
        case Launcher.NANOTRON:
            plan = training(dp=2, tp=2, pp=2, layers=[18, 14], zero_stage=1, sequence_parallel=True, microbatch=2)
        case Launcher.MAXTEXT:
            plan = training(dp=4, tp=2, cp=2, zero_stage=3, sequence_parallel=True, microbatch=2)
        case Launcher.ACCELERATE | Launcher.TRL | Launcher.LLAMA_FACTORY:
            plan = training(dp=16, zero_stage=3, microbatch=2, recompute=(Recompute.FULL,))
        case Launcher.HF_TRAINER:
            plan = training(dp=8, zero_stage=2)
        case Launcher.AXOLOTL:
            plan = training(dp=8, zero_stage=1, microbatch=2, recompute=(Recompute.FULL,))
        case Launcher.VLLM:
            plan = serving(replicas=2, tp=4, pp=2, layers=[39, 41])
        case Launcher.SGLANG:
            plan = serving(replicas=2, tp=4, pp=2, layers=[39, 41], engine=ServingEngine.SGLANG)
        case Launcher.TENSORRT_LLM:
            plan = serving(replicas=2, tp=4, pp=2, layers=[39, 41], engine=ServingEngine.TENSORRT_LLM)
    return export(*plan, launcher.value)
