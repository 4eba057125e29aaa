"""The implementation that a request states: a framework's profile by name, and the fields in which the user's run differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.model.dims import BATCH, HIDDEN, SEQ
from meshwright.costmodels.model.implementation import (
    AdapterTarget,
    AttentionFormat,
    AttentionKernels,
    Dropout,
    FlashAttention,
    FrozenWeights,
    GatedInputs,
    GatedProducts,
    GradientReduction,
    HeadGradients,
    HostPath,
    Implementation,
    Logits,
    LossKernels,
    Projections,
    ScanKernels,
    ScanOverRanks,
    SelectiveRecompute,
    StateBuffers,
    TensorOverlap,
    TrainedWeights,
    ValueStorage,
    VectorKernels,
)
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor
from meshwright.costmodels.units import STRICT_RECORD, Name, NonNegativeInt
from meshwright.solver.problem.graph import Block, ModelGraph


@dataclass(frozen=True, slots=True)
class StatedImplementation:
    """The way in which the user's framework runs the training.

    A field that is left out is as the profile has it; without a profile, as the launcher of the search runs it.

    profile             name of a framework's profile
    kernels             kernels of norms, rotary embeddings, gated activations, dropout and residual sums
    stated_loss         kernels of the cross entropy
    attention_kernels   whether attention is one kernel
    attention           generation of that kernel
    attention_format    number format of its products
    dropout             whether dropout keeps masks
    selective           what selective recomputation runs again
    host                the host's work for each operator
    trained             whether all weights are trained, or adapters beside them
    adapter_targets     projections that have one; none given: each product
    frozen_weights      how weights lie that are not trained
    scan                kernels of state-space mixers
    scan_over_ranks     how ranks of a sequence share such a mixer
    logits              the logits that the loss reads
    tensor_overlap      communication over tp that runs under computation
    projections         whether queries, keys and values are one product
    gated               products by which a gated feed-forward network reads its input
    gated_inputs        number format in which that network keeps the inputs of its activation function
    value               what attention keeps of its value
    reduction           when gradients travel that are summed once a step
    head_gradients      when weight gradients of the head are computed
    state_buffers       buffers beside the training state
    context_bytes       what a process takes on its device without any tensors
    memory              memory of a run over what is counted of it: medians and spread
    """

    __pydantic_config__ = STRICT_RECORD

    profile: Name | None = None
    kernels: VectorKernels | None = None
    stated_loss: LossKernels | None = None
    attention_kernels: AttentionKernels | None = None
    attention: FlashAttention | None = None
    attention_format: AttentionFormat | None = None
    dropout: Dropout | None = None
    selective: SelectiveRecompute | None = None
    host: HostPath | None = None
    trained: TrainedWeights | None = None
    adapter_targets: tuple[AdapterTarget, ...] | None = None
    frozen_weights: FrozenWeights | None = None
    scan: ScanKernels | None = None
    scan_over_ranks: ScanOverRanks | None = None
    logits: Logits | None = None
    tensor_overlap: TensorOverlap | None = None
    projections: Projections | None = None
    gated: GatedProducts | None = None
    gated_inputs: GatedInputs | None = None
    value: ValueStorage | None = None
    reduction: GradientReduction | None = None
    head_gradients: HeadGradients | None = None
    state_buffers: StateBuffers | None = None
    context_bytes: NonNegativeInt | None = None
    memory: MemoryLaw | None = None

    def over(self, launchers: Implementation) -> Implementation:
        """The implementation with all fields decided, ``launchers`` being that of the search's launcher.

        Raises WorkloadError for an unknown profile. A profile is looked up only where it decides something, so that a
        request with every field stated can be read when its profile is gone.
        """
        stated = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}
        if self.profile is None or len(stated) == len(_FIELDS):
            return replace(launchers, **stated)
        return replace(implementation_profile(self.profile).implementation, **stated)

    def decided(self, launchers: Implementation) -> StatedImplementation:
        """The same with every field stated: a request keeps its meaning when a profile changes."""
        whole = self.over(launchers)
        decided = {name: getattr(whole, name) for name in _FIELDS} | {"stated_loss": whole.loss}
        return StatedImplementation(profile=self.profile, **decided)


_FIELDS = tuple(field.name for field in fields(Implementation))


# Attention without a fused kernel, and dropout: the same model graph with the tensors that then go through memory.

_HALF_KEYS, _HALF_HIDDEN, _DOUBLE_KEYS = "half_keys", "half_hidden", "double_keys"
"""Dims of dropout masks, one byte an element being half an element of 16 bits, and of scores in fp32, two of them."""

_RESIDUAL_ENDING = "_residual"


def without_fused_attention(
    graph: ModelGraph, *, seq_len: int, dropout: Dropout, kernels: AttentionKernels = AttentionKernels.UNFUSED
) -> ModelGraph:
    """The graph with each attention as scores, softmax, dropout and the product with the values, all through memory.

    Both products are memory-bound: they do 2 d_h FLOPs for each score of 2 bytes, below the ridge of an A100 up to a head
    dimension of 150. Kept for backward are the softmax, its mask and what dropout leaves: 5 a s^2 b bytes (Korthikanti et
    al., MLSys'23, section 4.1). Kernels of the causal mask compute all pairs. Step by step, the softmax is kept in fp32, and
    again as the product reads it. A graph without fused attention is returned as it is. Raises ModelError for attention that
    reads more than queries, keys and values.
    """
    if not any(op.kind is OperatorKind.ATTENTION for block in graph.blocks for op in block.operators):
        return graph
    dims = {**graph.dims, _HALF_KEYS: max(1, seq_len // 2), _DOUBLE_KEYS: 2 * seq_len}
    blocks = tuple(
        replace(block, operators=tuple(step for op in block.operators for step in _unfused(op, dropout, kernels)))
        for block in graph.blocks
    )
    return replace(graph, dims=dims, blocks=blocks)


def with_dropout(graph: ModelGraph) -> ModelGraph:
    """The graph with the masks of dropout before each residual sum, one byte an element (the same paper, section 4.1).

    Bias, dropout and sum are one kernel, so nothing else goes through memory. A graph that has them is returned as it is.
    """
    if HIDDEN not in graph.dims or _HALF_HIDDEN in graph.dims:
        return graph
    dims = {**graph.dims, _HALF_HIDDEN: max(1, graph.dims[HIDDEN] // 2)}
    return replace(graph, dims=dims, blocks=tuple(_masked(block) for block in graph.blocks))


def _masked(block: Block) -> Block:
    return replace(block, operators=tuple(_with_mask(op) for op in block.operators))


def _with_mask(operator: Operator) -> Operator:
    if operator.kind is not OperatorKind.ELEMENTWISE or not operator.name.endswith(_RESIDUAL_ENDING):
        return operator
    mask = Tensor(f"{operator.name}_mask", (BATCH, SEQ, _HALF_HIDDEN))
    if mask.name in operator.saved:
        return operator
    return replace(operator, outputs=(*operator.outputs, mask), saved=(*operator.saved, mask.name))


def _unfused(operator: Operator, dropout: Dropout, kernels: AttentionKernels) -> Iterator[Operator]:
    if operator.kind is not OperatorKind.ATTENTION:
        yield operator
        return
    if len(operator.inputs) != 3:
        raise ModelError(
            "this attention has no cost model without a fused kernel",
            given=operator.name,
            allowed="attention of a query, a key and a value",
            remedy="leave implementation.attention_kernels out",
        )
    query, key, value = operator.inputs
    pairs = (BATCH, query.dims[2], SEQ, SEQ)
    scores, probs = Tensor("scores", pairs), Tensor("probs", pairs)
    yield _vector("scores", (query, key), (scores,), saved=(query.name, key.name))
    if kernels is AttentionKernels.UNFUSED:
        yield _vector("softmax", (scores,), (probs,), saved=(probs.name,))
    else:
        in_fp32 = (*pairs[:3], _DOUBLE_KEYS)
        cast, masked, normed = (Tensor(name, in_fp32) for name in ("scores_fp32", "scores_masked", "probs_fp32"))
        yield _vector("scores_cast", (scores,), (cast,), saved=())
        yield _vector("scores_mask", (cast,), (masked,), saved=())
        yield _vector("softmax", (masked,), (normed,), saved=(normed.name,))
        yield _vector("probs_cast", (normed,), (probs,), saved=(probs.name,))
    if dropout is Dropout.MASKED:
        dropped, mask = Tensor("probs_dropped", pairs), Tensor("probs_mask", (*pairs[:3], _HALF_KEYS))
        yield _vector("attention_dropout", (probs,), (dropped, mask), saved=(dropped.name, mask.name))
        probs = dropped
    yield _vector("context", (probs, value), operator.outputs, saved=(value.name, operator.outputs[0].name))


def _vector(name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], *, saved: tuple[str, ...]) -> Operator:
    # Of kind norm, because selective recomputation runs attention cores again, softmax and dropout included.
    return Operator(name, OperatorKind.NORM, inputs, outputs, saved=saved)
