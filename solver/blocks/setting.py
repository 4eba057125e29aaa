"""The inputs of a block's costs besides the block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property

from meshwright.costmodels.cluster.cluster import Device, GroupTopology
from meshwright.costmodels.kernels.operator_time import OperatorTime
from meshwright.costmodels.model.adapter import Adapter
from meshwright.costmodels.model.dims import SSM_GROUPS, WHOLE_SEQUENCE, TokenSlice, slices_of
from meshwright.costmodels.model.documents import PackedDocuments
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.model.implementation import HAND_FUSED, Implementation, ScanOverRanks
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor
from meshwright.costmodels.network.scan_over_ranks import (
    exchanged_sizes,
    gathered_keys_bytes,
    gathered_keys_s,
    group_copies,
    head_exchange_s,
    margin_s,
    mixer_exchange_s,
    ring_s,
    sizes_after_exchange,
    state_bytes,
    state_passing_s,
    way_of_scan,
)
from meshwright.costmodels.network.token_dispatch import DispatchFormat, TokenDispatch
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.tp_strategies import Spec
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.declared.constraints import Constraint
from meshwright.solver.problem.declared.operator_splits import OperatorSplit
from meshwright.solver.problem.declared.recompute_modules import USUAL_MODULES
from meshwright.solver.problem.graph import Block


@dataclass(frozen=True)
class BlockSetting:
    """Everything the costs of a block depend on besides the block.

    seq_len is the whole sequence; a rank holds seq_len / cp tokens of it. ``boundary`` is the layout of the residual
    stream between blocks; ``padded`` dims need not divide by tp; ``implementation`` is the framework's. Without an
    ``ep_topology`` each rank holds all experts, without a ``heads_topology`` all cp ranks are one ring; ``recipe`` is that
    of the products that `low_precision_products` names, ``saved`` the format of what is kept, ``expert_load`` the rows of the
    ep rank with the most over the mean. A model with scans has a ``cp_topology`` beside context parallelism, whose ranks have
    ``sequence_parts`` parts of the sequence each. ``dispatch`` is how tokens get to ranks with their experts, of
    which ``expert_tp`` share one: tp where it is None, or one, which works on its own part of the sequence. Of the passes of
    micro-batches ``paired`` run beside a pass of another, which hides their exchanges of tokens. A sequence that is
    cut into ``slices`` of tokens passes slice by slice; of one of these (`parts`) seq_len are its own tokens, and ``place`` is
    where they lie. Weights beside an ``adapter`` are frozen; ``documents`` are what sequences are packed of. The ranks of
    the ring gather keys and values before attention if ``gathers_keys``, else they pass them on. Operators have the shardings
    that ``constraints`` ask for. Fine-grained recomputation runs ``modules`` again. Operators may split ``splits`` over tp
    beside their dims.
    """

    device: Device
    tp_topology: GroupTopology
    ring_topology: GroupTopology
    dtype: DType
    gradient_dtype: DType
    microbatch: int
    seq_len: int
    boundary: Spec
    space: Space
    padded: frozenset[str] = frozenset()
    implementation: Implementation = HAND_FUSED
    ep_topology: GroupTopology | None = None
    heads_topology: GroupTopology | None = None
    recipe: MatmulRecipe = MatmulRecipe.WORKING
    saved: SavedFormat = SavedFormat.WORKING
    expert_load: float = 1.0
    cp_topology: GroupTopology | None = None
    sequence_parts: int = 2
    dispatch: TokenDispatch = TokenDispatch.COPIES
    dispatch_format: DispatchFormat = DispatchFormat.WORKING
    paired: float = 0.0
    expert_tp: int | None = None
    slices: tuple[int, ...] = ()
    place: TokenSlice = WHOLE_SEQUENCE
    adapter: Adapter | None = None
    documents: PackedDocuments | None = None
    gathers_keys: bool = False
    constraints: tuple[Constraint, ...] = ()
    modules: tuple[str, ...] = USUAL_MODULES
    splits: tuple[OperatorSplit, ...] = ()

    def __hash__(self) -> int:
        # Settings are parts of many cache keys, and have many parts themselves.
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self.tp_topology.n

    @property
    def cp(self) -> int:
        """Context-parallel degree."""
        return self.ring_topology.n * self.ulysses

    @property
    def ulysses(self) -> int:
        """Ranks that exchange tokens for heads."""
        return 1 if self.heads_topology is None else self.heads_topology.n

    @property
    def ep(self) -> int:
        """Expert-parallel degree."""
        return 1 if self.ep_topology is None else self.ep_topology.n

    @property
    def whole_experts(self) -> bool:
        """True if a rank holds whole experts beside tp."""
        return self.expert_tp is not None and self.expert_tp < self.tp

    @cached_property
    def alone(self) -> BlockSetting:
        """The same of micro-batches that run alone."""
        return replace(self, paired=0.0) if self.paired else self

    @property
    def sequence_ranks(self) -> SequenceRanks:
        """The ranks that share a sequence."""
        return SequenceRanks(
            ring=self.ring_topology,
            gathers_keys=self.gathers_keys,
            heads=self.heads_topology,
            cp=self.cp_topology,
            parts=self.sequence_parts,
            offered=self.implementation.scan_over_ranks,
            device=self.device,
            dtype=self.dtype,
        )

    @cached_property
    def parts(self) -> tuple[BlockSetting, ...]:
        """The settings of the token slices, first to last; itself where sequences pass whole."""
        if not self.slices:
            return (self,)
        places = zip(self.slices, slices_of(self.slices), strict=True)
        return tuple(replace(self, seq_len=tokens, slices=(), place=place) for tokens, place in places)

    @property
    def tokens_at_once(self) -> int:
        """Tokens of a sequence that pass a layer at once, on all ranks of cp."""
        return max(self.slices, default=self.seq_len)

    @cached_property
    def beside_attention(self) -> tuple[int, BlockSetting]:
        """The inputs of the costs of all operators but attention: cp, but not how its ranks see each other's tokens, where in
        their sequence tokens lie, nor which of them are one document."""
        alone = replace(self, ring_topology=self.tp_topology, gathers_keys=False, heads_topology=None)
        return self.cp, replace(alone, place=WHOLE_SEQUENCE, documents=None)


# The costs of operators along the sequence on the ranks that share it (context parallelism): attention and state-space
# mixers.

_NOTHING = OperatorTime(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class SequenceRanks:
    """The ranks of a sequence: those that pass keys and values on, or gather them if ``gathers_keys``, those that exchange
    heads in attention (None: no rank does), and all (``cp``) where a model has mixers. Each has ``parts`` of the sequence;
    mixers go by ``offered`` where they can."""

    ring: GroupTopology
    gathers_keys: bool
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
            return self._after_exchange(local)
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

    def gathered_bytes(self, operator: Operator, local: Mapping[str, int]) -> float:
        """Bytes at once of keys and values that the ranks gather for an attention, and of their gradients."""
        if operator.kind is not OperatorKind.ATTENTION or not self.gathers_keys:
            return 0.0
        return gathered_keys_bytes(operator, self._after_exchange(local), self.dtype, ranks=self.ring.n)

    def copies(self, block: Block, tensor: Tensor, local: Mapping[str, int]) -> int:
        """Copies that ranks hold of a mixer's tensor after an exchange: of groups of B and C that are fewer than ranks."""
        if self.cp is None or SSM_GROUPS not in tensor.dims:
            return 1
        scan = next((each for each in block.operators if each.kind is OperatorKind.SCAN), None)
        exchanged = scan is not None and way_of_scan(scan, self.offered) is ScanOverRanks.HEADS
        return group_copies(local, self.cp.n) if exchanged else 1

    def _after_exchange(self, local: Mapping[str, int]) -> Mapping[str, int]:
        return sizes_after_exchange(local, 1 if self.heads is None else self.heads.n)

    def _attention_s(self, operator: Operator, local: Mapping[str, int], kernels: OperatorTime) -> OperatorTime:
        parts = []
        if self.heads is not None:
            parts.append(head_exchange_s(operator, local, device=self.device, dtype=self.dtype, ranks=self.heads))
        attended = self._after_exchange(local)
        if self.gathers_keys:
            parts.append(gathered_keys_s(operator, attended, device=self.device, dtype=self.dtype, ranks=self.ring))
        elif self.ring.n > 1:
            parts.append(ring_s(operator, attended, kernels, dtype=self.dtype, ring=self.ring))
        return OperatorTime(sum(part.forward_s for part in parts), sum(part.backward_s for part in parts))
