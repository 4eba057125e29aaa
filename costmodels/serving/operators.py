"""Time of one operator in a step of a serving engine on one rank, as arrays over tokens, sequences or cache lengths.

Every size is local to the rank; the collectives that an operator's split makes necessary are counted with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.calibration.kernel_file import kernel_calibration
from meshwright.costmodels.cluster.cluster import Cluster, Device, GroupTopology, group_topology
from meshwright.costmodels.hardware.generations import generation_of
from meshwright.costmodels.kernels.compute import matmul_s, memory_bound_s
from meshwright.costmodels.kernels.operator_time import vector_kernel
from meshwright.costmodels.model.dims import BATCH, EXPERTS, SEQ
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.model.operators import Operator, OperatorKind, matmul_shape
from meshwright.costmodels.model.split_dims import RankGrid, leaves_partial_sums, local_sizes, split_dim
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.serving.engine_profile import ServingEngine, ServingPrecision
from meshwright.costmodels.units import DType


@dataclass(frozen=True, slots=True)
class StageRanks:
    """Groups of a stage: ``dense`` shares dense operators, ``kv`` one cache along the sequence, ``context`` the tokens of a
    prompt, ``stage`` is all ranks.

    Ranks are laid out tp innermost, then kvp, then cp, then attention_dp.
    """

    grid: RankGrid
    dense: GroupTopology
    kv: GroupTopology
    context: GroupTopology
    stage: GroupTopology


def stage_ranks(cluster: Cluster, grid: RankGrid, *, first: int = 0) -> StageRanks:
    """Topologies of the stage whose ranks start at ``first``. Raises ClusterError when it does not fit in the cluster."""
    return StageRanks(
        grid=grid,
        dense=group_topology(cluster, n=grid.dense_tp, stride=1, first=first),
        kv=group_topology(cluster, n=grid.kvp, stride=grid.tp, first=first),
        context=group_topology(cluster, n=grid.cp, stride=grid.dense_tp, first=first),
        stage=group_topology(cluster, n=grid.ranks, stride=1, first=first),
    )


FloatArray = npt.NDArray[np.float64]

_CHUNKS_AT_ONCE = 8
"""Chunks of a scan whose products run as one batch: a step of 2048 tokens in chunks of 256."""


ProductTimes = dict[tuple[object, ...], FloatArray]
"""Times of products that were asked for before, by format and size: grids of ranks share most of them."""


class TokenSplit(StrEnum):
    """The split of the tokens of a step over cp groups of ranks: each runs its share, of prompts, or all the same, of
    answers."""

    SHARED = "shared"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class ServedOn:
    """Where and how a block runs: sizes of the model's dims, device, ranks and formats, and the engine whose kernels run.
    ``products`` belong to the device. Attention over a cache is of ``query_tokens`` of each sequence."""

    dims: Mapping[str, int]
    device: Device
    ranks: StageRanks
    precision: ServingPrecision
    engine: ServingEngine = ServingEngine.VLLM
    products: ProductTimes = field(default_factory=dict)
    query_tokens: int = 1
    split: TokenSplit = TokenSplit.SHARED

    @property
    def sharing(self) -> int:
        """Groups of dense ranks that share the tokens of an attention group's step."""
        return self.ranks.grid.cp if self.split is TokenSplit.SHARED else 1

    @property
    def token_groups(self) -> int:
        """Groups of dense ranks that have tokens of their own."""
        return self.ranks.grid.attention_dp * self.sharing

    def own_tokens(self, tokens: FloatArray) -> FloatArray:
        """Tokens of a step that a rank has dense layers to run for: cp ranks share a prompt's."""
        return np.ceil(tokens / self.sharing)

    def local(self, operator: Operator) -> dict[str, int]:
        """Sizes of one token on one rank."""
        return local_sizes(operator, {**self.dims, BATCH: 1, SEQ: 1}, self.ranks.grid)


@dataclass(frozen=True, slots=True)
class FusedProducts:
    """Products that run as part of another one: names of those, and by name the columns that a product takes over."""

    followers: frozenset[str]
    more_columns: Mapping[str, int]


def fused_products(operators: Sequence[Operator], on: ServedOn) -> FusedProducts:
    """Unsplit products of one input and one format run as one: the projections into MLA's latents (fused_qkv_a_proj of vLLM,
    SGLang and TensorRT-LLM). The router computes in another format and stays apart."""
    leader: dict[tuple[str, WeightFormat], str] = {}
    more: dict[str, int] = {}
    followers = set()
    for operator in operators:
        if operator.kind is not OperatorKind.MATMUL or split_dim(operator) is not None or EXPERTS in operator.dims:
            continue
        first = leader.setdefault((operator.inputs[0].name, on.precision.of(operator)), operator.name)
        if first != operator.name:
            followers.add(operator.name)
            more[first] = more.get(first, 0) + matmul_shape(operator, on.local(operator))[1]
    return FusedProducts(frozenset(followers), more)


def operator_s(operator: Operator, on: ServedOn, tokens: FloatArray, *, more_columns: int = 0) -> FloatArray:
    """Time of an operator that works token by token, without the all-reduce of its partial sums; a product may compute
    ``more_columns`` of others that are fused into it."""
    local = on.local(operator)
    if operator.kind is OperatorKind.MATMUL:
        m, n, k = matmul_shape(operator, local)
        return product_s(operator, on, tokens * m, n + more_columns, k)
    if operator.kind is OperatorKind.SCAN:
        return _scan_s(operator, on, tokens)
    outputs = sum(tensor.elements(local) for tensor in operator.outputs)
    # Rows of a lookup are read and written; norms, convolutions and activation functions read inputs and write outputs.
    inputs = outputs if operator.kind is OperatorKind.EMBEDDING else sum(t.elements(local) for t in operator.inputs)
    moved = tokens * (inputs + outputs) * on.precision.activations.size_bytes
    return np.asarray(memory_bound_s(on.device, moved, kernel=vector_kernel(operator)), dtype=np.float64)


def product_s(operator: Operator, on: ServedOn, m: FloatArray, n: int, k: int) -> FloatArray:
    """Time of a product with the operator's weights in the format they are stored in."""
    weights = on.precision.of(operator)
    dtype = weights.computed_in(on.device)
    narrow = weights.size_bytes if weights.size_bytes < 0.75 * dtype.size_bytes else None
    key = (dtype, narrow, n, k, m.tobytes())
    if key not in on.products:
        whole = np.asarray(matmul_s(on.device, dtype, m, n, k, weight_bytes=narrow), dtype=np.float64)
        # Columns may be computed in two halves one after the other: a product fused of several is not slower than they are.
        halves = 2.0 * np.asarray(matmul_s(on.device, dtype, m, -(-n // 2), k, weight_bytes=narrow), dtype=np.float64)
        seconds = np.minimum(whole, halves)
        on.products[key] = np.asarray(seconds - _quantisation_s(on.device, dtype))
    return on.products[key]


def partial_sums_s(operator: Operator, on: ServedOn, tokens: FloatArray) -> FloatArray:
    """All-reduce of an operator's partial sums over the dense ranks, nothing where it leaves none."""
    if on.ranks.grid.dense_tp == 1 or not leaves_partial_sums(operator):
        return np.zeros_like(tokens)
    outputs = sum(tensor.elements(on.local(operator)) for tensor in operator.outputs)
    return serving_all_reduce_s(tokens * outputs * on.precision.activations.size_bytes, on.ranks.dense, on.engine)


def head_s(operator: Operator, on: ServedOn, sequences: FloatArray) -> FloatArray:
    """Vocabulary head for the sequences that get a token, and the gathering of its shares."""
    m, n, k = matmul_shape(operator, on.local(operator))
    seconds = product_s(operator, on, sequences * m, n, k)
    ranks = on.ranks.grid.dense_tp
    if ranks > 1:
        gathered = sequences * n * ranks * on.precision.activations.size_bytes
        seconds = seconds + collective_seconds(Collective.ALL_GATHER, gathered, on.ranks.dense)
    return seconds


def state_s(operator: Operator, on: ServedOn, sequences: FloatArray) -> FloatArray:
    """Reading and writing the recurrent state of each decoding sequence (SCAN and CONVOLUTION)."""
    moved = 2.0 * sequences * state_bytes(operator, on.local(operator))
    return np.asarray(memory_bound_s(on.device, moved), dtype=np.float64)


def state_bytes(operator: Operator, local: Mapping[str, int]) -> float:
    """Bytes that a sequence keeps between its tokens under local sizes.

    A scan keeps its state for every channel in fp32 (vLLM, --mamba-ssm-cache-dtype float32, as Mamba-2 checkpoints ask for), a
    convolution the inputs that its kernel still needs, in 16 bits.
    """
    if operator.kind is OperatorKind.SCAN:
        x, b = operator.inputs[0], operator.inputs[1]
        return x.elements(local) * local[b.dims[-1]] * DType.FP32.size_bytes
    if operator.kind is OperatorKind.CONVOLUTION:
        channels = sum(tensor.elements(local) for tensor in operator.outputs)
        taps = max(local[weight.dims[-1]] for weight in operator.weights[: len(operator.outputs)])
        return channels * (taps - 1) * DType.BF16.size_bytes
    return 0.0


def collective_seconds(kind: Collective, message_bytes: FloatArray, topology: GroupTopology) -> FloatArray:
    """Seconds of a collective, as an array."""
    return np.asarray(collective_s(kind, message_bytes, topology), dtype=np.float64)


def _scan_s(operator: Operator, on: ServedOn, tokens: FloatArray) -> FloatArray:
    """A scan over prompt tokens: its traffic, or the products of the dual form where they take longer.

    A chunk and head costs C B^T (l, l, n), its product with x (l, p, l), the chunk's state (p, n, l) and its effect on outputs
    (l, p, n): survey 5.3, steps 1 to 5.
    """
    local = on.local(operator)
    dtype = on.precision.activations
    elements = sum(tensor.elements(local) for tensor in (*operator.inputs, *operator.outputs))
    moved = np.asarray(memory_bound_s(on.device, tokens * elements * dtype.size_bytes), dtype=np.float64)
    if operator.chunk is None:
        return moved
    x, b = operator.inputs[0], operator.inputs[1]
    chunk, width, state = operator.chunk, local[x.dims[-1]], local[b.dims[-1]]
    heads = max(1, x.elements(local) // width)
    shapes = ((chunk, chunk, state), (chunk, width, chunk), (width, state, chunk), (chunk, width, state))
    products = sum(float(matmul_s(on.device, dtype, m, n, k, batch=heads * _CHUNKS_AT_ONCE)) for m, n, k in shapes)
    return np.maximum(moved, tokens * products / (_CHUNKS_AT_ONCE * chunk))


def _quantisation_s(device: Device, dtype: DType) -> float:
    """Return the seconds that the measured time of a quantised product holds for quantising its input.

    The tables time that as kernels of its own (some 10 us); serving engines quantise in the norm or activation function
    before (vLLM, fuse_norm_quant and fuse_act_quant passes; TensorRT-LLM, fused RMSNorm and SwiGLU quantisation).
    """
    curves = kernel_calibration(device.calibration).gemm
    if dtype is DType.BF16 or dtype not in curves or DType.BF16 not in curves:
        return 0.0
    return max(0.0, curves[dtype].curve.launch_s - curves[DType.BF16].curve.launch_s)


# All-reduce of small tensors in one kernel, as serving engines run it inside a node instead of a ring.
#
# One shot: every rank reads the other n - 1 ranks' tensors over the fabric and adds them up,
# latency + (n - 1) S / (share B). Two shots: every rank adds up its part and then reads the others'
# parts, latency + 2 (n - 1) / n S / (share B). Engines choose the fastest, the ring among them; so
# does this model. Kernels are those of the devices' generation.


def serving_all_reduce_s(message_bytes: FloatArray, topology: GroupTopology, engine: ServingEngine) -> FloatArray:
    """Seconds of an all-reduce of ``message_bytes``: the fastest of one shot, two shots and ring; between nodes the ring."""
    ring = np.asarray(collective_s(Collective.ALL_REDUCE, message_bytes, topology), dtype=np.float64)
    if topology.spans_nodes:
        return ring
    kernels = generation_of(calibration_key(topology.calibration)).engine_all_reduce[engine.value]
    n, bytes_per_s = topology.n, topology.intra.bytes_per_s
    one_shot = kernels.one_shot_s + (n - 1) * message_bytes / (kernels.one_shot_share * bytes_per_s)
    two_shots = kernels.two_shots_s + 2.0 * (n - 1) / n * message_bytes / (kernels.two_shots_share * bytes_per_s)
    return np.minimum(ring, np.minimum(one_shot, two_shots))
