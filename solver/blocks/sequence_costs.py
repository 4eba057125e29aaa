"""The costs of operators along the sequence on the ranks that share it (context parallelism): attention and state-space
mixers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Device, GroupTopology
from meshwright.costmodels.kernels.operator_time import OperatorTime
from meshwright.costmodels.model.dims import SSM_GROUPS
from meshwright.costmodels.model.implementation import ScanOverRanks
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor
from meshwright.costmodels.network.context_parallel import head_exchange_s, ring_s, sizes_after_exchange
from meshwright.costmodels.network.scan_over_ranks import (
    exchanged_sizes,
    group_copies,
    margin_s,
    mixer_exchange_s,
    state_bytes,
    state_passing_s,
    way_of_scan,
)
from meshwright.costmodels.units import DType
from meshwright.solver.problem.graph import Block

_NOTHING = OperatorTime(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class SequenceRanks:
    """The ranks of a sequence: those that pass keys and values on, those that exchange heads in attention (None: no rank does),
    and all (``cp``) where a model has mixers. Each has ``parts`` of the sequence; mixers go by ``offered`` where they can."""

    ring: GroupTopology
    heads: GroupTopology | None
    cp: GroupTopology | None
    parts: int
    offered: ScanOverRanks
    device: Device
    dtype: DType

    def way(self, block: Block, operator: Operator) -> ScanOverRanks | None:
        """Return the way in which the ranks share a block's mixer, of which the operator is part; None for other operators, and
        without other ranks."""
        if self.cp is None or operator.kind not in (OperatorKind.SCAN, OperatorKind.CONVOLUTION):
            return None
        scan = next((each for each in block.operators if each.kind is OperatorKind.SCAN), None)
        return None if scan is None else way_of_scan(scan, self.offered)

    def attended_sizes(self, block: Block, operator: Operator, local: Mapping[str, int]) -> Mapping[str, int]:
        """Sizes that an operator along the sequence works on: after an exchange, more tokens and fewer heads."""
        if operator.kind is OperatorKind.ATTENTION:
            return sizes_after_exchange(local, 1 if self.heads is None else self.heads.n)
        if self.cp is None or self.way(block, operator) is not ScanOverRanks.HEADS:
            return local
        return exchanged_sizes(local, self.cp.n)

    def communication_s(
        self, block: Block, operator: Operator, local: Mapping[str, int], kernels: OperatorTime
    ) -> OperatorTime:
        """Exposed seconds of an operator's communication over the ranks, beside ``kernels`` of its own."""
        if operator.kind is OperatorKind.ATTENTION:
            return self._attention_s(operator, local, kernels)
        way = self.way(block, operator)
        if way is None or self.cp is None:
            return _NOTHING
        if operator.kind is OperatorKind.CONVOLUTION:
            if way is ScanOverRanks.HEADS:
                return _NOTHING
            return margin_s(operator, local, dtype=self.dtype, ranks=self.cp, parts=self.parts)
        if way is ScanOverRanks.HEADS:
            return mixer_exchange_s(operator, local, device=self.device, dtype=self.dtype, ranks=self.cp)
        return state_passing_s(operator, local, kernels, device=self.device, ranks=self.cp, parts=self.parts)

    def kept_bytes(self, block: Block, operator: Operator, local: Mapping[str, int]) -> float:
        """Bytes kept of the states that enter a rank's parts of the sequence, which the backward pass reads."""
        passes = operator.kind is OperatorKind.SCAN and self.way(block, operator) is ScanOverRanks.STATES
        return self.parts * state_bytes(operator, local) if passes else 0.0

    def copies(self, block: Block, tensor: Tensor, local: Mapping[str, int]) -> int:
        """Copies that ranks hold of a mixer's tensor after an exchange: of groups of B and C that are fewer than ranks."""
        if self.cp is None or SSM_GROUPS not in tensor.dims:
            return 1
        scan = next((each for each in block.operators if each.kind is OperatorKind.SCAN), None)
        exchanged = scan is not None and way_of_scan(scan, self.offered) is ScanOverRanks.HEADS
        return group_copies(local, self.cp.n) if exchanged else 1

    def _attention_s(self, operator: Operator, local: Mapping[str, int], kernels: OperatorTime) -> OperatorTime:
        parts = []
        if self.heads is not None:
            parts.append(head_exchange_s(operator, local, device=self.device, dtype=self.dtype, ranks=self.heads))
        if self.ring.n > 1:
            attended = sizes_after_exchange(local, 1 if self.heads is None else self.heads.n)
            parts.append(ring_s(operator, attended, kernels, dtype=self.dtype, ring=self.ring))
        return OperatorTime(sum(part.forward_s for part in parts), sum(part.backward_s for part in parts))
