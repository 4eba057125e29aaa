"""Values that open each choice of the ledger, drawn from its type, so that a choice added tomorrow is opened too."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from meshwright.costmodels.units import Fraction, Name
from meshwright.solver.problem.declared.constraints import WHOLE, Constraint, FixedSharding
from meshwright.solver.problem.search import LEDGER, Search

_HINTS = get_type_hints(Search, include_extras=True)


def opened(name: str, *, group_names: Sequence[str]) -> Any:
    """A value of a choice that allows more than its default does, where its type has one.

    Lists of an enum allow all of its members, lists of shares 0, 1/2 and 1, lists of numbers 1 and 2. A choice of one value
    takes the last member of its enum, or its default and 1; a name is that of what a machine has, so it stays. Constraints ask
    for whole operators.
    """
    if name == "recompute_modules":
        # Of modules that every model with attention has.
        return ("layernorm", "layernorm+core_attn")
    default, kind = LEDGER[name].default, _bare(_HINTS[name])
    if get_origin(kind) is tuple:
        return _values(get_args(kind)[0], group_names)
    members = [option for option in (get_args(kind) or (kind,)) if option is not NoneType]
    if isinstance(members[0], type) and issubclass(members[0], Enum):
        return list(members[0])[-1]
    if isinstance(default, str):
        return default
    return 1 if default is None else default + 1


def _values(kind: Any, group_names: Sequence[str]) -> tuple[Any, ...]:
    if kind == Name:
        return tuple(group_names)
    if kind == Fraction:
        return (0.0, 0.5, 1.0)
    bare = _bare(kind)
    if bare == Constraint:
        return (FixedSharding("*", WHOLE),)
    return tuple(bare) if issubclass(bare, Enum) else (1, 2)


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind
