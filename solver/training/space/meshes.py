"""Degrees of a training candidate: every mesh over all devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.cluster.rank_runs import RankRuns
from meshwright.costmodels.model.experts import expert_dims
from meshwright.costmodels.model.implementation import ScanOverRanks
from meshwright.solver.problem.carried_choices import USUAL_MESH, MeshChoices
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.declared.constraints import fixed_stages
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.training.space.adapters import keeps_documents_together
from meshwright.solver.training.space.implementation import implementation_of
from meshwright.solver.training.space.sliced_sequences import heads_fit, keys_can_be_gathered, sequence_fits
from meshwright.solver.training.space.state_places import allowed, divisors


@dataclass(frozen=True, slots=True)
class Mesh:
    """Degrees of a candidate; tp x cp x dp x pp devices, experts spread over ep of each dp x cp of them; of the cp ranks of a
    sequence ``ulysses`` exchange tokens for heads. ``etp`` ranks share an expert: as many as tp where it is None, or one, which
    holds whole experts and then exchanges tokens with ep of all dp x cp x tp ranks. ``choices`` that do not matter to its
    degrees have their usual values."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int = 1
    ulysses: int = 1
    etp: int | None = None
    choices: MeshChoices = USUAL_MESH

    @property
    def expert_tp(self) -> int:
        """Ranks that share an expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def expert_places(self) -> int:
        """Places of a stage where experts can lie, each of ``expert_tp`` ranks."""
        return self.stage_devices // self.expert_tp

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same experts; of a dense model those that a launcher would have of them."""
        return self.expert_places // self.ep

    @property
    def spreads_experts(self) -> bool:
        """True if fewer ranks hold an expert alike than all else."""
        return self.ep > 1 or self.expert_tp < self.tp

    @property
    def has_copies(self) -> bool:
        """True if ranks hold the same weights, if only of experts: ZeRO then shards something."""
        return self.dp * self.cp > 1 or (self.spreads_experts and self.expert_dp > 1)

    @property
    def ring(self) -> int:
        """Ranks of a sequence that pass keys and values on, or gather them."""
        return self.cp // self.ulysses

    @property
    def gathers_keys(self) -> bool:
        """True if these gather keys and values before attention."""
        return self.choices.cp_keys is CpKeys.GATHERED

    @property
    def stage_devices(self) -> int:
        """Devices of one stage."""
        return self.dp * self.tp * self.cp

    @property
    def run_devices(self) -> int:
        """Devices of one stage that are neighbours: all, or those of one replica."""
        return self.stage_devices if self.choices.rank_order is RankOrder.PP_OUTERMOST else self.tp * self.cp

    @property
    def between_copies(self) -> int:
        """Ranks from one that holds a part of the model to the other that does: of neighbouring stages, or, where stages of one
        replica may share a node, of the first and the last."""
        return self.run_devices * (1 if self.choices.rank_order is RankOrder.PP_OUTERMOST else self.pp - 1)

    @property
    def spans(self) -> dict[str, int]:
        """By what is sent: the neighbouring devices that an exchange of it reaches over."""
        run, everything, experts = self.tp * self.cp, self.stage_devices * self.pp, self.expert_tp * self.ep
        apart = self.choices.rank_order is not RankOrder.PP_OUTERMOST
        return {
            "tp": self.tp,
            "cp": run,
            "ep": everything if apart and experts > run else experts,
            "dp": everything if apart else self.stage_devices,
            "pp": run * self.pp if apart else everything,
        }

    def ranks_of_stage(self, position: int) -> RankRuns:
        """Where the devices of the stage at a position lie."""
        each = self.run_devices
        return RankRuns(position * each, each, self.stage_devices // each, self.pp * each)


def meshes(request: TrainingRequest) -> Iterator[Mesh]:
    """Every mesh over all devices: tp inside a node, cp where attention can be split, pp at most the number of layers, ep
    where experts are, and every share of cp that exchanges heads where they divide: inside a node, unless asked for."""
    workload, search, cluster = request.workload, request.search, request.cluster
    n_devices = cluster.n_devices
    n_layers = len(request.model.layers)
    experts = math.gcd(*numbers_of_experts(request.model))
    scans = _scans_over_ranks(request)
    for tp in divisors(n_devices):
        if not _inside_nodes(cluster, tp) or not allowed(tp, search.tp):
            continue
        for cp in divisors(n_devices // tp):
            if not allowed(cp, search.cp) or not sequence_fits(request.model, workload.seq_len, tp=tp, cp=cp, scans=scans):
                continue
            for pp in divisors(n_devices // (tp * cp)):
                dp = n_devices // (tp * cp * pp)
                if pp > n_layers or not allowed(pp, search.pp) or not allowed(dp, search.dp):
                    continue
                if not all(each.is_in(pp) for each in fixed_stages(search.constraints)):
                    continue
                for etp in _ranks_of_experts(search, tp, experts):
                    places = dp * cp * tp // (etp or tp)
                    for ep, ulysses in itertools.product(divisors(math.gcd(places, experts or 1)), divisors(cp)):
                        mesh = Mesh(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, ulysses=ulysses, etp=etp)
                        exchanged = ulysses in search.ulysses if search.ulysses else _inside_nodes(cluster, tp * ulysses)
                        evenly = exchanged and keeps_documents_together(request, ring=mesh.ring)
                        if allowed(ep, search.ep) and evenly and heads_fit(request.model, tp=tp, cp=cp, ulysses=ulysses):
                            yield from _with_choices(request, mesh)


def _with_choices(request: TrainingRequest, mesh: Mesh) -> Iterator[Mesh]:
    """The mesh with each of its choices that the search has and the model can run."""
    for choices in MeshChoices.allowed(request.search, mesh):
        chosen = replace(mesh, choices=choices)
        if not chosen.gathers_keys or keys_can_be_gathered(request.model, request.workload):
            yield chosen


def _ranks_of_experts(search: Search, tp: int, experts: int) -> tuple[int | None, ...]:
    """Numbers of ranks that may share one of ``experts`` (0: a dense model), None for all of tp: whole experts are searched
    where they are asked for."""
    shared = (None,) if allowed(tp, search.etp) or not experts else ()
    whole = tp > 1 and experts > 1 and allowed(1, search.etp) and search.system is None
    return (*shared, 1) if whole else shared


def _scans_over_ranks(request: TrainingRequest) -> ScanOverRanks | None:
    """Return the way in which the request's implementation shares state-space mixers among ranks of a sequence; None where its
    launcher can't."""
    search = request.search
    rules = TRAINERS.get(search.launcher)
    refused = search.space is Space.LAUNCHABLE and not (rules and rules.scans_over_ranks)
    return None if refused else implementation_of(request.workload, search).scan_over_ranks


def _inside_nodes(cluster: Cluster, ranks: int) -> bool:
    """Return True if groups of so many neighbours never cross the border of a node."""
    return all(group.node.devices_per_node % ranks == 0 for group in cluster.groups)


def experts_fit(model: ModelGraph, mesh: Mesh) -> bool:
    """Return True if the mesh spreads experts evenly: over ranks of its dp x cp, each with as many as any other."""
    if not mesh.spreads_experts:
        return True
    experts = numbers_of_experts(model)
    if mesh.expert_tp not in (1, mesh.tp):
        return False
    return bool(experts) and mesh.expert_places % mesh.ep == 0 and all(number % mesh.ep == 0 for number in experts)


def numbers_of_experts(model: ModelGraph) -> set[int]:
    """Sizes of the dims that routing picks from; empty for a dense model."""
    operators = (operator for block in model.blocks for operator in block.operators)
    return {model.dims[dim] for operator in operators for dim in expert_dims(operator)}
