"""Workers that compute prompts in one layout and answers in another, on the same devices (Seesaw, arXiv 2503.06433).

One layout's weights lie on the devices at a time; host memory has a copy of all of them on every node, and from there each
device loads what it lacks of the other layout when the layouts change. Keys and values of prompts go to the host and come back
over the same links. So both layouts must fit on the devices by themselves, with the communicators of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.costmodels.model.dims import EXPERT_FFN
from meshwright.costmodels.model.operators import Operator, Weight
from meshwright.costmodels.model.split_dims import RankGrid, is_routed, split_dim
from meshwright.costmodels.queueing.simulation.replica import BatchLimits
from meshwright.costmodels.queueing.simulation.switched import LayoutChange, PhaseEngine
from meshwright.costmodels.serving.engine_profile import ServingPrecision
from meshwright.solver.answer.stage import Axes, StageMemory
from meshwright.solver.blocks.tp_strategies import Strategy
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder, StageNeeds
from meshwright.solver.serving.engines.layouts import SEQUENCES, STEP_TOKENS, Layout, serving_precision
from meshwright.solver.switching.pieces import Pieces, n_pieces, shared_cells, stored_pieces


@dataclass(frozen=True, slots=True)
class SwitchedLayout(Layout):
    """The layout of answers, and that of prompts on the same devices."""

    prefill: Layout

    @property
    def decode(self) -> Layout:
        """The layout of answers by itself."""
        return Layout(self.group, self.first_rank, self.grid, self.pp)

    @property
    def name(self) -> str:
        """Words for people: "tp 2 x pp 4 for prompts, tp 8 for answers"."""
        return f"{self.prefill.name} for prompts, {self.decode.name} for answers"

    @property
    def key(self) -> tuple[str | int, ...]:
        """The key that tells such layouts of a request apart; also their canonical order."""
        return *self.decode.key, *self.prefill.key


@dataclass(frozen=True, eq=False)
class SwitchedEngine(Engine):
    """A worker as the engine of its answers, and that of its prompts.

    A candidate's limit of tokens in a step is that of prompts, its limit of sequences that of answers.

    to_decode_bytes, to_prefill_bytes   weights that the device which lacks most loads when the layout changes
    host_weights_bytes, host_token_bytes   what host memory holds: the model's weights, and a token's keys and values
    replicas_per_node                   workers that share a node's memory
    prompts_at_once                     prompts in a step; as many as it can hold unless given
    """

    prefill: Engine = field(kw_only=True)
    decode: Engine = field(kw_only=True)
    to_decode_bytes: float = field(kw_only=True)
    to_prefill_bytes: float = field(kw_only=True)
    host_weights_bytes: float = field(kw_only=True)
    host_token_bytes: float = field(kw_only=True)
    shortest_prompt: int = field(kw_only=True)
    prompts_at_once: int | None = field(kw_only=True, default=None)
    decode_step_tokens: int = field(kw_only=True, default=STEP_TOKENS[0])

    @property
    def replicas_per_node(self) -> int:
        """Workers of a node, which share its memory."""
        return self.layout.group.node.devices_per_node // self.layout.devices

    @property
    def change(self) -> LayoutChange:
        """The change of layout over each device's link to the host, and the share of the node's memory that is left for keys
        and values."""
        node = self.layout.group.node
        rate = node.device.host_bytes_per_s
        room = (node.host_memory_bytes - self.host_weights_bytes) / self.replicas_per_node
        return LayoutChange(
            to_decode_s=self.to_decode_bytes / rate,
            to_prefill_s=self.to_prefill_bytes / rate,
            out_token_s=max(token_bytes(stage) for stage in self.prefill.needs) / rate,
            in_token_s=max(token_bytes(stage) for stage in self.decode.needs) / rate,
            buffer_tokens=max(0, int(room / self.host_token_bytes)),
        )

    def prompts_in_a_step(self, step_tokens: int) -> int:
        """Limit of prompts at once: as many as the steps of all stages can end."""
        most = self.prefill.layout.pp * (step_tokens // self.shortest_prompt + 1)
        return self.prompts_at_once or min(SEQUENCES[-1], most)

    def prefill_phase(self, step_tokens: int) -> PhaseEngine:
        """Return the engine that computes prompts, for the simulator."""
        sequences = self.prompts_in_a_step(step_tokens)
        kv_tokens = self.prefill.kv_tokens(step_tokens=step_tokens, sequences=sequences)
        return PhaseEngine(self.prefill.times, BatchLimits(sequences, step_tokens, kv_tokens))

    def decode_phase(self, sequences: int) -> PhaseEngine:
        """Return the engine that computes answers, for the simulator."""
        kv_tokens = self.decode.kv_tokens(step_tokens=self.decode_step_tokens, sequences=sequences)
        return PhaseEngine(self.decode.times, BatchLimits(sequences, self.decode_step_tokens, kv_tokens))

    def kv_tokens(self, *, step_tokens: int, sequences: int) -> int:
        """Tokens that the cache of answers holds; their own steps have no prompts."""
        return self.decode.kv_tokens(step_tokens=self.decode_step_tokens, sequences=sequences)

    def stage_memory(self, stage: StageNeeds, *, step_tokens: int, sequences: int) -> StageMemory:
        """Memory of a stage of the decode layout by kind."""
        return self.decode.stage_memory(stage, step_tokens=self.decode_step_tokens, sequences=sequences)


def token_bytes(stage: StageNeeds) -> float:
    """Most bytes that a token's keys and values take on a device of a stage: windows are counted as whole caches."""
    return stage.cache.per_token + sum(stage.cache.windowed.values())


class SwitchedBuilder:
    """Builds workers that switch layouts from engines of one request."""

    def __init__(self, request: ServingRequest, builder: EngineBuilder, *, shortest_prompt: int):
        self._resharding = WeightReloads(request.model, serving_precision(request.workload))
        self._whole = builder.whole_model()
        self._shortest_prompt = shortest_prompt

    def engines(self, engines: Sequence[Engine]) -> Iterator[SwitchedEngine]:
        """Every pair of different layouts that switch on the same devices, in canonical order."""
        able = [engine for engine in engines if can_switch(engine.layout)]
        for decode in able:
            for prefill in able:
                same = (prefill.layout.group, prefill.layout.devices) == (decode.layout.group, decode.layout.devices)
                if same and prefill.layout != decode.layout:
                    yield self.engine(prefill, decode)

    def engine(
        self, prefill: Engine, decode: Engine, *, prompts_at_once: int | None = None, decode_step_tokens: int = STEP_TOKENS[0]
    ) -> SwitchedEngine:
        """The worker of two engines on the same devices."""
        device = decode.layout.group.node.device
        base = decode.memory.overhead_bytes(communicators=0, communicator_bytes=device.communicator_bytes, fast_links=True)
        overhead_bytes = prefill.overhead_bytes + decode.overhead_bytes - base
        first, then = (_with_overhead(engine, overhead_bytes) for engine in (prefill, decode))
        layout = decode.layout
        return SwitchedEngine(
            layout=SwitchedLayout(layout.group, layout.first_rank, layout.grid, layout.pp, prefill.layout),
            spans=decode.spans,
            operators=decode.operators,
            needs=decode.needs,
            tables=then.tables,
            group_tables=then.group_tables,
            capacity_bytes=decode.capacity_bytes,
            overhead_bytes=overhead_bytes,
            memory_share=decode.memory_share,
            memory=decode.memory,
            turnaround_s=decode.turnaround_s,
            work=decode.work,
            precision=decode.precision,
            prefill=first,
            decode=then,
            to_decode_bytes=self._resharding.loaded_bytes(prefill, decode),
            to_prefill_bytes=self._resharding.loaded_bytes(decode, prefill),
            host_weights_bytes=self._whole.weights_bytes,
            host_token_bytes=token_bytes(self._whole),
            shortest_prompt=self._shortest_prompt,
            prompts_at_once=prompts_at_once,
            decode_step_tokens=decode_step_tokens,
        )


def can_switch(layout: Layout) -> bool:
    """Return True if a layout is part of the space: inside a node that such replicas fill, one attention group, no kvp and
    cp."""
    grid = layout.grid
    inside = layout.group.node.devices_per_node % layout.devices == 0
    return inside and grid.attention_dp == grid.kvp == grid.cp == 1


def _with_overhead(engine: Engine, overhead_bytes: float) -> Engine:
    """The engine with other overhead; its tables are made once for all."""
    return replace(engine, overhead_bytes=overhead_bytes, tables=lambda: engine.times)


# The weights that a change of layout brings to each device: those of the new layout that it does not hold in the old one.


@dataclass(eq=False)
class WeightReloads:
    """Bytes of a model's weights that devices load when layouts of one worker change; remembers what ranks share.

    Both layouts have one attention group and no kvp, and number the devices alike: stage by stage, ranks of a stage one after
    another.
    """

    model: ModelGraph
    precision: ServingPrecision
    _shared: dict[tuple[str, RankGrid, RankGrid], np.ndarray] = field(default_factory=dict)

    def loaded_bytes(self, old: Engine, new: Engine) -> float:
        """Bytes that the device which lacks most must load when ``new`` takes the place of ``old``.

        What a device holds of both stays. Tied weights, copies of hot experts and experts that some ranks split count as not
        held.
        """
        before, after = old.layout, new.layout
        most = 0.0
        for device in range(after.devices):
            old_stage, old_rank = divmod(device, before.grid.ranks)
            new_stage, new_rank = divmod(device, after.grid.ranks)
            kept = sum(
                count * float(self._shared_bytes(block, before.grid, after.grid)[old_rank, new_rank])
                for block, count in _common_layers(old, old_stage, new, new_stage).items()
            )
            most = max(most, new.needs[new_stage].weights_bytes - kept)
        return most

    def _shared_bytes(self, block: str, old: RankGrid, new: RankGrid) -> np.ndarray:
        """[old rank, new rank] bytes of a block's weights that two ranks of a stage both hold."""
        key = (block, old, new)
        if key not in self._shared:
            total = np.zeros((old.ranks, new.ranks))
            for operator in self.model.block(block).operators:
                element_bytes = self.precision.of(operator).size_bytes
                for weight in operator.weights:
                    pieces = [_pieces(self.model, operator, weight, grid) for grid in (old, new)]
                    if weight.tied_to is None and pieces[0] is not None and pieces[1] is not None:
                        total += element_bytes * _common_elements(pieces[0], pieces[1])
            self._shared[key] = total
        return self._shared[key]


def _common_layers(old: Engine, old_stage: int, new: Engine, new_stage: int) -> dict[str, int]:
    """Layers that two stages both hold, by block."""
    found: dict[str, int] = {}
    for a in old.spans[old_stage]:
        for b in new.spans[new_stage]:
            both = min(a.first + a.count, b.first + b.count) - max(a.first, b.first)
            if a.block == b.block and both > 0:
                found[a.block] = found.get(a.block, 0) + both
    return found


def _pieces(model: ModelGraph, operator: Operator, weight: Weight, grid: RankGrid) -> Pieces | None:
    """Return the piece of a weight that each rank of a stage holds; None where ranks of some groups share an expert."""
    strategy, axes = Strategy(split_dim(operator)), Axes(tp=grid.ranks)
    if is_routed(operator):
        if grid.ep not in (1, grid.ranks):
            return None
        whole = grid.ep == grid.ranks
        strategy = Strategy(None if whole else EXPERT_FFN)
        axes = Axes(tp=grid.ranks, ep=grid.ep, etp=1 if whole else None)
    sizes = {dim: model.dims[dim] for dim in weight.dims}
    return stored_pieces(operator, weight, sizes, strategy=strategy, axes=axes, is_state_sharded=False)


def _common_elements(old: Pieces, new: Pieces) -> np.ndarray:
    """[old rank, new rank] elements of a tensor that both hold."""
    table = np.zeros((n_pieces(old), n_pieces(new)))
    i, j, elements = shared_cells(old, new)
    table[i, j] = elements
    return table[np.ix_(old.of_rank, new.of_rank)]
