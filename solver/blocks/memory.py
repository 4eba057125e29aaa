"""Bytes of tensors on a block's borders and at work inside it, on one device of a stage."""

from __future__ import annotations

from meshwright.costmodels.model.dims import BATCH, HIDDEN, SEQ, VOCAB
from meshwright.costmodels.model.expert_parallel import expert_region
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.network.chunked_products import CHUNKERS
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.tp_strategies import SpecKind
from meshwright.solver.problem.graph import Block, ModelGraph


def working_bytes(graph: ModelGraph, block: Block, setting: BlockSetting) -> float:
    """Bytes of gradients that a block's widest operator has at once, of its inputs and outputs, on one of tp ranks.

    Launchers split what is wide (feed-forward, heads); the loss has its own rule (`Criterion.TRANSIENT_BYTES`).
    """
    sizes = {**graph.dims, BATCH: setting.microbatch, SEQ: setting.seq_len // setting.cp}
    routed = expert_region(block.operators).operators
    elements = (
        sum(tensor.elements(sizes) for tensor in (*operator.inputs, *operator.outputs))
        * (setting.expert_load if operator.name in routed else 1.0)
        for operator in block.operators
        if operator.kind not in (OperatorKind.LOSS, OperatorKind.EMBEDDING) and VOCAB not in operator.dims
    )
    # A weight of four bits is unpacked while a product reads it.
    packed = (
        [] if setting.adapter is None else [n for operator in block.operators for n in setting.adapter.packed(operator, sizes)]
    )
    return (max(elements, default=0.0) / setting.tp + max(packed, default=0)) * setting.dtype.size_bytes


def boundary_bytes(graph: ModelGraph, setting: BlockSetting) -> float:
    """Bytes a rank holds of the residual stream between two blocks."""
    elements = setting.microbatch * (setting.seq_len // setting.cp) * graph.dims[HIDDEN]
    share = setting.tp if setting.boundary.kind is SpecKind.SHARDED else 1
    return elements * setting.dtype.size_bytes / share


def chunk_buffer_bytes(graph: ModelGraph, setting: BlockSetting) -> float:
    """Bytes of buffers that stay for products whose gathers and scatters run in chunks beside them."""
    chunker = CHUNKERS.get(setting.implementation.tensor_overlap)
    if chunker is None or setting.tp == 1 or setting.boundary.kind is not SpecKind.SHARDED:
        return 0.0
    return chunker.buffer_bytes(setting.tp * boundary_bytes(graph, setting), setting.tp)
