"""Calls between products: element by element, reductions over rows, and parts of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from meshwright.app.models.traced.atoms import Axes, Axis, Origin, Read, StepKind, Stored, Value, atoms_of, axis_size
from meshwright.app.models.traced.reading import Handler, TracedCall
from meshwright.costmodels.errors import ModelError


class Again(Enum):
    """The tensors of a function that its backward pass needs."""

    NOTHING = auto()
    INPUTS = auto()
    OUTPUT = auto()


# FLOPs an element, and what backward needs. Counts of norms and activations as in `app.models.architecture`.
_FUNCTIONS: Mapping[str, tuple[float, Again]] = {
    "abs": (1, Again.INPUTS),
    "add": (1, Again.NOTHING),
    "clamp": (2, Again.INPUTS),
    "clamp_min": (1, Again.INPUTS),
    "cos": (1, Again.INPUTS),
    "div": (1, Again.INPUTS),
    "elu": (3, Again.INPUTS),
    "erf": (1, Again.INPUTS),
    "exp": (1, Again.OUTPUT),
    "gelu": (5, Again.INPUTS),
    "hardswish": (4, Again.INPUTS),
    "leaky_relu": (1, Again.INPUTS),
    "log": (1, Again.INPUTS),
    "masked_fill": (1, Again.NOTHING),
    "maximum": (1, Again.INPUTS),
    "minimum": (1, Again.INPUTS),
    "mul": (1, Again.INPUTS),
    "neg": (1, Again.NOTHING),
    "pow": (1, Again.INPUTS),
    "reciprocal": (1, Again.OUTPUT),
    "relu": (1, Again.OUTPUT),
    "rsqrt": (1, Again.OUTPUT),
    "rsub": (1, Again.NOTHING),
    "sigmoid": (3, Again.OUTPUT),
    "silu": (4, Again.INPUTS),
    "sin": (1, Again.INPUTS),
    "softplus": (3, Again.INPUTS),
    "sqrt": (1, Again.OUTPUT),
    "square": (1, Again.INPUTS),
    "sub": (1, Again.NOTHING),
    "tanh": (1, Again.OUTPUT),
    "where": (1, Again.NOTHING),
    "zeros_like": (0, Again.NOTHING),
}
_LAYER_NORM_FLOPS, _RMS_NORM_FLOPS, _SOFTMAX_FLOPS = 5.0, 3.0, 5.0


def _elementwise(call: TracedCall) -> None:
    flops, again = _FUNCTIONS[call.base.removeprefix("aten.")]
    axes = _broadcast(call, call.inputs)
    _vector(call, call.inputs, axes, flops=flops * _elements(axes), again=again)


def _broadcast(call: TracedCall, values: Sequence[Value]) -> Axes:
    """Axes of the output, those of the operands made equal from the last one on."""
    axes: list[Axis] = [()] * len(call.outputs[0].sizes)
    for value in values:
        for place, axis in enumerate(reversed(value.axes)):
            at = len(axes) - 1 - place
            if not axis:
                continue
            if axes[at] and not call.trace.atoms.unify(axes[at], axis):
                raise ModelError(f"{call.name} reads tensors whose dims don't nest", given=call.outputs[0].sizes)
            axes[at] = axes[at] or axis
    return tuple(axes)


def _vector(
    call: TracedCall,
    values: Sequence[Value],
    *outputs: Axes,
    flops: float = 0.0,
    again: Again = Again.NOTHING,
    reduced: Sequence[Axis] = (),
    mixed: Sequence[Axis] = (),
) -> None:
    """Append a step; what only parameters and constants make is a parameter still."""
    active = [value for value in values if value.origin is Origin.ACTIVATION]
    if not active:
        parameter = next(value for value in values if value.origin is Origin.PARAMETER)
        call.view(parameter, outputs[0])
        return
    # The derivative of a product by one factor is the other: constants aside, each is needed for the other.
    linear = call.base in ("aten.mul", "aten.div") and sum(v.origin is not Origin.CONSTANT for v in values) < 2
    kept: list[Stored] = []
    if again is Again.INPUTS and not linear:
        kept = [value.stored for value in active]
    step = call.emit(
        StepKind.VECTOR, values, outputs, flops=flops, kept=kept, reduced=tuple(reduced), mixed=tuple(mixed)
    )  # fmt: skip
    if again is Again.OUTPUT:
        step.kept = list(step.outputs)
    causal = any(value.causal for value in values)
    lookup = next((value.lookup for value in values if value.lookup is not None), None)
    for stored in step.outputs:
        call.trace.bind(stored.name, Value(stored, stored.axes, causal, lookup=lookup))


def _norm(call: TracedCall) -> None:
    """Layer and RMS norms over the last axes, softmax over one."""
    value = call.inputs[0]
    if call.base in ("aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax"):
        reduced: Sequence[Axis] = (value.axes[call.axis(1, "dim", rank=len(value.axes))],)
        flops, again = _SOFTMAX_FLOPS, Again.OUTPUT
    else:
        count = len(call.wholes(1, "normalized_shape"))
        reduced = value.axes[-count:]
        is_rms = call.base in ("aten.rms_norm", "aten._fused_rms_norm")
        flops, again = (_RMS_NORM_FLOPS if is_rms else _LAYER_NORM_FLOPS), Again.INPUTS
    for parameter in call.inputs[1:]:
        for axis, own in zip(reversed(parameter.axes), reversed(tuple(reduced)), strict=False):
            call.trace.atoms.unify(own, axis)
    scaled = flops + len(call.inputs) - 1
    outputs = [value.axes, *(call.fresh(i) for i in range(1, len(call.outputs)))]
    _vector(call, call.inputs, *outputs, flops=scaled * _elements(value.axes), again=again, reduced=reduced)


def _batch_norm(call: TracedCall) -> None:
    """By channel, over what a rank holds of the batch, as torch.nn.BatchNorm computes it without synchronisation."""
    value = call.inputs[0]
    learned = [given for given in call.inputs[1:] if given.origin is Origin.PARAMETER]
    for parameter in learned:
        call.trace.atoms.unify(value.axes[1], parameter.axes[-1])
    flops = (_LAYER_NORM_FLOPS + len(learned)) * _elements(value.axes)
    if call.base == "aten.group_norm":
        _vector(call, [value, *learned], value.axes, flops=flops, again=Again.INPUTS, mixed=value.axes[1:])
    else:
        _vector(call, [value, *learned], value.axes, flops=flops, again=Again.INPUTS)


def _reduction(call: TracedCall) -> None:
    """Mean, sum, maximum and variance over some axes or all of them."""
    value = call.value(0, "self")
    rank = len(value.axes)
    over = {axis % rank for axis in call.wholes(1, "dim")} or set(range(rank))
    keeps = len(call.outputs[0].sizes) == rank
    axes = tuple(() if at in over else axis for at, axis in enumerate(value.axes) if keeps or at not in over)
    again = Again.NOTHING if call.base in ("aten.mean", "aten.sum") else Again.INPUTS
    outputs = [axes] * len(call.outputs)
    reduced = [value.axes[at] for at in over]
    _vector(call, [value], *outputs, flops=_elements(value.axes), again=again, reduced=reduced)
    if call.trace.choices & atoms_of(reduced) and len(value.axes) > 2:
        # What comes back from experts is summed where the ranks exchange it.
        call.trace.steps[-1].apart = True


def _pooling(call: TracedCall) -> None:
    """Windows over the last axes: channels and batch stay what they are."""
    value = call.value(0, "self")
    made = call.fresh()
    spatial = 1 if "1d" in call.base else 2
    axes = (*value.axes[:-spatial], *made[-spatial:])
    _vector(call, [value], axes, flops=_elements(value.axes), again=Again.INPUTS)


def _sliced(call: TracedCall) -> None:
    value = call.value(0, "self")
    at = call.axis(1, "dim", 0, rank=len(value.axes))
    size = axis_size(value.axes[at])
    if call.outputs[0].sizes[at] == size:
        call.view(value, value.axes)
        return
    start = call.argument(2, "start", 0) or 0
    _cut(call, value, at, [min(size, start % size if start < 0 else start)])


def _selected(call: TracedCall) -> None:
    value = call.value(0, "self")
    at = call.axis(1, "dim", rank=len(value.axes))
    size = axis_size(value.axes[at])
    axes = (*value.axes[:at], *value.axes[at + 1 :])
    if size == 1:
        call.view(value, axes)
        return
    _part(call, value, at, call.whole(2, "index") % size, axes, 0)


def _split(call: TracedCall) -> None:
    """split, chunk, split_with_sizes and unbind: all parts along one axis."""
    value = call.value(0, "self")
    if call.base == "aten.unbind":
        at = call.axis(1, "dim", 0, rank=len(value.axes))
        for index in range(len(call.outputs)):
            _part(call, value, at, index, (*value.axes[:at], *value.axes[at + 1 :]), index)
        return
    at = call.axis(2, "dim", 0, rank=len(value.axes))
    starts, start = [], 0
    for info in call.outputs:
        starts.append(start)
        start += info.sizes[at]
    _cut(call, value, at, starts)


def _cut(call: TracedCall, value: Value, at: int, starts: Sequence[int]) -> None:
    """Parts along axis ``at``, one an output."""
    for index, start in enumerate(starts):
        made = call.trace.atoms.fresh(call.outputs[index].sizes[at])
        _part(call, value, at, start, (*value.axes[:at], made, *value.axes[at + 1 :]), index)


def _part(call: TracedCall, value: Value, at: int, start: int, axes: Axes, output: int) -> None:
    info = call.outputs[output]
    if value.origin is not Origin.ACTIVATION:
        stored = Stored(f"{value.stored.name}[{start}]", axes, value.origin)
        call.trace.bind(info.name, Value(stored if value.origin is Origin.CONSTANT else value.stored, axes, value.causal))
        return
    stored = Stored(info.name, axes, Origin.ACTIVATION)
    step = call.emit(StepKind.PART, [Read(value.stored)], [], part=(value.axes[at], start))
    step.outputs = [stored]
    call.trace.bind(info.name, Value(stored, axes, value.causal))


def _joined(call: TracedCall) -> None:
    """Concatenated along one axis, or stacked along a new one; along the others as element by element."""
    values = call.inputs
    rank = len(call.outputs[0].sizes)
    at = call.axis(1, "dim", 0, rank=rank)
    fresh = call.trace.atoms.fresh(call.outputs[0].sizes[at])
    others = []
    for value in values:
        axes = list(value.axes)
        if call.base == "aten.stack":
            axes.insert(at, ())
        axes[at] = ()
        others.append(Value(value.stored, tuple(axes)))
    joined = list(_broadcast(call, others))
    joined[at] = fresh
    _vector(call, values, tuple(joined))


def _moved(call: TracedCall) -> None:
    """Elements change places along axes: the axes that change are new."""
    value = call.value(0, "self")
    made, sizes = call.fresh(), call.outputs[0].sizes
    given: Axes = ((),) * (len(sizes) - len(value.axes)) + value.axes
    if call.base in ("aten.pad", "aten.constant_pad_nd", "aten.repeat"):
        axes = tuple(own if axis_size(own) == size else new for own, new, size in zip(given, made, sizes, strict=True))
        _vector(call, [value], axes)
        return
    places = {axis % len(sizes) for axis in call.wholes(2 if call.base == "aten.roll" else 1, "dims", ())}
    axes = tuple(
        new if at in (places or range(len(sizes))) else own for at, (own, new) in enumerate(zip(given, made, strict=True))
    )
    _vector(call, [value], axes)


def _picked(call: TracedCall) -> None:
    """The largest along an axis, and where they are: which experts a router picks for each token. A sort is not fused."""
    value = call.value(0, "self")
    at = call.axis(2, "dim", -1, rank=len(value.axes))
    if call.outputs[0].sizes[at] == 1:
        raise ModelError(f"{call.name} picks one place alone", allowed="2 or more", remedy="use a template of the model")
    copies = call.trace.atoms.fresh(call.outputs[0].sizes[at])
    call.trace.choices.update(copies)
    axes = (*value.axes[:at], copies, *value.axes[at + 1 :])
    call.emit(StepKind.VECTOR, [value], [axes], flops=_elements(value.axes), apart=True)
    chosen = Stored(call.outputs[1].name, axes, Origin.CONSTANT)
    call.trace.bind(chosen.name, Value(chosen, axes, picks=value.axes[at]))


def _repeated(call: TracedCall) -> None:
    """Each element of an axis several times, one behind the other."""
    value = call.value(0, "self")
    at = call.axis(2, "dim", rank=len(value.axes))
    copies = call.trace.atoms.fresh(call.whole(1, "repeats"))
    call.emit(StepKind.VECTOR, [value], [(*value.axes[:at], (*value.axes[at], *copies), *value.axes[at + 1 :])], apart=True)


def _running(call: TracedCall) -> None:
    value = call.value(0, "self")
    at = call.axis(1, "dim", rank=len(value.axes))
    _vector(call, [value], value.axes, flops=_elements(value.axes), mixed=[value.axes[at]])


def _elements(axes: Axes) -> int:
    product = 1
    for axis in axes:
        product *= axis_size(axis)
    return product


VECTORS: Mapping[str, Handler] = {
    **{f"aten.{name}": _elementwise for name in _FUNCTIONS},
    **dict.fromkeys(
        (
            "aten.layer_norm",
            "aten.native_layer_norm",
            "aten.rms_norm",
            "aten._fused_rms_norm",
            "aten.softmax",
            "aten._softmax",
            "aten.log_softmax",
            "aten._log_softmax",
        ),
        _norm,
    ),
    **dict.fromkeys(("aten.batch_norm", "aten.group_norm"), _batch_norm),
    **dict.fromkeys(("aten.mean", "aten.sum", "aten.amax", "aten.amin", "aten.var"), _reduction),
    **dict.fromkeys(
        (
            "aten.max_pool1d",
            "aten.max_pool2d",
            "aten.avg_pool1d",
            "aten.avg_pool2d",
            "aten.adaptive_avg_pool1d",
            "aten.adaptive_avg_pool2d",
        ),
        _pooling,
    ),
    "aten.slice": _sliced,
    "aten.select": _selected,
    **dict.fromkeys(("aten.split", "aten.chunk", "aten.split_with_sizes", "aten.unbind"), _split),
    **dict.fromkeys(("aten.cat", "aten.stack"), _joined),
    **dict.fromkeys(("aten.pad", "aten.constant_pad_nd", "aten.roll", "aten.flip", "aten.repeat"), _moved),
    "aten.cumsum": _running,
    "aten.topk": _picked,
    "aten.repeat_interleave": _repeated,
}
