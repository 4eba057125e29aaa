"""Cost tables of a training candidate: for every stage position and block, time and memory under each recompute mode.

One module, because a table is made in one pass of small steps that share what is known of the request and its settings.
"""

from __future__ import annotations

from copy import copy
from dataclasses import fields, replace
from functools import cached_property
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import group_topology
from meshwright.costmodels.model.implementation import Implementation
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.pipeline import PassShares, SendTiming, n_copies, slices_waiting_ratio
from meshwright.solver.blocks.memory import boundary_bytes
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.sharding_problem import (
    Criterion,
)
from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.control import heed
from meshwright.solver.problem.carried_choices import StageChoices
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.layer_dag import LayerDag, layer_dag
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.beside_state import bytes_beside_state
from meshwright.solver.training.costs.block_costs import COMMUNICATION
from meshwright.solver.training.costs.host import step_host_s
from meshwright.solver.training.costs.part_borders import FirstLayers
from meshwright.solver.training.costs.row_costs import RowCosting
from meshwright.solver.training.costs.stage_table import FloatArray, Sharding, StageKind, StageParts, StageTable, max_table
from meshwright.solver.training.costs.tied_weights import node_index
from meshwright.solver.training.space.candidates import (
    SOME_LAYERS,
    Candidate,
    RecomputedLayers,
    some_layers_of,
)
from meshwright.solver.training.space.schedules import PLAIN, pass_shares, waiting

_WITHOUT_SCHEDULE = attrgetter(*(each.name for each in fields(Candidate) if each.name != "pipelining"), "pipelining.slices")
"""The fields that tables of 1F1B depend on: all of a candidate but its schedule, and the lengths of its slices."""


class TrainingCosts(RowCosting):
    """Costs of a request's candidates, stage by stage.

    ``implementation`` overrides how the request's launcher runs a layer.
    """

    def __init__(self, request: TrainingRequest, *, implementation: Implementation | None = None):
        super().__init__(request, implementation=implementation)
        self._insides: dict[StageKind, StageKind] = {}
        self._unscheduled: tuple[object, dict[tuple[StageKind, Sharding, int], StageTable]] = (None, {})

    def with_memory_reserve(self, reserve: float) -> TrainingCosts:
        """The same costs with another share of every device's memory kept free."""
        other = copy(self)
        other.request = replace(self.request, cluster=replace(self.request.cluster, memory_reserve=reserve))
        other._unscheduled = (None, {})
        return other

    def with_batch(self, global_batch: int) -> TrainingCosts:
        """The same costs for another global batch, on which none of them depends."""
        other = copy(self)
        other.workload = replace(self.workload, global_batch=global_batch)
        other.request = replace(self.request, workload=other.workload)
        return other

    @cached_property
    def _dag(self) -> LayerDag | None:
        """The graph of which layer reads which, of a model that branches; None for a chain."""
        return None if self.model.is_chain else layer_dag(self.model)

    def table(self, candidate: Candidate, kind: StageKind, sharding: Sharding) -> StageTable:
        """Cost table of one stage kind under a sharding; the slowest device decides each time.

        Tables of candidates that differ in schedule only share all arrays, as do those that recompute no layers of a pipeline's
        parts with those that recompute some.
        """
        shared = candidate
        if candidate.recompute == SOME_LAYERS[:1] and candidate.mesh.pp > 1 and self._recomputes_some:
            shared = candidate.of_first_layers()
        rest = _WITHOUT_SCHEDULE(shared)
        if self._unscheduled[0] != rest:
            self._unscheduled = (rest, {})
        known = self._unscheduled[1]
        key = (kind, sharding, len(candidate.recompute))
        if key not in known:
            heed(self._stop)
            inside = (self.inside(kind), sharding, len(candidate.recompute))
            if inside not in known:
                both = (self.inside(kind), sharding, len(shared.recompute))
                if both not in known:
                    made = [self._device_table(shared, kind, one, sharding) for one in self.settings(candidate, kind)]
                    known[both] = made[0] if len(made) == 1 else max_table(made)
                known[inside] = known[both] if shared is candidate else known[both].of_first_mode()
            known[key] = replace(known[inside], boundary_s=self.sends_s(candidate, kind))
        return self._scheduled(known[key], candidate, kind)

    def sends_s(self, candidate: Candidate, kind: StageKind) -> float:
        """Seconds of sending to the next stage and back, each micro-batch, by the slowest device, none of it hidden."""
        settings = self.settings(candidate, kind)
        return max(sum(self.boundary_s(candidate, kind, part) for part in setting.parts) for setting in settings)

    def inside(self, kind: StageKind) -> StageKind:
        """The kind without its borders, one object for equal ones: stages often differ in the links there alone."""
        if kind not in self._insides:
            inside = replace(kind, borders=())
            self._insides[kind] = self._kinds.setdefault(inside, inside)
        return self._insides[kind]

    def stage_tables(self, candidate: Candidate, sharding: Sharding, kinds: tuple[StageKind, ...]) -> tuple[StageTable, ...]:
        """Cost table of each stage position; equal positions share one object, as `stage_kinds` gives them one."""
        made = {kind: self.table(candidate, kind, sharding) for kind in dict.fromkeys(kinds)}
        return tuple(made[kind] for kind in kinds)

    def _scheduled(self, table: StageTable, candidate: Candidate, kind: StageKind) -> StageTable:
        """A table of 1F1B under the candidate's schedule: its sends, its wait, and sums over copies of a part."""
        choice, mesh = candidate.pipelining, candidate.mesh
        if choice == PLAIN:
            return table
        if table.slices is not None:
            ratio = slices_waiting_ratio(choice.schedule, mesh.pp, candidate.n_microbatches, table.slices)
            return replace(table, waiting=ratio)
        waits = self.waiting_of(candidate)
        extra_s, step_s, sends_s = table.extra_s, table.step_s, table.boundary_s * choice.chunks
        if choice.traits.sends is SendTiming.UNDER_OTHER_CHUNKS:
            # Interleaved 1F1B receives under the pass of another chunk (Megatron-LM's overlap_p2p_comm, on by default): its
            # steady sends show only beyond a mean stage's compute; those that fill and drain the pipeline show in full.
            sends_s = max(0.0, sends_s - float(table.time_s.sum(axis=1).min()) / mesh.pp)
            fill_s = (mesh.pp - 1) * table.boundary_s
            extra_s, step_s = _plus_first(extra_s, fill_s), step_s + fill_s
        beside_s = 0.0
        if choice.traits.sends is SendTiming.UNDER_OTHER_MICROBATCHES:
            # What a stage waits for is on its way while it runs micro-batches that it took on more than 1F1B does.
            sends_s, beside_s = 0.0, sends_s
        if n_copies(choice.schedule) > 1:
            # Both ranks that hold a part of the model sum its gradients, each those that ZeRO leaves it.
            shards = candidate.shard_ranks or kind.topology.state.n
            held = table.parts.gradients_bytes / (shards if candidate.zero_stage == 1 else 1)
            link = group_topology(self.request.cluster, n=n_copies(choice.schedule), stride=mesh.between_copies)
            extra_s = extra_s + np.asarray(collective_s(Collective.ALL_REDUCE, held, link), np.float64)
        return replace(table, extra_s=extra_s, step_s=step_s, boundary_s=sends_s, waiting=waits, beside_s=beside_s)

    def waiting_of(self, candidate: Candidate) -> float:
        """Return the wait of a candidate's schedule of whole sequences over that of 1F1B."""
        shares = self._pass_shares[candidate.recompute[0]]
        return waiting(candidate.pipelining, pp=candidate.mesh.pp, n_microbatches=candidate.n_microbatches, shares=shares)

    @cached_property
    def _pass_shares(self) -> dict[Recompute, PassShares]:
        return {
            mode: pass_shares(self.model, seq_len=self.workload.seq_len, recompute=mode, documents=self.workload.documents)
            for mode in Recompute
        }

    def _device_table(self, candidate: Candidate, kind: StageKind, setting: BlockSetting, sharding: Sharding) -> StageTable:
        costs = self.sharded_costs(setting, sharding)
        # Of token slices the first enters each layer first, and leaves it last.
        beside = costs if not setting.slices else self.sharded_costs(setting.parts[0], sharding)
        rows = self.row_costs(
            candidate,
            kind,
            setting,
            costs,
            beside=beside,
            of_row=np.arange(len(self.block_names)),
            copies=self._tied_copies(candidate, setting, sharding),
            mean_stage=lambda of_block: float(of_block[self.layer_block].sum()) / candidate.mesh.pp,
        )
        sync, state, law = rows.sync, rows.state, rows.law
        slice_gradients = costs[:, Criterion.KEY_VALUE_BYTES]
        held_parameters = rows.parameters[self.layer_block]
        beside_state = bytes_beside_state(self.request, candidate, setting.implementation, held_parameters)
        layer = self.layer_block

        first = self.first_layers(candidate.choices) if candidate.mesh.pp == 1 else None

        def of_layers(by_mode: FloatArray) -> FloatArray:
            return self._of_layers(by_mode, None if first is None else first.number)

        first_bucket_s = rows.first_bucket_s[layer]
        return StageTable(
            time_s=of_layers(rows.time_s),
            activation_bytes=of_layers(rows.activation_bytes),
            transient_bytes=of_layers(rows.transient_bytes),
            static_bytes=rows.static_bytes[layer] + beside_state,
            extra_s=_plus_first(rows.extra_s[layer], float(first_bucket_s[0])),
            boundary_s=0.0,
            step_s=float(first_bucket_s[1:-1].max() if len(layer) > 2 else first_bucket_s.max()),
            capacity_bytes=rows.capacity_bytes,
            usable_bytes=rows.usable_bytes,
            law=law,
            parts=StageParts(
                weights_bytes=state.weights_bytes[layer],
                gradients_bytes=state.gradients_bytes[layer],
                optimizer_bytes=state.optimizer_bytes[layer],
                forward_s=costs[layer, Criterion.FORWARD_S],
                compute_s=(costs[:, Criterion.TIME_S] - costs[:, COMMUNICATION].sum(axis=1))[layer],
                tp_comm_s=costs[layer, Criterion.TP_COMM_S],
                cp_comm_s=costs[layer, Criterion.CP_COMM_S],
                dp_comm_s=sync.exposed_microbatch_s[layer],
                ep_comm_s=costs[layer, Criterion.EP_COMM_S],
                optimizer_s=state.update_s[layer],
                step_host_s=step_host_s(setting.device, setting.implementation),
                first_bucket_s=first_bucket_s,
                overhead_bytes=rows.overhead_bytes,
                moves_s=of_layers(rows.moves_s),
                host_static_bytes=state.host_bytes[layer],
                host_activation_bytes=of_layers(rows.moved_bytes),
                host_buffer_bytes=state.host_buffer_bytes,
                host_capacity_bytes=state.host.memory_bytes - state.host_buffer_bytes,
                nvme_bytes=state.nvme_bytes[layer],
                nvme_capacity_bytes=state.host.nvme_bytes,
                slice_gradients_bytes=slice_gradients[layer],
                beside_state_bytes=beside_state,
            ),
            slices=self.slice_shares(setting, sharding, candidate.recompute[0]) if setting.slices else None,
            dag=self._dag,
            side_bytes=0.0 if self._dag is None else law.activations * boundary_bytes(self.model, setting),
        )

    def _of_layers(self, by_mode: FloatArray, recomputed: int | None) -> FloatArray:
        """Rows of modes over distinct blocks as rows over layers; one row where some layers are recomputed and others not."""
        rows: FloatArray = by_mode[:, self.layer_block]
        if recomputed is None:
            return rows
        none, full = rows
        again = self.recomputable[self.layer_block]
        return np.array([np.where(again & (np.cumsum(again) <= recomputed), full, none)])

    @cached_property
    def _recomputes_some(self) -> bool:
        return some_layers_of(self.request, pp=2) is RecomputedLayers.ANY

    @cached_property
    def recomputed_layers(self) -> npt.NDArray[np.bool_]:
        """[layer] which layers can be recomputed."""
        return np.asarray(self.recomputable[self.layer_block], np.bool_)

    def first_layers(self, choices: StageChoices) -> FirstLayers | None:
        """The first layers of each part that stages recompute whole; None where not some are."""
        number = choices.recompute_layers
        return None if number is None else FirstLayers(number, self.recomputed_layers)

    @property
    def allowed_layers(self) -> tuple[int, ...]:
        """The allowed numbers of recomputed layers; none named: any."""
        return self.request.search.recompute_layers

    def fewest_recomputed(self, candidate: Candidate, sharding: Sharding, kind: StageKind) -> int | None:
        """The fewest layers of a model on one stage that must be recomputed whole for it to fit, of those that the request
        allows; None where not some but all must be, or none. ``candidate`` has the modes none and full."""
        table = self.table(candidate, kind, sharding)
        again = self.recomputable[self.layer_block]
        numbers = np.arange(1, int(again.sum()))
        if self.allowed_layers:
            numbers = numbers[np.isin(numbers, self.allowed_layers)]
        first = again & (np.cumsum(again) <= numbers[:, None])
        none, full = table.activation_bytes
        transient_none, transient_full = table.transient_bytes
        need = table.static_bytes.sum() + np.where(first, full, none).sum(axis=1)
        need = need + np.where(first, transient_full, transient_none).max(axis=1, initial=0.0)
        fits = numbers[need <= table.capacity_bytes]
        unneeded = table.static_bytes.sum() + none.sum() + transient_none.max() <= table.capacity_bytes
        return None if unneeded or not len(fits) else int(fits[0])

    def _tied_copies(self, candidate: Candidate, setting: BlockSetting, sharding: Sharding) -> FloatArray:
        """Parameters that a block stores only because the stage that owns them is another one (tied embeddings)."""
        copies = np.zeros(len(self.block_names))
        if candidate.mesh.pp == 1:
            return copies
        for block, operator, weight in self.model.tied_weights():
            place, built = self.block_names.index(block), self.problem(block, setting)
            assert built is not None, "shardings() offers no choice where there is no problem"
            node = node_index(self.model, block, operator)
            strategy = built.strategies[node][sharding[place][node]]
            copies[place] += weight.elements(strategy.local_sizes(self.model.dims, setting.tp))
        return copies

    def boundary_s(self, candidate: Candidate, kind: StageKind, setting: BlockSetting) -> float:
        """Activations and gradients over both borders of the stage, each micro-batch (1F1B does not hide them).

        1F1B sends and receives at once: over the border behind it an activation goes and a gradient comes, over the one before
        the reverse (Megatron-LM's send_forward_recv_backward). Where tp ranks hold the same activation, each sends a share and
        the receivers gather the shares inside their node (Narayanan et al., SC'21, section 4.1, scatter/gather).
        """
        mesh = candidate.mesh
        if mesh.pp == 1:
            return 0.0
        held = boundary_bytes(self.model, setting)
        copies = setting.tp if setting.boundary == REPLICATED else 1
        sends_s = sum(float(collective_s(Collective.SEND_RECV, held / copies, link)) for link in kind.borders)
        gather_s = float(collective_s(Collective.ALL_GATHER, held, setting.tp_topology)) if copies > 1 else 0.0
        return sends_s + 2.0 * gather_s


def _plus_first(values: FloatArray, addend: float) -> FloatArray:
    changed = values.copy()
    changed[0] += addend
    return changed
