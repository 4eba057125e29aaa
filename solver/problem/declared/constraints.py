"""What a request asks of parts of a model by their names: operators and tensors of a sharding or alike, layers on a stage."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval, Len

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.dims import BATCH, HEAD_DIM
from meshwright.costmodels.units import STRICT_RECORD, Name
from meshwright.solver.problem.choice import TRAINING, Choice, Launched, LockPlace, Published, Said, Unnamed
from meshwright.solver.problem.graph import MAX_LAYERS, ModelGraph

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
"""Names that a refusal lists, as many as that of a trace lists unknown ones (`app.models.traced.reading`)."""

MOST_WAYS = 256
"""Ways to shard operators alike, which a search goes through one by one: 324 took Llama-3.1-8B on eight H100 twice the time of
one, 8 CPU s."""

_RANGE = re.compile("([0-9]{1,4})(?:-([0-9]{1,4}))?")


@dataclass(frozen=True, slots=True)
class FixedSharding:
    """Operators, as block/operator with any text for each ``*``, and their sharding over tp: a dim, or `WHOLE`."""

    __pydantic_config__ = STRICT_RECORD

    operators: Name
    sharding: Name

    def __str__(self) -> str:
        return f"{self.operators}: {self.sharding}"


@dataclass(frozen=True, slots=True)
class FixedTensor:
    """Tensors, as block/tensor, and the layout over tp in which their operators write them: split along a dim, or `WHOLE`."""

    __pydantic_config__ = STRICT_RECORD

    tensors: Name
    sharding: Name

    def __str__(self) -> str:
        return f"tensors {self.tensors}: {self.sharding}"


@dataclass(frozen=True, slots=True)
class AlikeShardings:
    """Operators, as block/operator each, that all have one sharding over tp, whichever it is."""

    __pydantic_config__ = STRICT_RECORD

    alike: Annotated[tuple[Name, ...], Len(1, _NAMED)]

    def __str__(self) -> str:
        return f"alike {', '.join(self.alike)}"

    def covers(self, name: str) -> bool:
        """Return True if an operator, as block/operator, is one of them."""
        return any(is_like(pattern, name) for pattern in self.alike)


@dataclass(frozen=True, slots=True)
class FixedStage:
    """Layers that lie on a pipeline stage: those of these blocks, all or the ``layers`` of them from one number to another,
    counted from 0; ``stage`` 0 is the first, -1 the last. Raises WorkloadError for a range that is none."""

    __pydantic_config__ = STRICT_RECORD

    blocks: Name
    stage: Annotated[int, Interval(ge=-MAX_LAYERS, lt=MAX_LAYERS)]
    layers: Annotated[str, Len(1, 9)] | None = None

    def __post_init__(self) -> None:
        if self.layers is not None and not self._range:
            raise WorkloadError("a constraint names no range of layers", given=self.layers, allowed="0-15, or 15 for one layer")

    def __str__(self) -> str:
        return f"{self.blocks}{'' if self.layers is None else f' {self.layers}'}: stage {self.stage}"

    @property
    def _range(self) -> range:
        """The places of its layers among those of its blocks."""
        found = _RANGE.fullmatch(self.layers or f"0-{MAX_LAYERS}")
        return range(0) if found is None else range(int(found[1]), int(found[2] or found[1]) + 1)

    def of(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers of the layers that it means, of a model whose layers are of the blocks ``names``."""
        mine = [layer for layer, name in enumerate(names) if is_like(self.blocks, name)]
        return tuple(mine[place] for place in self._range if place < len(mine))

    def is_in(self, pp: int) -> bool:
        """Return True if a pipeline of so many stages has its stage."""
        return -pp <= self.stage < pp


Constraint = FixedSharding | FixedTensor | AlikeShardings | FixedStage


def is_like(pattern: str, name: str) -> bool:
    """Return True if a name is a pattern with some text for each ``*``."""
    first, *others = pattern.split("*")
    if not others:
        return name == first
    place, end = len(first), len(name) - len(others[-1])
    for part in others[:-1]:
        found = name.find(part, place, end)
        place = end + 1 if found < 0 else found + len(part)
    return name.startswith(first) and name.endswith(others[-1]) and place <= end


def asked_shardings(constraints: Iterable[Constraint], block: str, operator: str) -> frozenset[str]:
    """Return the shardings that constraints ask of an operator; none where they leave it free."""
    fixed = (each for each in constraints if isinstance(each, FixedSharding))
    return frozenset(each.sharding for each in fixed if is_like(each.operators, f"{block}/{operator}"))


def asked_layouts(constraints: Iterable[Constraint], block: str, tensor: str) -> frozenset[str]:
    """Return the layouts that constraints ask of a tensor; none where they leave it free."""
    fixed = (each for each in constraints if isinstance(each, FixedTensor))
    return frozenset(each.sharding for each in fixed if is_like(each.tensors, f"{block}/{tensor}"))


def fixed_stages(constraints: Iterable[Constraint]) -> Iterator[FixedStage]:
    """Yield those constraints that fix stages."""
    return (each for each in constraints if isinstance(each, FixedStage))


def require_satisfiable(constraints: Sequence[Constraint], model: ModelGraph, *, pp: Sequence[int] = ()) -> None:
    """Raise WorkloadError for a constraint that names nothing of a model, or a stage that no pipeline of these lengths has (any
    length if none is named); for operators and tensors of which two shardings are asked; for too many ways to be alike."""
    operators = {f"{block.name}/{each.name}": each.dims for block in model.blocks for each in block.operators}
    tensors = {
        f"{block.name}/{tensor.name}": frozenset(tensor.dims)
        for block in model.blocks
        for operator in block.operators
        for tensor in operator.outputs
    }
    of_operators, of_tensors, ways = dict[str, str](), dict[str, str](), 1
    for constraint in constraints:
        match constraint:
            case FixedSharding(pattern, sharding):
                _require_dim(sharding, _meant("operator", pattern, operators), of_operators)
            case FixedTensor(pattern, sharding):
                _require_dim(sharding, _meant("written tensor", pattern, tensors), of_tensors)
            case AlikeShardings():
                ways *= _ways(constraint, operators)
                _require_few(ways)
            case FixedStage():
                _require_stage(constraint, model, pp)


def _meant(kind: str, pattern: str, dims_of: Mapping[str, Collection[str]]) -> dict[str, Collection[str]]:
    meant = {name: dims for name, dims in dims_of.items() if is_like(pattern, name)}
    if not meant:
        allowed = ", ".join(list(dims_of)[:_NAMED]) + " ..."
        raise WorkloadError(f"a constraint names no {kind} of the model", given=pattern, allowed=allowed)
    return meant


def _require_dim(sharding: str, meant: Mapping[str, Collection[str]], asked: dict[str, str]) -> None:
    for name, dims in meant.items():
        if sharding not in (WHOLE, *dims):
            what = f"a constraint splits a dim that {name.partition('/')[2]} does not have"
            raise WorkloadError(what, given=sharding, allowed=", ".join((WHOLE, *sorted(dims))))
        if asked.setdefault(name, sharding) != sharding:
            given = sorted((asked[name], sharding))
            raise WorkloadError(f"constraints ask for several shardings of {name}", given=given)


def _ways(constraint: AlikeShardings, operators: Mapping[str, Collection[str]]) -> int:
    """The number of shardings that all of its operators may have: whole, or along a dim of all."""
    meant = {name: dims for pattern in constraint.alike for name, dims in _meant("operator", pattern, operators).items()}
    common = frozenset.intersection(*map(frozenset, meant.values())) - {BATCH, HEAD_DIM}
    if len(meant) < 2 or not common:
        raise WorkloadError(
            "operators that a constraint has alike are too few, or have no dim in common that could be split",
            given=str(constraint),
            allowed="two operators or more with a dim in common",
            remedy=f"of operators that are to be whole: sharding: {WHOLE}",
        )
    return 1 + len(common)


def _require_few(ways: int) -> None:
    if ways > MOST_WAYS:
        raise WorkloadError(
            "constraints leave too many ways in which operators are alike",
            given=f"{ways} combinations of dims that they have in common",
            allowed=f"at most {MOST_WAYS}",
            remedy="have fewer alike, or name the sharding of some",
        )


def _require_stage(constraint: FixedStage, model: ModelGraph, pp: Sequence[int]) -> None:
    names = model.layers
    _meant("block", constraint.blocks, dict.fromkeys(names, ()))
    if not constraint.of(names):
        n_layers = sum(is_like(constraint.blocks, name) for name in names)
        raise WorkloadError(
            f"a constraint names layers that {constraint.blocks} does not have",
            given=constraint.layers,
            allowed=f"0 to {n_layers - 1}",
        )
    most = min(len(names), max(pp, default=len(names)))
    if not constraint.is_in(most):
        raise WorkloadError(
            "a constraint names a stage that no pipeline of the request has",
            given=constraint.stage,
            allowed=f"0 to {most - 1}, or {-most} to -1 from the last",
        )
