"""The space of training plans: which outer candidates exist. Sharding, recompute and stage borders are decided inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from enum import Enum, auto
from typing import Any, TypeVar

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.memory.training_state import NOTHING_OFFLOADED, Offload, Optimizer, Tier
from meshwright.costmodels.model.dims import KV_HEADS
from meshwright.costmodels.pipeline import ChunkCount, Schedule, paired_share
from meshwright.solver.blocks.tp_strategies import Spec, boundary_specs
from meshwright.solver.problem.carried_choices import USUAL_STAGE, StageChoices
from meshwright.solver.problem.choice import LedgerEntry, Published
from meshwright.solver.problem.choices import Gradients, Launcher, Recompute, Space, System, TpOverlap
from meshwright.solver.problem.declared.expert_overlap import LAUNCHERS as OVERLAPPING
from meshwright.solver.problem.declared.expert_overlap import MECHANISM, ExpertOverlap
from meshwright.solver.problem.declared.recompute_modules import RecomputeModule
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.launchers import nanotron_stages
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.launchers.trainers import OwnBorders
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import LEDGER, Search
from meshwright.solver.training.space.meshes import Mesh, meshes, numbers_of_experts
from meshwright.solver.training.space.rerun_choices import RerunChoices
from meshwright.solver.training.space.schedules import PLAIN, Pipelining, pipelinings
from meshwright.solver.training.space.sliced_sequences import SliceLengths, beside_slices, suits_slices, whole_sequences
from meshwright.solver.training.space.state_places import (
    StatePlace,
    allowed,
    divisors,
    gradient_choices,
    max_zero_stage,
    optimizer_choices,
    refuse_shard_ranks_without_groups,
    state_places,
    tp_overlaps,
)

# The spaces of published planners, in this solver's terms: what each of them can choose, and nothing else.
#
# Every preset is a part of the full space, so the full space is never worse. Only the space is a planner's: costs, exactness
# and memory limits are ours. What a planner leaves to its user (recompute in Alpa) is open in its preset.

T = TypeVar("T")
_WHOLE_LAYERS = (Recompute.NONE, Recompute.FULL)


@dataclass(frozen=True, slots=True)
class Preset:
    """The space of a planner beside dp, tp, pp and micro-batches; none of them has cp, ep, virtual stages or chunked products.

    zero_stages         state sharding
    recompute           activation recomputation
    uneven_stages       whether stages may differ in their number of layers by more than the ends of the model ask for
    sequence_parallel   whether norms are sharded over the sequence beside tp
    pp                  numbers of stages; none named: any
    """

    zero_stages: tuple[int, ...] = (0,)
    recompute: tuple[Recompute, ...] = (Recompute.NONE,)
    uneven_stages: bool = True
    sequence_parallel: bool = False
    pp: tuple[int, ...] = ()

    def restrict(self, search: Search, own: Optimizer) -> Search:
        """Return the part of a search's space that the planner has, of a workload with its ``own`` optimizer.

        Raises WorkloadError where nothing is left.
        """
        had = {name: self._has(entry, own) for name, entry in LEDGER.items()}
        left: dict[str, Any] = {
            name: _both(name, getattr(search, name), values) for name, values in had.items() if values is not None
        }
        return replace(search, **left, pp=_both("pp", search.pp, self.pp) if self.pp else search.pp)

    def _has(self, entry: LedgerEntry, own: Optimizer) -> tuple[Any, ...] | None:
        """The values of a choice that the planner searches; None where it takes what is asked for."""
        match entry.choice.published:
            case Published.AS_ASKED:
                return None
            case Published.BY_PRESET:
                values: tuple[Any, ...] = getattr(self, entry.name)
                return values
            case Published.OWN:
                return (own,)
            case values:
                return values


PRESETS = {
    # NeurIPS'21: dp, tp and recomputation of whole layers by dynamic programming over uneven stages.
    System.PIPER: Preset(recompute=_WHOLE_LAYERS),
    # OSDI'22: uneven stages, and operators sharded over dp and tp, weight updates too (its section 4.2, as ZeRO 2 and 3);
    # recomputation is the user's.
    System.ALPA: Preset(zero_stages=(0, 2, 3), recompute=_WHOLE_LAYERS),
    # VLDB'22, and TKDE'24 (BMW) for recomputation: equal stages, dp or fully sharded dp.
    System.GALVATRON: Preset(zero_stages=(0, 3), recompute=_WHOLE_LAYERS, uneven_stages=False),
    # NeurIPS'22: degrees and uneven stages on unequal devices; no state sharding, no recomputation.
    System.AMP: Preset(),
    # ICPP'23 and its auto-parallel: sharding conversion and activation checkpoints, sequence parallelism, equal stages.
    System.COLOSSAL_AI: Preset(recompute=_WHOLE_LAYERS, uneven_stages=False, sequence_parallel=True),
    # TPDS'23: equal shards of the graph in 3D parallelism, with recomputation.
    System.MERAK: Preset(recompute=_WHOLE_LAYERS, uneven_stages=False),
    # ATC'24: uneven stages on unequal devices; no state sharding, no recomputation.
    System.METIS: Preset(),
    # EuroSys'25: ZeRO and recomputation of whole layers with uneven stages, tuned together.
    System.MIST: Preset(zero_stages=(0, 1, 2, 3), recompute=_WHOLE_LAYERS, sequence_parallel=True),
    # EuroSys'24: uneven stages, degrees and recomputation by operator, improved bottleneck by bottleneck.
    System.ACESO: Preset(recompute=tuple(Recompute)),
    # OSDI'24: plans under constraints of the user; uneven stages, recomputation, optimizer state sharding.
    System.NNSCALER: Preset(zero_stages=(0, 1), recompute=_WHOLE_LAYERS),
    # MLSys'19: operators split over samples, attributes and parameters on all devices; no pipeline, no recomputation.
    System.FLEXFLOW: Preset(pp=(1,)),
    # EuroSys'19: the same by recursive halves, tensors of the optimizer split as their weights are.
    System.TOFU: Preset(pp=(1,)),
    # arXiv 2301.08984: transformations, schedules and recomputation of whole layers over uneven stages; no state sharding.
    System.SUPERSCALER: Preset(recompute=_WHOLE_LAYERS),
}


def preset_of(search: Search) -> Preset | None:
    """The preset that a search is limited to; None for the full space."""
    return None if search.system is None else PRESETS[search.system]


def _both(name: str, asked: Sequence[T], had: tuple[T, ...]) -> tuple[T, ...]:
    """Values that the request allows and the planner has; an empty request allows all."""
    left = tuple(value for value in had if not asked or value in asked)
    if not left:
        raise WorkloadError(
            f"search.{name} leaves nothing of the system's space",
            given=", ".join(map(str, asked)),
            allowed=", ".join(map(str, had)),
        )
    return left


# Families of candidates, and their members.

_OF_PLACES = tuple(field.name for field in fields(StatePlace))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One point of the outer space. ``n_microbatches`` follows from the global batch.

    ``recompute`` holds the modes that each stage may choose from: one where the launcher has one setting for all stages. Where
    its ``choices`` say how many, so many first layers of each part of the model are recomputed whole, and the rest is not:
    on one stage under the mode full, in a pipeline under `SOME_LAYERS`, whose number is not known until borders are.
    ZeRO shards among ``shard_ranks`` neighbours where that is not None, and else among all of dp x cp. ``optimizer`` is None
    for the workload's own.
    """

    mesh: Mesh
    microbatch: int
    n_microbatches: int
    zero_stage: int
    boundary: Spec
    recompute: tuple[Recompute, ...]
    pipelining: Pipelining = PLAIN
    shard_ranks: int | None = None
    offload: Offload = NOTHING_OFFLOADED
    optimizer: Optimizer | None = None
    gradients: Gradients = Gradients.KEPT
    tp_overlap: TpOverlap = TpOverlap.EXPOSED
    choices: StageChoices = USUAL_STAGE
    expert_overlap: ExpertOverlap | None = None

    @property
    def pairs_passes(self) -> bool:
        """True if passes of two micro-batches run at once, so that each hides the exchanges of tokens of the other: nothing
        does while a whole layer runs again, or all that is exchanged."""
        if self.mesh.ep == 1 or not (self.pipelining.traits.pairs_passes or self.expert_overlap is ExpertOverlap.BATCH):
            return False
        return Recompute.FULL not in self.table_modes and RecomputeModule.MOE not in self.choices.modules

    @property
    def paired(self) -> float:
        """The share of its passes that run so."""
        if not self.pairs_passes:
            return 0.0
        choice = self.pipelining
        return paired_share(choice.schedule, self.mesh.pp, self.n_microbatches, n_chunks=max(2, choice.chunks))

    @property
    def table_modes(self) -> tuple[Recompute, ...]:
        """The modes that tables of stages have, of which a stage's layers may have several."""
        return SOME_LAYERS if self.choices.recomputes_some else self.recompute

    def of_first_layers(self, number: int | None = None) -> Candidate:
        """The same candidate with so many first layers of each part recomputed whole, None where the borders say how many."""
        modes = SOME_LAYERS if self.mesh.pp > 1 else (Recompute.FULL,)
        choices = self.choices.with_layers() if number is None else self.choices.with_layers(number)
        return replace(self, recompute=modes, choices=choices)

    @property
    def place(self) -> StatePlace:
        """Where and in what form training state lies."""
        return StatePlace(self.zero_stage, self.shard_ranks, self.offload, self.optimizer, self.gradients)

    def at(self, place: StatePlace, modes: tuple[Recompute, ...]) -> Candidate:
        """The same candidate with its state in another place, and other modes to choose from."""
        return replace(self, recompute=modes, **{name: getattr(place, name) for name in _OF_PLACES})

    @property
    def kind(self) -> tuple[object, ...]:
        """The choices by which plans differ enough to be told apart: all but the micro-batch, numbers of chunks, and layouts of
        residuals."""
        ways = (self.tp_overlap, self.expert_overlap)
        return (self.mesh, self.place, self.recompute, self.pipelining.schedule, *ways)

    @property
    def sort_key(self) -> tuple[float | str, ...]:
        """Canonical order among equals: fewer ways of splitting first."""
        mesh = self.mesh
        modes = ",".join(mode.value for mode in self.recompute)
        split = (mesh.tp, mesh.cp, mesh.ulysses, mesh.ep, -mesh.expert_tp, mesh.pp, mesh.dp, *self.pipelining.sort_key)
        state = (self.zero_stage, self.shard_ranks or 0, *astuple(self.offload))
        optimizer = "" if self.optimizer is None else self.optimizer.value
        forms = (
            modes,
            optimizer,
            self.gradients.value,
            self.tp_overlap is not TpOverlap.EXPOSED,
            self.expert_overlap is not None,
        )
        # What launchers do unless told otherwise comes first, whatever the degrees.
        first = (*mesh.choices.sort_key, *split, self.microbatch)
        return (*first, *state, self.boundary.dim or "", *forms, *self.choices.sort_key)


class RecomputedLayers(Enum):
    """The layers of a stage that members of a family recompute whole."""

    ALL_OR_NONE = auto()
    SOME = auto()
    NONE_OR_SOME = auto()
    ANY = auto()
    """All of these."""


SOME_LAYERS = (Recompute.NONE, Recompute.FULL)
"""Recompute modes of the layers of a stage that recomputes some of them whole."""


@dataclass(frozen=True, slots=True)
class CandidateFamily:
    """Candidates that differ only in places of state, recompute modes and pipeline schedule.

    ``layers`` says whether some layers of a stage may be recomputed whole and others not, ``modules`` what runs again under
    fine-grained recomputation, which each choice of modes then has: those named, not the usual ones.
    """

    mesh: Mesh
    microbatch: int
    n_microbatches: int
    boundary: Spec
    places: tuple[StatePlace, ...]
    recompute: tuple[tuple[Recompute, ...], ...]
    pipelinings: tuple[Pipelining, ...]
    tp_overlap: TpOverlap = TpOverlap.EXPOSED
    layers: RecomputedLayers = RecomputedLayers.ALL_OR_NONE
    expert_overlap: ExpertOverlap | None = None
    modules: str | None = None

    def candidates(self) -> Iterator[Candidate]:
        """The family's members, those that differ only in schedule after one another."""
        some = self.layers is RecomputedLayers.SOME and self.mesh.pp > 1
        usual = StageChoices(recompute_modules=self.modules)
        for place in self.places:
            for modes, choices in self.modes_and_schedules():
                for choice in choices:
                    if not place.suits(choice.schedule):
                        continue
                    yield Candidate(
                        self.mesh,
                        self.microbatch,
                        self.n_microbatches,
                        place.zero_stage,
                        self.boundary,
                        modes,
                        choice,
                        shard_ranks=place.shard_ranks,
                        offload=place.offload,
                        optimizer=place.optimizer,
                        gradients=place.gradients,
                        tp_overlap=self.tp_overlap,
                        choices=usual.with_layers() if some else usual,
                        expert_overlap=self.expert_overlap,
                    )

    @property
    def n_slices(self) -> int:
        """Parts that sequences pass in; those of all members have the same lengths."""
        return self.pipelinings[0].n_slices

    @property
    def n_candidates(self) -> int:
        """The number of members."""
        schedules = [choice.schedule for _, choices in self.modes_and_schedules() for choice in choices]
        if all(place.offload.is_nothing for place in self.places):
            return len(self.places) * len(schedules)
        return sum(place.suits(schedule) for place in self.places for schedule in schedules)

    def by_recompute(self) -> Iterator[CandidateFamily]:
        """The same candidates in families of one choice of recompute modes each, none of them empty; and one of those that
        recompute some layers of a stage."""
        if self.layers not in (RecomputedLayers.ANY, RecomputedLayers.ALL_OR_NONE):
            yield self
            return
        some = self.of_some_layers() if self.layers is RecomputedLayers.ANY else None
        if some is not None and self.mesh.pp == 1:
            yield some
        for modes, choices in self.modes_and_schedules():
            possible = tuple(choice for choice in choices if any(place.suits(choice.schedule) for place in self.places))
            # In a pipeline, members that recompute some layers share their tables with those that recompute none.
            beside = some is not None and self.mesh.pp > 1 and modes == (Recompute.NONE,)
            layers = RecomputedLayers.NONE_OR_SOME if beside else RecomputedLayers.ALL_OR_NONE
            if possible:
                yield replace(self, recompute=(modes,), pipelinings=possible, layers=layers)

    def of_some_layers(self) -> CandidateFamily | None:
        """The members that recompute some layers of each part, none of them whole; None where there are none."""
        still = tuple(place for place in self.places if not place.offload.activations)
        even = tuple(choice for each in self.pipelinings if (choice := each.of_some_layers(self.mesh.pp)) is not None)
        if not still or not even:
            return None
        return replace(self, places=still, recompute=(SOME_LAYERS,), pipelinings=even, layers=RecomputedLayers.SOME)

    def modes_and_schedules(self) -> Iterator[tuple[tuple[Recompute, ...], tuple[Pipelining, ...]]]:
        """Modes that each stage may choose from with the schedules that leave it the choice; single modes with all others."""
        for modes in self.recompute:
            if len(modes) == 1:
                yield modes, self.pipelinings
                continue
            if self.layers is RecomputedLayers.SOME:
                yield modes, self.pipelinings
                continue
            by_stage = tuple(choice for choice in self.pipelinings if choice.modes_by_stage)
            others = tuple(choice for choice in self.pipelinings if not choice.modes_by_stage)
            yield modes, by_stage
            for mode in modes:
                # Beside named modules the other modes are another family's.
                if self.modules is None or mode is Recompute.FINE_GRAINED:
                    yield (mode,), others


def families(request: TrainingRequest) -> Iterator[CandidateFamily]:
    """Every outer candidate that uses all devices of the cluster and divides the global batch evenly, in families.

    Raises WorkloadError for a launcher that does not train, and for restrictions that leave nothing of a preset's space.
    """
    preset = preset_of(request.search)
    if preset is not None:
        request = replace(request, search=preset.restrict(request.search, request.workload.optimizer))
    workload, search = request.workload, request.search
    if search.space is Space.LAUNCHABLE and search.launcher not in TRAINERS:
        raise WorkloadError(
            "the launcher does not train",
            given=search.launcher.value,
            allowed=", ".join(launcher.value for launcher in TRAINERS),
        )
    modes = _recompute_choices(search)
    optimizers = optimizer_choices(search, workload)
    gradient_choices(search)
    refuse_shard_ranks_without_groups(search)
    schedules = frozenset(Schedule) if search.space is Space.FREE else launcher_schedules(search.launcher)
    n_layers = len(request.model.layers)
    known: dict[tuple[int, int], tuple[Pipelining, ...]] = {}
    slices = SliceLengths(request)
    again = RerunChoices(request)
    by_modules = any(Recompute.FINE_GRAINED in each for each in modes)
    for mesh in meshes(request):
        per_replica, rest = divmod(workload.global_batch, mesh.dp)
        places = tuple(place for optimizer in optimizers for place in state_places(mesh, request, search, optimizer))
        if rest or not places:
            continue
        for boundary in boundary_specs(mesh.tp, workload.seq_len // mesh.cp):
            if search.space is Space.LAUNCHABLE and not _expresses(search.launcher, request.model, mesh, boundary):
                continue
            if preset is not None and not preset.sequence_parallel and boundary.dim is not None:
                continue
            sets = again.sets(mesh.tp, boundary) if by_modules else (None,)
            for microbatch in divisors(per_replica):
                count = per_replica // microbatch
                if (mesh.pp, count) not in known:
                    run = _running(schedules, search, mesh.pp, count)
                    found = pipelinings(search, run, pp=mesh.pp, n_microbatches=count, n_layers=n_layers)
                    even = preset is not None and not preset.uneven_stages and mesh.pp > 1
                    made: Iterator[Pipelining] = (replace(choice, even=True) if even else choice for choice in found)
                    if search.space is Space.LAUNCHABLE and mesh.pp > 1:
                        made = _as_cut(made, search.launcher, request.model, mesh.pp)
                    # A model that branches is cut by downsets, one part a rank.
                    known[mesh.pp, count] = tuple(c for c in made if c.any_borders or request.model.is_chain)
                if not allowed(microbatch, search.microbatch):
                    continue
                beside = beside_slices(modes), tuple(place for place in places if suits_slices(place))
                for cut in slices.pipelinings(mesh, microbatch=microbatch, n_microbatches=count):
                    family = CandidateFamily(mesh, microbatch, count, boundary, *beside[::-1], (cut,))
                    if family.n_candidates:
                        yield family
                choices = known[mesh.pp, count]
                if not choices or not whole_sequences(search, pp=mesh.pp):
                    continue
                layers = some_layers_of(request)
                for way in tp_overlaps(request, tp=mesh.tp, cp=mesh.cp, boundary=boundary):
                    highest = max_zero_stage(request, way)
                    running = tuple(place for place in places if place.runs(count) and place.zero_stage <= highest)
                    family = CandidateFamily(mesh, microbatch, count, boundary, running, modes, choices, way, layers)
                    for each in _by_modules(family, sets):
                        yield from (alike for alike in _by_pairing(each, search) if alike.n_candidates)


def _by_modules(family: CandidateFamily, sets: Sequence[str | None]) -> Iterator[CandidateFamily]:
    """A family's members by the modules that run again under fine-grained recomputation, of ``sets``; None are the usual ones,
    which come with all other modes."""
    if None in sets:
        yield family
    else:
        without = tuple(tuple(mode for mode in modes if mode is not Recompute.FINE_GRAINED) for modes in family.recompute)
        yield replace(family, recompute=tuple(filter(None, without)))
    light = tuple(modes for modes in family.recompute if Recompute.FINE_GRAINED in modes)
    for each in sets if light else ():
        if each is not None:
            yield replace(family, recompute=light, modules=each, layers=RecomputedLayers.ALL_OR_NONE)


def _by_pairing(family: CandidateFamily, search: Search) -> Iterator[CandidateFamily]:
    """A family's members by the share of their passes that run in pairs and hide exchanges of tokens, as those of a family take
    equally long to pass a layer."""
    exchanges, asked = family.mesh.ep > 1, search.expert_overlap or (ExpertOverlap.EXPOSED,)
    pairing = tuple(each for each in family.pipelinings if each.traits.pairs_passes and exchanges)
    others = tuple(each for each in family.pipelinings if each not in pairing)
    if RecomputeModule.MOE in StageChoices(recompute_modules=family.modules).modules:
        # What is exchanged again hides nothing.
        shown = others if not exchanges or ExpertOverlap.EXPOSED in asked else ()
        yield replace(family, pipelinings=(*shown, *pairing))
        return
    if others and (not exchanges or ExpertOverlap.EXPOSED in asked):
        yield replace(family, pipelinings=others)
    light = tuple(tuple(mode for mode in modes if mode is not Recompute.FULL) for modes in family.recompute)
    whole = tuple(dict.fromkeys((mode,) for modes in family.recompute for mode in modes if mode is Recompute.FULL))
    alike = replace(family, recompute=tuple(filter(None, light)), layers=RecomputedLayers.ALL_OR_NONE)
    for each in pairing:
        yield replace(alike, pipelinings=(each,))
    if pairing:
        yield replace(family, pipelinings=pairing, recompute=whole)
    if exchanges and ExpertOverlap.BATCH in asked and (search.space is Space.FREE or search.launcher in OVERLAPPING):
        for each in others:
            if may_pair(each, pp=family.mesh.pp, n_microbatches=family.n_microbatches):
                yield replace(alike, pipelinings=(each,), expert_overlap=ExpertOverlap.BATCH)


def may_pair(choice: Pipelining, *, pp: int, n_microbatches: int) -> bool:
    """Return True if a forward may run beside a backward of another micro-batch, where the schedule does not do so by itself:
    in interleaved 1F1B, and in steps of several micro-batches without a pipeline."""
    return n_microbatches >= 2 * pp and (pp == 1 or choice.schedule is Schedule.INTERLEAVED)


def _running(schedules: frozenset[Schedule], search: Search, pp: int, n_microbatches: int) -> frozenset[Schedule]:
    """The schedules that the launcher runs with so many micro-batches."""
    if search.space is Space.FREE or n_microbatches >= pp or TRAINERS[search.launcher].short_1f1b:
        return schedules
    return schedules - {Schedule.ONE_F_ONE_B}


def _as_cut(choices: Iterable[Pipelining], launcher: Launcher, model: ModelGraph, pp: int) -> Iterator[Pipelining]:
    """The schedules with the borders that the launcher chooses by itself; none where it finds no stages."""
    match TRAINERS[launcher].own_borders:
        case None:
            borders: tuple[int, ...] | None = ()
        case OwnBorders.NANOTRON:
            borders = nanotron_stages.borders(model, pp)
    if borders is not None:
        yield from (replace(choice, borders=borders) for choice in choices)


def _expresses(launcher: Launcher, model: ModelGraph, mesh: Mesh, boundary: Spec) -> bool:
    """Return True if the launcher has flags for this mesh and residual layout."""
    rules = TRAINERS[launcher]
    return (
        (mesh.pp == 1 or rules.passes_branches or model.is_chain)
        and (mesh.tp == 1 or rules.tensor_parallel)
        and (mesh.cp == 1 or rules.context_parallel)
        and (mesh.ulysses == 1 or rules.head_exchange)
        and (mesh.ring == 1 or mesh.gathers_keys or rules.windows_in_rings or not _has_windows(model))
        and (not mesh.spreads_experts or rules.expert_parallel)
        and (boundary.dim is None or rules.sequence_parallel)
        and mesh.choices.are_launched_by(launcher, mesh)
        and not (rules.experts_ask_for_sp and mesh.tp > 1 and boundary.dim is None and numbers_of_experts(model))
        and (rules.replicates_kv_heads or model.dims.get(KV_HEADS, 0) % mesh.tp == 0)
        and (rules.ties_across_stages or mesh.pp == 1 or not model.tied_weights())
    )


def _recompute_choices(search: Search) -> tuple[tuple[Recompute, ...], ...]:
    """Launchers have one recompute setting for all stages; in the free space each stage chooses its own."""
    modes = recompute_modes(search)
    if not modes:
        raise WorkloadError(
            "the launcher has none of these recompute modes",
            given=", ".join(search.recompute),
            allowed=", ".join(mode.value for mode in recompute_modes(replace(search, recompute=()))),
        )
    return (modes,) if search.space is Space.FREE else tuple((mode,) for mode in modes)


def some_layers_of(request: TrainingRequest) -> RecomputedLayers:
    """The layers that a part of the model may recompute: some only where all and none are allowed, and the launcher has a flag
    for it."""
    search = request.search
    possible = request.model.is_chain and {*SOME_LAYERS} <= {*recompute_modes(search)}
    return RecomputedLayers.ANY if possible and StageChoices.are_open(search) else RecomputedLayers.ALL_OR_NONE


def recompute_modes(search: Search) -> tuple[Recompute, ...]:
    """Recompute modes that the search allows and its launcher has."""
    modes = set(Recompute)
    if search.space is Space.LAUNCHABLE:
        rules = TRAINERS.get(search.launcher)
        modes -= {Recompute.FINE_GRAINED} if rules is None or not rules.fine_grained else set()
        modes -= {Recompute.SELECTIVE} if rules is not None and not rules.selective else set()
    return tuple(mode for mode in Recompute if mode in modes and (not search.recompute or mode in search.recompute))


def launcher_schedules(launcher: Launcher) -> frozenset[Schedule]:
    """Pipeline schedules that a launcher runs; none for one that does not train."""
    return TRAINERS[launcher].schedules if launcher in TRAINERS else frozenset()


def padded_dims(search: Search) -> frozenset[str]:
    """Dims that the launcher fills up where they do not divide by tp."""
    is_known = search.space is Space.LAUNCHABLE and search.launcher in TRAINERS
    return TRAINERS[search.launcher].padded_dims if is_known else frozenset()


def _has_windows(model: ModelGraph) -> bool:
    return any(operator.window is not None for block in model.blocks for operator in block.operators)


# The names of candidates in one line.


def summary(candidate: Candidate) -> str:
    """One line that names a candidate."""
    mesh = candidate.mesh
    parts = [f"dp {mesh.dp}", f"tp {mesh.tp}", f"pp {mesh.pp}", f"cp {mesh.cp}", f"micro-batch {candidate.microbatch}"]
    if mesh.ulysses > 1:
        parts.insert(4, f"ulysses {mesh.ulysses}")
    if mesh.ep > 1:
        parts.append(f"ep {mesh.ep}")
    if mesh.expert_tp < mesh.tp:
        parts.append("whole experts")
    within = "" if candidate.shard_ranks is None else f" within {candidate.shard_ranks} ranks"
    parts += mesh.choices.words
    parts.append(f"ZeRO-{candidate.zero_stage}{within}")
    if candidate.optimizer is not None:
        parts.append(candidate.optimizer.value)
    if candidate.gradients is Gradients.RELEASED:
        parts.append("gradients released")
    parts += away(candidate.offload)
    if candidate.boundary.dim is not None:
        parts.append("sequence parallel")
    if candidate.tp_overlap is TpOverlap.CHUNKED:
        parts.append("chunked products")
    if candidate.expert_overlap is ExpertOverlap.BATCH:
        parts.append(MECHANISM)
    parts.append(candidate.choices.recompute_words((mode.value for mode in candidate.recompute), pp=mesh.pp))
    if candidate.pipelining != PLAIN:
        chunks = f" x {candidate.pipelining.chunks}" if candidate.pipelining.traits.chunk_count is ChunkCount.ANY else ""
        slices = f" x {candidate.pipelining.n_slices} slices" if candidate.pipelining.slices else ""
        parts.append(candidate.pipelining.schedule.value + chunks + slices)
    return ", ".join(parts)


def away(offload: Offload) -> list[str]:
    """Return the parts that lie in host memory or on drives, in words."""
    kinds = (
        ("optimizer", offload.optimizer, offload.optimizer_to),
        ("activations", offload.activations, Tier.HOST),
        ("weights", offload.weights, offload.weights_to),
        ("gradients", offload.gradients, Tier.HOST),
    )
    where = {Tier.HOST: "the host", Tier.NVME: "drives"}
    return [f"{share:.0%} of {name} on {where[tier]}" for name, share, tier in kinds if share]
