"""Partitions a chain of blocks into pipeline stages, exactly."""

from meshwright.solver.stages.layers import LayerPartition, LayerStage, Shortage, memory_shortage, partition_layers
from meshwright.solver.stages.longest import objective_s
from meshwright.solver.stages.tables import Partition, StageChoice, Work, partition

__all__ = [
    "LayerPartition",
    "LayerStage",
    "Partition",
    "Shortage",
    "StageChoice",
    "Work",
    "memory_shortage",
    "objective_s",
    "partition",
    "partition_layers",
]
