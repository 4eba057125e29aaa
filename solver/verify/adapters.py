"""Rules of adapters beside frozen weights, from the LoRA and QLoRA papers and the graph alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from meshwright.costmodels.model.dims import VOCAB
from meshwright.costmodels.model.operators import Operator, OperatorKind, Weight
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.choices import Gradients, Space
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.launchers.trainers import TRAINERS
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.violation import Rule, Violation

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
    """Parameters of a block's adapters: r (k + n) for each weight of k by n (Hu et al. 2021, section 4.1)."""
    adapter = request.workload.adapter
    return 0 if adapter is None else adapter.rank * sum(rows + columns for rows, columns in _sides(block, request))


def latent_bytes(block: Block, request: TrainingRequest, tokens: int) -> float:
    """Bytes of what a block's adapters keep for the backward pass: r values of each token between the two matrices."""
    adapter = request.workload.adapter
    if adapter is None:
        return 0.0
    return float(len(_sides(block, request)) * adapter.rank * tokens * request.workload.precision.size_bytes)


def packed_elements(block: Block, request: TrainingRequest) -> list[int]:
    """Elements of each weight of a block that lies in four bits."""
    adapter = request.workload.adapter
    if adapter is None or adapter.base_format.value != "nf4":
        return []
    return [
        math.prod(request.model.dims[dim] for dim in weight.dims)
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
        adapters, packed = adapter_elements(block, request), sum(packed_elements(block, request))
        weights += span.count * adapters * 4.0 / (ranks if stage.zero_stage == 3 else 1)
        weights -= span.count * packed * (request.workload.precision.size_bytes - _PACKED_BYTES)
        gradients += span.count * adapters * 4.0 / (ranks if stage.zero_stage >= 2 else 1)
        states += span.count * adapters * 8.0 / (ranks if stage.zero_stage >= 1 else 1)
    return {Rule.WEIGHTS: weights, Rule.GRADIENTS: gradients, Rule.OPTIMIZER: states}


def adapted_transient_bytes(request: TrainingRequest, block: Block, stage: Stage, *, shared: float) -> float:
    """Least bytes of a layer's state that are whole while it runs: under ZeRO-3 its frozen weights and its adapters with their
    gradients, else its widest weight unpacked."""
    size = request.workload.precision.size_bytes
    if stage.zero_stage == 3:
        return shared * size + adapter_elements(block, request) * 2.0 * DType.FP32.size_bytes
    return max(packed_elements(block, request), default=0) * float(size)


def adapter_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Launchers that train no adapters, and places of state that are not planned beside them."""
    adapter = request.workload.adapter
    if adapter is None:
        return
    launcher = request.search.launcher
    if request.search.space is not Space.LAUNCHABLE or not (launcher in TRAINERS and TRAINERS[launcher].adapters):
        yield Violation(Rule.LAUNCHER, "request.search.launcher", f"{launcher.value} trains no adapters")
    allowed = (0,) if adapter.base_format.value == "nf4" else (0, 3)
    for index, stage in enumerate(plan.stages):
        where = f"plan.stages[{index}]"
        if stage.zero_stage not in allowed:
            yield Violation(
                Rule.SEARCH, f"{where}.zero_stage", f"ZeRO {stage.zero_stage} beside adapters, {allowed} is planned"
            )
        if not stage.offload.is_nothing or stage.gradients is not Gradients.KEPT:
            yield Violation(Rule.SEARCH, where, "state beside adapters that does not stay on the device")


def _sides(block: Block, request: TrainingRequest) -> list[tuple[int, int]]:
    adapter = request.workload.adapter
    wanted = set() if adapter is None else {target.value for target in adapter.targets}
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
