"""In which form a launcher's framework keeps what operators save, written down apart from the search's own rules."""

from __future__ import annotations

from costmodels.operators import Operator, OperatorKind
from costmodels.units import DType
from solver.graph import Block
from solver.request import Launcher, PlanRequest, Space, TrainingWorkload
from solver.verify.experts import picked_dims

_STEP_BY_STEP = (Launcher.DEEPSPEED, Launcher.TORCHTITAN)
"""Launchers whose models are PyTorch modules that autograd takes apart; Megatron-LM's layers are hand-written kernels."""

_LAYER_NORM_FLOPS = 5.0
"""FLOPs an element from which on a norm subtracts a mean: PyTorch has one kernel for those, none for root-mean-square norms."""

_FP32 = DType.FP32.size_bytes


def form_bytes(block: Block, request: PlanRequest, kept: set[str], again: set[str]) -> dict[str, float]:
    """Bytes that stay for an element of each tensor while ``kept`` are kept and operators ``again`` run a second time."""
    workload, search = request.workload, request.search
    assert isinstance(workload, TrainingWorkload)
    plain, by_steps = workload.precision.size_bytes, search.space is Space.LAUNCHABLE and search.launcher in _STEP_BY_STEP
    cast = _cast_products(block) if workload.matmul.dtype is not None else set()
    whole: set[str] = kept - {name for operator in block.operators for name in operator.saved}
    lowered: set[str] = set()
    extra: dict[str, float] = {}
    for operator in block.operators:
        for name in kept & set(operator.saved):
            if operator.name in again:
                whole.add(name)
            elif operator.name in cast:
                lowered.add(name)
            elif operator.kind is OperatorKind.LOSS:
                # The softmax, in fp32; the logits it came from are not read again.
                extra[name] = extra.get(name, 0.0) + _FP32
            elif by_steps and _is_root_mean_square(operator):
                # The fp32 copy of the input, and the normed rows before their weight.
                extra[name] = extra.get(name, 0.0) + _FP32 + plain
            else:
                whole.add(name)
                if by_steps and _is_gated(operator) and name == operator.saved[0]:
                    # What the activation function gave, before its product with the other half.
                    extra[name] = extra.get(name, 0.0) + plain
    if not by_steps:
        for operator in block.operators:
            together = {tensor.name for tensor in operator.outputs}
            if operator.kind is OperatorKind.MATMUL and together & whole:
                # Parts of one projection's output share its storage.
                whole |= together
    low = workload.matmul.element_bytes(workload.precision)
    return {
        name: extra.get(name, 0.0) + (plain if name in whole else 0.0) + (low if name in lowered else 0.0)
        for name in whole | lowered | set(extra)
    }


def _cast_products(block: Block) -> set[str]:
    """Products that run below 16 bits: a layer's, but for the one that scores experts."""
    if {operator.kind for operator in block.operators} & {OperatorKind.EMBEDDING, OperatorKind.LOSS}:
        return set()
    experts = {dim for operator in block.operators for dim in picked_dims(operator)}
    return {
        operator.name
        for operator in block.operators
        if operator.kind is OperatorKind.MATMUL and not experts & {dim for tensor in operator.outputs for dim in tensor.dims}
    }


def _is_root_mean_square(operator: Operator) -> bool:
    return (
        operator.kind is OperatorKind.NORM
        and bool(operator.weights)
        and len(operator.inputs) == 1
        and operator.flops_per_element < _LAYER_NORM_FLOPS
    )


def _is_gated(operator: Operator) -> bool:
    if operator.kind is not OperatorKind.ELEMENTWISE or len(operator.inputs) != 2 or operator.flops_per_element <= 1:
        return False
    return len(operator.outputs) != 2 or [t.dims for t in operator.inputs] != [t.dims for t in operator.outputs]
