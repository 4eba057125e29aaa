"""Which kernels a launcher's models run."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.implementation import VectorKernels
from solver.request import Launcher, Search, Space

LAUNCHER_KERNELS: Mapping[Launcher, VectorKernels] = {
    # Transformer Engine's layers, Megatron-LM's default (--transformer-impl transformer_engine).
    Launcher.MEGATRON_LM: VectorKernels.FUSED,
    # DeepSpeed trains the script's own model, and the exported one is Hugging Face's.
    Launcher.DEEPSPEED: VectorKernels.EAGER,
    # Compilation is off unless a configuration turns it on, and the exported ones do not.
    Launcher.TORCHTITAN: VectorKernels.EAGER,
}


def vector_kernels(search: Search) -> VectorKernels:
    """The launcher's kernels; in the free space, which names no launcher, the best that can be written by hand."""
    if search.space is Space.FREE:
        return VectorKernels.FUSED
    return LAUNCHER_KERNELS.get(search.launcher, VectorKernels.FUSED)
