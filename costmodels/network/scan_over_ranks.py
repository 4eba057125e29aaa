"""The communication of state-space mixers over several ranks of a sequence (context parallelism): states, or tokens for
heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from meshwright.costmodels.cluster.cluster import Device, GroupTopology
from meshwright.costmodels.kernels.compute import sustained_memory_s
from meshwright.costmodels.kernels.operator_time import OperatorTime
from meshwright.costmodels.model.dims import HEADS, KV_HEADS, SEQ, SSM_GROUPS, SSM_HEADS
from meshwright.costmodels.model.implementation import ScanOverRanks
from meshwright.costmodels.model.operators import Operator, scan_flops
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.overlap import MEASURED_INTERFERENCE, Stream, exposed_s
from meshwright.costmodels.units import DType

_COPIES_IN, _COPIES_OUT = 3, 2
"""Copies of each tensor that is exchanged: packed by rank, joined with the others and put in order of the sequence; on its
way back put in the order of attention and unpacked (Megatron-LM, megatron/core/ssm/mamba_context_parallel.py)."""


def way_of_scan(scan: Operator, offered: ScanOverRanks) -> ScanOverRanks:
    """Return the way in which the ranks of a sequence share a scan, among those that the framework offers. States pass only
    where they decay by a number a head and chunk (Mamba-2, decaying linear attention); a delta rule multiplies them by a
    matrix, and exchanges heads."""
    passes = scan.chunk is not None and scan.flops_per_element == 0.0
    return offered if passes else ScanOverRanks.HEADS


def exchanged_sizes(sizes: Mapping[str, int], ranks: int) -> Mapping[str, int]:
    """Local sizes of a mixer between two exchanges: all tokens of the ranks, a share of the heads; of fewer groups than ranks
    each rank has one."""
    local = {**sizes, SEQ: ranks * sizes[SEQ], SSM_HEADS: sizes[SSM_HEADS] // ranks}
    return {**local, SSM_GROUPS: max(1, sizes[SSM_GROUPS] // ranks)} if SSM_GROUPS in sizes else local


def group_copies(sizes: Mapping[str, int], ranks: int) -> int:
    """Ranks that have each group of B and C after an exchange: more than one where there are fewer groups than ranks."""
    return max(1, ranks // sizes[SSM_GROUPS]) if SSM_GROUPS in sizes else 1


def state_bytes(scan: Operator, sizes: Mapping[str, int]) -> float:
    """Bytes of a scan's state between two parts of a sequence, [heads, width, state] of each sequence, in fp32 (mamba-ssm's
    chunked scan keeps states so)."""
    x, b = scan.inputs[:2]
    return x.elements({**sizes, SEQ: 1}) * sizes[b.dims[-1]] * DType.FP32.size_bytes


def state_passing_s(
    scan: Operator, sizes: Mapping[str, int], compute: OperatorTime, *, device: Device, ranks: GroupTopology, parts: int
) -> OperatorTime:
    """Exposed seconds of LASP-2 (Sun et al. 2025, algorithm 2): one all-gather of the states of each rank's ``parts`` of the
    sequence, whatever its length, under the products inside chunks; then each rank adds up those before its own. Backward the
    same with the states' gradients of the parts behind (survey Table 8, CP row)."""
    gathered_bytes = ranks.n * parts * state_bytes(scan, sizes)
    gather_s = float(collective_s(Collective.ALL_GATHER, gathered_bytes, ranks))
    # Every state that came is read once, a part's own is written.
    combine_s = sustained_memory_s(device, gathered_bytes + parts * state_bytes(scan, sizes))
    inside = _share_inside_chunks(scan, sizes)
    compute_s = inside * np.array([compute.forward_s, compute.backward_s])
    stream = Stream.INTER_NODE if ranks.spans_nodes else Stream.INTRA_NODE
    shown = exposed_s(np.full(2, gather_s), compute_s, stream, MEASURED_INTERFERENCE)
    return OperatorTime(float(shown[0]) + combine_s, float(shown[1]) + combine_s)


def _share_inside_chunks(scan: Operator, sizes: Mapping[str, int]) -> float:
    """Share of a chunked scan's FLOPs that need no state: C B^T and its product with x (survey section 5.3)."""
    assert scan.chunk is not None, "only scans in chunks pass states"
    x, b = scan.inputs[:2]
    width, state = sizes[x.dims[-1]], sizes[b.dims[-1]]
    inside = 2.0 * x.elements(sizes) / width * min(scan.chunk, sizes[SEQ]) * (state + width)
    return inside / scan_flops(scan, sizes)


def margin_s(
    convolution: Operator, sizes: Mapping[str, int], *, dtype: DType, ranks: GroupTopology, parts: int
) -> OperatorTime:
    """Seconds in which a causal convolution gets the tokens before each part from the rank that has them: one fewer than its
    kernel; backward their gradients return."""
    before = sizes[convolution.weights[0].dims[-1]] - 1
    elements = sum(tensor.elements({**sizes, SEQ: 1}) for tensor in convolution.inputs) * before * parts
    each_s = float(collective_s(Collective.SEND_RECV, elements * dtype.size_bytes, ranks))
    return OperatorTime(each_s, each_s)


def mixer_exchange_s(
    scan: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType, ranks: GroupTopology
) -> OperatorTime:
    """Seconds of exchanging tokens for heads around a mixer: its gate, x, B, C and time step go, its output comes back, and
    gradients the other way; groups of B and C that are fewer than ranks are sent to several. Nothing hides them."""
    (output,) = scan.outputs
    copies = group_copies(sizes, ranks.n)
    sent = [tensor.elements(sizes) * (copies if SSM_GROUPS in tensor.dims else 1) for tensor in scan.inputs]
    there_s = _exchange_s([output.elements(sizes), *sent], _COPIES_IN, device=device, dtype=dtype, ranks=ranks)
    back_s = _exchange_s([output.elements(sizes)], _COPIES_OUT, device=device, dtype=dtype, ranks=ranks)
    return OperatorTime(there_s + back_s, there_s + back_s)


def _exchange_s(elements: Iterable[int], copies: int, *, device: Device, dtype: DType, ranks: GroupTopology) -> float:
    sizes = [each * dtype.size_bytes for each in elements]
    return sum(
        float(collective_s(Collective.ALL_TO_ALL, size, ranks)) + copies * sustained_memory_s(device, 2 * size)
        for size in sizes
    )


# The communication of attention over several ranks of a sequence: rings of keys and values, gathers of them, and exchanges of
# tokens for heads.


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


GATHERED_AT_ONCE = 3
"""Tensors as large as keys and values of the whole sequence that are there at once in the backward pass of attention over
gathered ones: these, their gradients, and what the kernel of a chunk adds to them (Transformer Engine's
AttnFuncWithCPAndKVAllGather, which keeps a rank's own keys and values and gathers those of the others again)."""


def gathered_keys_s(
    operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType, ranks: GroupTopology
) -> OperatorTime:
    """Seconds of gathering keys and values of all ranks before attention under a rank's own ``sizes``; nothing hides them.

    Backward they are gathered again, and their gradients reduced and scattered. Gathered chunks are put in the order of the
    sequence, gradients back in the order of ranks, a copy each; gradients of both chunks of queries add up in what was zeroed:
    each reads and writes the sum of the keys that it saw, 2 n + 1 of 2 n chunks together.
    """
    forward_s = backward_s = 0.0
    for tensor in operator.inputs[1:]:
        whole = ranks.n * tensor.elements(sizes) * dtype.size_bytes
        copy_s = sustained_memory_s(device, 2 * whole)
        gather_s = float(collective_s(Collective.ALL_GATHER, whole, ranks)) + copy_s
        scatter_s = float(collective_s(Collective.REDUCE_SCATTER, whole, ranks)) + copy_s
        added = 3 * whole * (2 * ranks.n + 1) / (2 * ranks.n)
        sums_s = sustained_memory_s(device, whole) + 2 * sustained_memory_s(device, added / 2)
        forward_s, backward_s = forward_s + gather_s, backward_s + gather_s + scatter_s + sums_s
    return OperatorTime(forward_s, backward_s)


def gathered_keys_bytes(operator: Operator, sizes: Mapping[str, int], dtype: DType, *, ranks: int) -> float:
    """Bytes at once of the gathered keys and values of ``ranks``, of their gradients, and of what is added to these."""
    return GATHERED_AT_ONCE * ranks * sum(tensor.elements(sizes) for tensor in operator.inputs[1:]) * dtype.size_bytes


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
