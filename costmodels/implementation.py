"""How a framework runs what lies between matrix products: which kernels there are, and so what they read, write and keep."""

from __future__ import annotations

from enum import StrEnum


class VectorKernels(StrEnum):
    """Kernels of norms, rotary embeddings, gated activations, dropout and residual sums."""

    EAGER = "eager"
    """Each step of a formula is a kernel of its own; norms and rotary embeddings work in fp32 and cast."""
    FUSED_NORMS = "fused-norms"
    """Norms are one kernel each (Apex, flash-attention's), the rest is eager."""
    FUSED = "fused"
    """One kernel an operator, written by hand (Transformer Engine, Megatron-LM's fused kernels)."""
    COMPILED = "compiled"
    """torch.compile fuses what lies between two matrix products."""
