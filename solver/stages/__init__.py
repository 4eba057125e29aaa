"""Partitions a chain of blocks into pipeline stages, exactly."""

from meshwright.solver.stages.layers import LayerPartition, LayerStage, Shortage, memory_shortage, partition_layers
from meshwright.solver.stages.longest import objective_s
from meshwright.solver.stages.pinned import Pinned, barred
from meshwright.solver.stages.tables import Partition, StageChoice, Work, partition

__all__ = [
    "LayerPartition",
    "LayerStage",
    "Partition",
    "Pinned",
    "Shortage",
    "StageChoice",
    "Work",
    "barred",
    "memory_shortage",
    "objective_s",
    "partition",
    "partition_layers",
]
