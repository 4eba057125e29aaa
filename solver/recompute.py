"""Which saved activations of a block each recompute mode drops, and what is run again for them.

NONE keeps every saved tensor. SELECTIVE drops what a vector or attention operator can rebuild from kept tensors, so no
matrix multiplication runs twice (Korthikanti et al., MLSys'23, section 5, generalised from the attention core to every
cheap operator). FULL keeps the block's input and runs the whole forward pass again.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.operators import OperatorKind
from solver.graph import Block

_CHEAP = (OperatorKind.ATTENTION, OperatorKind.NORM, OperatorKind.ELEMENTWISE)


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
    rebuilt: dict[str, bool] = {}

    def available(name: str) -> bool:
        """Whether backward can have the tensor without a matrix multiplication: kept anyway, or rebuilt."""
        if name not in writer:
            return True
        if writer[name].kind not in _CHEAP:
            return name in saved
        return rebuildable(name)

    def rebuildable(name: str) -> bool:
        if name not in rebuilt:
            # Operators form no cycle (Block checks), so this ends.
            rebuilt[name] = writer[name].kind in _CHEAP and all(available(t.name) for t in writer[name].inputs)
        return rebuilt[name] or name in saved and writer[name].kind not in _CHEAP

    dropped = frozenset(name for name in saved if name in writer and writer[name].kind in _CHEAP and rebuildable(name))
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
