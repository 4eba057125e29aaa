"""The traffic of every device under given choices: each collective with its bytes, inside operators, for weights and
between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.network.collectives import Collective
from meshwright.solver.strategies.graph_costs import Choice, GraphCosts
from meshwright.solver.strategies.resharding import Transfer
from meshwright.solver.strategies.traffic import Phase, Traffic, inner_traffic, weight_groups, weight_traffic


class Purpose(StrEnum):
    """Why something is sent."""

    INSIDE = "inside"
    """Ranks of one operator exchange it while it runs."""
    WEIGHTS = "weights"
    """Weights are gathered, gradients added up."""
    RESHARDING = "resharding"
    """A tensor's reader wants another layout than its writer's."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective of equal operators or edges.

    where        name of the first operator, or of the two that an edge joins
    bytes_sent   by each device in a step, all equal operators and micro-batches together
    seconds      that it takes, hidden or not
    """

    purpose: Purpose
    phase: Phase
    where: tuple[str, ...]
    collective: Collective
    axes: tuple[str, ...]
    bytes_sent: float
    seconds: float


def communication(costs: GraphCosts, choices: Sequence[Choice]) -> tuple[Sent, ...]:
    """Everything that a step sends; ``choices`` has one entry a class."""
    return (*_of_classes(costs, choices), *_of_edges(costs, choices))


def _of_classes(costs: GraphCosts, choices: Sequence[Choice]) -> Iterator[Sent]:
    step = costs.step
    for index, choice in enumerate(choices):
        priced, members = costs.of_class(index), costs.folding.members[index]
        placed, assignment = priced.placed, priced.assignments[choice.assignment]
        where = (costs.graph.nodes[members[0]].name,)
        for traffic in inner_traffic(placed, assignment, step.dtype):
            yield _sent(costs, Purpose.INSIDE, traffic, where, len(members))
        groups = weight_groups(placed, assignment, priced.storages[choice.storage].axes)
        for traffic in weight_traffic(
            groups, placed.mesh, dtype=step.dtype, gradient_dtype=step.gradient_dtype, states=step.states
        ):
            yield _sent(costs, Purpose.WEIGHTS, traffic, where, len(members))


def _of_edges(costs: GraphCosts, choices: Sequence[Choice]) -> Iterator[Sent]:
    for edge in costs.class_edges:
        ends = choices[edge.source].assignment, choices[edge.target].assignment
        where = (costs.graph.nodes[edge.edge.source].name, costs.graph.nodes[edge.edge.target].name)
        paths: tuple[tuple[Phase, tuple[Transfer, ...]], ...] = (
            (Phase.FORWARD, costs.forward_path(edge.edge, *ends)),
            (Phase.BACKWARD, costs.backward_path(edge.edge, *ends)),
        )
        for phase, path in paths:
            for transfer in path:
                yield _sent(costs, Purpose.RESHARDING, Traffic(phase, transfer), where, edge.count)


def _sent(costs: GraphCosts, purpose: Purpose, traffic: Traffic, where: tuple[str, ...], count: int) -> Sent:
    often = count * (1 if traffic.phase is Phase.STEP else costs.step.microbatches)
    return Sent(
        purpose=purpose,
        phase=traffic.phase,
        where=where,
        collective=traffic.transfer.collective,
        axes=tuple(costs.mesh.axes[axis].name for axis in traffic.transfer.axes),
        bytes_sent=often * traffic.times * traffic.transfer.sent_bytes(costs.mesh),
        seconds=often * traffic.seconds(costs.times),
    )
