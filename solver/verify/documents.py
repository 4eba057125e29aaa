"""Attention of sequences that are packed of documents, and what is not planned beside them.

Worked out from each length of the histogram by itself: a document lies at every place of a sequence as often, and is cut where
sequences end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, attention_pairs, forward_flops
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.problem.choices import Space
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
