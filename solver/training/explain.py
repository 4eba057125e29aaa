"""Why an operator of a training plan is sharded as it is: what each other sharding would cost, and what excludes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import Operator
from meshwright.costmodels.units import GIB, STRICT_RECORD
from meshwright.solver.answer.arrangement import arranged, arrangement_of
from meshwright.solver.answer.layouts import ByGroup, Stagewise, Uniform
from meshwright.solver.answer.plan import Plan
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.sharding_problem import frontier
from meshwright.solver.blocks.tp_strategies import Strategy, shardable_dims
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.block_costs import joined
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, Sharding, StageKind, evaluate_decision
from meshwright.solver.training.costs.part_borders import TiedUse, restricted, tied_uses, unrestricted
from meshwright.solver.training.forms.uniform.prediction import decision_of
from meshwright.solver.training.search.best_first import RELATIVE_TIE
from meshwright.solver.training.space.candidates import Candidate

BASIS = (
    "rest kept: only this operator is sharded another way; block anew: the other operators of its block are chosen again "
    "in the free space; mesh, micro-batches, stages and recompute stay in both"
)


class Excluded(StrEnum):
    """The reason that keeps a sharding out of the plan."""

    NOTHING = "nothing"
    """It is the plan's own."""
    LAUNCHER = "launcher"
    TIED = "tied"
    """Another operator shares its weight and splits it another way."""
    MEMORY = "memory"
    DIVISIBILITY = "divisibility"
    MEANING = "meaning"
    """The operator would compute something else."""
    DOMINATED = "dominated"
    """It is no faster."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """A step and the memory of the fullest device, and how far they are from the plan's."""

    __pydantic_config__ = STRICT_RECORD

    step_time_s: float
    step_delta_s: float
    peak_memory_bytes: float
    memory_delta_bytes: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """A sharding of the operator; without figures where it can't be run at all."""

    __pydantic_config__ = STRICT_RECORD

    strategy: str
    excluded_by: Excluded
    why: str
    rest_kept: StepFigures | None = None
    block_anew: StepFigures | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every sharding of an operator over the plan's tp axis, the plan's own first."""

    __pydantic_config__ = STRICT_RECORD

    block: str
    operator: str
    tp: int
    alternatives: tuple[Alternative, ...]
    basis: str = BASIS


def named_operators(model: ModelGraph, name: str) -> list[tuple[str, Operator]]:
    """(block, operator) of "operator" in every block that has it, or of "block/operator".

    Raises PlanFileError with the list of operators for a name that is none.
    """
    every = [(block.name, operator) for block in model.blocks for operator in block.operators]
    found = [(block, operator) for block, operator in every if name in (operator.name, f"{block}/{operator.name}")]
    if not found:
        raise PlanFileError(
            "the model has no such operator",
            given=name,
            allowed=", ".join(f"{block}/{operator.name}" for block, operator in every),
        )
    return found


def explain(request: TrainingRequest, plan: Plan, name: str) -> tuple[Explanation, ...]:
    """Return the costs of an operator's alternatives in a plan, for every block that has an operator of that name.

    Raises PlanFileError for an operator that the model lacks and for a plan without training stages.
    """
    operators = named_operators(request.model, name)
    layout = plan.layout
    if isinstance(layout, ByGroup | Stagewise):
        raise PlanFileError(
            "a plan with replicas by node group has a sharding for each group, one with stages that differ one for each stage",
            given=f"search.{'batch_shares: by_group' if isinstance(layout, ByGroup) else 'stage_degrees: any'}",
            allowed="plans with one layout for all replicas and stages",
        )
    if not isinstance(layout, Uniform):
        raise PlanFileError("only training plans that were found have shardings to explain", given=f"{plan.kind} plan")
    request = arranged(request, arrangement_of(layout.placement))
    return tuple(_Explainer(request, layout, block, operator).explanation() for block, operator in operators)


class _AnySharding(TrainingCosts):
    """Costs in which every operator may be sharded by any dim, the rest of the request as it is."""

    def settings(self, candidate: Candidate, kind: StageKind) -> tuple[BlockSetting, ...]:
        return tuple(replace(setting, space=Space.FREE) for setting in super().settings(candidate, kind))


class _Explainer:
    """One operator of one plan."""

    def __init__(self, request: TrainingRequest, layout: Uniform, block: str, operator: Operator):
        self.request = request
        self.block = block
        self.operator = operator
        self.own_costs = TrainingCosts(request)
        self.decision = decision_of(request, self.own_costs, layout.pipelines, optimizer=layout.placement.optimizer)
        self.candidate = self.decision.candidate
        self.costs = _AnySharding(request)
        self.kinds = self.costs.stage_kinds(self.candidate)
        first = self.costs.settings(self.candidate, self.kinds[0])[0]
        self.options = {name: self._options(self.costs, name, first) for name in self.costs.block_names}
        own = self.own_costs.settings(self.candidate, self.kinds[0])[0]
        self.own_options = {name: self._options(self.own_costs, name, own) for name in self.costs.block_names}
        self.sharding = self._in_the_free_space(self.decision.sharding)
        self.node = next(i for i, op in enumerate(request.model.block(block).operators) if op.name == operator.name)
        self.place = self.costs.block_names.index(block)
        self.base = self._cost(self.sharding)

    def explanation(self) -> Explanation:
        """The plan's own sharding, those that can be run, fastest first, and those that can't."""
        options = self.options[self.block][self.node]
        chosen = self.sharding[self.place][self.node]
        own = Alternative(
            options[chosen].name, Excluded.NOTHING, "the plan's own", self._figures(self.base), self._anew(chosen)[0]
        )
        others = [self._alternative(index) for index in range(len(options)) if index != chosen]
        others.sort(key=lambda other: (other.rest_kept.step_time_s if other.rest_kept else 0.0, other.strategy))
        alternatives = (own, *others, *self._impossible(options))
        return Explanation(self.block, self.operator.name, self.candidate.mesh.tp, alternatives)

    @staticmethod
    def _options(costs: TrainingCosts, block: str, setting: BlockSetting) -> tuple[tuple[Strategy, ...], ...]:
        built = costs.problem(block, setting)
        assert built is not None, "the plan's own shardings are options of every block"
        return built.strategies

    def _in_the_free_space(self, sharding: Sharding) -> Sharding:
        """The same strategies, by their index among all of the free space."""
        return tuple(
            tuple(
                everything.index(mine[index])
                for mine, everything, index in zip(self.own_options[name], self.options[name], choice, strict=True)
            )
            for name, choice in zip(self.costs.block_names, sharding, strict=True)
        )

    def _cost(self, sharding: Sharding) -> DecisionCost:
        tables = self.costs.stage_tables(self.candidate, sharding, self.kinds)
        return evaluate_decision(Decision(self.candidate, sharding, self.decision.spans), tables)

    def _with_choice(self, choice: tuple[int, ...]) -> Sharding:
        return (*self.sharding[: self.place], choice, *self.sharding[self.place + 1 :])

    def _figures(self, cost: DecisionCost) -> StepFigures:
        return StepFigures(
            cost.step_time_s,
            cost.step_time_s - self.base.step_time_s,
            cost.peak_bytes,
            cost.peak_bytes - self.base.peak_bytes,
        )

    def _anew(self, strategy: int) -> tuple[StepFigures, DecisionCost]:
        """The block's other operators chosen again around a strategy: the fastest that fits, or else what needs least."""
        settings = dict.fromkeys(s for kind in dict.fromkeys(self.kinds) for s in self.costs.settings(self.candidate, kind))
        built = [self.costs.problem(self.block, setting) for setting in settings]
        given = {use.node: (self.sharding[self.place][use.node],) for use in self._tied_here()} | {self.node: (strategy,)}
        fixed = restricted(joined([problem.problem for problem in built if problem is not None]), given)
        choices = [unrestricted(point.choice, given) for point in frontier(fixed, search=self.costs.operators)]
        costs = [self._cost(self._with_choice(choice)) for choice in choices]
        best = min(costs, key=lambda cost: (not cost.fits, cost.step_time_s if cost.fits else cost.peak_bytes))
        return self._figures(best), best

    def _tied_here(self) -> list[TiedUse]:
        """Uses of tied weights in this block."""
        return [use for uses in tied_uses(self.request.model) for use in uses if use.block == self.block]

    def _other_use(self, strategy: Strategy) -> tuple[TiedUse, str] | None:
        """A use of the operator's weight elsewhere that splits it another way, and how."""
        for uses in tied_uses(self.request.model):
            mine = [use for use in uses if (use.block, use.node) == (self.block, self.node)]
            for use in uses if mine else ():
                chosen = self.sharding[self.costs.block_names.index(use.block)][use.node]
                split = use.split(self.options[use.block][use.node][chosen])
                if use not in mine and split != mine[0].split(strategy):
                    return use, split[0] or "replicate"
        return None

    def _alternative(self, index: int) -> Alternative:
        choice = list(self.sharding[self.place])
        choice[self.node] = index
        cost = self._cost(self._with_choice(tuple(choice)))
        anew, best = self._anew(index)
        strategy = self.options[self.block][self.node][index]
        excluded_by, why = self._excluded(strategy, cost, best)
        return Alternative(strategy.name, excluded_by, why, self._figures(cost), anew)

    def _excluded(self, strategy: Strategy, cost: DecisionCost, best: DecisionCost) -> tuple[Excluded, str]:
        own = self.own_options[self.block][self.node]
        if strategy not in own:
            expected = " or ".join(option.name for option in own)
            launcher = self.request.search.launcher.value
            return Excluded.LAUNCHER, f"{launcher} runs {self.operator.name} of this plan as {expected!r} only"
        other = self._other_use(strategy)
        if other is not None:
            use, split = other
            name = self.request.model.block(use.block).operators[use.node].name
            return Excluded.TIED, f"{use.block}/{name} shares its weight and splits it by {split!r}"
        if not best.fits:
            worst = max(range(len(best.stages)), key=lambda i: best.stages[i].need_bytes - best.stages[i].capacity_bytes)
            stage = best.stages[worst]
            need, have = stage.need_bytes / GIB, stage.capacity_bytes / GIB
            return Excluded.MEMORY, f"stage {worst} would need {need:.1f} GiB where {have:.1f} GiB are left"
        slower = min(cost.step_time_s if cost.fits else best.step_time_s, best.step_time_s) - self.base.step_time_s
        if slower > RELATIVE_TIE * self.base.step_time_s:
            return Excluded.DOMINATED, f"slower by {slower / self.base.step_time_s:.2%} at best"
        return Excluded.DOMINATED, "no faster, and later in the canonical order"

    def _impossible(self, options: tuple[Strategy, ...]) -> Iterator[Alternative]:
        """Dims of the operator that the tp axis can't split, each with the reason."""
        offered = {strategy.dim for strategy in options}
        splittable = shardable_dims(self.operator)
        workload, mesh = self.request.workload, self.candidate.mesh
        sizes = {**self.request.model.dims, BATCH: self.candidate.microbatch, SEQ: workload.seq_len // mesh.cp}
        for dim in sorted(self.operator.dims - offered):
            if dim == BATCH:
                yield Alternative(dim, Excluded.MEANING, "the batch is what dp splits")
            elif mesh.tp == 1:
                yield Alternative(dim, Excluded.DIVISIBILITY, "tp is 1: there is no axis to split it over")
            elif dim in splittable:
                yield Alternative(dim, Excluded.DIVISIBILITY, f"{dim} {sizes[dim]:,} can't be split evenly over tp {mesh.tp}")
            elif dim == SEQ:
                yield Alternative(dim, Excluded.MEANING, "over the sequence it needs its neighbours' tokens: what cp splits")
            else:
                yield Alternative(dim, Excluded.MEANING, "split, the operator would compute something else")
