"""What each freedom of operator sharding is worth, over one scheme for the whole model.

A scheme says what each axis of a mesh does in every operator, and over which axes all weights are stored split. A space is the
union of all schemes with one freedom added; the search of `meshwright shard` solves each, operators limited to what is allowed.

Run from the root of the repository: python -m benchmarks.freedoms [--cases 0 1 2] [--free]
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial

from meshwright.costmodels.model.dims import BATCH, EXPERTS, SEQ
from meshwright.solver.blocks.tp_strategies import MEGATRON_DIMS
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.sharding_problem.solve import SolveStatus
from meshwright.solver.sharding_problem.work import NoLimit
from meshwright.solver.strategies.contraction import GATHERED_KEYS
from meshwright.solver.strategies.device_mesh import TensorLayout
from meshwright.solver.strategies.layer_costs import LayerCosts
from meshwright.solver.strategies.operator_graph import GraphEdge
from meshwright.solver.strategies.pricing import PricedOperator, Storage
from meshwright.solver.strategies.resharding import ReshardingTable
from meshwright.solver.strategies.solve import GraphSharding, shard_layers
from meshwright.solver.strategies.strategy import Assignment, PlacedOperator
from meshwright.solver.training.planner import plan_training
from tests.unit.solver.strategies.both_costs import costs_of, request_of

K = 1024
CASES = (
    ("llama-3.1-8b", (2, 4), 32, 8 * K),
    ("llama-3.1-8b", (2, 2, 2), 32, 8 * K),
    ("llama-3.1-8b", (4, 8), 64, 8 * K),
    ("llama-3.1-8b", (8, 8), 64, 8 * K),
    ("gemma-2-9b", (2, 4), 32, 4 * K),
    ("mixtral-8x7b", (4, 8), 64, 4 * K),
    ("llama-3.1-70b", (4, 8), 64, 4 * K),
    ("llama-3.1-70b", (8, 8), 64, 4 * K),
    ("llama-3.1-70b", (8, 8), 4, 64 * K),
)
"""Model, axes of the mesh from outer to inner, sequences of a step, tokens of each."""


class Role(Enum):
    """What a scheme lets an axis do in every operator."""

    BATCH = "batch"
    RING = "ring"
    """Sequences, attention in a ring (context parallelism)."""
    TENSOR = "tensor"
    """Heads and columns; sequences where an operator has neither (Megatron's sequence parallelism)."""
    EXPERTS_AND_BATCH = "experts or batch"
    """Experts of routed products, else the batch."""
    EXPERTS_AND_TENSOR = "experts or tensor"


class Freedom(Enum):
    """What an operator may choose beside its scheme."""

    NONE = "one scheme"
    STORAGE = "weights stored by operator"
    DIMS = "tensor axes split any dims"
    ROLES = "roles of axes by operator"
    KEYS = "keys gathered or in a ring"


EVERYTHING = "everything"


@dataclass(frozen=True)
class Scheme:
    """What operators may do: the role of each axis, the axes over which weights are stored split (all: ZeRO-3; some: hybrid;
    none: ZeRO-1), and what is free beside."""

    roles: tuple[Role, ...]
    stored: frozenset[int]
    freedom: Freedom

    def __str__(self) -> str:
        stored = " and ".join(str(axis + 1) for axis in sorted(self.stored))
        return f"{' x '.join(role.value for role in self.roles)}; stored over {stored or 'none'}"

    def allows(self, placed: PlacedOperator, assignment: Assignment) -> bool:
        """Return True if each axis does what its role says, or with that freedom any role."""
        roles = [tuple(Role)] * len(self.roles) if self.freedom is Freedom.ROLES else [(role,) for role in self.roles]
        return all(
            rule is None if size == 1 else rule is not None and any(self._follows(placed, rule, role) for role in of)
            for rule, size, of in zip(assignment.rules, placed.mesh, roles, strict=True)
        )

    def _follows(self, placed: PlacedOperator, rule: int, role: Role) -> bool:
        made, dims = placed.rules[rule], {each.dim for each in placed.rules}
        is_routed = EXPERTS in dims and placed.operator.inputs[0].name in placed.context.routed
        if role in (Role.EXPERTS_AND_BATCH, Role.EXPERTS_AND_TENSOR) and is_routed:
            return made.dim == EXPERTS
        match role:
            case Role.BATCH | Role.EXPERTS_AND_BATCH:
                return made.dim == BATCH
            case Role.RING:
                return made.dim == SEQ and (made.name != GATHERED_KEYS or self.freedom is Freedom.KEYS)
            case Role.TENSOR | Role.EXPERTS_AND_TENSOR:
                if self.freedom is Freedom.DIMS and made.dim not in (BATCH, SEQ, EXPERTS):
                    return True
                return made.dim in (dims.intersection(MEGATRON_DIMS) or (SEQ,))

    def storages(self, storages: Sequence[Storage]) -> Iterator[Storage]:
        """Of the storages of an assignment that which is split most over the axes of the scheme; with that freedom all."""
        if self.freedom is Freedom.STORAGE:
            yield from storages
        else:
            yield max((each for each in storages if self.stored.issuperset(each.axes)), key=lambda each: len(each.axes))


class Restricted(LayerCosts):
    """The costs of the strategies that a scheme allows."""

    def __init__(self, full: LayerCosts, scheme: Scheme):
        super().__init__(full.request, full.graph, full.mesh, full.step)
        self.full, self.scheme = full, scheme

    @cached_property
    def is_possible(self) -> bool:
        """Whether each operator has a strategy that is allowed."""
        return all(
            any(self.scheme.allows(each.placed, assignment) for assignment in each.assignments)
            for each in map(self.full.of_class, range(len(self.folding.members)))
        )

    def priced(self, node: int) -> PricedOperator:
        """Strategies of a node that are allowed."""
        kind = self._kinds[node]
        if kind not in self._priced:
            self._priced[kind] = _allowed(self.full.priced(node), self.scheme)
        return self._priced[kind]

    def resharding(self, edge: GraphEdge) -> tuple[ReshardingTable, tuple[TensorLayout, ...], tuple[TensorLayout, ...]]:
        """The table of all strategies, with the layouts of those that are allowed."""
        return self.full.resharding(edge)[0], self._written(edge)[0], self._read(edge)[0]


def _allowed(full: PricedOperator, scheme: Scheme) -> PricedOperator:
    kept = [index for index, assignment in enumerate(full.assignments) if scheme.allows(full.placed, assignment)]
    return replace(
        full,
        assignments=tuple(full.assignments[index] for index in kept),
        forward_s=full.forward_s[kept],
        backward_s=full.backward_s[kept],
        output_bytes=tuple(each[kept] for each in full.output_bytes),
        gradient_bytes=tuple(each[kept] for each in full.gradient_bytes),
        buffer_bytes=full.buffer_bytes[kept],
        working_bytes=full.working_bytes[kept],
        storages=tuple(
            replace(storage, assignment=place)
            for place, index in enumerate(kept)
            for storage in scheme.storages([each for each in full.storages if each.assignment == index])
        ),
    )


@dataclass
class Found:
    """The fastest that some space has so far, the least that is proven, and the processor's seconds.

    choice   the scheme and micro-batches of the fastest
    """

    step_s: float = math.inf
    bound_s: float = math.inf
    cpu_s: float = 0.0
    choice: str = ""

    def take(self, solve: Callable[[float], GraphSharding], choice: str) -> None:
        """Solve a part of the space."""
        start = time.process_time()
        found = solve(self.step_s)
        self.cpu_s += time.process_time() - start
        if found.status is SolveStatus.INFEASIBLE:
            return
        self.bound_s = min(self.bound_s, found.bound_s or 0.0)
        if found.step_s is not None and found.step_s < self.step_s:
            self.step_s, self.choice = found.step_s, choice


def schemes(freedom: Freedom, axes: int, *, routed: bool) -> Iterator[Scheme]:
    """Return the schemes of which a space is the union."""
    roles = [role for role in Role if routed or role not in (Role.EXPERTS_AND_BATCH, Role.EXPERTS_AND_TENSOR)]
    for of in itertools.product((Role.BATCH,) if freedom is Freedom.ROLES else roles, repeat=axes):
        shared = [axis for axis, role in enumerate(of) if role not in (Role.TENSOR, Role.EXPERTS_AND_TENSOR)]
        counts = (0,) if freedom is Freedom.STORAGE else range(len(shared) + 1)
        for stored in itertools.chain.from_iterable(itertools.combinations(shared, count) for count in counts):
            yield Scheme(of, frozenset(stored), freedom)


def measured(request: TrainingRequest, sizes: Sequence[int]) -> dict[str, Found]:
    """Return what each space has, by its name."""
    found = {freedom.value: Found() for freedom in Freedom} | {EVERYTHING: Found()}
    usable_bytes = request.cluster.groups[0].node.device.memory_bytes * (1.0 - request.cluster.memory_reserve)
    batch = request.workload.global_batch
    for microbatches in (each for each in range(1, batch + 1) if batch % each == 0):
        full = costs_of(request, {f"axis{place}": size for place, size in enumerate(sizes)}, microbatches)
        law, risk = full.step.implementation.memory, request.search.risk
        room_bytes = law.counted_bytes(usable_bytes, overhead_bytes=full.overhead_bytes, risk=risk)

        def solve(costs: LayerCosts, faster_s: float) -> GraphSharding:
            return shard_layers(costs, memory_bytes=room_bytes, stop=NoLimit(), faster_s=faster_s)  # noqa: B023

        found[EVERYTHING].take(partial(solve, full), f"{microbatches}")
        for freedom in Freedom:
            for scheme in schemes(freedom, len(sizes), routed=EXPERTS in request.model.dims):
                costs = Restricted(full, scheme)
                if costs.is_possible:
                    found[freedom.value].take(partial(solve, costs), f"{scheme}, {microbatches}")
    return found


def main() -> None:
    """Print a row a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)), help="places in the list of cases")
    parser.add_argument("--free", action="store_true", help="plans of the free space beside launchable ones")
    args = parser.parse_args()
    spaces = tuple(Space) if args.free else (Space.LAUNCHABLE,)
    print("| model, mesh, step | " + " | ".join([*_names(), "`plan`", "CPU s"]) + " |")
    print("|" + "---|" * (len(_names()) + 3), flush=True)
    for place in args.cases:
        model, sizes, batch, seq_len = CASES[place]
        request = request_of(model, nodes=math.prod(sizes) // 8, batch=batch, seq_len=seq_len)
        found = measured(request, sizes)
        base = found[Freedom.NONE.value]
        gap = f"gap {(base.step_s - base.bound_s) / base.step_s:.2%}"
        row = [f"{model}, {' x '.join(map(str, sizes))}, {batch} of {seq_len:,}", f"{base.step_s:.3f} s, {gap} ({base.choice})"]
        row += [_gain(base, each) for name, each in found.items() if name != Freedom.NONE.value]
        row.append(", ".join(f"{_planned_s(request, space):.3f} s" for space in spaces))
        row.append(f"{sum(each.cpu_s for each in found.values()):.0f}")
        print(f"| {' | '.join(row)} |", flush=True)


def _names() -> list[str]:
    return [*(freedom.value for freedom in Freedom), EVERYTHING]


def _gain(base: Found, found: Found) -> str:
    """Percent of the base's step that is gained, and the most that can be where the proof leaves more."""
    gain, most = (f"{100.0 * (1.0 - step_s / base.step_s):.1f}" for step_s in (min(found.step_s, base.step_s), found.bound_s))
    return gain if gain == most else f"{gain} to {most}"


def _planned_s(request: TrainingRequest, space: Space) -> float:
    asked = replace(request, search=replace(request.search, space=space))
    plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
    return math.inf if plan.predicted is None else plan.predicted.step_time_s


if __name__ == "__main__":
    main()
