"""Costs of a model's distinct blocks on one device of a stage: their sharding problems, frontiers and cost vectors."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.model.dims import SliceShares
from meshwright.costmodels.model.implementation import Implementation
from meshwright.costmodels.network.overlap import CHUNKERS, Stream, pair_exposed_s
from meshwright.solver.blocks.recompute import PARTIAL_MODES, recomputable, working_bytes
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.sharding_problem import (
    COMMUNICATION,
    OF_MODE,
    BlockProblem,
    Criterion,
    IntraOpProblem,
    ReshardEdge,
    build_block_problem,
    evaluate,
    frontier,
    joined_slices,
    kept_in,
    least_compute_s,
    n_objectives,
    sum_of_slices,
    with_modules,
)
from meshwright.solver.blocks.tp_strategies import REPLICATED, Spec
from meshwright.solver.control import Stop, UnitOfWork, heed, never_stop, unit_of_work
from meshwright.solver.problem.choices import Recompute, TpOverlap
from meshwright.solver.problem.declared.recompute_modules import USUAL_MODULES
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.sharding_problem.frontier import OperatorSearch
from meshwright.solver.training.costs.evaluate import BACKWARD_OVER_FORWARD, FloatArray, Sharding
from meshwright.solver.training.costs.host import HostTime, host_time, step_host_s
from meshwright.solver.training.costs.part_borders import agreements, alike_uses, restricted, tied_uses, unrestricted
from meshwright.solver.training.space.candidates import recompute_modes
from meshwright.solver.training.space.implementation import chunked_implementation, implementation_of

_MODES = tuple(Recompute)


Choice = tuple[int, ...]
"""The strategies of a block's operators."""


@dataclass(frozen=True)
class Combinations:
    """Shardings of a model's blocks, a choice each: those of a way are all combinations of its choices, ``ways`` [way][block].

    Thousands where blocks have tens, so none is listed that is not asked for.
    """

    ways: tuple[tuple[tuple[Choice, ...], ...], ...]

    def __iter__(self) -> Iterator[Sharding]:
        """Each sharding once, in canonical order."""
        every = itertools.chain.from_iterable(itertools.product(*way) for way in self.ways)
        return every if len(self.ways) < 2 else _each_once(every)

    @cached_property
    def of_blocks(self) -> tuple[tuple[Choice, ...], ...]:
        """[block] its choices, in canonical order."""
        return tuple(tuple(dict.fromkeys(itertools.chain(*each))) for each in zip(*self.ways, strict=True))

    def with_choice(self, block: int, choice: Choice) -> Combinations:
        """The shardings with one choice of a block."""
        ways = (way for way in self.ways if choice in way[block])
        return Combinations(tuple((*way[:block], (choice,), *way[block + 1 :]) for way in ways))


def _each_once(shardings: Iterable[Sharding]) -> Iterator[Sharding]:
    """Yield each sharding where it comes first."""
    seen = set[Sharding]()
    for sharding in shardings:
        if sharding not in seen:
            seen.add(sharding)
            yield sharding


class BlockCosts:
    """Costs of a request's distinct blocks; what a setting takes is computed once.

    ``implementation`` overrides how the request's launcher runs a layer.
    """

    def __init__(self, request: TrainingRequest, *, implementation: Implementation | None = None):
        self.request = request
        self.model: ModelGraph = request.model
        self.workload: TrainingWorkload = request.workload
        self.implementation = implementation or implementation_of(request.workload, request.search)
        self.chunked = chunked_implementation(self.implementation, request.search)
        self.operators = OperatorSearch(request.search.operator_solver, request.search.ilp_solver)
        self._stop: Stop = never_stop
        self._problems: dict[tuple[str, BlockSetting], BlockProblem | None] = {}
        self._alike: dict[tuple[str, tuple[int, BlockSetting]], BlockProblem | None] = {}
        self._costs: dict[tuple[str, BlockSetting, tuple[int, ...]], FloatArray] = {}
        self._host_times: dict[tuple[str, str, int, int, int], HostTime] = {}
        self._fastest: dict[BlockSetting, FloatArray | None] = {}
        self._operators: dict[BlockSetting, FloatArray | None] = {}
        self._operator_times: dict[tuple[object, ...], float] = {}
        self._memory: dict[BlockSetting, tuple[dict[Recompute, FloatArray], FloatArray]] = {}

    @contextmanager
    def stopped_by(self, stop: Stop) -> Iterator[UnitOfWork]:
        """Within this, what is not known yet is worked out until the rule says stop; then what is within is left.

        One sharding frontier of a wide block in the free space can take longer than a whole search may. What describes an
        answer is worked out outside of it, however late it is.
        """
        before, self._stop = self._stop, stop
        try:
            with unit_of_work() as unit:
                yield unit
        finally:
            self._stop = before

    def heed(self) -> None:
        """Raise SearchStopped if the rule says so that `stopped_by` was given."""
        heed(self._stop)

    @cached_property
    def block_names(self) -> tuple[str, ...]:
        """Distinct blocks in order of first use."""
        return tuple(dict.fromkeys(self.model.layers))

    @cached_property
    def layer_block(self) -> npt.NDArray[np.int64]:
        """Index into ``block_names`` of each layer."""
        index = {name: i for i, name in enumerate(self.block_names)}
        return np.array([index[name] for name in self.model.layers], dtype=np.int64)

    @cached_property
    def recomputable(self) -> npt.NDArray[np.bool_]:
        """For each distinct block, True if it is a layer, whose passes may be run again, and not an end of the model."""
        return np.array([recomputable(self.model.block(name)) for name in self.block_names])

    @cached_property
    def least_step_host_s(self) -> float:
        """The least seconds that the host's work between steps adds to the first layer of a chain, and so to every step."""
        devices = [group.node.device for group in self.request.cluster.groups]
        return min(step_host_s(device, self.implementation) for device in devices) if self.model.is_chain else 0.0

    def problem(self, block: str, setting: BlockSetting) -> BlockProblem | None:
        """Sharding problem of a block; None where it can't be sharded this way."""
        setting = setting.alone
        key = (block, setting)
        if key not in self._problems:
            heed(self._stop)
        if key not in self._problems and setting.slices:
            of_slices = [self.problem(block, part) for part in setting.parts]
            known = [problem for problem in of_slices if problem is not None]
            self._problems[key] = joined_slices(known) if len(known) == len(of_slices) else None
        elif key not in self._problems and setting.modules != USUAL_MODULES:
            usual = self.problem(block, replace(setting, modules=USUAL_MODULES))
            self._problems[key] = usual and with_modules(self.model, self.model.block(block), setting, usual)
        elif key not in self._problems:
            beside = (block, setting.beside_attention)
            built = build_block_problem(self.model, self.model.block(block), setting, like=self._alike.get(beside))
            self._problems[key] = self._alike[beside] = built
        return self._problems[key]

    def combinations(self, settings: tuple[BlockSetting, ...]) -> Combinations:
        """Combinations of Pareto-optimal shardings under every way in which uses of tied weights agree, and
        operators that the request has alike."""
        built = {block: [self.problem(block, setting) for setting in settings] for block in self.block_names}
        if any(problem is None for problems in built.values() for problem in problems):
            return Combinations(())
        known = {block: [problem for problem in problems if problem is not None] for block, problems in built.items()}
        first = settings[0]
        deciding = n_objectives(recompute_modes(self.request.search), sliced=bool(first.slices), paired=first.paired > 0.0)
        wholes = {
            block: joined([replace(problem.problem, n_objectives=deciding) for problem in problems])
            for block, problems in known.items()
        }
        groups = (*tied_uses(self.model), *alike_uses(self.request.search.constraints, self.model))
        ways = []
        for left in agreements(groups, {block: problems[0].strategies for block, problems in known.items()}):
            choices = []
            for block, whole in wholes.items():
                mine = {node: kept for (where, node), kept in left.items() if where == block}
                points = frontier(restricted(whole, mine) if mine else whole, self._stop, search=self.operators)
                choices.append(tuple(unrestricted(point.choice, mine) for point in points))
            ways.append(tuple(choices))
        return Combinations(tuple(ways))

    def block_cost(self, block: str, setting: BlockSetting, choice: tuple[int, ...]) -> FloatArray:
        """Cost vector of a block under a choice of strategies."""
        key = (block, setting, choice)
        if key not in self._costs:
            heed(self._stop)
        if key not in self._costs and setting.slices:
            self._costs[key] = sum_of_slices(np.array([self.block_cost(block, part, choice) for part in setting.parts]))
        elif key not in self._costs:
            built = self.problem(block, setting)
            assert built is not None, "shardings() offers no choice where there is no problem"
            alone = _bound_by_host(np.array(evaluate(built.problem, choice)), self._host_of(block, setting))
            self._costs[key] = _paired(alone, setting)
        return self._costs[key]

    def sharded_costs(self, setting: BlockSetting, sharding: Sharding) -> FloatArray:
        """``[block, criterion]`` of the distinct blocks under a choice of strategies of each."""
        costs = (self.block_cost(name, setting, choice) for name, choice in zip(self.block_names, sharding, strict=True))
        return np.array(list(costs))

    def rerun_s(self, mode: Recompute, costs: FloatArray, of_row: npt.NDArray[np.int64] | None = None) -> FloatArray:
        """Return the seconds that a recompute mode runs again of each row of ``costs`` [row, criterion]: of the distinct blocks
        ``of_row``, of each in turn if not given."""
        match mode:
            case Recompute.NONE:
                return np.zeros(len(costs))
            case Recompute.FULL:
                again_s = costs[:, Criterion.FORWARD_S]
            case Recompute.FINE_GRAINED | Recompute.SELECTIVE:
                again_s = costs[:, OF_MODE[mode][0]]
        return np.where(self.recomputable if of_row is None else self.recomputable[of_row], again_s, 0.0)

    def slice_shares(self, setting: BlockSetting, sharding: Sharding, mode: Recompute) -> SliceShares:
        """Return the share that each token slice takes of a micro-batch's time in all layers."""
        forward, backward = [], []
        for part in setting.parts:
            costs = self.sharded_costs(part, sharding)
            whole_s = (costs[:, Criterion.TIME_S] + self.rerun_s(mode, costs))[self.layer_block].sum()
            forward.append(float(costs[self.layer_block, Criterion.FORWARD_S].sum()))
            backward.append(float(whole_s) - forward[-1])
        total = sum(forward) + sum(backward)
        return SliceShares(tuple(each / total for each in forward), tuple(each / total for each in backward))

    def fastest_layers_s(self, setting: BlockSetting, modes: Collection[Recompute] = (Recompute.NONE,)) -> FloatArray | None:
        """Least time of a micro-batch through each layer under any of these modes; None where a block can't be sharded."""
        least = self._least_s(setting)
        if least is None:
            return None
        rerun_s = [least[2 + _MODES.index(mode)] for mode in modes]
        return np.asarray(least[0] + np.min(rerun_s, axis=0), np.float64)

    def least_operators_s(self, setting: BlockSetting) -> FloatArray | None:
        """Least time that each layer's operators compute, each sharded as is best for it alone; None where one can't be
        sharded. A tenth of the work of `fastest_layers_s`, which is at least that."""
        if setting not in self._operators:
            blocks = [self.model.block(name) for name in self.block_names]
            each_s = [
                [least_compute_s(self.model, block, part, self._operator_times) for part in setting.parts] for block in blocks
            ]
            known_s = [sum(part_s for part_s in of_block if part_s is not None) for of_block in each_s]
            is_known = all(part_s is not None for of_block in each_s for part_s in of_block)
            self._operators[setting] = np.array(known_s)[self.layer_block] if is_known else None
        return self._operators[setting]

    def least_compute_s(self, setting: BlockSetting) -> FloatArray | None:
        """Least time that each layer computes of it, communication left out; None where a block can't be sharded."""
        least = self._least_s(setting)
        return None if least is None else least[1]

    def implementation_of(self, overlap: TpOverlap) -> Implementation:
        """Return the launcher's implementation of a layer with gathers and scatters of this way."""
        return self.implementation if overlap is TpOverlap.EXPOSED else self.chunked

    def launch_layers_s(
        self, device: Device, *, tp: int, cp: int, boundary: Spec, overlap: TpOverlap, n_slices: int = 1
    ) -> FloatArray:
        """Time that the host takes to launch each layer's kernels for a micro-batch, slice by slice, nothing recomputed: none
        goes faster."""
        how = self.implementation_of(overlap)
        launches = [self._host_time(block, device, how, tp=tp, cp=cp, boundary=boundary).total_s for block in self.block_names]
        return n_slices * np.array(launches)[self.layer_block]

    def _least_s(self, setting: BlockSetting) -> FloatArray | None:
        """Rows: time, time without communication, and what each recompute mode runs again, each the least over shardings;
        columns the layers."""
        if setting not in self._fastest:
            least = []
            for block, can_rerun in zip(self.block_names, self.recomputable, strict=True):
                built = self.problem(block, setting)
                if built is None:
                    break
                whole = replace(built.problem, n_objectives=n_objectives((), paired=True)) if setting.paired else built.problem
                points = frontier(whole, self._stop, search=self.operators)
                costs = _paired(np.array([point.cost for point in points]), setting)
                host = self._host_of(block, setting)
                launch_s, forward_s = (len(setting.parts) * each_s for each_s in (host.total_s, host.forward_s))
                compute_s = costs[:, Criterion.TIME_S] - costs[:, COMMUNICATION].sum(axis=1)
                lowest = costs.min(axis=0)
                again_s = {mode: float(lowest[criterion]) for mode, (criterion, _) in OF_MODE.items()}
                again_s |= {Recompute.NONE: 0.0, Recompute.FULL: max(float(lowest[Criterion.FORWARD_S]), forward_s)}
                rerun_s = [again_s[mode] if can_rerun else 0.0 for mode in _MODES]
                least.append((max(float(lowest[Criterion.TIME_S]), launch_s), float(compute_s.min()), *rerun_s))
            complete = len(least) == len(self.block_names)
            self._fastest[setting] = np.array(least).T[:, self.layer_block] if complete else None
        return self._fastest[setting]

    def _host_of(self, block: str, setting: BlockSetting) -> HostTime:
        return self._host_time(
            block, setting.device, setting.implementation, tp=setting.tp, cp=setting.cp, boundary=setting.boundary
        )

    def _host_time(
        self, block: str, device: Device, implementation: Implementation, *, tp: int, cp: int, boundary: Spec
    ) -> HostTime:
        collectives = 0 if tp == 1 else 1 if boundary == REPLICATED else 2
        chunks = tp if collectives == 2 and implementation.tensor_overlap in CHUNKERS else 1
        key = (block, device.name, cp, collectives, chunks)
        if key not in self._host_times:
            self._host_times[key] = host_time(
                self.model.block(block), device, implementation, cp=cp, collectives_of_sum=collectives, chunks=chunks
            )
        return self._host_times[key]

    def block_memory(self, setting: BlockSetting) -> tuple[dict[Recompute, FloatArray], FloatArray]:
        """By distinct block: bytes kept for an element of its own input under each partial recompute mode, and bytes of
        gradients at work."""
        if setting not in self._memory:
            blocks = [self.model.block(name) for name in self.block_names]
            kept = [kept_in(block, setting) for block in blocks]
            inputs = {mode: np.array([each.inputs[mode] for each in kept]) for mode in PARTIAL_MODES}
            at_once = replace(setting, seq_len=setting.tokens_at_once)
            working = np.array([working_bytes(self.model, block, at_once) for block in blocks])
            self._memory[setting] = (inputs, working)
        return self._memory[setting]


def _bound_by_host(cost: FloatArray, host: HostTime) -> FloatArray:
    """A block's cost where the host launches kernels more slowly than they run: the larger of both times, pass by pass."""
    forward_s, backward_s = host.bounds(cost[Criterion.FORWARD_S], cost[Criterion.TIME_S] - cost[Criterion.FORWARD_S])
    cost[Criterion.FORWARD_S], cost[Criterion.TIME_S] = forward_s, forward_s + backward_s
    cost[Criterion.BESIDE_S] = max(cost[Criterion.BESIDE_S], host.total_s)
    return cost


def _paired(costs: FloatArray, setting: BlockSetting) -> FloatArray:
    """Costs [..., criterion] of micro-batches of which a share runs in pairs: there each hides the exchanges of tokens of the
    other, as far as they take no longer (DeepSeek-V3 report, section 3.2.1).

    A pass sends tokens there and back, the other their gradients. What a choice takes beside them is one sum, shared between
    passes as their products are: no choice that beats another in both sums is then slower in pairs.
    """
    if not setting.paired or setting.ep_topology is None:
        return costs
    exchange_s, forward_s = costs[..., Criterion.EP_COMM_S] / 2, costs[..., Criterion.BESIDE_S] / (1 + BACKWARD_OVER_FORWARD)
    stream = Stream.INTER_NODE if setting.ep_topology.spans_nodes else Stream.INTRA_NODE
    shown_s = pair_exposed_s(exchange_s, forward_s, BACKWARD_OVER_FORWARD * forward_s, stream)
    in_pair_s = costs[..., Criterion.BESIDE_S] + shown_s[0] + shown_s[1]
    hidden_s = setting.paired * np.maximum(0.0, costs[..., Criterion.TIME_S] - in_pair_s)
    paired = costs.copy()
    paired[..., Criterion.FORWARD_S] -= setting.paired * np.maximum(0.0, exchange_s - shown_s[0])
    for criterion in (Criterion.TIME_S, Criterion.EP_COMM_S):
        paired[..., criterion] -= hidden_s
    return paired


# One sharding problem of a block for several kinds of devices, which run the same strategies.


def joined(problems: list[IntraOpProblem]) -> IntraOpProblem:
    """One problem whose objectives are those of all, for operators that run the same strategy in each."""
    if len(problems) == 1:
        return problems[0]
    n = problems[0].n_objectives
    nodes = tuple(
        np.concatenate([costs[:, :n] for costs in per_node], axis=1)
        for per_node in zip(*(p.node_costs for p in problems), strict=True)
    )
    ends = sorted({(edge.source, edge.target) for p in problems for edge in p.edges})
    edges = []
    for source, target in ends:
        shape = (len(nodes[source]), len(nodes[target]), n)
        parts = [
            sum((e.cost[:, :, :n] for e in p.edges if (e.source, e.target) == (source, target)), np.zeros(shape))
            for p in problems
        ]
        edges.append(ReshardEdge(source, target, np.concatenate(parts, axis=2)))
    return IntraOpProblem(nodes, tuple(edges), n_objectives=n * len(problems))
