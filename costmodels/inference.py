"""Step times of a serving layout (tp, pp), from the operators of the model.

A step runs every layer once on t tokens: weights are read once however many sequences share it. Projections, norms and
collectives depend on t alone; attention on what the sequences hold; the vocabulary head on how many of them get a token.
Tables over t, sequences and cache lengths are made once for a block and tp degree, and added up to stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodels.cluster import Device, GroupTopology
from costmodels.collectives import Collective, collective_s
from costmodels.compute import attention_forward_s, decode_attention_s, matmul_s, memory_bound_s
from costmodels.engine_profile import EngineProfile
from costmodels.kernel_calibration import VectorKernel
from costmodels.kernel_calibration_file import kernel_calibration
from costmodels.one_shot_all_reduce import serving_all_reduce_s
from costmodels.operator_time import vector_kernel
from costmodels.operators import BATCH, SEQ, AttentionMask, Operator, OperatorKind, matmul_shape
from costmodels.queueing.step_times import StepTimes
from costmodels.tensor_parallel import VOCAB, leaves_partial_sums, local_sizes
from costmodels.units import DType

FloatArray = npt.NDArray[np.float64]

_EVERY_TOKEN_UP_TO = 512
_TOKEN_STEP = 64
"""Token counts at which tables are evaluated: each of the first, where tiles fill up, then every 64; linear between."""

_EVERY_SEQUENCE_UP_TO = 64
_SEQUENCE_STEP = 16


@dataclass(frozen=True, slots=True)
class ServingPrecision:
    """Formats: ``weights`` of the layers' projections, ``activations`` of everything else (embeddings, norms, vocabulary
    head, residual stream), as fp8 checkpoints keep them; ``kv`` of the cache."""

    weights: DType
    activations: DType
    kv: DType

    def of(self, operator: Operator) -> DType:
        """Format of the operator's weights."""
        quantised = operator.kind is OperatorKind.MATMUL and VOCAB not in operator.dims
        return self.weights if quantised else self.activations


@dataclass(frozen=True, slots=True)
class TableRange:
    """Largest step and longest sequence that tables must answer for."""

    step_tokens: int
    sequences: int
    sequence_tokens: int


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """Times of one copy of a block, as StepTimes defines them, without the stage dimension."""

    tokens_s: FloatArray
    logits_s: FloatArray
    decode_s: FloatArray
    prefill_s_per_pair: FloatArray
    prefill_launch_s: float


@dataclass(frozen=True, eq=False)
class _Grids:
    tokens: FloatArray
    sequences: FloatArray
    kv: FloatArray
    query: FloatArray
    prefix: FloatArray


def block_times(
    operators: Sequence[Operator],
    dims: Mapping[str, int],
    *,
    device: Device,
    tp_topology: GroupTopology,
    precision: ServingPrecision,
    engine: EngineProfile,
    table_range: TableRange,
) -> BlockTimes:
    """Tables of one block on one of tp ranks (``tp_topology.n``)."""
    grids = _grids(table_range)
    times = BlockTimes(
        tokens_s=np.zeros(table_range.step_tokens + 1),
        logits_s=np.zeros(table_range.sequences + 1),
        decode_s=np.zeros((table_range.sequences + 1, len(grids.kv))),
        prefill_s_per_pair=np.zeros((len(grids.query), len(grids.prefix))),
        prefill_launch_s=0.0,
    )
    tokens_s, logits_s = np.zeros_like(grids.tokens), np.zeros_like(grids.sequences)
    decode_s = np.zeros((len(grids.sequences), len(grids.kv)))
    launch_s = 0.0
    for operator in operators:
        local = local_sizes(operator, {**dims, BATCH: 1, SEQ: 1}, tp_topology.n)
        if operator.kind is OperatorKind.ATTENTION:
            decode_s += _decode_s(operator, local, grids, device, precision)
            per_pair, launch = _prefill_s_per_pair(operator, local, grids, device, precision)
            times.prefill_s_per_pair[:] += per_pair
            launch_s += launch
        elif operator.kind is OperatorKind.LOSS:
            moved = grids.sequences * dims[VOCAB] * engine.logits_bytes
            logits_s += memory_bound_s(device, moved, kernel=VectorKernel.NORM)
        elif operator.kind is OperatorKind.MATMUL and VOCAB in operator.dims:
            logits_s += _head_s(operator, local, grids.sequences, device, tp_topology, precision)
        else:
            tokens_s += _operator_s(operator, local, grids.tokens, device, tp_topology, precision)
    every_token = np.arange(table_range.step_tokens + 1)
    every_sequence = np.arange(table_range.sequences + 1)
    times.tokens_s[:] = _interpolated(every_token, grids.tokens, tokens_s)
    times.logits_s[:] = _interpolated(every_sequence, grids.sequences, logits_s)
    decode_s = np.maximum.accumulate(decode_s, axis=1)
    for j in range(len(grids.kv)):
        times.decode_s[:, j] = _interpolated(every_sequence, grids.sequences, decode_s[:, j])
    return BlockTimes(times.tokens_s, times.logits_s, times.decode_s, times.prefill_s_per_pair, launch_s)


def step_times(
    stages: Sequence[Sequence[tuple[BlockTimes, int]]],
    *,
    boundary_elements: int,
    links: Sequence[GroupTopology],
    precision: ServingPrecision,
    engine: EngineProfile,
    table_range: TableRange,
) -> StepTimes:
    """Step times of a pipeline: each stage a list of (block, copies), ``links`` between one stage and the next.

    ``boundary_elements`` of each token go from one stage to the next.

    The engine's host time falls on the first stage, where steps are formed, and holds that stage only.
    """
    grids = _grids(table_range)
    tokens_s = np.array([sum(n * times.tokens_s for times, n in stage) for stage in stages], dtype=np.float64)
    logits_s = np.array([sum(n * times.logits_s for times, n in stage) for stage in stages], dtype=np.float64)
    tokens = np.arange(table_range.step_tokens + 1)
    for i, link in enumerate(links):
        sent = grids.tokens * boundary_elements * precision.activations.size_bytes
        tokens_s[i] += _interpolated(tokens, grids.tokens, _collective(Collective.SEND_RECV, sent, link))
    tokens_s[0] += engine.step_s
    logits_s[0] += engine.sequence_s * np.arange(table_range.sequences + 1)
    return StepTimes(
        tokens_s=tokens_s,
        logits_s=logits_s,
        decode_s=np.array([sum(n * times.decode_s for times, n in stage) for stage in stages], dtype=np.float64),
        kv_grid=grids.kv,
        prefill_s_per_pair=np.array(
            [sum(n * times.prefill_s_per_pair for times, n in stage) for stage in stages], dtype=np.float64
        ),
        query_grid=grids.query,
        prefix_grid=grids.prefix,
        prefill_launch_s=np.array([sum(n * times.prefill_launch_s for times, n in stage) for stage in stages]),
    )


def _grids(table_range: TableRange) -> _Grids:
    tokens = _dense_then_stepped(table_range.step_tokens, _EVERY_TOKEN_UP_TO, _TOKEN_STEP)
    sequences = _dense_then_stepped(table_range.sequences, _EVERY_SEQUENCE_UP_TO, _SEQUENCE_STEP)
    kv = _powers_of_two(64, table_range.sequence_tokens)
    prefix = np.concatenate([[0.0], kv])
    return _Grids(tokens, sequences, kv, _powers_of_two(16, table_range.step_tokens), prefix)


def _dense_then_stepped(largest: int, dense: int, step: int) -> FloatArray:
    """1, 2, ... up to ``dense``, then every ``step``, and ``largest`` itself."""
    points = [*range(1, min(dense, largest) + 1), *range(dense + step, largest, step), largest]
    return np.unique(np.array(points, dtype=np.float64))


def _powers_of_two(first: int, largest: int) -> FloatArray:
    points = [float(first)]
    while points[-1] < largest:
        points.append(points[-1] * 2.0)
    return np.array(points if len(points) > 1 else [*points, points[-1] * 2.0])


def _interpolated(counts: npt.NDArray[np.int64], grid: FloatArray, values: FloatArray) -> FloatArray:
    """Values at every count; nothing takes no time, and more never less: an engine may pad a batch to the faster size."""
    filled = np.interp(counts, grid, np.maximum.accumulate(values))
    filled[0] = 0.0
    return np.asarray(filled)


def _operator_s(
    operator: Operator,
    local: Mapping[str, int],
    tokens: FloatArray,
    device: Device,
    tp_topology: GroupTopology,
    precision: ServingPrecision,
) -> FloatArray:
    """Time of an operator that works token by token, with the all-reduce of its partial sums."""
    activation_bytes = precision.activations.size_bytes
    outputs = sum(tensor.elements(local) for tensor in operator.outputs)
    if operator.kind is OperatorKind.MATMUL:
        m, n, k = matmul_shape(operator, local)
        dtype = precision.of(operator)
        time = np.asarray(matmul_s(device, dtype, tokens * m, n, k), dtype=np.float64) - _quantisation_s(device, dtype)
    else:
        # Rows of a lookup are read and written; norms and activation functions read inputs and write outputs.
        inputs = outputs if operator.kind is OperatorKind.EMBEDDING else sum(t.elements(local) for t in operator.inputs)
        moved = tokens * (inputs + outputs) * activation_bytes
        time = np.asarray(memory_bound_s(device, moved, kernel=vector_kernel(operator)), dtype=np.float64)
    if tp_topology.n > 1 and leaves_partial_sums(operator):
        time = time + serving_all_reduce_s(tokens * outputs * activation_bytes, tp_topology)
    return time


def _quantisation_s(device: Device, dtype: DType) -> float:
    """What the measured time of a quantised product holds for quantising its input.

    The tables time that as kernels of its own (some 10 us); serving engines quantise in the norm or activation function
    before (vLLM, fuse_norm_quant and fuse_act_quant passes; TensorRT-LLM, fused RMSNorm and SwiGLU quantisation).
    """
    curves = kernel_calibration(device.calibration).gemm
    if dtype is DType.BF16 or dtype not in curves or DType.BF16 not in curves:
        return 0.0
    return max(0.0, curves[dtype].curve.launch_s - curves[DType.BF16].curve.launch_s)


def _head_s(
    operator: Operator,
    local: Mapping[str, int],
    sequences: FloatArray,
    device: Device,
    tp_topology: GroupTopology,
    precision: ServingPrecision,
) -> FloatArray:
    """Vocabulary head for the sequences that get a token, and the gathering of its shares."""
    m, n, k = matmul_shape(operator, local)
    time = np.asarray(matmul_s(device, precision.of(operator), sequences * m, n, k), dtype=np.float64)
    if tp_topology.n > 1:
        gathered = sequences * n * tp_topology.n * precision.activations.size_bytes
        time = time + _collective(Collective.ALL_GATHER, gathered, tp_topology)
    return time


def _decode_s(
    operator: Operator, local: Mapping[str, int], grids: _Grids, device: Device, precision: ServingPrecision
) -> FloatArray:
    heads, kv_heads, head_dim = _attention_shape(operator, local)
    kv_tokens = grids.kv if operator.window is None else np.minimum(grids.kv, operator.window)
    return np.asarray(
        decode_attention_s(
            device,
            precision.activations,
            cache_dtype=precision.kv,
            batch=grids.sequences[:, None],
            kv_tokens=kv_tokens[None, :],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
        ),
        dtype=np.float64,
    )


def _prefill_s_per_pair(
    operator: Operator, local: Mapping[str, int], grids: _Grids, device: Device, precision: ServingPrecision
) -> tuple[FloatArray, float]:
    """Time per query-key pair of a causal chunk, its fixed part taken out, and that fixed part."""
    heads, kv_heads, head_dim = _attention_shape(operator, local)
    value_dim = local[operator.inputs[2].dims[-1]]
    query, prefix = grids.query[:, None], grids.prefix[None, :]
    pairs = query * (prefix + (query + 1.0) / 2.0)
    seen = _pairs_seen(operator, query, prefix)
    flops = seen * heads * 2.0 * (head_dim + value_dim)
    dtype = precision.activations

    def kernel_s(flops: float | FloatArray, q_tokens: float | FloatArray, kv_tokens: float | FloatArray) -> FloatArray:
        time = attention_forward_s(
            device,
            dtype,
            flops=flops,
            q_tokens=q_tokens,
            kv_tokens=kv_tokens,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
        )
        return np.asarray(time, dtype=np.float64)

    fixed_s = kernel_s(2.0 * heads * (head_dim + value_dim), 1.0, 1.0)
    work_s = np.maximum(0.0, kernel_s(flops, query, prefix + query) - fixed_s)
    return work_s / pairs, float(fixed_s)


def _pairs_seen(operator: Operator, query: FloatArray, prefix: FloatArray) -> FloatArray:
    """Query-key pairs that the kernel computes: a causal chunk after its prefix, inside the window if there is one."""
    if operator.mask is AttentionMask.FULL:
        return np.asarray(query * (prefix + query))
    pairs = query * (prefix + (query + 1.0) / 2.0)
    return np.asarray(pairs if operator.window is None else np.minimum(pairs, query * operator.window))


def _attention_shape(operator: Operator, local: Mapping[str, int]) -> tuple[int, int, int]:
    query, key, _ = operator.inputs
    head_dim = local[query.dims[-1]]
    return query.elements(local) // head_dim, key.elements(local) // local[key.dims[-1]], head_dim


def _collective(kind: Collective, message_bytes: FloatArray, topology: GroupTopology) -> FloatArray:
    return np.asarray(collective_s(kind, message_bytes, topology), dtype=np.float64)
