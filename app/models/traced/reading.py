"""Reading a trace call by call: which tensors each value is a view of, and which steps compute something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.app.models.traced.atoms import Atom, Atoms, Axes, Origin, Read, Step, StepKind, Stored, Value, axis_size
from meshwright.costmodels.errors import MeshwrightError, ModelError
from meshwright.costmodels.units import STRICT_RECORD, Name
from meshwright.solver.problem.graph import MAX_DIM, MAX_RANK

# The traced graph as it is in the file: schema ``meshwright.traced-graph/1``, which `torch_export` writes.

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


MAX_UNKNOWN_NAMED = 8


class TracedCall:
    """One call of a trace, with its arguments as values."""

    def __init__(self, trace: Trace, operator: TracedOperator, base: str):
        self.trace = trace
        self.operator = operator
        self.base = base
        self.outputs = [tensor_info(entry) for entry in operator.outputs]
        self.inputs = [trace.value(name) for name in tensor_names((*operator.args, *operator.kwargs.values()))]

    @property
    def name(self) -> str:
        """The module that made the call, and what it calls."""
        short = self.base.removeprefix("aten.")
        return f"{self.operator.module}/{short}" if self.operator.module else short

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """An argument by place or name, as it is in the document."""
        if index < len(self.operator.args):
            return self.operator.args[index]
        return self.operator.kwargs.get(name, default)

    def value(self, index: int, name: str) -> Value:
        """A tensor argument; raises ModelError where it is none."""
        found = self.optional(index, name)
        if found is None:
            raise ModelError(f"{self.name} lacks its tensor {name!r}", given=self.operator.args)
        return found

    def optional(self, index: int, name: str) -> Value | None:
        """A tensor argument, or None."""
        argument = self.argument(index, name)
        return self.trace.value(argument["tensor"]) if is_tensor(argument) else None

    def whole(self, index: int, name: str, default: int | None = None) -> int:
        """An integer argument."""
        argument = self.argument(index, name, default)
        if not isinstance(argument, int):
            raise ModelError(f"{self.name} lacks its number {name!r}", given=argument)
        return argument

    def axis(self, index: int, name: str, default: int | None = None, *, rank: int) -> int:
        """An argument that counts axes, negative ones from the end."""
        return self.whole(index, name, default) % max(1, rank)

    def wholes(self, index: int, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """A list of integers, or one."""
        argument = self.argument(index, name, list(default))
        return (argument,) if isinstance(argument, int) else tuple(argument or ())

    def view(self, value: Value, axes: Axes, output: int = 0) -> None:
        """An output is a view of a value with these axes."""
        self.trace.bind(self.outputs[output].name, replace(value, axes=axes))

    def fresh(self, output: int = 0) -> Axes:
        """New axes for an output."""
        return tuple(self.trace.atoms.fresh(size) for size in self.outputs[output].sizes)

    def emit(self, kind: StepKind, reads: Sequence[Value | Read], outputs: Sequence[Axes], **facts: Any) -> Step:
        """Append a step with outputs of these axes; parameters among what it reads are its weights."""
        given = [read if isinstance(read, Read) else Read(read.stored) for read in reads]
        made = [Stored(info.name, axes, Origin.ACTIVATION) for info, axes in zip(self.outputs, outputs, strict=False)]
        step = Step(
            kind=kind,
            name=self.name,
            reads=_distinct(read for read in given if read.stored.origin is Origin.ACTIVATION),
            outputs=made,
            weights=_distinct(read for read in given if read.stored.origin is Origin.PARAMETER),
            **facts,
        )
        self.trace.steps.append(step)
        for stored in made:
            self.trace.bind(stored.name, Value(stored, stored.axes))
        return step


Handler = Callable[[TracedCall], None]


class Trace:
    """The state of a trace after the calls read so far."""

    def __init__(self, graph: TracedGraph):
        self.atoms = Atoms()
        self.steps: list[Step] = []
        self.copies: set[Atom] = set()
        """Atoms of keys that scores have beside the queries' tokens."""
        self.choices: set[Atom] = set()
        """Atoms of a token's copies, one for each expert that a router picks."""
        self.attended: list[tuple[Value, Value, Value]] = []
        self.scanned: list[tuple[Value, Value]] = []
        """x and B of each scan: they name heads, groups and states."""
        self._values: dict[str, Value] = {}
        self.inputs = [self._given(tensor_info(entry), None) for entry in graph.inputs]
        for value in self.inputs:
            first = self.inputs[0].axes[:1]
            if value.axes[:1] and first and axis_size(value.axes[0]) == axis_size(first[0]):
                self.atoms.unify(first[0], value.axes[0])
        for entry in graph.constants:
            self._given(tensor_info(entry), Origin.CONSTANT)
        self.parameters: dict[str, str] = {}
        for parameter in graph.parameters:
            info = tensor_info(parameter.tensor)
            self._given(info, Origin.PARAMETER)
            self.parameters[info.name] = parameter.name

    def read(self, operators: Sequence[TracedOperator], handlers: Mapping[str, Handler], views: Mapping[str, Handler]) -> None:
        """Read all calls, ``views`` being those that compute nothing; raises ModelError that names all that nobody knows."""
        handlers = {**views, **handlers}
        unknown: Counter[str] = Counter()
        places: dict[str, str] = {}
        for operator in operators:
            call = TracedCall(self, operator, base_name(operator.op))
            handler = handlers.get(call.base)
            is_empty = bool(call.outputs) and all(info.is_empty for info in call.outputs)
            if is_empty or all(value.origin is Origin.CONSTANT for value in call.inputs):
                _constant(call, views.get(call.base))
            elif handler is not None:
                _handle(call, handler)
            else:
                unknown[operator.op] += 1
                places.setdefault(operator.op, operator.module or "the model itself")
                _pass_on(call)
            if is_in_place(operator.op) and call.inputs and call.outputs:
                # Later readers of the tensor see what was written into it.
                first = next(iter(tensor_names(operator.args)))
                self._values[first] = self._values[call.outputs[0].name]
        if unknown:
            raise _unknown_operators(unknown, places)

    def value(self, name: str) -> Value:
        """The tensor of that name; raises ModelError for one that nothing writes before."""
        if name not in self._values:
            raise ModelError("a trace reads a tensor before it is written", given=name)
        return self._values[name]

    def bind(self, name: str, value: Value) -> None:
        """Give a tensor its value."""
        self._values[name] = value

    def note_attention(self, query: Value, key: Value, value: Value) -> None:
        """Remember what attends to what: it names heads and tokens."""
        self.attended.append((query, key, value))

    def _given(self, info: TensorInfo, origin: Origin | None) -> Value:
        """A tensor from outside: of inputs, real numbers are activations and whole numbers constants."""
        if origin is None:
            origin = Origin.ACTIVATION if info.is_float else Origin.CONSTANT
        axes = tuple(self.atoms.fresh(size) for size in info.sizes)
        self._values[info.name] = Value(Stored(info.name, axes, origin), axes)
        return self._values[info.name]


def base_name(op: str) -> str:
    """An operator without its overload, and without the mark of writing in place."""
    namespace, _, rest = op.partition(".")
    name = rest.partition(".")[0] if rest else namespace
    if name.endswith("_") and not name.startswith("__"):
        name = name[:-1]
    return f"{namespace}.{name}" if rest else name


def is_in_place(op: str) -> bool:
    """Return True if an operator writes into its first argument."""
    name = op.partition(".")[2].partition(".")[0]
    return name.endswith("_") and not name.startswith("__")


_ORDERED = frozenset({"aten.le", "aten.lt", "aten.ge", "aten.gt", "aten.tril", "aten.triu"})
"""Comparisons of positions and triangles: what masks that hide later tokens are made of."""


def _handle(call: TracedCall, handler: Handler) -> None:
    """Run a handler; arguments, outputs or sizes that don't fit the operator are the file's fault."""
    try:
        handler(call)
    except MeshwrightError:
        raise
    except (IndexError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(
            f"a call of {call.operator.op} can't be read: {error}",
            given=call.operator.args,
            allowed="arguments and outputs as torch.export writes them",
        ) from error


def _constant(call: TracedCall, view: Handler | None) -> None:
    """A value that no gradient flows through. Views of it keep its axes, which say where tokens and labels belong, and so do
    sorted choices of a router, of which each is some token's still."""
    known = None
    is_empty = any(info.is_empty for info in call.outputs)
    if view is not None and not is_empty:
        _handle(call, view)
        known = call.outputs
    causal = any(value.causal for value in call.inputs)
    sides = [value for value in call.inputs if sum(axis_size(axis) > 1 for axis in value.axes) > 0]
    causal |= call.base in _ORDERED and (len(sides) > 1 or call.base in ("aten.tril", "aten.triu"))
    choice = next((value for value in call.inputs if value.picks), None)
    picks = choice.picks if choice is not None else ()
    for output, info in enumerate(call.outputs):
        axes = call.trace.value(info.name).axes if known else call.fresh(output)
        if known is None and choice is not None and tuple(map(axis_size, choice.axes)) == info.sizes:
            axes = choice.axes
        call.trace.bind(info.name, Value(Stored(info.name, axes, Origin.CONSTANT), axes, causal, picks))


def _pass_on(call: TracedCall) -> None:
    """Outputs of an operator that nobody knows, so that reading can go on and name all of them."""
    for info in call.outputs:
        axes = tuple(call.trace.atoms.fresh(size) for size in info.sizes)
        call.trace.bind(info.name, Value(Stored(info.name, axes, Origin.ACTIVATION), axes))


def _unknown_operators(unknown: Counter[str], places: Mapping[str, str]) -> ModelError:
    named = [f"{op} ({count} x, first in {places[op]})" for op, count in unknown.most_common(MAX_UNKNOWN_NAMED)]
    more = len(unknown) - len(named)
    return ModelError(
        "a trace has operators that have no strategies: " + ", ".join(named) + (f" and {more} more" if more else ""),
        allowed="the operators of docs/traced-graphs.md",
        remedy="export with program.run_decompositions(), or write the module with operators of that list",
    )


def tensor_names(arguments: Sequence[Any]) -> list[str]:
    """Names of the tensors among arguments, those in lists too."""
    names: list[str] = []
    for argument in arguments:
        if is_tensor(argument):
            names.append(argument["tensor"])
        elif isinstance(argument, (list, tuple)):
            names += tensor_names(argument)
    return names


def is_tensor(argument: Any) -> bool:
    """Return True if an argument names a tensor."""
    return isinstance(argument, dict) and isinstance(argument.get("tensor"), str)


def _distinct(reads: Any) -> list[Read]:
    found: dict[Stored, Read] = {}
    for read in reads:
        known = found.get(read.stored)
        if known is None or (read.renamed and not known.renamed):
            found[read.stored] = read
    return list(found.values())
