"""Costs of a model's distinct blocks on one device of a stage: their sharding problems, frontiers and cost vectors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from costmodels.implementation import Implementation
from solver.block_memory import working_bytes
from solver.block_problem import (
    BlockProblem,
    BlockSetting,
    Criterion,
    build_block_problem,
    kept_in,
    n_objectives,
)
from solver.graph import ModelGraph
from solver.intra_op import evaluate, frontier
from solver.kept_bytes import PARTIAL_MODES
from solver.recompute import recomputable
from solver.request import PlanRequest, Recompute, TrainingWorkload
from solver.sharding import REPLICATED
from solver.training.host import HostTime, host_time
from solver.training.implementation import launcher_implementation
from solver.training.joined import joined
from solver.training.space import recompute_modes
from solver.training.stage_table import FloatArray, Sharding
from solver.training.tied import agreements, restricted, tied_uses, unrestricted

COMMUNICATION = [Criterion.TP_COMM_S, Criterion.CP_COMM_S, Criterion.EP_COMM_S]


class BlockCosts:
    """Costs of a request's distinct blocks; what a setting takes is computed once.

    ``implementation`` overrides how the request's launcher runs a layer.
    """

    def __init__(self, request: PlanRequest, *, implementation: Implementation | None = None):
        assert isinstance(request.workload, TrainingWorkload)
        self.request = request
        self.model: ModelGraph = request.model
        self.workload: TrainingWorkload = request.workload
        self.implementation = implementation or launcher_implementation(request.search)
        self._problems: dict[tuple[str, BlockSetting], BlockProblem | None] = {}
        self._alike: dict[tuple[str, tuple[int, BlockSetting]], BlockProblem | None] = {}
        self._costs: dict[tuple[str, BlockSetting, tuple[int, ...]], FloatArray] = {}
        self._host_times: dict[tuple[str, str, int, int], HostTime] = {}
        self._fastest: dict[BlockSetting, FloatArray | None] = {}
        self._memory: dict[BlockSetting, tuple[dict[Recompute, FloatArray], FloatArray]] = {}

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
        """Whether each distinct block is a layer, whose passes may be run again, and not an end of the model."""
        return np.array([recomputable(self.model.block(name)) for name in self.block_names])

    def problem(self, block: str, setting: BlockSetting) -> BlockProblem | None:
        """Sharding problem of a block; None where it can't be sharded this way."""
        key = (block, setting)
        if key not in self._problems:
            beside = (block, setting.beside_attention)
            built = build_block_problem(self.model, self.model.block(block), setting, like=self._alike.get(beside))
            self._problems[key] = self._alike[beside] = built
        return self._problems[key]

    def combinations(self, settings: tuple[BlockSetting, ...]) -> Iterator[Sharding]:
        """Combinations of Pareto-optimal shardings under every way in which uses of tied weights agree."""
        built = {block: [self.problem(block, setting) for setting in settings] for block in self.block_names}
        if any(problem is None for problems in built.values() for problem in problems):
            return
        known = {block: [problem for problem in problems if problem is not None] for block, problems in built.items()}
        deciding = n_objectives(recompute_modes(self.request.search))
        wholes = {
            block: joined([replace(problem.problem, n_objectives=deciding) for problem in problems])
            for block, problems in known.items()
        }
        for left in agreements(tied_uses(self.model), {block: problems[0].strategies for block, problems in known.items()}):
            choices = []
            for block, whole in wholes.items():
                mine = {node: kept for (where, node), kept in left.items() if where == block}
                points = frontier(restricted(whole, mine) if mine else whole)
                choices.append([unrestricted(point.choice, mine) for point in points])
            yield from itertools.product(*choices)

    def block_cost(self, block: str, setting: BlockSetting, choice: tuple[int, ...]) -> FloatArray:
        """Cost vector of a block under a choice of strategies."""
        key = (block, setting, choice)
        if key not in self._costs:
            built = self.problem(block, setting)
            assert built is not None, "shardings() offers no choice where there is no problem"
            self._costs[key] = _bound_by_host(np.array(evaluate(built.problem, choice)), self._host_time(block, setting))
        return self._costs[key]

    def fastest_layers_s(self, setting: BlockSetting) -> FloatArray | None:
        """Least time of a micro-batch through each layer, nothing recomputed; None where a block can't be sharded."""
        fastest = self._least_s(setting)
        return None if fastest is None else fastest[0]

    def least_compute_s(self, setting: BlockSetting) -> FloatArray | None:
        """Least time that each layer computes of it, communication left out; None where a block can't be sharded."""
        fastest = self._least_s(setting)
        return None if fastest is None else fastest[1]

    def _least_s(self, setting: BlockSetting) -> FloatArray | None:
        """Rows: time, and time without communication, each the least over shardings; columns the layers."""
        if setting not in self._fastest:
            fastest = []
            for block in self.block_names:
                built = self.problem(block, setting)
                if built is None:
                    break
                costs = np.array([point.cost for point in frontier(built.problem)])
                compute_s = costs[:, Criterion.TIME_S] - costs[:, COMMUNICATION].sum(axis=1)
                device_s = float(costs[:, Criterion.TIME_S].min())
                fastest.append((max(device_s, self._host_time(block, setting).total_s), float(compute_s.min())))
            whole = len(fastest) == len(self.block_names)
            self._fastest[setting] = np.array(fastest).T[:, self.layer_block] if whole else None
        return self._fastest[setting]

    def _host_time(self, block: str, setting: BlockSetting) -> HostTime:
        collectives = 0 if setting.tp == 1 else 1 if setting.boundary == REPLICATED else 2
        key = (block, setting.device.name, setting.cp, collectives)
        if key not in self._host_times:
            self._host_times[key] = host_time(
                self.model.block(block), setting.device, setting.implementation, cp=setting.cp, collectives_of_sum=collectives
            )
        return self._host_times[key]

    def block_memory(self, setting: BlockSetting) -> tuple[dict[Recompute, FloatArray], FloatArray]:
        """By distinct block: bytes kept for an element of its own input under each partial recompute mode, and bytes of
        gradients at work."""
        if setting not in self._memory:
            blocks = [self.model.block(name) for name in self.block_names]
            kept = [kept_in(block, setting) for block in blocks]
            inputs = {mode: np.array([each.inputs[mode] for each in kept]) for mode in PARTIAL_MODES}
            working = np.array([working_bytes(self.model, block, setting) for block in blocks])
            self._memory[setting] = (inputs, working)
        return self._memory[setting]


def _bound_by_host(cost: FloatArray, host: HostTime) -> FloatArray:
    """A block's cost where the host launches kernels more slowly than they run: the larger of both times, pass by pass."""
    backward_s = max(cost[Criterion.TIME_S] - cost[Criterion.FORWARD_S], host.backward_s)
    cost[Criterion.FORWARD_S] = max(cost[Criterion.FORWARD_S], host.forward_s)
    cost[Criterion.TIME_S] = cost[Criterion.FORWARD_S] + backward_s
    return cost
