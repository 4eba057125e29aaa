"""The meshes that can split a sequence over context-parallel ranks: rings, exchanges of heads, and state-space mixers."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costmodels.model.dims import HEADS, KV_HEADS, SEQ, SSM_GROUPS, SSM_HEADS
from meshwright.costmodels.model.implementation import ScanOverRanks
from meshwright.costmodels.model.operators import Operator, OperatorKind, key_tokens, query_tokens
from meshwright.costmodels.network.scan_over_ranks import way_of_scan
from meshwright.solver.problem.graph import ModelGraph


def has_scans(model: ModelGraph) -> bool:
    """Return True if the model has state-space mixers."""
    return any(operator.kind is OperatorKind.SCAN for operator in _operators(model))


def sequence_parts(model: ModelGraph) -> int:
    """Parts of its sequence that a context-parallel rank has: an early and a late one, which balances causal attention
    (zig-zag), and one of a model without attention."""
    return 2 if any(operator.kind is OperatorKind.ATTENTION for operator in _operators(model)) else 1


def sequence_fits(model: ModelGraph, seq_len: int, *, tp: int, cp: int, scans: ScanOverRanks | None) -> bool:
    """Return True if cp ranks can split the sequence beside tp: into equal parts, and by ``scans`` (None: not at all) where
    there are state-space mixers. Of convolutions only those before such a scan go along."""
    if cp == 1:
        return True
    kinds = {operator.kind for operator in _operators(model)}
    if not kinds & {OperatorKind.ATTENTION, OperatorKind.SCAN} or seq_len % (sequence_parts(model) * cp):
        return False
    mixers = [block for block in model.blocks if any(op.kind is OperatorKind.CONVOLUTION for op in block.operators)]
    if any(all(op.kind is not OperatorKind.SCAN for op in block.operators) for block in mixers):
        return False
    of_kind = [operator for operator in _operators(model) if operator.kind is OperatorKind.SCAN]
    return all(scans is not None and _scan_splits(model, scan, scans, tp=tp, cp=cp) for scan in of_kind)


def _scan_splits(model: ModelGraph, scan: Operator, offered: ScanOverRanks, *, tp: int, cp: int) -> bool:
    """A scan in chunks whose states pass, or whose heads divide; of its groups the ranks have equal numbers, or copies."""
    if scan.chunk is None:
        return False
    if way_of_scan(scan, offered) is ScanOverRanks.STATES:
        return True
    if model.dims.get(SSM_HEADS, 0) % (tp * cp) or not any(SSM_HEADS in tensor.dims for tensor in scan.inputs):
        return False
    # Of the free space's strategies some split groups over tp, some do not.
    groups = model.dims.get(SSM_GROUPS, cp)
    return all(have % cp == 0 or cp % have == 0 for have in (groups, max(1, groups // tp)))


def heads_fit(model: ModelGraph, *, tp: int, cp: int, ulysses: int) -> bool:
    """Return True if every attention's heads, and key/value heads, can be exchanged evenly beside tp. That is for attention of
    a sequence to itself, with keys as wide as values (Transformer Engine's a2a refuses latent attention)."""
    if ulysses <= 1:
        return ulysses == 1
    attention = [operator for operator in _operators(model) if operator.kind is OperatorKind.ATTENTION]
    return (
        bool(attention)
        and cp % ulysses == 0
        and all(
            _splits_evenly(model, operator, tp * ulysses)
            and query_tokens(operator) == key_tokens(operator) == SEQ
            and len({model.dims[tensor.dims[-1]] for tensor in operator.inputs[1:]}) == 1
            for operator in attention
        )
    )


def _splits_evenly(model: ModelGraph, attention: Operator, parts: int) -> bool:
    """Return True if queries, keys and values all have heads, in numbers that divide into so many parts."""
    heads = [{HEADS, KV_HEADS} & set(tensor.dims) for tensor in attention.inputs]
    return all(heads) and all(model.dims[dim] % parts == 0 for dims in heads for dim in dims)


def _operators(model: ModelGraph) -> Iterator[Operator]:
    return (operator for block in model.blocks for operator in block.operators)
