"""The communication of attention over several ranks of a sequence: rings of keys and values, and exchanges of tokens for
heads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.costmodels.cluster.cluster import Device, GroupTopology
from meshwright.costmodels.kernels.operator_time import OperatorTime
from meshwright.costmodels.kernels.sustained import sustained_memory_s
from meshwright.costmodels.model.dims import HEADS, KV_HEADS, SEQ
from meshwright.costmodels.model.operators import Operator
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.overlap import MEASURED_INTERFERENCE, Stream, exposed_s
from meshwright.costmodels.units import DType


def sizes_after_exchange(sizes: Mapping[str, int], ranks: int) -> Mapping[str, int]:
    """Local sizes that attention sees once ranks have exchanged tokens for heads: all their tokens, a share of the heads."""
    if ranks == 1:
        return sizes
    return {**sizes, SEQ: ranks * sizes[SEQ], **{dim: sizes[dim] // ranks for dim in (HEADS, KV_HEADS) if dim in sizes}}


def ring_s(
    operator: Operator, sizes: Mapping[str, int], compute: OperatorTime, *, dtype: DType, ring: GroupTopology
) -> OperatorTime:
    """Exposed seconds of ring attention: n - 1 steps pass keys and values on, backward their gradients too; attention of the
    other chunks (``compute`` is that of all n) hides what it can (survey Table 3, CP row)."""
    _, key, value = operator.inputs
    chunk_bytes = (key.elements(sizes) + value.elements(sizes)) * dtype.size_bytes
    sends_s = np.array([float(collective_s(Collective.SEND_RECV, passed * chunk_bytes, ring)) for passed in (1, 2)])
    chunks_s = np.array([compute.forward_s, compute.backward_s]) / ring.n
    stream = Stream.INTER_NODE if ring.spans_nodes else Stream.INTRA_NODE
    forward_s, backward_s = ((ring.n - 1) * exposed_s(sends_s, chunks_s, stream, MEASURED_INTERFERENCE)).tolist()
    return OperatorTime(forward_s, backward_s)


def head_exchange_s(
    operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType, ranks: GroupTopology
) -> OperatorTime:
    """Seconds of Ulysses under a rank's own ``sizes``: all-to-alls turn queries, keys and values of its tokens and all heads
    into those of more tokens and fewer heads, and the output back (survey Table 3, TPUP row); nothing hides them.

    Backward the output goes that way again with its gradient, then the inputs' gradients come back. Each tensor is packed for
    its way and sorted behind it, two copies (Transformer Engine's flash_attn_a2a_communicate).
    """
    inputs_s, outputs_s = (
        sum(
            float(collective_s(Collective.ALL_TO_ALL, size, ranks)) + 2 * sustained_memory_s(device, 2 * size)
            for size in (tensor.elements(sizes) * dtype.size_bytes for tensor in tensors)
        )
        for tensors in (operator.inputs, operator.outputs)
    )
    return OperatorTime(inputs_s + outputs_s, inputs_s + 2 * outputs_s)
