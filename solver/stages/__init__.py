"""Partitions a chain of blocks into pipeline stages, exactly."""

from solver.stages.layers import LayerPartition, LayerStage, Shortage, memory_shortage, partition_layers

__all__ = ["LayerPartition", "LayerStage", "Shortage", "memory_shortage", "partition_layers"]
