"""The traced graph as it is in the file: schema ``meshwright.traced-graph/1``, which `torch_export` writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.units import STRICT_RECORD, Name
from meshwright.solver.problem.graph import MAX_DIM, MAX_RANK

TRACED_GRAPH_SCHEMA = "meshwright.traced-graph/1"
MAX_TRACED_OPERATORS = 100_000

TensorEntry = tuple[Any, ...]
"""[name, format, size, ...] of a tensor."""


@dataclass(frozen=True, slots=True)
class TracedParameter:
    """A parameter: its tensor, and its name in the model."""

    __pydantic_config__ = STRICT_RECORD

    tensor: TensorEntry
    name: Name


@dataclass(frozen=True, slots=True)
class TracedOperator:
    """A call. Arguments are numbers, texts, lists, and {"tensor": name}; ``module`` is the path of the module that made it."""

    __pydantic_config__ = STRICT_RECORD

    op: Name
    args: tuple[Any, ...]
    outputs: tuple[TensorEntry, ...]
    module: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TracedGraph:
    """A trace: parameters, constants and inputs of the program, and its calls in order of execution."""

    __pydantic_config__ = STRICT_RECORD

    schema: str
    name: Name
    parameters: tuple[TracedParameter, ...]
    inputs: tuple[TensorEntry, ...]
    operators: tuple[TracedOperator, ...]
    constants: tuple[TensorEntry, ...] = ()
    producer: str = ""

    def __post_init__(self) -> None:
        if self.schema != TRACED_GRAPH_SCHEMA:
            raise ModelError("unknown schema of a traced graph", given=self.schema, allowed=TRACED_GRAPH_SCHEMA)
        if len(self.operators) > MAX_TRACED_OPERATORS:
            raise ModelError(
                "too many operators in a trace", given=len(self.operators), allowed=f"at most {MAX_TRACED_OPERATORS}"
            )


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, number format and sizes of a tensor."""

    name: str
    dtype: str
    sizes: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """True if it has no elements: a slice that takes nothing."""
        return 0 in self.sizes

    @property
    def is_float(self) -> bool:
        """True if its elements are real numbers, which gradients flow through."""
        return self.dtype.startswith(("float", "bfloat"))


def tensor_info(entry: TensorEntry) -> TensorInfo:
    """The entry of a tensor, checked; raises ModelError."""
    name, dtype, sizes = entry[0] if entry else None, entry[1] if len(entry) > 1 else None, entry[2:]
    whole = all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_DIM for size in sizes)
    if not isinstance(name, str) or not isinstance(dtype, str) or not whole or len(sizes) > 2 * MAX_RANK:
        raise ModelError(
            "a tensor of a trace can't be read", given=entry, allowed=f"[name, format, sizes ...], sizes up to {MAX_DIM}"
        )
    return TensorInfo(name, dtype, sizes)
