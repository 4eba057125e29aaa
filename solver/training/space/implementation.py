"""Which kernels a launcher's models run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.costmodels.model.implementation import (
    HAND_FUSED,
    FlashAttention,
    HostPath,
    Implementation,
    LossKernels,
    ScanOverRanks,
    TensorOverlap,
    VectorKernels,
)
from meshwright.solver.problem.choices import Launcher, Space
from meshwright.solver.problem.request import Search

LAUNCHER_IMPLEMENTATION: Mapping[Launcher, Implementation] = {
    # Transformer Engine's layers, Megatron-LM's default (--transformer-impl transformer_engine), which choose among
    # FlashAttention and cuDNN's kernels by device.
    Launcher.MEGATRON_LM: Implementation(
        VectorKernels.FUSED,
        FlashAttention.NATIVE,
        host=HostPath.MEGATRON_CORE,
        tensor_overlap=TensorOverlap.WEIGHT_GRADIENT,
        scan_over_ranks=ScanOverRanks.HEADS,
    ),
    # DeepSpeed trains the script's own model, and the exported one is Hugging Face's: eager, with PyTorch's
    # scaled_dot_product_attention.
    Launcher.DEEPSPEED: Implementation(VectorKernels.EAGER, FlashAttention.FLASH_2),
    # Compilation is off unless a configuration turns it on, and the exported ones do so for chunked products alone.
    # Attention is PyTorch's too.
    Launcher.TORCHTITAN: Implementation(VectorKernels.EAGER, FlashAttention.FLASH_2),
}
"""What selective recomputation means is not taken from the launcher: plans mean attention and norms."""


def chunked_implementation(implementation: Implementation, search: Search) -> Implementation:
    """The same with products over tp cut into chunks. torchtitan cuts them in compiled layers alone, with which it compiles the
    loss, too; in the free space they are cut as Transformer Engine cuts them."""
    if search.space is Space.LAUNCHABLE and search.launcher is Launcher.TORCHTITAN:
        return replace(
            implementation,
            kernels=VectorKernels.COMPILED,
            stated_loss=LossKernels.COMPILED,
            tensor_overlap=TensorOverlap.SYMMETRIC_MEMORY,
        )
    return replace(implementation, tensor_overlap=TensorOverlap.USERBUFFERS)


def launcher_implementation(search: Search) -> Implementation:
    """The launcher's kernels; in the free space, which names no launcher, the best that can be written by hand."""
    if search.space is Space.FREE:
        return HAND_FUSED
    return LAUNCHER_IMPLEMENTATION.get(search.launcher, HAND_FUSED)
