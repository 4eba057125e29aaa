"""Step times of a serving layout, from the operators of the model.

A step runs every layer once on t tokens of an attention group: weights are read once however many sequences share it.
Projections, norms, experts and collectives depend on t alone; attention on what the sequences hold; the vocabulary head on how
many of them get a token. Tables over t, sequences and cache lengths are made once for a block and rank grid, and added up to
stages. Where a stage has several attention groups, the tables are of one, the others doing the same at the same time; and
beside them those of what a group does by itself and of what all do together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.calibration.kernels import VectorKernel
from meshwright.costmodels.cluster.cluster import Device, GroupTopology
from meshwright.costmodels.kernels.compute import matmul_s, memory_bound_s
from meshwright.costmodels.model.dims import BATCH, SEQ, SHARED_FFN, VOCAB
from meshwright.costmodels.model.experts import BALANCED, ExpertRouting
from meshwright.costmodels.model.operators import Operator, OperatorKind, forward_flops
from meshwright.costmodels.model.split_dims import is_expert_step, is_routed, leaves_partial_sums
from meshwright.costmodels.network.collectives import Collective
from meshwright.costmodels.queueing.analytic.capacity import Demand
from meshwright.costmodels.queueing.step_times import GroupTimes, StepTimes
from meshwright.costmodels.serving.attention import (
    decode_s,
    gathered_context_s,
    latent_cache,
    latent_expansion,
    prefill_s_per_pair,
)
from meshwright.costmodels.serving.engine_profile import EngineProfile, ServingPrecision
from meshwright.costmodels.serving.experts import dispatch, expert_kernels_s, routed_experts_s
from meshwright.costmodels.serving.operators import (
    ServedOn,
    collective_seconds,
    fused_products,
    head_s,
    operator_s,
    partial_sums_s,
    state_s,
)
from meshwright.costmodels.units import DType

__all__ = ["BlockTimes", "ServingPrecision", "TableRange", "block_times", "step_times"]

FloatArray = npt.NDArray[np.float64]

_TOKEN_STEPS = ((64, 1), (512, 16), (4096, 64), (2**62, 128))
"""Token counts at which tables are evaluated: each up to 64, then multiples of the rows that tiles hold; linear between."""

_SEQUENCE_STEPS = ((64, 1), (2**62, 16))
"""As well for sequences."""


@dataclass(frozen=True, slots=True)
class TableRange:
    """Largest step and longest sequence that tables must answer for."""

    step_tokens: int
    sequences: int
    sequence_tokens: int


@dataclass(frozen=True, eq=False)
class JointTimes:
    """A block's experts, where attention groups share them, as GroupTimes defines the tables; ``own_tokens_s`` is what of
    tokens_s a group does by itself."""

    own_tokens_s: FloatArray
    experts_s: FloatArray
    gathered_s: FloatArray
    exchanged_s: FloatArray
    shared_s: FloatArray


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """Times of one copy of a block, as StepTimes defines them, without the stage dimension; ``joint`` is None where groups
    share nothing; ``operators`` are those that a host launches one by one."""

    tokens_s: FloatArray
    joint: JointTimes | None
    logits_s: FloatArray
    decode_s: FloatArray
    prefill_s_per_pair: FloatArray
    prefill_launch_s: float
    operators: int


@dataclass(frozen=True, eq=False)
class _Grids:
    tokens: FloatArray
    sequences: FloatArray
    kv: FloatArray
    query: FloatArray
    prefix: FloatArray


def block_times(
    operators: Sequence[Operator],
    on: ServedOn,
    *,
    engine: EngineProfile,
    table_range: TableRange,
    routing: ExpertRouting = BALANCED,
) -> BlockTimes:
    """Tables of one block on one rank; ``routing`` says how tokens spread over experts."""
    grids = _grids(table_range)
    own = on.own_tokens(grids.tokens)
    tokens_s, logits_s = np.zeros_like(grids.tokens), np.zeros_like(grids.sequences)
    routed_s = np.zeros_like(grids.tokens)
    attention_s = np.zeros((len(grids.sequences), len(grids.kv)))
    prefill_s, launch_s = np.zeros((len(grids.query), len(grids.prefix))), 0.0
    latent, expansion = latent_cache(operators, on.dims), latent_expansion(operators)
    routed = [operator for operator in operators if is_routed(operator)]
    if routed:
        routed_s = routed_experts_s(routed, on, routing, own)
        tokens_s += routed_s
    fused = fused_products(operators, on)
    shared_s = np.zeros_like(grids.tokens)
    for operator in operators:
        if is_expert_step(operator) or operator.name in fused.followers:
            continue
        if operator.kind is OperatorKind.ATTENTION:
            attention_s += decode_s(operator, on, latent=latent, sequences=grids.sequences, kv_tokens=grids.kv)
            per_pair, launch = prefill_s_per_pair(operator, on, expansion=expansion, query=grids.query, prefix=grids.prefix)
            prefill_s, launch_s = prefill_s + per_pair, launch_s + launch
            tokens_s += gathered_context_s(operator, on, latent=latent, tokens=grids.tokens)
        elif operator.kind is OperatorKind.LOSS:
            moved = grids.sequences * on.dims[VOCAB] * engine.logits_bytes
            logits_s += memory_bound_s(on.device, moved, kernel=VectorKernel.NORM)
        elif operator.kind is OperatorKind.MATMUL and VOCAB in operator.dims:
            logits_s += head_s(operator, on, grids.sequences)
        else:
            # Latents are gathered before they are expanded: every rank expands those of the whole prompt.
            mine = grids.tokens if operator is expansion else own
            time_s = operator_s(operator, on, mine, more_columns=fused.more_columns.get(operator.name, 0))
            tokens_s += time_s
            if SHARED_FFN in operator.dims:
                shared_s += time_s
            if not (routed and _joins_the_experts(operator, on)):
                tokens_s += partial_sums_s(operator, on, own)
            if operator.kind in (OperatorKind.SCAN, OperatorKind.CONVOLUTION):
                attention_s += state_s(operator, on, grids.sequences)[:, None]
    joint = None
    if routed and on.ranks.grid.attention_dp > 1:
        joint = _joint_times(routed, on, routing, grids, own_s=tokens_s - routed_s - shared_s, shared_s=shared_s)
    if routed:
        tokens_s -= np.where(grids.tokens <= engine.beside_tokens, np.minimum(shared_s, routed_s), 0.0)
    every_sequence = np.arange(table_range.sequences + 1)
    attention_s = np.maximum.accumulate(attention_s, axis=1)
    every_token = np.arange(table_range.step_tokens + 1)
    return BlockTimes(
        tokens_s=_interpolated(every_token, grids.tokens, tokens_s),
        joint=joint,
        logits_s=_interpolated(every_sequence, grids.sequences, logits_s),
        decode_s=np.stack([_interpolated(every_sequence, grids.sequences, column) for column in attention_s.T], axis=1),
        prefill_s_per_pair=prefill_s,
        prefill_launch_s=launch_s,
        operators=len(operators),
    )


def _joint_times(
    routed: Sequence[Operator],
    on: ServedOn,
    routing: ExpertRouting,
    grids: _Grids,
    *,
    own_s: FloatArray,
    shared_s: FloatArray,
) -> JointTimes:
    """Return the times of the work that groups do together, apart from ``own_s`` of one of them and from its shared experts."""
    groups, total = on.ranks.grid.attention_dp, _totals(grids, on.ranks.grid.attention_dp)
    kernels_s = expert_kernels_s(routed, on, routing, total)
    # Fewer tokens than groups take no less time each: what bounds throughput counts on it.
    whole_s = kernels_s[np.searchsorted(total, groups)]
    kernels_s = np.maximum(kernels_s, whole_s * np.minimum(1.0, total / groups))
    sent, to_all = dispatch(on, grids.tokens, grids.tokens * groups), dispatch(on, total / groups, total)
    assert to_all.gathered_s is not None, "several groups gather tokens"
    every_token = np.arange(int(grids.tokens[-1]) + 1)
    never = np.full(len(every_token), np.inf)
    return JointTimes(
        own_tokens_s=_interpolated(every_token, grids.tokens, own_s + sent.common_s),
        experts_s=kernels_s,
        gathered_s=np.maximum.accumulate(to_all.gathered_s),
        exchanged_s=never if sent.exchanged_s is None else _interpolated(every_token, grids.tokens, sent.exchanged_s),
        shared_s=_interpolated(every_token, grids.tokens, shared_s),
    )


def _joins_the_experts(operator: Operator, on: ServedOn) -> bool:
    """Return True if partial sums are added to those of the experts. One all-reduce then serves both: a shared expert's, where
    all ranks have all tokens."""
    return on.ranks.grid.token_groups == 1 and leaves_partial_sums(operator) and SHARED_FFN in operator.dims


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
    blocks = list(dict.fromkeys(times for stage in stages for times, _ in stage))
    copies = np.array([[float(sum(n for times, n in stage if times is block)) for block in blocks] for stage in stages])
    # Most stages are alike: each kind is added up once.
    distinct, which = np.unique(copies, axis=0, return_inverse=True)
    which = which.ravel()

    def added(table: Callable[[BlockTimes], FloatArray | float]) -> FloatArray:
        tables = [np.asarray(table(block)) for block in blocks]
        sums = [sum((n * t for n, t in zip(row, tables, strict=True) if n), np.zeros_like(tables[0])) for row in distinct]
        return np.array(sums, dtype=np.float64)[which]

    tokens_s = added(lambda times: times.tokens_s)
    logits_s = added(lambda times: times.logits_s)
    tokens = np.arange(table_range.step_tokens + 1)
    for i, link in enumerate(links):
        sent = grids.tokens * boundary_elements * precision.activations.size_bytes
        tokens_s[i] += _interpolated(tokens, grids.tokens, collective_seconds(Collective.SEND_RECV, sent, link))
    tokens_s[0] += engine.step_s
    logits_s[0] += engine.sequence_s * np.arange(table_range.sequences + 1)
    return StepTimes(
        tokens_s=tokens_s,
        logits_s=logits_s,
        decode_s=added(lambda times: times.decode_s),
        kv_grid=grids.kv,
        prefill_s_per_pair=added(lambda times: times.prefill_s_per_pair),
        query_grid=grids.query,
        prefix_grid=grids.prefix,
        prefill_launch_s=added(lambda times: times.prefill_launch_s),
        least_prompt_s=engine.prompt_operator_s * added(lambda times: float(times.operators)),
    )


def group_times(
    layers: Sequence[tuple[BlockTimes, int]],
    alike: StepTimes,
    *,
    groups: int,
    engine: EngineProfile,
    table_range: TableRange,
) -> GroupTimes:
    """Step times of attention groups apart, from the layers of their one stage and the step times of a group among others
    alike."""
    joint = [(times.joint, copies) for times, copies in layers if times.joint is not None]
    total = _totals(_grids(table_range), groups)

    def added(table: Callable[[JointTimes], FloatArray]) -> FloatArray:
        return np.asarray(sum(copies * table(times) for times, copies in joint), dtype=np.float64)

    tokens_s = sum(n * (times.tokens_s if times.joint is None else times.joint.own_tokens_s) for times, n in layers)
    tokens_s = np.asarray(tokens_s) + engine.step_s
    return GroupTimes(
        own=replace(alike, tokens_s=tokens_s[None, :]),
        groups=groups,
        total_grid=total,
        experts_s=added(lambda times: times.experts_s),
        gathered_s=added(lambda times: times.gathered_s),
        exchanged_s=added(lambda times: times.exchanged_s),
        shared_s=added(lambda times: times.shared_s),
        beside_tokens=engine.beside_tokens,
        dealing=engine.dealing,
    )


def _totals(grids: _Grids, groups: int) -> FloatArray:
    """Tokens of all groups at which their joint part is evaluated: few, and as many of each as other tables know."""
    few = 2.0 ** np.arange(groups.bit_length())
    return np.unique(np.concatenate([few[few < groups], groups * grids.tokens]))


def _grids(table_range: TableRange) -> _Grids:
    tokens = _points(table_range.step_tokens, _TOKEN_STEPS)
    sequences = _points(table_range.sequences, _SEQUENCE_STEPS)
    kv = _powers_of_two(64, table_range.sequence_tokens)
    prefix = np.concatenate([[0.0], kv])
    return _Grids(tokens, sequences, kv, _powers_of_two(16, table_range.step_tokens), prefix)


def _points(largest: int, steps: Sequence[tuple[int, int]]) -> FloatArray:
    """1 to ``largest`` in steps that widen: up to each bound by its own width, and ``largest`` itself."""
    points, last = [largest], 0
    for bound, width in steps:
        points += range(last + width, min(bound, largest) + 1, width)
        last = min(bound, largest)
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


# Power of devices that serve, from how long they work for a request and what their matrix units do in that time.
#
# Power is the idle power, and of what lies between it and full power one share for every second at work, whatever limits the
# step, and the rest in proportion to the rate of the matrix units: decoding waits for memory, prompts run boards into their
# power limit. Host, network and cooling are not in it.

WORKING_ACTIVITY = 0.36
"""Share of the range that work takes without the matrix units: an H100 that decodes one sequence takes 300 W of 700, 70 of
them idle. The 300 W are of the ML.ENERGY Benchmark v3.0 as vLLM Semantic Router's reference of power models quotes it; H200
decoding takes 137 to 300 W (arXiv 2605.11999). Taken for all devices."""

_LARGE = 8192
"""Side of a square product at which matrix units run as fast as they do."""


@dataclass(frozen=True, slots=True)
class ModelWork:
    """FLOPs of a model: of a token, of a token's logits, and of a pair of a query and a key in all layers."""

    token_flops: float
    logits_flops: float
    pair_flops: float

    def request_s(self, demand: Demand, device: Device, precision: ServingPrecision, *, query_tokens: int) -> float:
        """Seconds in which one device's matrix units do a mean request at their best: its prompt, the ``query_tokens`` of each
        round over what the cache holds, and their logits."""
        decoded = demand.rounds * query_tokens
        of_products = (demand.prompt_tokens + decoded) * self.token_flops
        in_full = (1.0 + decoded) * self.logits_flops + (demand.pairs + decoded * demand.kv_tokens) * self.pair_flops
        product_rate = _matrix_flops_per_s(device, precision.weights.computed_in(device))
        return of_products / product_rate + in_full / _matrix_flops_per_s(device, precision.activations)


def model_work(blocks: Iterable[tuple[Sequence[Operator], int]], dims: Mapping[str, int]) -> ModelWork:
    """Work of blocks, each with its copies; windows of attention are taken as whole caches."""
    token, logits, pair = 0.0, 0.0, 0.0
    one_token = {**dims, BATCH: 1, SEQ: 1}
    for operators, copies in blocks:
        for operator in operators:
            flops = copies * forward_flops(operator, one_token)
            if operator.kind is OperatorKind.ATTENTION:
                pair += flops
            elif operator.kind is OperatorKind.MATMUL and VOCAB in operator.dims:
                logits += flops
            elif operator.kind in (OperatorKind.MATMUL, OperatorKind.SCAN, OperatorKind.PRODUCT):
                token += flops
    return ModelWork(token, logits, pair)


def _matrix_flops_per_s(device: Device, dtype: DType) -> float:
    """Return the FLOP/s that the matrix units reach in a large product."""
    return 2.0 * _LARGE**3 / float(matmul_s(device, dtype, _LARGE, _LARGE, _LARGE))


def mean_power_w(device: Device, *, working: float, computing: float) -> float:
    """Power of one device that works a share of the time, and whose matrix units would take a share of it at their best."""
    active = WORKING_ACTIVITY * working + (1.0 - WORKING_ACTIVITY) * min(computing, working)
    return device.idle_power_w + (device.power_w - device.idle_power_w) * min(1.0, active)
