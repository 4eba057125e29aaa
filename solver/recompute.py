"""Which saved activations of a block each recompute mode drops, and what is run again for them.

NONE keeps every saved tensor. SELECTIVE drops what attention cores and norms wrote, where their own inputs are kept, so no
matrix multiplication runs twice (Korthikanti et al., MLSys'23, section 5; Megatron-LM's recompute modules core_attn and
layernorm). FULL keeps the block's input and runs the whole forward pass again.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.operators import OperatorKind
from solver.graph import Block

_RERUN_BY_SELECTIVE = (OperatorKind.ATTENTION, OperatorKind.NORM)


@dataclass(frozen=True, slots=True)
class KeptTensors:
    """Names of tensors kept under each mode, and the operators that selective recomputation runs again."""

    none: frozenset[str]
    selective: frozenset[str]
    selective_reruns: frozenset[str]


def kept_tensors(block: Block) -> KeptTensors:
    """What a block keeps. A tensor is dropped only if all inputs of its writer are kept, dropped likewise or the block's."""
    saved = frozenset(name for operator in block.operators for name in operator.saved)
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}

    def obtainable(name: str) -> bool:
        """Whether backward can have the tensor without a matrix multiplication; operators form no cycle, so this ends."""
        return name not in writer or name in saved or rebuildable(name)

    def rebuildable(name: str) -> bool:
        return writer[name].kind in _RERUN_BY_SELECTIVE and all(obtainable(tensor.name) for tensor in writer[name].inputs)

    dropped = frozenset(name for name in saved if name in writer and rebuildable(name))
    return KeptTensors(none=saved, selective=saved - dropped, selective_reruns=_reruns(block, dropped, saved))


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
