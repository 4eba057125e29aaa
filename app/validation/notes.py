"""The words of a row on how its framework ran: its notes, and the file that it was taken from."""

from __future__ import annotations

import re

from meshwright.costmodels.model.implementation import (
    AttentionKernels,
    FlashAttention,
    HeadGradients,
    LossKernels,
    SelectiveRecompute,
    TensorOverlap,
    TrainedWeights,
    VectorKernels,
)
from meshwright.solver.problem.implementation import StatedImplementation

_KERNELS = {
    "rms kernel": VectorKernels.FUSED_NORMS,
    "te + triton": VectorKernels.FUSED,
    "compile": VectorKernels.COMPILED,
    "eager": VectorKernels.EAGER,
}

_LOSS_COMPILED_FROM = 202504
"""Year and month from which torchtitan compiles its loss with its layers (pull request 1033; 755 had turned it off in 2024)."""

_TORCHTITAN_REPORT = re.compile(r"torchtitan benchmarks/\S*?_(20\d\d)-?(\d\d)_")

_LTS_CONTAINER = "(lts_dgxa100_dracooci"
"""Megatron-LM's functional tests on the first of its long-term containers. They run deterministic unless a case's name says
otherwise, and this container's Transformer Engine has no fused attention that is: it falls back to the unfused one."""


_SELECTIVE = {"selective (op)": SelectiveRecompute.EVERY_SECOND_PRODUCT}


def stated_implementation(notes: str, *, origin: str, recompute: str, flash_attention: int | None) -> StatedImplementation:
    """The statements of a row on its framework; ``origin`` is the file that it was taken from. Where rows tell generations of
    FlashAttention apart, 2 is the second."""
    return StatedImplementation(
        kernels=stated_kernels(notes),
        stated_loss=stated_loss(origin, notes),
        attention_kernels=stated_attention_kernels(notes, flash_attention),
        attention=FlashAttention.FLASH_2 if flash_attention == 2 else None,
        selective=_SELECTIVE.get(recompute),
        trained=stated_trained(notes),
        tensor_overlap=stated_tensor_overlap(notes),
        head_gradients=stated_head_gradients(notes),
    )


def stated_attention_kernels(notes: str, flash_attention: int | None) -> AttentionKernels | None:
    """Return the kernels of attention; without a fused one the softmax may be one kernel or PyTorch's steps."""
    if flash_attention is None:
        return None
    if flash_attention > 0:
        return AttentionKernels.FUSED
    return AttentionKernels.STEP_BY_STEP if "kernel=torch" in notes else AttentionKernels.UNFUSED


def stated_trained(notes: str) -> TrainedWeights | None:
    """Return the weights that are trained, where the notes speak of adapters."""
    return TrainedWeights.ADAPTERS if "lora performance" in notes.lower() else None


def stated_kernels(notes: str) -> VectorKernels | None:
    """Return the kernels of vector operators, where the notes name them."""
    return next((kernels for words, kernels in _KERNELS.items() if words in notes.lower()), None)


def stated_loss(source: str, notes: str) -> LossKernels | None:
    """Return the kernels of the loss, where they are not as the kernels of layers say."""
    if "cross_entropy_loss_fusion" in notes:
        return LossKernels.FUSED_IN_PARTS
    report = _TORCHTITAN_REPORT.search(source)
    if report and int(report[1] + report[2]) >= _LOSS_COMPILED_FROM and stated_kernels(notes) is VectorKernels.COMPILED:
        return LossKernels.COMPILED
    return None


def stated_tensor_overlap(notes: str) -> TensorOverlap | None:
    """Return the overlap of gathers and scatters over tp: torchtitan's reports say "async TP", Megatron-LM's functional tests
    name it."""
    if "async tp" in notes.lower():
        return TensorOverlap.SYMMETRIC_MEMORY
    return TensorOverlap.USERBUFFERS if "_tp_overlap (" in notes else None


def stated_head_gradients(notes: str) -> HeadGradients | None:
    """When the head's weight gradients are computed."""
    return HeadGradients.DEFERRED if "defer_embedding_wgrad_compute" in notes else None


def stated_flash_attention(notes: str, flash_attention: int | None) -> int | None:
    """The row's generation of fused attention, 0 where its container could not run it."""
    unfused = flash_attention == 1 and _LTS_CONTAINER in notes and "nondeterministic" not in notes
    return 0 if unfused else flash_attention
