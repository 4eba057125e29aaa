"""The saved activations of a block that each recompute mode drops, and the operators that run again for them.

NONE keeps every saved tensor. SELECTIVE drops what attention cores and norms wrote, where their own inputs are kept, so no
matrix multiplication runs twice (Korthikanti et al., MLSys'23, section 5; Megatron-LM's recompute modules core_attn and
layernorm); a framework may mean something else by it (`SelectiveRecompute`). FINE_GRAINED drops what norms, the activation
functions of routed experts and the up-projections of latent attention wrote, and attention's inputs that follow from those
(DeepSeek-V3 report, section 3.2.3; Megatron-LM's modules layernorm, moe_act and mla_up_proj). FULL keeps the block's input
and runs the whole forward pass again.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from meshwright.solver.problem.graph import Block, ModelGraph
from meshwright.solver.problem.token_prediction import module_operators

_RERUN_BY_SELECTIVE = (OperatorKind.ATTENTION, OperatorKind.NORM)


@dataclass(frozen=True, slots=True)
class KeptTensors:
    """Names of tensors that a recompute mode keeps, and of the operators that it runs again."""

    tensors: frozenset[str]
    reruns: frozenset[str] = frozenset()

    def rerun_share(self, operator: Operator, sizes: Mapping[str, int]) -> float:
        """Share of an operator's forward pass that runs again, under local sizes.

        Of a projection with several outputs, each a product of its own where products are told apart, those not kept.
        """
        if operator.name not in self.reruns:
            return 0.0
        if operator.kind is not OperatorKind.MATMUL:
            return 1.0
        dropped = sum(t.elements(sizes) for t in operator.outputs if t.name not in self.tensors)
        return dropped / sum(tensor.elements(sizes) for tensor in operator.outputs)


def kept_tensors(
    block: Block, mode: Recompute, selective: SelectiveRecompute = SelectiveRecompute.ATTENTION_AND_NORMS
) -> KeptTensors:
    """Return the tensors that a block keeps under a mode that does not run the whole block again; ``selective`` is the meaning
    that its framework gives to selective recomputation."""
    match mode:
        case Recompute.NONE:
            return KeptTensors(_saved(block))
        case Recompute.FINE_GRAINED:
            return _fine_grained(block)
        case Recompute.SELECTIVE if selective is SelectiveRecompute.EVERY_SECOND_PRODUCT:
            return _every_second_product(block)
        case Recompute.SELECTIVE:
            return _attention_and_norms(block)
        case Recompute.FULL:
            return KeptTensors(frozenset(), frozenset(operator.name for operator in block.operators))


def _saved(block: Block) -> frozenset[str]:
    return frozenset(name for operator in block.operators for name in operator.saved)


def _attention_and_norms(block: Block) -> KeptTensors:
    """A tensor is dropped only if all inputs of its writer are kept, dropped likewise or the block's."""
    saved = _saved(block)
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}

    def obtainable(name: str) -> bool:
        """Return True if backward can have the tensor without a matrix multiplication; operators form no cycle, so this
        ends."""
        return name not in writer or name in saved or rebuildable(name)

    def rebuildable(name: str) -> bool:
        return writer[name].kind in _RERUN_BY_SELECTIVE and all(obtainable(tensor.name) for tensor in writer[name].inputs)

    dropped = frozenset(name for name in saved if name in writer and rebuildable(name))
    return KeptTensors(saved - dropped, _reruns(block, dropped, saved))


def _fine_grained(block: Block) -> KeptTensors:
    """Kept besides are tensors that nothing saved, but that what runs again reads: the rotary key of latent attention."""
    saved = _saved(block)
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}
    light = {operator.name for operator in block.operators if operator.kind is OperatorKind.NORM}
    light |= expert_activations(block) | latent_up_projections(block)
    wanted = [name for name in saved if name in writer and writer[name].name in light]
    kept, reruns = set(saved) - set(wanted), set[str]()
    while wanted:
        operator = writer[wanted.pop()]
        if operator.name in reruns:
            continue
        reruns.add(operator.name)
        for tensor in operator.inputs:
            if tensor.name not in kept and tensor.name in writer:
                if writer[tensor.name].name in light:
                    wanted.append(tensor.name)
                else:
                    kept.add(tensor.name)
    return KeptTensors(frozenset(kept), frozenset(reruns))


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


def _reruns(block: Block, dropped: frozenset[str], saved: frozenset[str]) -> frozenset[str]:
    """Writers of dropped tensors, and of unsaved tensors that those need."""
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}
    kept = saved - dropped
    wanted, found = list(dropped), set()
    while wanted:
        name = wanted.pop()
        if name in kept or name not in writer or writer[name].name in found:
            continue
        found.add(writer[name].name)
        wanted += [tensor.name for tensor in writer[name].inputs]
    return frozenset(found)


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
) -> KeptBytes:
    """Return the bytes that a block keeps, with activations in ``dtype``, products by ``recipe``, saved tensors in the format
    ``saved``, attention over ``cp`` ranks, and weights frozen beside an ``adapter``."""
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
    tensors = {mode: kept_tensors(block, mode, implementation.selective) for mode in PARTIAL_MODES}
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
