"""Experts spread over ranks: what the ep axis may be, and which weights it divides."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.model.dims import EXPERTS, TOP_K
from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.verify.rules.parameters import picked_dims
from meshwright.solver.verify.violation import Rule, Violation


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
    if ep == 1 or EXPERTS not in dims or not isinstance(workload, TrainingWorkload) or workload.experts.kind == "balanced":
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
