"""Shardings that a request asks for: operators, by block and name, that stay whole or are split along a dim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.units import STRICT_RECORD, Name
from meshwright.solver.problem.choice import TRAINING, Choice, Launched, LockPlace, Published, Said, Unnamed
from meshwright.solver.problem.graph import ModelGraph

CONSTRAINTS = Choice(
    word="constraints",
    forms=TRAINING,
    launched=Launched.NOT_OF_A_PLAN,
    place=None,
    unnamed=Unnamed.ANY,
    published=Published.AS_ASKED,
    said=Said.LISTED,
    lock=LockPlace.NOT_OF_A_PLAN,
    at_most=None,
)

WHOLE = "replicate"
"""The sharding of an operator that every rank of tp computes whole, in the word of plans."""

_NAMED = 8
"""Operators that a refusal names, as many as that of a trace names unknown ones (`app.models.traced.reading`)."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Operators, as block/operator with any text for each ``*``, and their sharding over tp: a dim, or `WHOLE`."""

    __pydantic_config__ = STRICT_RECORD

    operators: Name
    sharding: Name

    def __str__(self) -> str:
        return f"{self.operators}: {self.sharding}"

    def covers(self, block: str, operator: str) -> bool:
        """Return True if an operator of a block is one of those that are meant."""
        name, (first, *others) = f"{block}/{operator}", self.operators.split("*")
        if not others:
            return name == first
        place, end = len(first), len(name) - len(others[-1])
        for part in others[:-1]:
            found = name.find(part, place, end)
            place = end + 1 if found < 0 else found + len(part)
        return name.startswith(first) and name.endswith(others[-1]) and place <= end


def asked_shardings(constraints: Sequence[Constraint], block: str, operator: str) -> frozenset[str]:
    """Return the shardings that constraints ask of an operator; none where they leave it free."""
    return frozenset(constraint.sharding for constraint in constraints if constraint.covers(block, operator))


def require_satisfiable(constraints: Sequence[Constraint], model: ModelGraph) -> None:
    """Raise WorkloadError for a constraint that no operator of a model meets, and for operators of which two are asked."""
    every = [(block.name, operator) for block in model.blocks for operator in block.operators]
    for constraint in constraints:
        meant = [operator for block, operator in every if constraint.covers(block, operator.name)]
        if not meant:
            raise WorkloadError(
                "a constraint names no operator of the model",
                given=constraint.operators,
                allowed=", ".join(f"{block}/{operator.name}" for block, operator in every[:_NAMED]) + " ...",
            )
        lacking = [operator for operator in meant if constraint.sharding not in (WHOLE, *operator.dims)]
        if lacking:
            raise WorkloadError(
                f"a constraint splits a dim that {lacking[0].name} does not have",
                given=constraint.sharding,
                allowed=", ".join((WHOLE, *sorted(lacking[0].dims))),
            )
    for block, operator in every:
        asked = asked_shardings(constraints, block, operator.name)
        if len(asked) > 1:
            raise WorkloadError(f"constraints ask for several shardings of {block}/{operator.name}", given=sorted(asked))
