"""The memory of a device in words: what fills it."""

from __future__ import annotations

from meshwright.solver.answer.stage import StageMemory


def memory_kinds(memory: StageMemory) -> tuple[tuple[str, float], ...]:
    """Return what fills the memory of a stage's device."""
    return (
        ("weights", memory.weights_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("activations", memory.activations_bytes),
        ("KV cache", memory.kv_cache_bytes),
        ("transient", memory.transient_bytes),
        ("fragmentation", memory.fragmentation_bytes),
        ("overhead", memory.overhead_bytes),
    )
