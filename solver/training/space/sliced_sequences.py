"""Token slices of training candidates: which sequences can be cut, and where.

The lengths of n slices are those that take least by the time of the model's layers alone: of micro-batches whose slices take
t_1 .. t_n, under TeraPipe ``m sum t + (p - 1) max t`` (Li et al. 2021, equation 3 and algorithm 1); under Seq1F1B, in which
slices of unequal times delay one another at every step, the shortest longest slice, of equals the least sum. Both are solved
exactly over lengths in whole tiles. What a slice takes there is the sum over operators of the fastest way to shard each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.compiling import kept_compiled
from meshwright.costmodels.curves.attention import QUERY_TILE
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.kernels.operator_time import operator_time
from meshwright.costmodels.model.dims import BATCH, HEADS, KV_HEADS, SEQ, SSM_GROUPS, SSM_HEADS, TokenSlice
from meshwright.costmodels.model.experts import ExpertRegion, expert_region
from meshwright.costmodels.model.implementation import AttentionFormat, ScanOverRanks
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, key_tokens, query_tokens
from meshwright.costmodels.network.scan_over_ranks import way_of_scan
from meshwright.costmodels.pipeline import TOKEN_SLICED, TRAITS, Schedule, TokenSlices
from meshwright.solver.blocks.recompute import recomputable
from meshwright.solver.blocks.tp_strategies import strategies
from meshwright.solver.problem.choices import BatchShares, Gradients, Recompute, Space, StageDegrees, TpOverlap
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.space.implementation import implementation_of
from meshwright.solver.training.space.schedules import Pipelining
from meshwright.solver.training.space.state_places import StatePlace, allowed

FloatArray = npt.NDArray[np.float64]

MAX_TILES = 64
"""Tiles that a sequence is cut in, at most; a tile is as many tokens as attention's query tiles have, or a multiple."""

MAX_ZERO_STAGE = 1
"""Highest ZeRO stage beside token slices: beyond, gradients or weights travel with every pass of a layer."""

_LEFT_OUT = (OperatorKind.SCAN, OperatorKind.CONVOLUTION, OperatorKind.PRODUCT)


def check_token_slices(request: TrainingRequest) -> None:
    """Raise WorkloadError where token slices are asked for and can't be."""
    search, workload = request.search, request.workload
    counts, named = [n for n in search.token_slices if n > 1], [s.value for s in search.schedules if s in TOKEN_SLICED]
    if named and not counts:
        raise WorkloadError("these schedules cut sequences", given=", ".join(named), allowed="with search.token_slices: [2, 4]")
    if not counts:
        return
    if search.space is not Space.FREE:
        raise WorkloadError("no launcher cuts sequences into token slices", given=counts, allowed="with search.space: free")
    if not passes_in_slices(request.model):
        raise WorkloadError(
            "the model does not pass in token slices",
            given=request.model.name,
            allowed="a chain of layers whose tokens meet in causal attention without windows alone",
        )
    if tile_tokens(workload.seq_len) is None or max(counts) > workload.seq_len // (tile_tokens(workload.seq_len) or 1):
        raise WorkloadError(
            "sequences can't be cut into so many slices",
            given=f"{max(counts)} of {workload.seq_len} tokens",
            allowed=f"slices of {tile_tokens(workload.seq_len) or int(QUERY_TILE)} tokens or multiples",
        )
    if search.stage_degrees is not StageDegrees.SAME or search.batch_shares is not BatchShares.EVEN:
        raise WorkloadError(
            "token slices are not searched beside stages or replicas that differ",
            given=counts,
            allowed="search.stage_degrees: same, search.batch_shares: even",
        )


def passes_in_slices(model: ModelGraph) -> bool:
    """Return True if a slice of a sequence needs no more of the others than keys and values of those before it."""
    operators = [operator for block in model.blocks for operator in block.operators]
    attention = [operator for operator in operators if operator.kind is OperatorKind.ATTENTION]
    return (
        model.is_chain
        and all(operator.kind not in _LEFT_OUT for operator in operators)
        and not any(tensor.dims.count(SEQ) > 1 for operator in operators for tensor in operator.outputs)
        and all(
            operator.mask is AttentionMask.CAUSAL
            and operator.window is None
            and query_tokens(operator) == key_tokens(operator) == SEQ
            for operator in attention
        )
    )


def tile_tokens(seq_len: int) -> int | None:
    """Tokens of a tile: the least multiple of attention's query tile that makes at most `MAX_TILES` of the sequence; None where
    it does not divide."""
    tile = int(QUERY_TILE) * math.ceil(seq_len / (MAX_TILES * QUERY_TILE))
    return None if seq_len % tile else tile


def whole_sequences(search: Search, *, pp: int) -> bool:
    """Return True if sequences may pass whole."""
    return pp == 1 or allowed(1, search.token_slices or (1,))


class SlicedMesh(Protocol):
    """Degrees of a mesh that slices depend on."""

    @property
    def tp(self) -> int:
        """Degree of tensor parallelism."""
        ...

    @property
    def pp(self) -> int:
        """Degree of pipeline parallelism."""
        ...

    @property
    def cp(self) -> int:
        """Degree of context parallelism."""
        ...


class SliceLengths:
    """Lengths of the slices of a request's candidates; what a slice takes is computed once for each tp and micro-batch."""

    def __init__(self, request: TrainingRequest):
        self._request = request
        self._counts = sorted({n for n in request.search.token_slices if n > 1})
        asked = request.search.schedules
        self._schedules = tuple(s for s in Schedule if s in TOKEN_SLICED and (not asked or s in asked))
        self._times_s: dict[tuple[int, int], FloatArray] = {}
        self._lengths: dict[tuple[int, int, int, int, int], tuple[int, ...]] = {}

    def pipelinings(self, mesh: SlicedMesh, *, microbatch: int, n_microbatches: int) -> Iterator[Pipelining]:
        """For each number of slices that the request names, each schedule of slices with its lengths."""
        tp, pp, ways = mesh.tp, mesh.pp, self._request.search.tp_overlap
        exposed = tp == 1 or not ways or TpOverlap.EXPOSED in ways
        if not self._counts or not self._schedules or not exposed or pp == 1 or mesh.cp > 1:
            return
        tile = tile_tokens(self._request.workload.seq_len)
        if tile is None or tile % tp:
            return
        for count in self._counts:
            for schedule in self._schedules:
                sequences = TRAITS[schedule].sequences
                assert isinstance(sequences, TokenSlices)
                weights = sequences.length_weights(pp, n_microbatches)
                key = (tp, microbatch, count, *weights)
                if key not in self._lengths:
                    tiles = balanced_tiles(self._slice_times_s(tp, microbatch), count, *weights)
                    self._lengths[key] = tuple(tile * each for each in tiles)
                yield Pipelining(schedule, slices=self._lengths[key])

    def _slice_times_s(self, tp: int, microbatch: int) -> FloatArray:
        """`slice_times_s` on the slowest of the cluster's devices."""
        if (tp, microbatch) not in self._times_s:
            devices = {group.node.device.name: group.node.device for group in self._request.cluster.groups}
            made = [slice_times_s(self._request, device, tp=tp, microbatch=microbatch) for device in devices.values()]
            self._times_s[tp, microbatch] = np.asarray(np.max(made, axis=0), np.float64)
        return self._times_s[tp, microbatch]


def suits_slices(place: StatePlace) -> bool:
    """Return True if training state may lie so beside token slices: nothing of it but optimizer states moves with a pass, and
    gradients are kept to be summed over slices."""
    moved, kept = place.offload, place.gradients is Gradients.KEPT
    return place.zero_stage <= MAX_ZERO_STAGE and kept and not (moved.activations or moved.weights or moved.gradients)


def beside_slices(choices: Sequence[tuple[Recompute, ...]]) -> tuple[tuple[Recompute, ...], ...]:
    """Recompute modes beside token slices: fine-grained would make keys and values of all earlier slices again."""
    left = (tuple(mode for mode in modes if mode is not Recompute.FINE_GRAINED) for modes in choices)
    return tuple(modes for modes in left if modes)


def balanced_tiles(times_s: FloatArray, n_slices: int, per_sum: float, per_longest: float) -> tuple[int, ...]:
    """Tiles of each of ``n_slices`` slices that take least, ``per_sum * sum t + per_longest * max t``, of equals those with the
    shorter longest slice, then with the lesser sum; ``times_s[first, end]`` is what tiles first .. end - 1 take together."""
    ends = _least_cut(times_s, n_slices, float(per_sum), float(per_longest))
    return tuple(int(size) for size in np.diff(np.concatenate([[0], ends])))


@kept_compiled
def _least_cut(times_s: FloatArray, n_slices: int, per_sum: float, per_longest: float) -> npt.NDArray[np.int64]:
    """Ends of the slices: for every limit of the longest slice, shortest first, the least sum by dynamic programming."""
    n = times_s.shape[0] - 1
    limits = np.unique(np.array([times_s[first, end] for first in range(n) for end in range(first + 1, n + 1)]))
    best, best_ends = np.inf, np.zeros(n_slices, np.int64)
    least_sum = 0.0
    for step in range(-1, limits.shape[0]):
        # First without a limit: no sum is less.
        limit = np.inf if step < 0 else limits[step]
        if step >= 0 and per_sum * least_sum + per_longest * limit >= best:
            break
        sums = np.full((n_slices + 1, n + 1), np.inf)
        before = np.zeros((n_slices + 1, n + 1), np.int64)
        sums[0, 0] = 0.0
        for count in range(1, n_slices + 1):
            for end in range(count, n - n_slices + count + 1):
                for first in range(count - 1, end):
                    if times_s[first, end] <= limit and sums[count - 1, first] + times_s[first, end] < sums[count, end]:
                        sums[count, end] = sums[count - 1, first] + times_s[first, end]
                        before[count, end] = first
        if step < 0:
            least_sum = sums[n_slices, n]
            continue
        if np.isinf(sums[n_slices, n]):
            continue
        ends = np.zeros(n_slices, np.int64)
        end, longest = n, 0.0
        for count in range(n_slices, 0, -1):
            ends[count - 1] = end
            longest = max(longest, times_s[before[count, end], end])
            end = before[count, end]
        total = per_sum * sums[n_slices, n] + per_longest * longest
        if total < best:
            best, best_ends = total, ends
    return best_ends


def slice_times_s(request: TrainingRequest, device: Device, *, tp: int, microbatch: int) -> FloatArray:
    """``[first tile, end tile]``: forward and backward time of a slice in all of the model's layers on a device."""
    workload, model = request.workload, request.model
    tile = tile_tokens(workload.seq_len)
    assert tile is not None, "sequences without tiles are not cut"
    n = workload.seq_len // tile
    times_s = np.zeros((n + 1, n + 1))
    for name, repeat in Counter(model.layers).items():
        block = model.block(name)
        if not recomputable(block):
            continue
        for operator in block.operators:
            fastest_s = partial(_fastest_s, operator, expert_region(block.operators), request, device, tp)
            attends = operator.kind is OperatorKind.ATTENTION
            for size in range(1, n + 1):
                sizes = {**model.dims, BATCH: microbatch, SEQ: size * tile}
                # Where a slice lies matters to attention alone.
                for first in range(n - size + 1) if attends else [0]:
                    each_s = fastest_s(sizes, TokenSlice(first * tile, (n - size - first) * tile))
                    firsts = np.array([first]) if attends else np.arange(n - size + 1)
                    times_s[firsts, firsts + size] += repeat * each_s
    return times_s


def _fastest_s(
    operator: Operator,
    region: ExpertRegion,
    request: TrainingRequest,
    device: Device,
    tp: int,
    sizes: dict[str, int],
    place: TokenSlice,
) -> float:
    """Both passes of an operator under the fastest of its shardings over tp."""
    how, found = implementation_of(request.workload, request.search), []
    for strategy in strategies(operator, sizes, tp, request.search.space):
        time = operator_time(
            operator,
            region.local_sizes(operator, strategy.local_sizes(sizes, tp), ep=1),
            device=device,
            dtype=request.workload.precision,
            kernels=how.kernels,
            attention=how.attention,
            place=place,
        )
        found.append(time.forward_s + time.backward_s)
    return min(found, default=0.0)


# The meshes that can split a sequence over context-parallel ranks: rings, gathers of keys, exchanges of heads, and state-space
# mixers.


def has_scans(model: ModelGraph) -> bool:
    """Return True if the model has state-space mixers."""
    return any(operator.kind is OperatorKind.SCAN for operator in _operators(model))


def sequence_parts(model: ModelGraph) -> int:
    """Parts of its sequence that a context-parallel rank has: an early and a late one, which balances causal attention
    (zig-zag), and one of a model without attention."""
    return 2 if any(operator.kind is OperatorKind.ATTENTION for operator in _operators(model)) else 1


def sequence_fits(model: ModelGraph, seq_len: int, *, tp: int, cp: int, scans: ScanOverRanks | None) -> bool:
    """Return True if cp ranks can split the sequence beside tp: into equal parts, and by ``scans`` (None: not at all) where
    there are state-space mixers. Of convolutions only those before such a scan go along."""
    if cp == 1:
        return True
    kinds = {operator.kind for operator in _operators(model)}
    if not kinds & {OperatorKind.ATTENTION, OperatorKind.SCAN} or seq_len % (sequence_parts(model) * cp):
        return False
    mixers = [block for block in model.blocks if any(op.kind is OperatorKind.CONVOLUTION for op in block.operators)]
    if any(all(op.kind is not OperatorKind.SCAN for op in block.operators) for block in mixers):
        return False
    of_kind = [operator for operator in _operators(model) if operator.kind is OperatorKind.SCAN]
    return all(scans is not None and _scan_splits(model, scan, scans, tp=tp, cp=cp) for scan in of_kind)


def _scan_splits(model: ModelGraph, scan: Operator, offered: ScanOverRanks, *, tp: int, cp: int) -> bool:
    """A scan in chunks whose states pass, or whose heads divide; of its groups the ranks have equal numbers, or copies."""
    if scan.chunk is None:
        return False
    if way_of_scan(scan, offered) is ScanOverRanks.STATES:
        return True
    if model.dims.get(SSM_HEADS, 0) % (tp * cp) or not any(SSM_HEADS in tensor.dims for tensor in scan.inputs):
        return False
    # Of the free space's strategies some split groups over tp, some do not.
    groups = model.dims.get(SSM_GROUPS, cp)
    return all(have % cp == 0 or cp % have == 0 for have in (groups, max(1, groups // tp)))


def heads_fit(model: ModelGraph, *, tp: int, cp: int, ulysses: int) -> bool:
    """Return True if every attention's heads, and key/value heads, can be exchanged evenly beside tp. That is for attention of
    a sequence to itself, with keys as wide as values (Transformer Engine's a2a refuses latent attention)."""
    if ulysses <= 1:
        return ulysses == 1
    attention = [operator for operator in _operators(model) if operator.kind is OperatorKind.ATTENTION]
    evenly = all(_splits_evenly(model, operator, tp * ulysses) for operator in attention)
    return cp % ulysses == 0 and evenly and _attends_within_sequences(model)


def keys_can_be_gathered(model: ModelGraph, workload: TrainingWorkload) -> bool:
    """Return True if ranks can gather keys and values for every attention: causal, of a sequence to itself, in 16 bits, keys as
    wide as values (what Transformer Engine's tests of all_gather run, and its one buffer for both gradients)."""
    stated = workload.implementation
    in_fp8 = stated is not None and stated.attention_format is AttentionFormat.FP8
    attention = (operator for operator in _operators(model) if operator.kind is OperatorKind.ATTENTION)
    is_causal = all(operator.mask is AttentionMask.CAUSAL for operator in attention)
    return is_causal and not in_fp8 and _attends_within_sequences(model)


def _attends_within_sequences(model: ModelGraph) -> bool:
    """Return True if there is attention, all of it of a sequence to itself, with keys as wide as values."""
    attention = [operator for operator in _operators(model) if operator.kind is OperatorKind.ATTENTION]
    return bool(attention) and all(
        query_tokens(operator) == key_tokens(operator) == SEQ
        and len({model.dims[tensor.dims[-1]] for tensor in operator.inputs[1:]}) == 1
        for operator in attention
    )


def _splits_evenly(model: ModelGraph, attention: Operator, parts: int) -> bool:
    """Return True if queries, keys and values all have heads, in numbers that divide into so many parts."""
    heads = [{HEADS, KV_HEADS} & set(tensor.dims) for tensor in attention.inputs]
    return all(heads) and all(model.dims[dim] % parts == 0 for dims in heads for dim in dims)


def _operators(model: ModelGraph) -> Iterator[Operator]:
    return (operator for block in model.blocks for operator in block.operators)
