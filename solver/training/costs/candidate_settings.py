"""Settings of a training candidate: the kinds of its stages, and of their blocks the settings and shardings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from meshwright.costmodels.cluster.rank_runs import groups_of_runs
from meshwright.costmodels.model.dims import EXPERTS, TOP_K
from meshwright.costmodels.model.expert_routing import expert_placement
from meshwright.costmodels.model.implementation import Implementation
from meshwright.solver.blocks.mesh import stage_borders, stage_topology
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.tp_strategies import Spec
from meshwright.solver.problem.choices import TpOverlap
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.block_costs import BlockCosts
from meshwright.solver.training.costs.stage_table import Sharding, StageKind
from meshwright.solver.training.space.candidates import Candidate, padded_dims
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.sequence_split import has_scans, sequence_parts
from meshwright.solver.training.space.state_places import hybrid_ranks


class CandidateSettings(BlockCosts):
    """Stages, settings and shardings of a request's candidates; equal ones are one object."""

    def __init__(self, request: TrainingRequest, *, implementation: Implementation | None = None):
        super().__init__(request, implementation=implementation)
        self._shardings: dict[tuple[BlockSetting, ...], list[Sharding]] = {}
        self._kinds: dict[StageKind, StageKind] = {}
        self._settings: dict[tuple[StageKind, int, Spec, TpOverlap, tuple[int, ...]], tuple[BlockSetting, ...]] = {}
        self._interned: dict[BlockSetting, BlockSetting] = {}
        self._kinds_of: dict[tuple[Mesh, tuple[int, ...]], tuple[StageKind, ...]] = {}

    def stage_kinds(self, candidate: Candidate) -> tuple[StageKind, ...]:
        """The kind of each stage position, first to last; equal positions share one object."""
        key = (candidate.mesh, self._shard_ranks(candidate))
        if key not in self._kinds_of:
            self._kinds_of[key] = self._stage_kinds(*key)
        return self._kinds_of[key]

    def _stage_kinds(self, mesh: Mesh, shard_ranks: tuple[int, ...]) -> tuple[StageKind, ...]:
        cluster = self.request.cluster
        per_node = cluster.groups[0].node.devices_per_node
        # Equal nodes, one network between all.
        alike = len(cluster.groups) == 1 and (cluster.nodes_per_leaf is None or cluster.oversubscription == 1.0)
        known: dict[tuple[int, bool, bool], StageKind] = {}
        kinds: list[StageKind] = []
        for position in range(mesh.pp):
            ranks = mesh.ranks_of_stage(position)
            on_nodes = (ranks.first % per_node, position == 0, position == mesh.pp - 1)
            if alike and on_nodes in known:
                kinds.append(known[on_nodes])
                continue
            groups = groups_of_runs(cluster, ranks)
            devices = tuple(dict.fromkeys(group.node.device.name for group in groups))
            by_name = {group.node.device.name: group.node.device for group in groups}
            topology = stage_topology(
                cluster,
                ranks,
                dp=mesh.dp,
                tp=mesh.tp,
                cp=mesh.cp,
                ep=mesh.ep,
                expert_tp=mesh.expert_tp,
                ulysses=mesh.ulysses,
                shard_ranks=shard_ranks,
            )
            kind = StageKind(
                tuple(by_name[name] for name in devices),
                topology,
                stage_borders(cluster, position, pp=mesh.pp, ranks=ranks.length, runs=ranks.count),
            )
            known[on_nodes] = self._kinds.setdefault(kind, kind)
            kinds.append(known[on_nodes])
            if alike and ranks.length % per_node == 0:
                # Whole nodes a run of ranks: every position is like the first.
                return tuple(kinds * mesh.pp)
        return tuple(kinds)

    def _shard_ranks(self, candidate: Candidate) -> tuple[int, ...]:
        """Numbers of ranks within which candidates of this one's family may shard, its own among them."""
        known = hybrid_ranks(candidate.mesh, self.request.search)
        own = () if candidate.shard_ranks is None else (candidate.shard_ranks,)
        return tuple(sorted({*known, *own}))

    def settings(self, candidate: Candidate, kind: StageKind) -> tuple[BlockSetting, ...]:
        """The block setting for each device of a stage, one object for equal ones."""
        key = (kind, candidate.microbatch, candidate.boundary, candidate.tp_overlap, candidate.pipelining.slices)
        if key not in self._settings:
            made = self._settings_of(candidate, kind)
            self._settings[key] = tuple(self._interned.setdefault(setting, setting) for setting in made)
        return self._settings[key]

    def _settings_of(self, candidate: Candidate, kind: StageKind) -> Iterator[BlockSetting]:
        return (
            BlockSetting(
                device=device,
                tp_topology=kind.topology.tp,
                ring_topology=kind.topology.ring,
                dtype=self.workload.precision,
                gradient_dtype=self.workload.gradient_dtype,
                microbatch=candidate.microbatch,
                seq_len=self.workload.seq_len,
                boundary=candidate.boundary,
                space=self.request.search.space,
                padded=padded_dims(self.request.search),
                implementation=self.implementation_of(candidate.tp_overlap),
                ep_topology=kind.topology.ep if kind.topology.ep.n > 1 else None,
                heads_topology=kind.topology.heads if kind.topology.heads.n > 1 else None,
                cp_topology=kind.topology.cp if kind.topology.cp.n > 1 and self._has_scans else None,
                sequence_parts=sequence_parts(self.model),
                dispatch=self.workload.dispatch,
                expert_tp=candidate.mesh.expert_tp,
                recipe=self.workload.matmul,
                saved=self.workload.saved_activations,
                expert_load=self._expert_load(kind.topology.ep.n),
                slices=candidate.pipelining.slices,
                adapter=self.workload.adapter,
                documents=self.workload.documents,
            )
            for device in kind.devices
        )

    @cached_property
    def _has_scans(self) -> bool:
        return has_scans(self.model)

    def _expert_load(self, ep: int) -> float:
        """Rows of the ep rank with the most over the mean."""
        dims = self.model.dims
        if ep == 1 or EXPERTS not in dims:
            return 1.0
        return expert_placement(self.workload.experts, experts=dims[EXPERTS], top_k=dims.get(TOP_K, 1), ep=ep).skew

    def shardings(self, candidate: Candidate, kinds: tuple[StageKind, ...]) -> Iterator[Sharding]:
        """Every combination of one Pareto-optimal sharding a block, in canonical order; none where a dim does not divide.

        Stages of different kinds run the same shardings, so a block's frontier is over its costs on all of them.
        """
        settings = tuple(dict.fromkeys(s for kind in dict.fromkeys(kinds) for s in self.settings(candidate, kind)))
        if settings not in self._shardings:
            self._shardings[settings] = list(dict.fromkeys(self.combinations(settings)))
        yield from self._shardings[settings]
