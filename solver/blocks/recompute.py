"""The saved activations of a block that each recompute mode drops, and the operators that run again for them.

NONE keeps every saved tensor. SELECTIVE runs attention cores and norms again, so that no matrix multiplication runs twice
(Korthikanti et al., MLSys'23, section 5; Megatron-LM's recompute modules core_attn and layernorm); a framework may mean
something else by it (`SelectiveRecompute`). FINE_GRAINED drops what norms, the activation
functions of routed experts and the up-projections of latent attention wrote, and attention's inputs that follow from those
(DeepSeek-V3 report, section 3.2.3; Megatron-LM's modules layernorm, moe_act and mla_up_proj), or other modules that a search
names. FULL keeps the block's input and runs the whole forward pass again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.costmodels.memory.saved_activations import SavingRules, saved_element_bytes, without_frozen_inputs
from meshwright.costmodels.model.adapter import Adapter
from meshwright.costmodels.model.dims import BATCH, HIDDEN, SEQ, VOCAB
from meshwright.costmodels.model.experts import expert_region
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.model.implementation import AttentionFormat, Implementation, SelectiveRecompute
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.network.overlap import CHUNKERS
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.tp_strategies import SpecKind
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.declared.recompute_modules import (
    DIMS_OF_MODULES,
    SELECTIVE_MODULES,
    USUAL_MODULES,
    RecomputeModule,
    is_operator,
)
from meshwright.solver.problem.graph import Block, ModelGraph
from meshwright.solver.problem.token_prediction import module_operators


@dataclass(frozen=True, slots=True)
class KeptTensors:
    """Names of tensors that a recompute mode keeps, and of the operators that it runs again, of which ``whole`` run with all
    that they send."""

    tensors: frozenset[str]
    reruns: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()

    def rerun_share(self, operator: Operator, sizes: Mapping[str, int]) -> float:
        """Share of an operator's forward pass that runs again, under local sizes.

        Of a projection with several outputs, each a product of its own where products are told apart, those not kept.
        """
        if operator.name not in self.reruns:
            return 0.0
        if operator.kind is not OperatorKind.MATMUL or operator.name in self.whole:
            return 1.0
        dropped = sum(t.elements(sizes) for t in operator.outputs if t.name not in self.tensors)
        return dropped / sum(tensor.elements(sizes) for tensor in operator.outputs)


def kept_tensors(
    block: Block,
    mode: Recompute,
    selective: SelectiveRecompute = SelectiveRecompute.ATTENTION_AND_NORMS,
    modules: Collection[str] = USUAL_MODULES,
) -> KeptTensors:
    """Return the tensors that a block keeps under a mode that does not run the whole block again; ``selective`` is the meaning
    that its framework gives to selective recomputation, ``modules`` are what fine-grained recomputation runs again."""
    match mode:
        case Recompute.NONE:
            return KeptTensors(_saved(block))
        case Recompute.FINE_GRAINED:
            return _of_modules(block, modules)
        case Recompute.SELECTIVE if selective is SelectiveRecompute.EVERY_SECOND_PRODUCT:
            return _every_second_product(block)
        case Recompute.SELECTIVE:
            return _of_modules(block, SELECTIVE_MODULES)
        case Recompute.FULL:
            return KeptTensors(frozenset(), frozenset(operator.name for operator in block.operators))


def _saved(block: Block) -> frozenset[str]:
    return frozenset(name for operator in block.operators for name in operator.saved)


def _of_modules(block: Block, modules: Collection[str]) -> KeptTensors:
    """Light modules, and operators that are named, give up what they wrote; of other modules goes what they alone keep, and all
    of them runs again.

    Kept besides are tensors that nothing saved, but that what runs again reads: the rotary key of latent attention, or what
    enters the block.
    """
    saved = _saved(block)
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}
    light, whole = (
        frozenset[str]().union(
            *(operators_of(block, module) for module in modules if (module in _LIGHT or is_operator(module)) is is_light)
        )
        for is_light in (True, False)
    )
    light -= whole
    kept_outside = {name for operator in block.operators if operator.name not in whole for name in operator.saved}
    dropped = {
        name
        for name in saved
        if name in writer and (writer[name].name in light or (writer[name].name in whole and name not in kept_outside))
    }
    kept, reruns, waiting = set(saved) - dropped, set[str](), [writer[name] for name in dropped]
    waiting += [operator for operator in block.operators if operator.name in whole]
    while waiting:
        operator = waiting.pop()
        if operator.name in reruns:
            continue
        reruns.add(operator.name)
        for tensor in operator.inputs:
            source = writer.get(tensor.name)
            if tensor.name not in kept and source is not None and source.name in light | whole:
                waiting.append(source)
            else:
                kept.add(tensor.name)
    named = frozenset[str]().union(*(operators_of(block, module) for module in modules if is_operator(module)))
    # What an operator that is named reads and writes is sent again.
    return KeptTensors(frozenset(kept), frozenset(reruns), whole | (named & reruns))


_LIGHT = frozenset(USUAL_MODULES)
"""Modules of which what they wrote is dropped (Megatron-Core's CheckpointWithoutOutput); others are checkpoints, which keep
what they read."""


def rerunnable(block: Block) -> tuple[str, ...]:
    """Return the operators of a block that can run again by themselves, as block/operator: not scans and convolutions, which
    keep the states that they began with, nor what exchanges tokens with experts."""
    if not recomputable(block):
        return ()
    exchanging = {name for name, _ in expert_region(block.operators).exchanged}
    fixed = (OperatorKind.SCAN, OperatorKind.CONVOLUTION)
    kept = (operator.name for operator in block.operators if operator.kind not in fixed and operator.name not in exchanging)
    return tuple(name for name in (f"{block.name}/{each}" for each in kept) if "+" not in name)


def operators_of(block: Block, module: str) -> frozenset[str]:
    """Return the operators of a block's module, or the one that is named; none where it has no such module."""
    if is_operator(module):
        return frozenset({module.removeprefix(f"{block.name}/")} if module in rerunnable(block) else ())
    known = RecomputeModule(module)
    match known:
        case RecomputeModule.LAYERNORM:
            return _of_kind(block, OperatorKind.NORM)
        case RecomputeModule.CORE_ATTN:
            return _of_kind(block, OperatorKind.ATTENTION)
        case RecomputeModule.MOE_ACT:
            return expert_activations(block)
        case RecomputeModule.MLA_UP_PROJ:
            return latent_up_projections(block)
        case RecomputeModule.MLP | RecomputeModule.MOE | RecomputeModule.SHARED_EXPERTS:
            dims = DIMS_OF_MODULES[known]
            return frozenset(operator.name for operator in block.operators if dims & operator.dims)


def _of_kind(block: Block, kind: OperatorKind) -> frozenset[str]:
    return frozenset(operator.name for operator in block.operators if operator.kind is kind)


def modules_of(model: ModelGraph) -> tuple[RecomputeModule, ...]:
    """Return the modules that layers of a model have."""
    layers = [block for block in model.blocks if recomputable(block)]
    return tuple(module for module in RecomputeModule if any(operators_of(block, module) for block in layers))


def operators_again(model: ModelGraph) -> tuple[str, ...]:
    """Return the operators of a model that can run again by themselves, as block/operator."""
    return tuple(name for block in model.blocks for name in rerunnable(block))


def expert_activations(block: Block) -> frozenset[str]:
    """Activation functions between the products of routed experts."""
    region = expert_region(block.operators)
    return frozenset(
        operator.name
        for operator in block.operators
        if operator.name in region.operators and operator.kind is OperatorKind.ELEMENTWISE
    )


def latent_up_projections(block: Block) -> frozenset[str]:
    """Products of a normed latent, narrower than the residual stream, that attention reads, and what lies between."""
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}
    found: set[str] = set()
    for attention in (operator for operator in block.operators if operator.kind is OperatorKind.ATTENTION):
        for source in (writer[tensor.name] for tensor in attention.inputs if tensor.name in writer):
            if source.kind is OperatorKind.ELEMENTWISE:
                products = {writer[t.name].name for t in source.inputs if t.name in writer and _expands_latent(block, t.name)}
                found |= products | ({source.name} if products else set())
            elif _expands_latent(block, source.outputs[0].name):
                found.add(source.name)
    return frozenset(found)


def _expands_latent(block: Block, name: str) -> bool:
    """Return True if a tensor is the product of a norm's output that the norm reads from another product."""
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}
    product = writer[name]
    normed = writer.get(product.inputs[0].name)
    if product.kind is not OperatorKind.MATMUL or normed is None or normed.kind is not OperatorKind.NORM:
        return False
    latent = writer.get(normed.inputs[0].name)
    return latent is not None and latent.kind is OperatorKind.MATMUL


def _every_second_product(block: Block) -> KeptTensors:
    """Kept are the first, third, fifth ... product of the block and what attention wrote; all else runs again."""
    written = [tensor.name for operator in block.operators for tensor in operator.outputs]
    products = [t.name for operator in block.operators if operator.kind is OperatorKind.MATMUL for t in operator.outputs]
    attended = [t.name for operator in block.operators if operator.kind is OperatorKind.ATTENTION for t in operator.outputs]
    kept = frozenset(products[::2]) | frozenset(attended) | (_saved(block) - frozenset(written))
    reruns = frozenset(op.name for op in block.operators if any(t.name not in kept for t in op.outputs))
    return KeptTensors(kept, reruns)


def recomputable(block: Block) -> bool:
    """Return True if launchers can recompute the block: layers yes, the embedding and the block with the loss no."""
    return not any(operator.kind in (OperatorKind.EMBEDDING, OperatorKind.LOSS) for operator in block.operators)


# Bytes that a block keeps of each saved tensor under each recompute mode, in the form that its framework keeps it.


@dataclass(frozen=True)
class KeptBytes:
    """Bytes kept for an element of each tensor, by recompute mode and name.

    tensors   what each mode keeps and runs again
    inputs    bytes kept for an element of the block's own input; 0 where it is token ids
    """

    rules: SavingRules
    tensors: Mapping[Recompute, KeptTensors]
    by_mode: Mapping[Recompute, Mapping[str, float]]
    inputs: Mapping[Recompute, float]


PARTIAL_MODES = (Recompute.NONE, Recompute.FINE_GRAINED, Recompute.SELECTIVE)
"""Recompute modes that keep some of what a block writes."""


@lru_cache(maxsize=512)
def kept_bytes(
    block: Block,
    dtype: DType,
    implementation: Implementation,
    recipe: MatmulRecipe,
    saved: SavedFormat = SavedFormat.WORKING,
    *,
    cp: int = 1,
    adapter: Adapter | None = None,
    modules: tuple[str, ...] = USUAL_MODULES,
) -> KeptBytes:
    """Return the bytes that a block keeps, with activations in ``dtype``, products by ``recipe``, saved tensors in the format
    ``saved``, attention over ``cp`` ranks, weights frozen beside an ``adapter``, and fine-grained recomputation of
    ``modules``."""
    block = replace(block, operators=without_frozen_inputs(block.operators, implementation, adapter))
    products = low_precision_products(block) if recipe.dtype or saved is SavedFormat.FP8 else frozenset()
    rules = SavingRules(
        dtype,
        implementation.kernels,
        products,
        recipe,
        implementation.loss,
        saved,
        implementation.projections,
        cp,
        implementation.value,
        implementation.attention_format if recipe.dtype else AttentionFormat.WORKING,
        implementation.trained,
        implementation.gated_inputs,
    )
    tensors = {mode: kept_tensors(block, mode, implementation.selective, modules) for mode in PARTIAL_MODES}
    by_mode = {
        mode: saved_element_bytes(block.operators, rules, kept=each.tensors, rerun=each.reruns)
        for mode, each in tensors.items()
    }
    return KeptBytes(rules, tensors, by_mode, {mode: _of_input(block, each) for mode, each in by_mode.items()})


def low_precision_products(block: Block) -> frozenset[str]:
    """Products that a low-precision recipe casts: those of layers, also of layers that predict more tokens beside the head, but
    not the router's, which chooses experts."""
    if _is_first(block):
        return frozenset()
    experts = expert_region(block.operators).dims
    return frozenset(
        operator.name
        for operator in (block.operators if recomputable(block) else module_operators(block))
        if operator.kind is OperatorKind.MATMUL and not any(experts & set(tensor.dims) for tensor in operator.outputs)
    )


def _is_first(block: Block) -> bool:
    kinds = {operator.kind for operator in block.operators}
    return OperatorKind.EMBEDDING in kinds and OperatorKind.LOSS not in kinds


def _of_input(block: Block, sizes: Mapping[str, float]) -> float:
    """Bytes an element of the residual stream that enters the block; token ids are no activations."""
    if _is_first(block):
        return 0.0
    written = {tensor.name for operator in block.operators for tensor in operator.outputs}
    return max((size for name, size in sizes.items() if name not in written), default=0.0)


# Bytes of tensors on a block's borders and at work inside it, on one device of a stage.


def working_bytes(graph: ModelGraph, block: Block, setting: BlockSetting) -> float:
    """Bytes of gradients that a block's widest operator has at once, of its inputs and outputs, on one of tp ranks.

    Launchers split what is wide (feed-forward, heads); the loss has its own rule (`Criterion.TRANSIENT_BYTES`).
    """
    sizes = {**graph.dims, BATCH: setting.microbatch, SEQ: setting.seq_len // setting.cp}
    routed = expert_region(block.operators).operators
    elements = (
        sum(tensor.elements(sizes) for tensor in (*operator.inputs, *operator.outputs))
        * (setting.expert_load if operator.name in routed else 1.0)
        for operator in block.operators
        if operator.kind not in (OperatorKind.LOSS, OperatorKind.EMBEDDING) and VOCAB not in operator.dims
    )
    # A packed weight is unpacked while a product reads it.
    made = [] if setting.adapter is None else [setting.adapter.made_at_once(operator, sizes) for operator in block.operators]
    return (max(elements, default=0.0) / setting.tp + max(made, default=0)) * setting.dtype.size_bytes


def boundary_bytes(graph: ModelGraph, setting: BlockSetting) -> float:
    """Bytes a rank holds of the residual stream between two blocks."""
    elements = setting.microbatch * (setting.seq_len // setting.cp) * graph.dims[HIDDEN]
    share = setting.tp if setting.boundary.kind is SpecKind.SHARDED else 1
    return elements * setting.dtype.size_bytes / share


def chunk_buffer_bytes(graph: ModelGraph, setting: BlockSetting) -> float:
    """Bytes of buffers that stay for products whose gathers and scatters run in chunks beside them."""
    chunker = CHUNKERS.get(setting.implementation.tensor_overlap)
    if chunker is None or setting.tp == 1 or setting.boundary.kind is not SpecKind.SHARDED:
        return 0.0
    return chunker.buffer_bytes(setting.tp * boundary_bytes(graph, setting), setting.tp)
