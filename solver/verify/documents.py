"""Attention of sequences that are packed of documents, and what is not planned beside them.

Worked out from each length of the histogram by itself: a document lies at every place of a sequence as often, and is cut where
sequences end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from meshwright.costmodels.model.dims import BATCH, SEQ, VOCAB
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Weight, attention_pairs, forward_flops
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.choices import Gradients, Space
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.launchers.trainers import TRAINERS
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.verify.violation import Rule, Violation

_CELLS = 2048
"""Cells of tokens in which a sequence's moments are worked out."""
_QUANTILES = 20_000
_ALIKE = 1e9
"""Odds of a beta distribution from which on all ranks are alike."""


def counted_flops(operator: Operator, sizes: dict[str, int], workload: TrainingWorkload) -> float:
    """Forward FLOPs of an operator on whole sequences, of attention those within documents."""
    whole = forward_flops(operator, sizes)
    if workload.lengths is None or workload.lengths.fill.value != "packed" or operator.kind is not OperatorKind.ATTENTION:
        return whole
    if any(SEQ not in tensor.dims for tensor in operator.inputs[:2]):
        return whole
    return whole * _mean_pairs(workload, operator.mask, operator.window) / attention_pairs(operator, sizes)


@lru_cache(maxsize=256)
def _mean_pairs(workload: TrainingWorkload, mask: AttentionMask | None, window: int | None) -> float:
    """Query-key pairs of a sequence: those of all pieces of a document, summed over the places of its first token, over the
    mean length: of a sequence's tokens as many lie in the document as it has tokens."""
    lengths, s = workload.lengths, workload.seq_len
    assert lengths is not None, "asked for packed documents alone"
    pairs = _pairs(s, mask, window)
    summed = np.cumsum(pairs)
    total = tokens = 0.0
    for length, count in zip(lengths.tokens, lengths.counts, strict=True):
        tokens += count * length
        if length <= s:
            # Whole where there is room; else cut, with 1 to length - 1 tokens before the cut.
            total += count * ((s - length + 1) * pairs[length] + 2 * summed[length - 1])
        else:
            # What follows the first piece fills length - s sequences over all places, and leaves each rest once.
            total += count * (summed[s] + (length - s) * pairs[s] + summed[s - 1])
    return float(total / tokens)


def _pairs(longest: int, mask: AttentionMask | None, window: int | None) -> npt.NDArray[np.float64]:
    """``[tokens]``: pairs of a document, the keys of its queries one after another."""
    tokens = np.arange(longest + 1, dtype=np.float64)
    if mask is AttentionMask.FULL:
        return np.asarray(tokens * (tokens if window is None else np.minimum(tokens, window)), np.float64)
    seen = tokens.copy()
    if window is not None:
        seen = (tokens - 1) % window + 1 if mask is AttentionMask.CHUNKED else np.minimum(tokens, window)
    seen[0] = 0.0
    return np.asarray(np.cumsum(seen), np.float64)


def least_slowest(plan: PipelinePlan, request: TrainingRequest) -> float:
    """Attention of a mean micro-batch of the slowest rank over that of all, at least; 1 without packed documents.

    Moments by rows of documents laid end to end, token cell by cell; the largest of ranks by quantiles of a beta distribution.
    """
    workload, axes, batch = request.workload, plan.axes, plan.microbatch
    if workload.lengths is None or workload.lengths.fill.value != "packed" or axes.dp == 1:
        return 1.0
    weights: dict[tuple[AttentionMask, int | None], float] = defaultdict(float)
    for name in request.model.layers:
        for operator in request.model.block(name).operators:
            if operator.mask is not None and all(SEQ in tensor.dims for tensor in operator.inputs[:2]):
                heads = math.prod(request.model.dims[dim] for dim in operator.inputs[0].dims if dim not in (BATCH, SEQ))
                value = request.model.dims[operator.inputs[2].dims[-1]] / request.model.dims[operator.inputs[0].dims[-1]]
                weights[operator.mask, operator.window] += heads * (1 + value)
    if not weights:
        return 1.0
    mean, variance = _cell_moments(workload, tuple(weights.items()))
    in_step = axes.ep > 1 or any(stage.zero_stage >= 2 for stage in plan.stages)
    odds = mean * (1 - mean) / variance * batch.size * (1 if in_step else batch.count) - 1 if variance > 0 else math.inf
    if not 0 < odds < _ALIKE:
        return 1.0
    at = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return float(betaincinv(mean * odds, (1 - mean) * odds, at ** (1 / axes.dp)).mean()) / mean


@lru_cache(maxsize=16)
def _cell_moments(
    workload: TrainingWorkload, weights: tuple[tuple[tuple[AttentionMask, int | None], float], ...]
) -> tuple[float, float]:
    """Mean and variance of a sequence's attention over the most that the longest document leaves, on cells of tokens."""
    lengths, s = workload.lengths, workload.seq_len
    assert lengths is not None, "asked for packed documents alone"
    cell = -(-s // _CELLS)
    n = s // cell
    pairs = sum((weight * _pairs(s, mask, window) for (mask, window), weight in weights), np.zeros(s + 1))
    longest = min(s, lengths.tokens[-1])
    pairs /= s * (pairs[1 : longest + 1] / np.arange(1, longest + 1)).max()
    work = pairs[np.arange(n + 1) * cell]
    # Documents between two numbers of cells are shared between these, so that they have as many tokens.
    share, beyond, cells = np.zeros(n + 2), 0.0, 0.0
    for length, count in zip(lengths.tokens, lengths.counts, strict=True):
        low, part = divmod(length / cell, 1)
        cells += count * length / cell
        for at, some in ((int(low), count * (1 - part)), (int(low) + 1, count * part)):
            if at > n:
                beyond += some
            elif at:
                share[at] += some
    whole = share.sum() + beyond
    share, cells = share[: n + 1] / whole, cells / whole
    longer = np.maximum(1 - np.cumsum(share), 0)
    first, second = np.zeros(n + 1), np.zeros(n + 1)
    for t in range(1, n + 1):
        of, rest = share[1 : t + 1], slice(t - 1, None, -1)
        after, squares = first[:t][rest], second[:t][rest]
        first[t] = longer[t] * work[t] + of @ (work[1 : t + 1] + after)
        second[t] = longer[t] * work[t] ** 2 + of @ (work[1 : t + 1] ** 2 + 2 * work[1 : t + 1] * after + squares)
    left = longer[: n - 1] / cells
    x = np.arange(1, n)
    rest_of = 1 - left.sum()
    mean = left @ (work[x] + first[n - x]) + rest_of * work[n]
    square = left @ (work[x] ** 2 + 2 * work[x] * first[n - x] + second[n - x]) + rest_of * work[n] ** 2
    return float(mean), float(max(0.0, square - mean**2))


def document_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Launchers that mask no documents, rings whose ranks would have unequal work, and token slices, which cut documents."""
    lengths = request.workload.lengths
    if lengths is None or lengths.fill.value != "packed":
        return
    search, axes = request.search, plan.axes
    trainer = TRAINERS.get(search.launcher)
    if search.space is Space.LAUNCHABLE and not (trainer is not None and trainer.masks_documents):
        yield Violation(Rule.LAUNCHER, "request.search.launcher", f"{search.launcher.value} masks no documents")
    if axes.cp != axes.ulysses:
        given = f"cp {axes.cp} with ulysses {axes.ulysses}: a ring's chunks have unequal work under masks of documents"
        yield Violation(Rule.SEQUENCE, "plan.axes.cp", given)
    if plan.token_slices:
        yield Violation(Rule.SEQUENCE, "plan.token_slices", "token slices cut documents")


# Rules of adapters beside frozen weights, from the LoRA and QLoRA papers and the graph alone.

_MODULES = {
    "wq": "q_proj",
    "wk": "k_proj",
    "wv": "v_proj",
    "wo": "o_proj",
    "w_gate": "gate_proj",
    "w_up": "up_proj",
    "w_down": "down_proj",
}
_PACKED_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""4 bits, a byte for 64 weights, four bytes for 256 of these (Dettmers et al. 2023, section 3: 0.127 bits beside the four)."""


def adapter_elements(block: Block, request: TrainingRequest) -> int:
    """Parameters of a block's adapters: r (k + n) for each weight of k by n (Hu et al. 2021, section 4.1), and n magnitudes
    under DoRA (Liu et al. 2024, eq. 5)."""
    adapter = request.workload.adapter
    if adapter is None:
        return 0
    sides = _sides(block, request)
    low_rank = adapter.rank * sum(rows + columns for rows, columns in sides)
    return low_rank + (sum(columns for _, columns in sides) if adapter.kind.value == "dora" else 0)


def latent_bytes(block: Block, request: TrainingRequest, tokens: int) -> float:
    """Bytes of what a block's adapters keep for the backward pass: r values of each token between the two matrices, and under
    DoRA the outputs of the weight and of the adapter, whose product with the gradient is the magnitude's."""
    adapter = request.workload.adapter
    if adapter is None:
        return 0.0
    sides = _sides(block, request)
    scaled = 2 * sum(columns for _, columns in sides) if adapter.kind.value == "dora" else 0
    return float((len(sides) * adapter.rank + scaled) * tokens * request.workload.precision.size_bytes)


def read_backward(block: Block, request: TrainingRequest) -> Block:
    """The block with what its backward pass reads as what it saves: the input of a product only for the gradient of a matrix
    beside it, as a frozen weight has none."""
    stated, wanted = request.workload.implementation, _wanted(request)
    if not wanted and stated is not None and stated.trained == "adapters":
        wanted = {target.value for target in stated.adapter_targets or ()}
    if not wanted:
        return block
    trained = {name for name, module in _MODULES.items() if module in wanted}
    adapter = request.workload.adapter
    in_int8 = adapter is not None and adapter.base_format.value == "int8"

    def reads(operator: Operator) -> tuple[str, ...]:
        stays = in_int8 and VOCAB not in operator.dims
        if operator.kind is not OperatorKind.MATMUL or stays or any(weight.name in trained for weight in operator.weights):
            return operator.saved
        return tuple(tensor.name for tensor in operator.outputs if tensor.name in operator.saved)

    return replace(block, operators=tuple(replace(operator, saved=reads(operator)) for operator in block.operators))


def packed_elements(block: Block, request: TrainingRequest) -> list[int]:
    """Elements of each weight of a block that lies in fewer bits than the working format has."""
    return [rows * columns for rows, columns in _packed_sides(block, request)]


def _packed_bytes(block: Block, request: TrainingRequest) -> float:
    """Bytes of a block's packed weights; in int8 each output has a scale of four bytes (Dettmers et al. 2022, section 2)."""
    sides, adapter = _packed_sides(block, request), request.workload.adapter
    if adapter is not None and adapter.base_format.value == "int8":
        return float(sum(rows * columns + 4 * columns for rows, columns in sides))
    return _PACKED_BYTES * sum(rows * columns for rows, columns in sides)


def _spared_bytes(block: Block, request: TrainingRequest) -> float:
    """Bytes of a block's packed weights in the working format, less those that they take."""
    return sum(packed_elements(block, request)) * request.workload.precision.size_bytes - _packed_bytes(block, request)


def _packed_sides(block: Block, request: TrainingRequest) -> list[tuple[int, int]]:
    adapter = request.workload.adapter
    if adapter is None or adapter.base_format.value == "working":
        return []
    return [
        _rows_and_columns(operator, weight, request)
        for operator in block.operators
        if operator.kind is OperatorKind.MATMUL and VOCAB not in operator.dims
        for weight in operator.weights
        if weight.tied_to is None and _read(operator) <= set(weight.dims)
    ]


def adapted_state(plan: PipelinePlan, request: TrainingRequest, stage: Stage) -> Mapping[Rule, float]:
    """Bytes that adapters add to a stage's weights, gradients and optimizer states, less what packing takes off the weights.

    Adapters are in fp32, with gradients and two moments of that format, divided by ZeRO as all else is.
    """
    ranks = stage.shard_ranks or plan.axes.dp * plan.axes.cp
    weights = gradients = states = 0.0
    for span in stage.blocks:
        block = request.model.block(span.block)
        adapters = adapter_elements(block, request)
        spared = _spared_bytes(block, request)
        weights += span.count * adapters * 4.0 / (ranks if stage.zero_stage == 3 else 1)
        weights -= span.count * spared / (ranks if stage.zero_stage == 3 else 1)
        gradients += span.count * adapters * 4.0 / (ranks if stage.zero_stage >= 2 else 1)
        states += span.count * adapters * 8.0 / (ranks if stage.zero_stage >= 1 else 1)
    return {Rule.WEIGHTS: weights, Rule.GRADIENTS: gradients, Rule.OPTIMIZER: states}


def adapted_transient_bytes(request: TrainingRequest, block: Block, stage: Stage, *, shared: float) -> float:
    """Least bytes of a layer's state that are whole while it runs: under ZeRO-3 its frozen weights as they lie and its adapters
    with their gradients, else its widest weight unpacked or summed with its adapter."""
    size = request.workload.precision.size_bytes
    if stage.zero_stage == 3:
        gathered = shared * size - _spared_bytes(block, request)
        return gathered + adapter_elements(block, request) * 2.0 * DType.FP32.size_bytes
    adapter, widest = request.workload.adapter, max((rows * columns for rows, columns in _sides(block, request)), default=0)
    # The adapter of the widest as a matrix, and its sum with the weight, of which DoRA takes the norm.
    summed = 2 * widest if adapter is not None and adapter.kind.value == "dora" else 0
    return max(max(packed_elements(block, request), default=0), summed) * float(size)


def adapter_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Launchers that train no adapters, and places of state that are not planned beside them."""
    adapter = request.workload.adapter
    if adapter is None:
        return
    launcher = request.search.launcher
    if request.search.space is not Space.LAUNCHABLE or not (launcher in TRAINERS and TRAINERS[launcher].adapters):
        yield Violation(Rule.LAUNCHER, "request.search.launcher", f"{launcher.value} trains no adapters")
    allowed = (0,) if adapter.base_format.value == "int8" else (0, 3)
    for index, stage in enumerate(plan.stages):
        where = f"plan.stages[{index}]"
        if stage.zero_stage not in allowed:
            yield Violation(
                Rule.SEARCH, f"{where}.zero_stage", f"ZeRO {stage.zero_stage} beside adapters, {allowed} is planned"
            )
        if not stage.offload.is_nothing or stage.gradients is not Gradients.KEPT:
            yield Violation(Rule.SEARCH, where, "state beside adapters that does not stay on the device")


def _wanted(request: TrainingRequest) -> set[str]:
    adapter = request.workload.adapter
    return set() if adapter is None else {target.value for target in adapter.targets}


def _sides(block: Block, request: TrainingRequest) -> list[tuple[int, int]]:
    wanted = _wanted(request)
    return [
        _rows_and_columns(operator, weight, request)
        for operator in block.operators
        if operator.kind is OperatorKind.MATMUL
        for weight in operator.weights
        if _MODULES.get(weight.name) in wanted
    ]


def _rows_and_columns(operator: Operator, weight: Weight, request: TrainingRequest) -> tuple[int, int]:
    whole = math.prod(request.model.dims[dim] for dim in weight.dims)
    rows = math.prod(request.model.dims[dim] for dim in weight.dims if dim in _read(operator))
    return rows, whole // rows


def _read(operator: Operator) -> set[str]:
    """Dims that a product sums over."""
    written = {dim for tensor in operator.outputs for dim in tensor.dims}
    return set(operator.inputs[0].dims) - written
