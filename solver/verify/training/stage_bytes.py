"""Bytes that a stage's layers take on one device, computed from the graph alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.costmodels.model.dims import BATCH, SEQ, VOCAB
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.problem.choices import Recompute, Space, TpOverlap
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.launchers.trainers import TRAINERS, Trainer
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.verify.documents import latent_bytes, read_backward
from meshwright.solver.verify.launchers import Layers
from meshwright.solver.verify.rules import ModelSplit, between_experts, picked_dims
from meshwright.solver.verify.training.mixers import (
    copies_after_exchange,
    crowded_rows,
    first_states_bytes,
    fullest_share,
    step_by_step_bytes,
)
from meshwright.solver.verify.training.sharding import stored_split, strategies_by_operator

_MOMENTS = {"adamw": 2.0, "sgd_momentum": 1.0, "muon": 1.0, "adamw_8bit": 2 / 4, "adamw_bf16": 2 / 2}
"""fp32 values an optimizer keeps for a parameter beside the master copy (multi-GPU lecture, "optimizer bytes"); two moments
of one byte are two quarters of a value, two of two bytes two halves."""


def training_share(plan: PipelinePlan, request: TrainingRequest) -> ModelSplit:
    """The division of a training plan: sizes of one micro-batch on one cp rank."""
    sizes = {**request.model.dims, BATCH: plan.microbatch.size, SEQ: request.workload.seq_len // plan.axes.cp}
    crowding = fullest_share(request, plan.axes.ep)
    layers = layers_of(request, plan.tp_overlap)
    named = strategies_by_operator(plan)
    stored = stored_split(plan)
    return ModelSplit(plan.axes.tp, named, sizes, plan.axes.ep, plan.axes.cp, crowding, layers, stored)


@dataclass(frozen=True, slots=True)
class CheckedStateBytes:
    """Bytes of weights, gradients and optimizer state for each parameter that a rank stores."""

    weights: float
    gradients: float
    optimizer: float


def has_frozen_weights(workload: TrainingWorkload) -> bool:
    """Return True if the model's weights have no gradients."""
    stated = workload.implementation
    return workload.adapter is not None or (stated is not None and stated.trained == "adapters")


def state_bytes(workload: TrainingWorkload, optimizer: str, *, zero_stage: int, shards: int) -> CheckedStateBytes:
    """ZeRO 1, 2, 3 divide optimizer state, gradients, weights by dp x cp (Rajbhandari et al. 2020, section 5)."""
    master = 0 if workload.precision is DType.FP32 else 1
    if has_frozen_weights(workload):
        # Frozen weights have neither gradients nor optimizer state.
        return CheckedStateBytes(workload.precision.size_bytes / (shards if zero_stage == 3 else 1), 0.0, 0.0)
    return CheckedStateBytes(
        weights=workload.precision.size_bytes / (shards if zero_stage == 3 else 1),
        gradients=workload.gradient_dtype.size_bytes / (shards if zero_stage >= 2 else 1),
        optimizer=4.0 * (master + _MOMENTS[optimizer]) / (shards if zero_stage >= 1 else 1),
    )


def updated_by(plan: PipelinePlan, request: TrainingRequest, block: Block) -> str:
    """The optimizer of a block's weights. Muon is for matrices inside: the embedding and the head are AdamW's (Jordan 2024)."""
    chosen = request.workload.optimizer if plan.optimizer is None else plan.optimizer
    ends = {OperatorKind.EMBEDDING, OperatorKind.LOSS} & {operator.kind for operator in block.operators}
    return "adamw" if chosen.value == "muon" and ends else chosen.value


def entry_bytes(block: Block, share: ModelSplit, dtype: DType, *, split: int) -> float:
    """Bytes of the tensor that enters a block from the one before, lying split over ``split`` ranks of the tp axis."""
    return _entry(block).elements(share.sizes) * dtype.size_bytes / split


def kept_bytes(
    block: Block,
    share: ModelSplit,
    request: TrainingRequest,
    mode: Recompute,
    *,
    entry: float,
    modules: str | None = None,
) -> float:
    """Bytes that one copy of a block keeps for the backward pass of one micro-batch; ``entry`` is its own input's.

    A saved tensor lies as the operator that writes it leaves it, in the form that the framework keeps. Blocks with an
    embedding or a loss are never recomputed; token ids are no activations. Of fine-grained recomputation ``modules`` run again.
    """
    block = read_backward(block, request)
    kinds = {operator.kind for operator in block.operators}
    if kinds & {OperatorKind.EMBEDDING, OperatorKind.LOSS}:
        mode = Recompute.NONE
    if mode is Recompute.FULL:
        return entry
    kept, again = _saved(block), set[str]()
    if mode is not Recompute.NONE:
        light, whole = run_again_fine_grained(block, _SELECTIVE if mode is Recompute.SELECTIVE else modules)
        elsewhere = {name for op in block.operators if op.name not in whole for name in op.saved}
        dropped = {t.name for op in block.operators if op.name in light for t in op.outputs}
        dropped |= {t.name for op in block.operators if op.name in whole for t in op.outputs} - elsewhere
        read = {t.name for op in block.operators if op.name in whole for t in op.inputs}
        again = (_run_for_rebuilding(block, (kept | read) & dropped, kept) & light) | whole
        read = {t.name for op in block.operators if op.name in again for t in op.inputs} - dropped
        kept = (kept - dropped) | read
    each = form_bytes(block, request, kept, again, cp=share.cp, layers=share.layers)
    total = latent_bytes(block, request, share.sizes[BATCH] * share.sizes[SEQ])
    crowded = crowded_rows(block)
    written: set[str] = set()
    for operator in block.operators:
        sizes = share.local(block.name, operator)
        for tensor in operator.outputs:
            written.add(tensor.name)
            crowding = share.crowding if tensor.name in crowded else 1.0
            copies = copies_after_exchange(block, tensor.dims, sizes, request, share.cp)
            total += crowding * copies * tensor.elements(sizes) * each.get(tensor.name, 0.0)
        total += first_states_bytes(operator, sizes, request, share.cp) + step_by_step_bytes(operator, sizes, request)
    if OperatorKind.EMBEDDING in kinds and OperatorKind.LOSS not in kinds:
        return total
    from_before = max((size for name, size in each.items() if name not in written), default=0.0)
    return total + entry * from_before / request.workload.precision.size_bytes


def loss_bytes(block: Block, share: ModelSplit, dtype: DType) -> float:
    """Bytes of the logits, later of their gradient, that a loss holds while it runs."""
    losses = [operator for operator in block.operators if operator.kind is OperatorKind.LOSS]
    return sum(op.inputs[0].elements(share.local(block.name, op)) * dtype.size_bytes for op in losses)


def _entry(block: Block) -> Tensor:
    written = _names(tensor for operator in block.operators for tensor in operator.outputs)
    return next(tensor for operator in block.operators for tensor in operator.inputs if tensor.name not in written)


def _saved(block: Block) -> set[str]:
    return {name for operator in block.operators for name in operator.saved}


def _run_for_rebuilding(block: Block, dropped: set[str], saved: set[str]) -> set[str]:
    """Operators that run again: writers of dropped tensors, and of what those read that is not kept."""
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}
    waiting, again = list(dropped), set[str]()
    while waiting:
        operator = writer.get(waiting.pop())
        if operator is None or operator.name in again:
            continue
        again.add(operator.name)
        waiting += _names(operator.inputs) - (saved - dropped)
    return again


def run_again_fine_grained(block: Block, modules: str | None = None) -> tuple[set[str], set[str]]:
    """Operators of the ``modules`` that fine-grained recomputation may run again, those named as block/operator among them, and
    of those that run again whole.

    The first are norms, what lies between products of experts, and on the way into attention the products of normed latents
    with the rotation behind them (DeepSeek-V3 report, section 3.2.3); all of these where no module is named. The others are
    attention and feed-forward layers, dense, of shared experts, or all of experts.
    """
    named = _USUAL_MODULES if modules is None else modules.split("+")
    light: set[str] = set()
    for name, found in (
        ("layernorm", {operator.name for operator in block.operators if operator.kind is OperatorKind.NORM}),
        ("moe_act", between_experts(block)),
        ("mla_up_proj", _from_latents(block)),
    ):
        light |= found if name in named else set()
    light |= {operator.name for operator in block.operators if f"{block.name}/{operator.name}" in named}
    columns = {dim for name in named for dim in _COLUMNS.get(name, ())}
    whole = {op.name for op in block.operators if any(columns & {*t.dims} for t in (*op.inputs, *op.outputs))}
    if "core_attn" in named:
        whole |= {operator.name for operator in block.operators if operator.kind is OperatorKind.ATTENTION}
    return light - whole, whole


_USUAL_MODULES = ("layernorm", "moe_act", "mla_up_proj")
_SELECTIVE = "layernorm+core_attn"
"""What selective recomputation runs again: attention (Korthikanti et al. 2022, section 5) and norms, as launchers offer."""
_COLUMNS = {
    "mlp": ("ffn",),
    "shared_experts": ("shared_ffn",),
    "moe": ("experts", "top_k", "expert_ffn", "expert_latent", "shared_ffn"),
}
"""Dims of what lies inside feed-forward layers, by the name of their module."""


def _from_latents(block: Block) -> set[str]:
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}
    found: set[str] = set()
    for operator in block.operators:
        if operator.kind is not OperatorKind.ATTENTION:
            continue
        before = [writer.get(tensor.name) for tensor in operator.inputs]
        for source in (op for op in before if op is not None):
            behind = [writer.get(t.name) for t in source.inputs] if source.kind is OperatorKind.ELEMENTWISE else [source]
            products = {op.name for op in behind if op is not None and _of_normed_latent(op, writer)}
            found |= products | ({source.name} if products else set())
    return found


def _of_normed_latent(operator: Operator, writer: dict[str, Operator]) -> bool:
    normed = writer.get(operator.inputs[0].name)
    if operator.kind is not OperatorKind.MATMUL or normed is None or normed.kind is not OperatorKind.NORM:
        return False
    down = writer.get(normed.inputs[0].name)
    return down is not None and down.kind is OperatorKind.MATMUL


def _names(tensors: Iterable[Tensor]) -> set[str]:
    return {tensor.name for tensor in tensors}


# In which form a launcher's framework keeps what operators save, written down apart from the search's own rules.


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
    stated = workload.implementation
    in_fp8 = stated is not None and stated.attention_format == "fp8" and workload.matmul.dtype is not None
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
            elif in_fp8 and operator.kind is OperatorKind.ATTENTION:
                # Copies of what it read and wrote, of its own.
                extra[name] = extra.get(name, 0.0) + DType.FP8.size_bytes
            elif stated is not None and stated.gated_inputs == "fp8" and _is_gated(operator):
                extra[name] = extra.get(name, 0.0) + DType.FP8.size_bytes
            elif operator.kind is OperatorKind.LOSS and layers not in (Layers.COMPILED, Layers.OTHER):
                # The softmax, in fp32; the logits it came from are not read again.
                extra[name] = extra.get(name, 0.0) + _FP32
            elif by_steps and _is_root_mean_square(operator):
                # The fp32 copy of the input, and the normed rows before their weight, which its gradient reads.
                extra[name] = extra.get(name, 0.0) + _FP32 + (0.0 if has_frozen_weights(workload) else plain)
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


def is_of_module(operator: Operator) -> bool:
    """Return True if an operator is of a module beside the head that predicts one more token: its name begins with mtp, and a
    number from 1."""
    return re.match(r"mtp[1-9][0-9]*_", operator.name) is not None


def _cast_products(block: Block) -> set[str]:
    """Products that run below 16 bits: a layer's, but for the one that scores experts. Beside the head are layers that
    predict more tokens; the scores of words stay in 16 bits."""
    ends = {operator.kind for operator in block.operators} & {OperatorKind.EMBEDDING, OperatorKind.LOSS}
    inside = [operator for operator in block.operators if not ends or is_of_module(operator)]
    experts = {dim for operator in block.operators for dim in picked_dims(operator)}
    return {
        operator.name
        for operator in inside
        if operator.kind is OperatorKind.MATMUL
        and not (experts | {VOCAB}) & {dim for tensor in operator.outputs for dim in tensor.dims}
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
