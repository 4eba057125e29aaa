"""In which form a launcher's framework keeps what operators save, written down apart from the search's own rules."""

from __future__ import annotations

from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.units import DType
from meshwright.solver.problem.choices import Space, TpOverlap
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.launchers.trainer import Trainer
from meshwright.solver.problem.launchers.trainers import TRAINERS
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.verify.launchers import Layers
from meshwright.solver.verify.rules.parameters import picked_dims


def layers_of(request: TrainingRequest, overlap: TpOverlap) -> Layers:
    """Return the parts of the layers: as the request states them, else the launcher's, in the free space too."""
    limits = TRAINERS.get(request.search.launcher)
    stated = request.workload.implementation
    # The free space cuts products of any layers.
    cut = overlap is TpOverlap.CHUNKED and request.search.space is not Space.FREE
    if stated is not None and stated.kernels is not None:
        compiled = limits is not None and cut and _launchers_layers(limits, cut=True) is Layers.COMPILED
        return Layers.COMPILED if compiled and _is_plain(request.workload) else _stated_layers(request.workload)
    if limits is None:
        return Layers.HAND_WRITTEN
    return _launchers_layers(limits, cut=cut)


def _launchers_layers(trainer: Trainer, *, cut: bool) -> Layers:
    """Return the parts of a launcher's layers, of those with chunked products where they are ``cut``."""
    own, cuts = trainer.implementation, trainer.cut_products if cut else None
    kernels = (cuts and cuts.kernels) or own.kernels
    loss = (cuts and cuts.loss) or own.loss
    return _LAYERS.get((str(kernels), str(loss)), Layers.OTHER)


_LAYERS = {
    ("fused", "by-hand"): Layers.HAND_WRITTEN,
    ("eager", "eager"): Layers.MODULES,
    ("compiled", "compiled"): Layers.COMPILED,
}
"""Layers by their kernels and those of their loss."""


def _stated_layers(workload: TrainingWorkload) -> Layers:
    stated = workload.implementation
    assert stated is not None, "asked of workloads that state one"
    known = _LAYERS.get((str(stated.kernels), str(stated.stated_loss)), Layers.OTHER)
    return known if _is_plain(workload) else Layers.OTHER


def _is_plain(workload: TrainingWorkload) -> bool:
    """Return True if nothing else is stated that changes what layers keep."""
    usual = {"logits": "split", "value": "own", "projections": "joint", "trained": "all", "selective": "attention-and-norms"}
    return all(str(getattr(workload.implementation, name)) in (usual[name], "None") for name in usual)


_LAYER_NORM_FLOPS = 5.0
"""FLOPs an element from which on a norm subtracts a mean: PyTorch has one kernel for those, none for root-mean-square norms."""

_FP32 = DType.FP32.size_bytes
_E5M6 = 12 / 8
"""Bytes of DeepSeek-V3's format of attention outputs (its report, section 3.3.3): 5 bits of exponent, 6 of mantissa, a sign."""


def form_bytes(
    block: Block, request: TrainingRequest, kept: set[str], again: set[str], *, cp: int, layers: Layers
) -> dict[str, float]:
    """Bytes that stay for an element of each tensor while ``kept`` are kept and operators ``again`` run a second time, where
    ``cp`` ranks share a sequence."""
    workload = request.workload
    plain, by_steps = workload.precision.size_bytes, layers is Layers.MODULES
    squeezed = workload.saved_activations == "fp8"
    cast = _cast_products(block) if workload.matmul.dtype is not None or squeezed else set()
    of_cast = {tensor.name for operator in block.operators if operator.name in cast for tensor in operator.outputs}
    whole: set[str] = kept - {name for operator in block.operators for name in operator.saved}
    lowered: set[str] = set()
    extra: dict[str, float] = {}
    for operator in block.operators:
        for name in kept & set(operator.saved):
            if operator.name in cast or (squeezed and name in of_cast and _is_function(operator)):
                lowered.add(name)
            elif operator.name in again:
                whole.add(name)
            elif operator.kind is OperatorKind.LOSS and layers not in (Layers.COMPILED, Layers.OTHER):
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
    if layers in (Layers.COMPILED, Layers.OTHER):
        remade = _remade_where_read(block, kept)
        whole, lowered = whole - remade, lowered - remade
    if layers is Layers.HAND_WRITTEN:
        for operator in block.operators:
            together = {tensor.name for tensor in operator.outputs}
            in_place = (name for name in together & whole if _stays_in_place(block, name, again, cp))
            if operator.kind is OperatorKind.MATMUL and any(in_place):
                # Parts of one projection's output share its storage.
                whole |= together
    low = workload.matmul.element_bytes(workload.precision)
    if squeezed:
        # One byte where the recipe asks for no less; attention's output once, in 12 bits, for its two readers.
        low = min(low, 1.0)
        attended = {t.name for op in block.operators if op.kind is OperatorKind.ATTENTION for t in op.outputs} & whole
        whole, lowered = whole - attended, lowered - attended
        extra |= {name: extra.get(name, 0.0) + _E5M6 for name in attended}
    return {
        name: extra.get(name, 0.0) + (plain if name in whole else 0.0) + (low if name in lowered else 0.0)
        for name in whole | lowered | set(extra)
    }


def _remade_where_read(block: Block, kept: set[str]) -> set[str]:
    """Kept tensors that a compiler makes again instead: norms and element-wise formulas of what stays or comes from before."""
    made_here = {tensor.name for operator in block.operators for tensor in operator.outputs}
    stays = set(kept)
    for operator in block.operators:
        from_what_stays = all(tensor.name in stays or tensor.name not in made_here for tensor in operator.inputs)
        if operator.kind in (OperatorKind.NORM, OperatorKind.ELEMENTWISE) and from_what_stays:
            stays -= {tensor.name for tensor in operator.outputs}
    return kept - stays


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


def _stays_in_place(block: Block, name: str, again: set[str], cp: int) -> bool:
    """Return True if a kept tensor lies where its writer left it: not if attention of several ranks alone keeps it, as buffers
    of what came from other ranks, unless attention runs again and so keeps what it was given."""
    keepers = [operator for operator in block.operators if name in operator.saved]
    in_buffers = [operator.kind is OperatorKind.ATTENTION and operator.name not in again for operator in keepers]
    return cp == 1 or not keepers or not all(in_buffers)


def _is_root_mean_square(operator: Operator) -> bool:
    return (
        operator.kind is OperatorKind.NORM
        and bool(operator.weights)
        and len(operator.inputs) == 1
        and operator.flops_per_element < _LAYER_NORM_FLOPS
    )


def _is_function(operator: Operator) -> bool:
    """Return True if this is an activation function, of one input or with a gate."""
    return operator.kind is OperatorKind.ELEMENTWISE and operator.flops_per_element > 1 and len(operator.inputs) <= 2


def _is_gated(operator: Operator) -> bool:
    if operator.kind is not OperatorKind.ELEMENTWISE or len(operator.inputs) != 2 or operator.flops_per_element <= 1:
        return False
    return len(operator.outputs) != 2 or [t.dims for t in operator.inputs] != [t.dims for t in operator.outputs]
