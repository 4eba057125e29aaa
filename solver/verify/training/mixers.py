"""State-space mixers over the ranks of a sequence: who may split them, and what that keeps; written from the papers alone.

A mixer whose state decays by a number a head can pass states on (LASP-2): ranks keep those that their parts of the sequence
begin with. Otherwise, and in Megatron-LM, ranks exchange tokens for heads, and hold copies of groups that are fewer than they.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.model.dims import EXPERTS, SEQ, SSM_GROUPS, SSM_HEADS, TOP_K
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.graph import Block, ModelGraph
from meshwright.solver.problem.launchers.trainers import TRAINERS
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.rules import picked_dims
from meshwright.solver.verify.violation import Rule, Violation

_FP32_BYTES = 4


def parts_of_sequence(model: ModelGraph) -> int:
    """Two parts a rank balance a causal mask (zig-zag); without attention there is nothing to balance."""
    kinds = {operator.kind for block in model.blocks for operator in block.operators}
    return 2 if OperatorKind.ATTENTION in kinds else 1


def sequence_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Ranks share a sequence in equal parts, of attention or of mixers that can be split."""
    axes, seq_len = plan.axes, getattr(request.workload, "seq_len", 0)
    if axes.cp <= 1:
        return
    where, model = "plan.axes.cp", request.model
    parts = parts_of_sequence(model) * axes.cp
    if seq_len % parts:
        yield Violation(Rule.SEQUENCE, where, f"a sequence of {seq_len} is not {parts} equal parts")
    scans = [(block, op) for block in model.blocks for op in block.operators if op.kind is OperatorKind.SCAN]
    kinds = {operator.kind for block in model.blocks for operator in block.operators}
    if not kinds & {OperatorKind.ATTENTION, OperatorKind.SCAN}:
        yield Violation(Rule.SEQUENCE, where, "the model has no attention to split over the sequence")
    for block in model.blocks:
        if _has(block, OperatorKind.CONVOLUTION) and not _has(block, OperatorKind.SCAN):
            yield Violation(Rule.SEQUENCE, where, f"a convolution of {block.name!r} reads tokens of other ranks")
    launchable = request.search.space is Space.LAUNCHABLE
    limits = TRAINERS.get(request.search.launcher)
    if scans and launchable and not (limits and limits.scans_over_ranks):
        yield Violation(Rule.LAUNCHER, where, f"{request.search.launcher.value}: it can't split mixers over the sequence")
    for block, scan in scans:
        named = f"{where} ({block.name}/{scan.name})"
        if scan.chunk is None:
            yield Violation(Rule.SEQUENCE, named, "a scan token by token can't be split over the sequence")
        elif exchanges_heads(scan, request):
            heads, groups = model.dims.get(SSM_HEADS, 0), model.dims.get(SSM_GROUPS, axes.tp * axes.cp)
            if heads % (axes.tp * axes.cp):
                yield Violation(Rule.DIVISIBILITY, named, f"{heads} heads over tp x cp = {axes.tp * axes.cp}")
            here = max(1, groups // axes.tp)
            if here % axes.cp and axes.cp % here:
                given = f"{here} groups neither divide by cp {axes.cp} nor can be copied evenly to its ranks"
                yield Violation(Rule.DIVISIBILITY, named, given)


def exchanges_heads(scan: Operator, request: TrainingRequest) -> bool:
    """Return True if ranks exchange tokens for heads around a scan: as the request states it, else in Megatron-LM, and always
    where a delta rule corrects the state."""
    stated = request.workload.implementation
    way = None if stated is None else stated.scan_over_ranks
    exchanges = request.search.space is Space.LAUNCHABLE if way is None else str(way) == "heads"
    return exchanges or scan.flops_per_element > 0


def step_by_step_bytes(scan: Operator, sizes: dict[str, int], request: TrainingRequest) -> float:
    """Bytes that a chunked scan of batched products keeps beside its inputs: of B two copies a head, of C one; the states of
    chunks before and after they are summed up; x times the time step, and what states add to outputs (Dao and Gu 2024,
    listing 1). 0 for other kernels, and for other operators."""
    stated = request.workload.implementation
    if scan.kind is not OperatorKind.SCAN or scan.chunk is None or stated is None or str(stated.scan) != "step-by-step":
        return 0.0
    x, b = scan.inputs[:2]
    channels, state = x.elements(sizes), sizes[b.dims[-1]]
    of_heads = channels // sizes[x.dims[-1]] * state
    of_chunks = channels * state // min(scan.chunk, sizes[SEQ])
    return float((3 * of_heads + 2 * of_chunks + 2 * channels) * request.workload.precision.size_bytes)


def copies_after_exchange(block: Block, dims: tuple[str, ...], sizes: dict[str, int], request: TrainingRequest, cp: int) -> int:
    """Ranks that hold each group of a tensor of a mixer."""
    scans = [operator for operator in block.operators if operator.kind is OperatorKind.SCAN]
    if cp == 1 or SSM_GROUPS not in dims or not scans or not exchanges_heads(scans[0], request):
        return 1
    return max(1, cp // sizes[SSM_GROUPS])


def first_states_bytes(scan: Operator, sizes: dict[str, int], request: TrainingRequest, cp: int) -> float:
    """Bytes of the states with which a rank's parts of the sequence begin, where states pass."""
    if cp == 1 or scan.kind is not OperatorKind.SCAN or exchanges_heads(scan, request):
        return 0.0
    tokens = sizes[SEQ]
    channels = scan.inputs[0].elements(sizes) // tokens
    return float(parts_of_sequence(request.model) * channels * sizes[scan.inputs[1].dims[-1]] * _FP32_BYTES)


def _has(block: Block, kind: OperatorKind) -> bool:
    return any(operator.kind is kind for operator in block.operators)


# Experts spread over ranks: what the ep axis may be, and which weights it divides.


def crowded_rows(block: Block) -> set[str]:
    """Tensors whose rows routing sent to their experts' ranks: what products with a weight for each expert read or write."""
    rows: set[str] = set()
    for operator in block.operators:
        if picked_dims(operator):
            rows |= {tensor.name for tensor in (*operator.inputs, *operator.outputs)}
    return rows


DRAWN_ORDERS = 32
"""Orders of the experts on ranks, drawn by PCG64 from seed 0, over which a request's power law is averaged
(docs/request-format.md): the law does not say which experts are hot."""


def fullest_share(request: TrainingRequest, ep: int) -> float:
    """Rows of the rank with the most over the mean of ``ep`` ranks, as the workload says that tokens spread."""
    workload, dims = request.workload, request.model.dims
    if ep == 1 or EXPERTS not in dims or workload.experts.kind == "balanced":
        return 1.0
    experts, top_k = dims[EXPERTS], dims.get(TOP_K, 1)
    if workload.experts.kind == "histogram":
        rows = _chances(np.array(workload.experts.counts, np.float64), top_k)
        return float(rows.reshape(ep, -1).sum(axis=1).max()) * ep / top_k
    rows = _chances(np.arange(1.0, experts + 1.0) ** -workload.experts.exponent, top_k)
    random = np.random.Generator(np.random.PCG64(0))
    orders = [random.permutation(experts) for _ in range(DRAWN_ORDERS)]
    return sum(float(rows[order].reshape(ep, -1).sum(axis=1).max()) for order in orders) * ep / top_k / DRAWN_ORDERS


def _chances(weights: npt.NDArray[np.float64], top_k: int) -> npt.NDArray[np.float64]:
    """Chances min(1, c w) of being among the ``top_k`` different experts of a token; c makes them add up to top_k.

    If the s hottest experts have chance 1, the others share top_k - s by weight: s is the least for which none exceeds 1.
    """
    hottest_first = np.sort(weights)[::-1]
    left = [float(hottest_first[sure:].sum()) for sure in range(top_k)]
    sure = next(s for s, rest in enumerate(left) if (top_k - s) * float(hottest_first[s]) <= rest)
    return np.minimum(1.0, weights * ((top_k - sure) / left[sure])) if left[sure] else np.sign(weights)


def ranks_with_an_expert(axes: Axes) -> int:
    """Ranks of a stage that hold the same part of an expert: of dp x cp, or of all where experts are whole, one in ep."""
    return axes.dp * axes.cp * (1 if axes.etp is None else axes.tp) // axes.ep


def expert_axis_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Experts divide over ep ranks of a stage's dp x cp, all alike (Megatron-LM: num_experts % ep == 0)."""
    axes, model = plan.axes, request.model
    if axes.etp is not None and (axes.etp != 1 or axes.tp == 1):
        yield Violation(Rule.AXES, "plan.axes.etp", f"{axes.etp}; one rank, or all tp ranks (none said), share an expert")
        return
    if axes.ep <= 1 and axes.etp is None:
        return
    used = [operator for name in set(model.layers) for operator in model.block(name).operators]
    numbers = {model.dims[dim] for operator in used for dim in picked_dims(operator)}
    if not numbers:
        yield Violation(Rule.AXES, "plan.axes.ep", f"{axes.ep}, and the model has no experts to spread")
    places = axes.dp * axes.cp * (1 if axes.etp is None else axes.tp)
    if places % axes.ep:
        given = f"{axes.ep}, which does not divide the {places} places of experts"
        yield Violation(Rule.AXES, "plan.axes.ep", given)
    for experts in sorted(number for number in numbers if number % axes.ep):
        yield Violation(Rule.DIVISIBILITY, "plan.axes.ep", f"{experts} experts do not divide by ep {axes.ep}")
