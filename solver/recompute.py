"""Which saved activations of a block each recompute mode drops, and what is run again for them.

NONE keeps every saved tensor. SELECTIVE drops what attention cores and norms wrote, where their own inputs are kept, so no
matrix multiplication runs twice (Korthikanti et al., MLSys'23, section 5; Megatron-LM's recompute modules core_attn and
layernorm); a framework may mean something else by it (`SelectiveRecompute`). FULL keeps the block's input and runs the whole
forward pass again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodels.implementation import SelectiveRecompute
from costmodels.operators import Operator, OperatorKind
from solver.graph import Block

_RERUN_BY_SELECTIVE = (OperatorKind.ATTENTION, OperatorKind.NORM)


@dataclass(frozen=True, slots=True)
class KeptTensors:
    """Names of tensors kept under each mode, and the operators that selective recomputation runs again."""

    none: frozenset[str]
    selective: frozenset[str]
    selective_reruns: frozenset[str]

    def rerun_share(self, operator: Operator, sizes: Mapping[str, int]) -> float:
        """Share of an operator's forward pass that selective recomputation runs again, under local sizes.

        Of a projection with several outputs, each a product of its own where products are told apart, those not kept.
        """
        if operator.name not in self.selective_reruns:
            return 0.0
        if operator.kind is not OperatorKind.MATMUL:
            return 1.0
        dropped = sum(t.elements(sizes) for t in operator.outputs if t.name not in self.selective)
        return dropped / sum(tensor.elements(sizes) for tensor in operator.outputs)


def kept_tensors(block: Block, selective: SelectiveRecompute = SelectiveRecompute.ATTENTION_AND_NORMS) -> KeptTensors:
    """What a block keeps. A tensor is dropped only if all inputs of its writer are kept, dropped likewise or the block's."""
    if selective is SelectiveRecompute.EVERY_SECOND_PRODUCT:
        return _every_second_product(block)
    saved = frozenset(name for operator in block.operators for name in operator.saved)
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}

    def obtainable(name: str) -> bool:
        """Whether backward can have the tensor without a matrix multiplication; operators form no cycle, so this ends."""
        return name not in writer or name in saved or rebuildable(name)

    def rebuildable(name: str) -> bool:
        return writer[name].kind in _RERUN_BY_SELECTIVE and all(obtainable(tensor.name) for tensor in writer[name].inputs)

    dropped = frozenset(name for name in saved if name in writer and rebuildable(name))
    return KeptTensors(none=saved, selective=saved - dropped, selective_reruns=_reruns(block, dropped, saved))


def _every_second_product(block: Block) -> KeptTensors:
    """Kept are the first, third, fifth ... product of the block and what attention wrote; all else runs again."""
    saved = frozenset(name for operator in block.operators for name in operator.saved)
    written = [tensor.name for operator in block.operators for tensor in operator.outputs]
    products = [t.name for operator in block.operators if operator.kind is OperatorKind.MATMUL for t in operator.outputs]
    attended = [t.name for operator in block.operators if operator.kind is OperatorKind.ATTENTION for t in operator.outputs]
    kept = frozenset(products[::2]) | frozenset(attended) | (saved - frozenset(written))
    reruns = frozenset(op.name for op in block.operators if any(t.name not in kept for t in op.outputs))
    return KeptTensors(none=saved, selective=kept, selective_reruns=reruns)


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
    """Whether launchers can recompute the block: layers yes, the embedding and the block with the loss no."""
    return not any(operator.kind in (OperatorKind.EMBEDDING, OperatorKind.LOSS) for operator in block.operators)
