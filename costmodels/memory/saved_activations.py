"""Bytes that a framework keeps for the backward pass of each element of a saved tensor: follows from the kernels it runs.

A graph names what an operator needs again; the kernel decides in which form it is kept. One hand-written kernel keeps its
inputs. PyTorch's autograd keeps what each elementary kernel of a formula needs. A compiler keeps what it cannot make
again between two products. A product below 16 bits keeps the copy of its input that its weight gradient reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.costmodels.kernels.vector_traffic import VectorShape, vector_shape
from meshwright.costmodels.model.adapter import Adapter, BaseFormat, has_adapter
from meshwright.costmodels.model.dims import VOCAB
from meshwright.costmodels.model.formats import ATTENTION_OUTPUT_BYTES, MatmulRecipe, SavedFormat
from meshwright.costmodels.model.implementation import (
    AttentionFormat,
    GatedInputs,
    Implementation,
    LossKernels,
    Projections,
    TrainedWeights,
    ValueStorage,
    VectorKernels,
)
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.units import DType

_SINGLE = DType.FP32.size_bytes


@dataclass(frozen=True, slots=True)
class SavingRules:
    """The rules that decide the form of saved tensors: working format, kernels, which products (by name) run below 16 bits how,
    loss, the format asked for, how queries, keys and values are projected, over how many ranks (cp) attention splits a
    sequence, what keeping a value keeps, in which format attention computes, whether weights have gradients, and in which
    format a gated activation keeps its inputs."""

    dtype: DType
    kernels: VectorKernels = VectorKernels.FUSED
    low_precision: frozenset[str] = frozenset()
    recipe: MatmulRecipe = MatmulRecipe.WORKING
    loss: LossKernels = LossKernels.BY_HAND
    saved: SavedFormat = SavedFormat.WORKING
    projections: Projections = Projections.JOINT
    cp: int = 1
    value: ValueStorage = ValueStorage.OWN
    attention: AttentionFormat = AttentionFormat.WORKING
    trained: TrainedWeights = TrainedWeights.ALL
    gated_inputs: GatedInputs = GatedInputs.WORKING

    @property
    def eager_norms(self) -> bool:
        """True if norms are run step by step."""
        return self.kernels is VectorKernels.EAGER

    @property
    def eager_activations(self) -> bool:
        """True if gated activations are run step by step."""
        return self.kernels in (VectorKernels.EAGER, VectorKernels.FUSED_NORMS)

    def keeps_in_fp8(self, operator: Operator) -> bool:
        """Return True for attention that computes in fp8, which keeps the casts of its inputs and its output as it came."""
        return self.attention is AttentionFormat.FP8 and operator.kind is OperatorKind.ATTENTION

    def casts_to_keep(self, operator: Operator) -> bool:
        """Return True for a gated activation function whose inputs are cast to be kept."""
        return self.gated_inputs is GatedInputs.FP8 and vector_shape(operator) is VectorShape.GATED_ACTIVATION

    @property
    def low_bytes(self) -> float:
        """Bytes of an element that is kept in a low format."""
        needed = self.recipe.element_bytes(self.dtype)
        return needed if self.saved is SavedFormat.WORKING else min(needed, DType.FP8.size_bytes)


def saved_element_bytes(
    operators: Sequence[Operator], rules: SavingRules, *, kept: frozenset[str], rerun: frozenset[str] = frozenset()
) -> dict[str, float]:
    """Bytes kept for an element of each tensor of ``kept``; operators of ``rerun`` find their inputs as they were written."""
    as_written: set[str] = set()
    copies: dict[str, float] = dict.fromkeys(kept, 0.0)
    cast = _cast_for_saving(operators, rules)
    in_low_precision: set[str] = set()
    cast_again: set[str] = set()
    for operator in operators:
        for index, name in enumerate(dict.fromkeys(operator.saved)):
            if name not in kept:
                continue
            if operator.name in rules.low_precision or (operator.name, name) in cast:
                (cast_again if operator.name in rerun else in_low_precision).add(name)
            elif operator.name in rerun:
                as_written.add(name)
            elif rules.keeps_in_fp8(operator) or rules.casts_to_keep(operator):
                copies[name] += DType.FP8.size_bytes
            else:
                native, more = _kept_by_kernel(operator, rules, is_first=index == 0)
                copies[name] += more
                if native:
                    as_written.add(name)
    readers = {name for operator in operators for name in operator.saved}
    as_written |= kept - readers
    if _slices_stay(operators, rules):
        views = as_written if rules.cp == 1 else as_written - _kept_by_attention_alone(operators, rerun)
        as_written |= _in_one_storage(operators, views)
    # What runs again casts its input again, where that is kept for others.
    in_low_precision |= cast_again - as_written
    if rules.kernels is VectorKernels.COMPILED:
        dropped = _made_again_by_compiler(operators, kept)
        as_written, in_low_precision = as_written - dropped, in_low_precision - dropped
    if rules.saved is SavedFormat.FP8:
        attended = {t.name for op in operators if op.kind is OperatorKind.ATTENTION for t in op.outputs} & as_written
        as_written, in_low_precision = as_written - attended, in_low_precision - attended
        for name in attended:
            copies[name] += ATTENTION_OUTPUT_BYTES
    for name in as_written:
        copies[name] = copies.get(name, 0.0) + rules.dtype.size_bytes
    for name in in_low_precision:
        copies[name] += rules.low_bytes
    return copies


def without_frozen_inputs(
    operators: Sequence[Operator], implementation: Implementation, adapter: Adapter | None
) -> tuple[Operator, ...]:
    """Return operators that save what their gradients read: a product of frozen weights without an adapter reads no input."""
    trained, targets = implementation.trained, implementation.adapter_targets
    if trained is TrainedWeights.ALL:
        return tuple(operators)
    # An int8 product keeps its input whatever reads it (MatMul8bitLt of bitsandbytes).
    in_int8 = adapter is not None and adapter.base_format is BaseFormat.INT8
    return tuple(
        op if has_adapter(op, trained, adapter, targets) or (in_int8 and VOCAB not in op.dims) else _saving_no_input(op)
        for op in operators
    )


def _saving_no_input(operator: Operator) -> Operator:
    if operator.kind is not OperatorKind.MATMUL:
        return operator
    read = {tensor.name for tensor in operator.inputs}
    return replace(operator, saved=tuple(name for name in operator.saved if name not in read))


def _cast_for_saving(operators: Sequence[Operator], rules: SavingRules) -> set[tuple[str, str]]:
    """(activation function, input) pairs of which a copy in a low format is kept: inputs that a cast product wrote."""
    if rules.saved is SavedFormat.WORKING:
        return set()
    written = {tensor.name for op in operators if op.name in rules.low_precision for tensor in op.outputs}
    functions = (VectorShape.GATED_ACTIVATION, VectorShape.PLAIN_ACTIVATION)
    return {(op.name, name) for op in operators if vector_shape(op) in functions for name in op.saved if name in written}


def _kept_by_kernel(operator: Operator, rules: SavingRules, *, is_first: bool) -> tuple[bool, float]:
    """Return True if a kernel keeps a saved tensor as it was written, and the bytes an element of copies that it keeps
    besides."""
    match vector_shape(operator):
        case VectorShape.RMS_NORM if rules.eager_norms:
            # x in fp32, read by its square and by the product with 1/rms; the normed x in 16 bits, read by the weight's
            # product if that has a gradient. The 16-bit x itself is read by its cast alone, which keeps nothing.
            return False, _SINGLE + (rules.dtype.size_bytes if rules.trained is TrainedWeights.ALL else 0)
        case VectorShape.GATED_ACTIVATION if rules.eager_activations and is_first:
            # The activation's own output is an input of the product with the other half.
            return True, rules.dtype.size_bytes
        case VectorShape.LOSS if rules.loss is not LossKernels.COMPILED:
            # The softmax in fp32; the logits are not needed again.
            return False, _SINGLE
        case _:
            return True, 0.0


def _slices_stay(operators: Sequence[Operator], rules: SavingRules) -> bool:
    """Return True if parts of a fused projection's output are kept as slices of it; unfused attention copies them for its
    products."""
    by_attention = any(operator.kind is OperatorKind.ATTENTION for operator in operators)
    sliced = rules.kernels is VectorKernels.FUSED or (rules.value is ValueStorage.SLICE and by_attention)
    return sliced and rules.projections is Projections.JOINT


def _in_one_storage(operators: Sequence[Operator], as_written: set[str]) -> set[str]:
    """Outputs of a fused projection lie in one storage, which stays while one of them is kept: a value as it was written
    holds the query and key beside it, whose rotated copies are kept as well (Megatron-LM's linear_qkv)."""
    return {
        tensor.name
        for operator in operators
        if operator.kind is OperatorKind.MATMUL and any(tensor.name in as_written for tensor in operator.outputs)
        for tensor in operator.outputs
    }


def _kept_by_attention_alone(operators: Sequence[Operator], rerun: frozenset[str]) -> set[str]:
    """Tensors that nothing but attention of several ranks keeps, which keeps what it received from them: queries, keys and
    values in storage of their own (Transformer Engine's context_parallel.py). One that runs again keeps what it was given."""
    attention = {op.name for op in operators if op.kind is OperatorKind.ATTENTION and op.name not in rerun}
    kept = {name for op in operators if op.name in attention for name in op.saved}
    return kept - {name for op in operators if op.name not in attention for name in op.saved}


def _made_again_by_compiler(operators: Sequence[Operator], kept: frozenset[str]) -> set[str]:
    """Saved tensors that an element-wise operator or a norm writes from saved ones: made again where they are read."""
    written = {tensor.name for operator in operators for tensor in operator.outputs}
    found: set[str] = set()
    for operator in operators:
        if operator.kind not in (OperatorKind.NORM, OperatorKind.ELEMENTWISE):
            continue
        if all(tensor.name in kept - found or tensor.name not in written for tensor in operator.inputs):
            found |= {tensor.name for tensor in operator.outputs} & kept
    return found


def loss_transient_element_bytes(rules: SavingRules) -> float:
    """Bytes for each logit that live only while the loss runs, beside what it keeps.

    By hand: the 16-bit logits, later their gradient; in compiled parts the fp32 logits beside. Step by step: gradients of the
    log-softmax and of its input in fp32. Compiled as one: the gradient of the 16-bit logits.
    """
    match rules.loss:
        case LossKernels.BY_HAND | LossKernels.COMPILED:
            return rules.dtype.size_bytes
        case LossKernels.FUSED_IN_PARTS:
            return rules.dtype.size_bytes + _SINGLE
        case LossKernels.EAGER:
            return 2 * _SINGLE
