"""What a trace writes out in many calls and a device runs as one kernel: chunked scans, norms in groups, causal convolutions.

Each is known by its dataflow, whatever modules and tensors are called: a pattern of calls, of which every one is a term. What
matches becomes one call before the trace is read, so that no chunk of the sequence is a dim of the model. Whatever differs from
a pattern stays as it is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from meshwright.app.models.traced.reading import (
    TracedGraph,
    TracedOperator,
    base_name,
    is_in_place,
    is_tensor,
    tensor_info,
    tensor_names,
)

SCAN = "meshwright.chunked_scan"
"""The call of a chunked scan: x, dt, B, C, the logarithm of -A, D, the bias of dt, and the tokens of a chunk."""


class _Of(Enum):
    """What a pattern finds: tensors and arguments; CHUNKS is what a scan multiplies by its scores, chunk by chunk."""

    INPUT = auto()
    DT = auto()
    B = auto()
    C = auto()
    A_LOG = auto()
    D = auto()
    DT_BIAS = auto()
    CHUNKS = auto()
    KERNEL = auto()
    BIAS = auto()
    PADDING = auto()
    GROUPS = auto()


def _triangle(diagonal: tuple[int, ...]) -> tuple[Any, ...]:
    return ("bitwise_not", ("tril", ("ones", ...), *diagonal))


def _segments(terms: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    """exp of the sums of terms between any two places, none before the second (Mamba-2's `segsum`)."""
    repeated = ("expand", ("unsqueeze", terms, axis), ...)
    sums = ("cumsum", ("masked_fill", repeated, _triangle((-1,)), 0), -2)
    return ("exp", ("masked_fill", sums, _triangle(()), "-inf"))


def _scan() -> tuple[Any, ...]:
    """The state-space dual form in chunks (Dao and Gu 2024, listing 1): b batch, c chunk, l and s places in it, h head, p its
    width, n state."""
    step = ("clamp", ("softplus", ("add", _Of.DT, _Of.DT_BIAS)), ..., ...)
    decay = ("permute", ("reshape", ("mul", ("neg", ("exp", _Of.A_LOG)), step), ...), [0, 3, 1, 2])
    x = ("reshape", ("mul", _Of.INPUT, ("unsqueeze", step, 3)), ...)
    b, c = (("reshape", ("repeat_interleave", source, ..., 2), ...) for source in (_Of.B, _Of.C))
    sums = ("cumsum", decay, -1)
    scores = ("mul", ("einsum", "bclhn,bcshn->bclsh", [c, b]), ("permute", _segments(decay, 4), [0, 2, 3, 4, 1]))
    inside = ("einsum", "bclsh,bcshp->bclhp", [scores, {_Of.CHUNKS: x}])
    to_end = ("exp", ("sub", ("slice", sums, 3, -1, None), sums))
    kept = ("mul", b, ("unsqueeze", ("permute", to_end, [0, -2, -1, 1]), 4))
    states = ("einsum", "bclhn,bclhp->bchpn", [kept, x])
    with_first = ("cat", [("zeros_like", ("slice", states, 1, 0, 1)), states], 1)
    between = ("transpose", _segments(("pad", ("select", sums, 3, -1), [1, 0]), 3), 1, 3)
    entering = ("slice", ("einsum", "bzch,bzhpn->bchpn", [between, with_first]), 1, 0, -1)
    from_start = ("unsqueeze", ("permute", ("exp", sums), [0, 2, 3, 1]), 4)
    carried = ("mul", ("einsum", "bclhn,bchpn->bclhp", [c, entering]), from_start)
    return ("add", ("reshape", ("add", inside, carried), ...), ("mul", ("unsqueeze", _Of.D, 1), _Of.INPUT))


def _group_norm() -> tuple[Any, ...]:
    """An RMS norm of each group of the last axis."""
    cut = ("view", _Of.INPUT, ...)
    return ("view", ("mul", cut, ("rsqrt", ("add", ("mean", ("pow", cut, 2), [-1], True), ...))), ...)


_CONVOLUTION = ("conv1d", _Of.INPUT, _Of.KERNEL, _Of.BIAS, [1], _Of.PADDING, [1], _Of.GROUPS)
_CAUSAL = ("slice", _CONVOLUTION, 2, 0, ...)
_SCAN = _scan()
_PATTERNS = (_SCAN, ("slice", _SCAN, 1, 0, ...), _group_norm(), _CAUSAL)
_EITHER_WAY = frozenset({"add", "mul"})
_MOVES = frozenset({"to", "_to_copy", "float", "contiguous", "clone", "alias"})
_SAME = {"reshape": "view", "_unsafe_view": "view"}


@dataclass
class _Match:
    """What the names of a pattern stand for, and the calls that it covers."""

    found: dict[_Of, Any] = field(default_factory=dict)
    calls: set[int] = field(default_factory=set)


def as_kernels(graph: TracedGraph) -> list[TracedOperator]:
    """The calls of a trace, those of one kernel as one call."""
    calls = _Calls(graph)
    gone: set[int] = set()
    made: dict[int, TracedOperator] = {}
    for place, operator in enumerate(graph.operators):
        for pattern in _PATTERNS:
            match = calls.match(pattern, place)
            whole = _as_one(operator, match.found, calls) if match is not None else None
            inside = calls.with_unread(match.calls - {place}) if match is not None else set()
            if whole is not None and calls.are_read_in(inside, {*inside, place}):
                made[place] = whole
                gone |= inside
    return [made.get(place, operator) for place, operator in enumerate(graph.operators) if place not in gone]


def _as_one(operator: TracedOperator, found: Mapping[_Of, Any], calls: _Calls) -> TracedOperator | None:
    """The one call for what a pattern found; None where sizes say that it is something else."""
    sizes = tensor_info(operator.outputs[0]).sizes
    if sizes != calls.sizes(found[_Of.INPUT]) or not sizes:
        return None
    if _Of.CHUNKS in found:
        chunks = calls.sizes(found[_Of.CHUNKS])
        if len(chunks) != 5 or not all(chunks):  # Batch, chunks, places, heads and their width.
            return None
        given = [found[each] for each in (_Of.INPUT, _Of.DT, _Of.B, _Of.C, _Of.A_LOG, _Of.D, _Of.DT_BIAS)]
        return replace(operator, op=SCAN, args=(*given, chunks[2]), kwargs={})
    if _Of.KERNEL not in found:
        return replace(operator, op="aten.rms_norm.default", args=(found[_Of.INPUT], [sizes[-1]]), kwargs={})
    if found[_Of.PADDING] != [width - 1 for width in calls.sizes(found[_Of.KERNEL])[2:]]:
        return None
    given = [found[each] for each in (_Of.INPUT, _Of.KERNEL, _Of.BIAS)]
    how = ([1], found[_Of.PADDING], [1], found[_Of.GROUPS])
    return replace(operator, op="aten.conv1d.default", args=(*given, *how), kwargs={})


class _Calls:
    """The calls of a trace by what they write and read."""

    def __init__(self, graph: TracedGraph):
        self.operators = graph.operators
        given = (*graph.inputs, *graph.constants, *(parameter.tensor for parameter in graph.parameters))
        infos = [tensor_info(entry) for entry in given]
        self._writer: dict[str, int] = {}
        self._readers: defaultdict[str, list[int]] = defaultdict(list)
        for place, operator in enumerate(graph.operators):
            written = [tensor_info(entry) for entry in operator.outputs]
            infos += written
            self._writer |= {info.name: place for info in written}
            for name in tensor_names((*operator.args, *operator.kwargs.values())):
                self._readers[name].append(place)
        self._sizes = {info.name: info.sizes for info in infos}

    def sizes(self, tensor: Any) -> tuple[int, ...]:
        """Sizes of a tensor; none of what the trace doesn't have."""
        return self._sizes.get(tensor["tensor"], ()) if is_tensor(tensor) else ()

    def match(self, pattern: tuple[Any, ...], place: int) -> _Match | None:
        """What a pattern finds in a call and in those that it reads; None where it doesn't match."""
        match = _Match()
        return match if self.operators[place].outputs and self._is_call(pattern, place, match) else None

    def are_read_in(self, places: set[int], readers: set[int]) -> bool:
        """Return True if only some readers read what some calls write."""
        return all(reader in readers for place in places for reader in self._reading(place))

    def with_unread(self, places: set[int]) -> set[int]:
        """Some calls, and those that read what they write and that nobody reads."""
        unread = {reader for place in places for reader in self._reading(place) if not self._reading(reader)}
        return places | unread

    def _reading(self, place: int) -> list[int]:
        return [reader for entry in self.operators[place].outputs for reader in self._readers[entry[0]]]

    def _is_call(self, pattern: tuple[Any, ...], place: int, match: _Match) -> bool:
        operator = self.operators[place]
        name, *wanted = pattern
        short = base_name(operator.op).removeprefix("aten.")
        lacks = len(operator.args) < sum(each is not ... for each in wanted)
        if _SAME.get(short, short) != _SAME.get(name, name) or lacks or is_in_place(operator.op):
            return False
        match.calls.add(place)
        orders = [operator.args, operator.args[::-1]] if name in _EITHER_WAY else [operator.args]
        for given in orders:
            attempt = _Match(dict(match.found), set(match.calls))
            if all(self._fits(each, one, attempt) for each, one in zip(wanted, given, strict=False)):
                match.found, match.calls = attempt.found, attempt.calls
                return True
        return False

    def _fits(self, wanted: Any, given: Any, match: _Match) -> bool:
        if wanted is ...:
            return True
        if is_tensor(given):
            given = self._before_moves(given, wanted, match)
        if isinstance(wanted, dict):
            ((name, inner),) = wanted.items()
            return self._fits(name, given, match) and self._fits(inner, given, match)
        if isinstance(wanted, _Of):
            return bool(match.found.setdefault(wanted, given) == given)
        if isinstance(wanted, tuple):
            place = self._writer.get(given["tensor"]) if is_tensor(given) else None
            return place is not None and self._is_call(wanted, place, match)
        if isinstance(wanted, list) and isinstance(given, list):
            return len(wanted) == len(given) and all(self._fits(*pair, match) for pair in zip(wanted, given, strict=True))
        if isinstance(wanted, str) and "->" in wanted and isinstance(given, str):
            return _lettered(wanted) == _lettered(given)
        return type(wanted) is type(given) and bool(wanted == given)

    def _before_moves(self, given: Any, wanted: Any, match: _Match) -> Any:
        """A tensor before casts, copies, and pads behind its sequence."""
        place = self._writer.get(given["tensor"])
        last = len(self.operators)
        while place is not None and place < last and _moves(self.operators[place], wanted):
            match.calls.add(place)
            given, last = self.operators[place].args[0], place
            place = self._writer.get(given["tensor"])
        return given


def _moves(operator: TracedOperator, wanted: Any) -> bool:
    short = base_name(operator.op).removeprefix("aten.")
    if not operator.args or not is_tensor(operator.args[0]) or (isinstance(wanted, tuple) and wanted[0] == short):
        return False
    if short != "pad" or len(operator.args) < 2 or not isinstance(operator.args[1], list) or not operator.outputs:
        return short in _MOVES
    _, pads, *how = operator.args
    behind = 2 * (len(operator.outputs[0]) - 2) - 3  # The entry of the second axis' end, last axes first.
    return how in ([], ["constant"], ["constant", 0.0]) and not any(pad for at, pad in enumerate(pads) if at != behind)


def _lettered(equation: str) -> list[int]:
    """An equation of `einsum`, whatever its letters are: each as the place where it came first."""
    plain = equation.replace(" ", "")
    return [plain.index(letter) if letter.isalpha() else -ord(letter) for letter in plain]
