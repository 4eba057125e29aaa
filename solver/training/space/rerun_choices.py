"""The sets of modules and operators that fine-grained recomputation may run again."""

from __future__ import annotations

from meshwright.costmodels.cluster.cluster import group_topology
from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.blocks.recompute import modules_of, operators_again, rerunnable
from meshwright.solver.blocks.rerun_sets import least_time_sets, together, told_apart
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.tp_strategies import Spec
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.declared.recompute_modules import OPERATORS, sets_of, words_of_modules
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.sharding_problem.frontier import OperatorSearch
from meshwright.solver.training.space.implementation import implementation_of

MOST_OPERATORS = 64
"""Operators of a block of which all least-time sets are found: 1,886 sets of 49 took a second."""


class RerunChoices:
    """The sets of a request, in words; None is the usual one. Single operators are of the free space."""

    def __init__(self, request: TrainingRequest):
        search = request.search
        self._request = request
        self._asked = search.recompute_modules if search.system is None else ()
        self._operators = operators_again(request.model) if self._asked and search.space is Space.FREE else ()
        self._known: dict[tuple[int, Spec], tuple[str | None, ...]] = {}

    def sets(self, tp: int, boundary: Spec) -> tuple[str | None, ...]:
        """The sets of plans with so many tp ranks, between whose layers the residual stream lies so. Raises WorkloadError for a
        module or an operator that the model lacks."""
        if not self._asked:
            return (None,)
        key = (tp, boundary) if OPERATORS in self._asked else (1, boundary)
        if key not in self._known:
            least = self._least(tp, boundary) if OPERATORS in self._asked and self._operators else ()
            self._known[key] = sets_of(modules_of(self._request.model), self._asked, self._operators, least)
        return self._known[key]

    def _least(self, tp: int, boundary: Spec) -> tuple[str, ...]:
        """The sets of operators that take least time for what they save, by launchers' shardings, of one sequence that no other
        ranks share."""
        request, cluster = self._request, self._request.cluster
        workload, search = request.workload, request.search
        setting = BlockSetting(
            device=cluster.groups[0].node.device,
            tp_topology=group_topology(cluster, n=tp, stride=1),
            ring_topology=group_topology(cluster, n=1, stride=1),
            dtype=workload.precision,
            gradient_dtype=workload.gradient_dtype,
            microbatch=1,
            seq_len=workload.seq_len,
            boundary=boundary,
            space=search.space,
            implementation=implementation_of(workload, search),
            recipe=workload.matmul,
            saved=workload.saved_activations,
        )
        layers = [request.model.block(name) for name in dict.fromkeys(request.model.layers)]
        largest = max(len(block.operators) for block in layers)
        if largest > MOST_OPERATORS:
            raise WorkloadError(
                "sets of single operators are searched in layers of few",
                given=f"a block of {largest} operators",
                allowed=f"up to {MOST_OPERATORS}",
                remedy=f"leave {OPERATORS} out of search.recompute_modules, or name sets",
            )
        solver = OperatorSearch(search.operator_solver, search.ilp_solver)
        every = [least_time_sets(request.model, block, setting, solver) for block in layers if rerunnable(block)]
        return tuple(words_of_modules(each) for each in together([told_apart(sets) for sets in every if sets]) if each)
