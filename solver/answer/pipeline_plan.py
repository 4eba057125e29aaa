"""A training plan of equal pipelines: what its rules, its figures and the launchers read of it.

A uniform plan is one. Replicas of one node group are one by themselves, and so is a pipeline all of whose stages are like one
of a plan whose stages differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.solver.answer.layouts import ByGroup, Pipelines, Placement, PlanSlice, Stagewise, Uniform
from meshwright.solver.answer.plan import FrontierPoint, Plan
from meshwright.solver.answer.predicted import Predicted, TimeBreakdown
from meshwright.solver.answer.stage import Axes, Microbatch, OperatorSharding, Stage
from meshwright.solver.problem.choices import TpOverlap
from meshwright.solver.problem.request import TrainingWorkload


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Equal pipelines on ``devices`` devices, with the figures that are predicted of them, if any are."""

    pipelines: Pipelines
    placement: Placement
    devices: int
    predicted: Predicted | None = None
    frontier: tuple[FrontierPoint, ...] = ()

    @property
    def axes(self) -> Axes:
        """Degrees of the pipelines."""
        return self.pipelines.axes

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Stages of a pipeline."""
        return self.pipelines.stages

    @property
    def shardings(self) -> tuple[OperatorSharding, ...]:
        """Shardings of operators over tp."""
        return self.pipelines.shardings

    @property
    def sequence_parallel(self) -> bool:
        """True where ranks of tp split over the sequence what they do not split over heads or columns."""
        return self.pipelines.sequence_parallel

    @property
    def schedule(self) -> str:
        """The pipeline schedule."""
        return self.pipelines.schedule

    @property
    def microbatch(self) -> Microbatch:
        """Size and number of micro-batches."""
        return self.pipelines.microbatch

    @property
    def tp_overlap(self) -> TpOverlap:
        """The way in which gathers and scatters over tp run."""
        return self.pipelines.tp_overlap

    @property
    def token_slices(self) -> tuple[PlanSlice, ...]:
        """Parts that sequences pass the pipeline in; empty: whole."""
        return self.pipelines.token_slices

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer that was chosen of several."""
        return self.placement.optimizer

    @property
    def breakdown(self) -> TimeBreakdown | None:
        """The parts of a step's time."""
        return self.placement.breakdown

    def trained_by(self, workload: TrainingWorkload) -> Optimizer:
        """The optimizer: the chosen one, else the workload's."""
        return self.optimizer or workload.optimizer

    def with_stages(self, stages: tuple[Stage, ...]) -> PipelinePlan:
        """The same with other stages."""
        return replace(self, pipelines=replace(self.pipelines, stages=stages))


def placement_of(plan: Plan) -> Placement:
    """The placement of a training plan; that of one without a layout says nothing."""
    layout = plan.layout
    return layout.placement if isinstance(layout, Uniform | ByGroup | Stagewise) else Placement()


def leading_pipelines(plan: Plan) -> Pipelines | None:
    """The pipelines of a training plan, those of the first node group where each has its own; None of any other plan."""
    match plan.layout:
        case Uniform(pipelines=pipelines) | Stagewise(pipelines=pipelines):
            return pipelines
        case ByGroup(groups=groups):
            return groups[0].pipelines
        case _:
            return None


def with_pipelines(plan: Plan, pipelines: Pipelines) -> Plan:
    """The plan of equal training replicas with other pipelines; raises PlanFileError for any other plan."""
    layout = plan.layout
    if not isinstance(layout, Uniform | Stagewise):
        raise _of_unequal_replicas(plan)
    return replace(plan, layout=replace(layout, pipelines=pipelines))


def with_placement(plan: Plan, *, group_order: tuple[str, ...], idle_devices: Mapping[str, int]) -> Plan:
    """The training plan with its ranks on other places; a plan without a layout has none and stays as it is."""
    layout = plan.layout
    if not isinstance(layout, Uniform | ByGroup | Stagewise):
        return plan
    placement = replace(layout.placement, group_order=group_order, idle_devices=idle_devices)
    return replace(plan, layout=replace(layout, placement=placement))


def optimizer_of(plan: Plan, workload: TrainingWorkload) -> Optimizer:
    """The optimizer of a training plan: the chosen one, else the workload's."""
    return placement_of(plan).optimizer or workload.optimizer


def pipelines_of(plan: Plan) -> Pipelines:
    """The pipelines of a plan all of whose replicas are alike; raises PlanFileError for any other."""
    layout = plan.layout
    if not isinstance(layout, Uniform | Stagewise):
        raise _of_unequal_replicas(plan)
    return layout.pipelines


def _of_unequal_replicas(plan: Plan) -> PlanFileError:
    return PlanFileError("this is not a plan with equal training replicas", given=f"{plan.kind} plan")


def pipeline_plan(plan: Plan) -> PipelinePlan:
    """A uniform training plan as one; raises PlanFileError for any other."""
    layout = plan.layout
    if not isinstance(layout, Uniform) or not layout.pipelines.stages:
        form = "no layout" if layout is None else f"the form {type(layout).__name__.lower()}"
        raise PlanFileError("this is not a plan with training stages", given=f"{plan.kind} plan of {form}")
    return PipelinePlan(layout.pipelines, layout.placement, plan.devices, plan.predicted, plan.frontier)
