"""Calls that move nothing: views, permutations, casts and copies, which a compiler folds into the kernels around them."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.app.importers.traced.atoms import Axes
from meshwright.app.importers.traced.reading import Call, Handler
from meshwright.app.importers.traced.steps import Origin, StepKind, Value


def _same(call: Call) -> None:
    value = call.value(0, "self")
    call.view(value, value.axes)


def _reshaped(call: Call) -> None:
    value = call.value(0, "self")
    axes, mixed = call.trace.atoms.regrouped(value.axes, call.outputs[0].sizes)
    if mixed and value.origin is Origin.ACTIVATION:
        # No dim of the view is a dim of the tensor: each rank needs all of what is mixed.
        call.emit(StepKind.VECTOR, [value], [axes], mixed=(tuple(mixed),))
    else:
        call.view(value, axes)


def _permuted(call: Call) -> None:
    value = call.value(0, "self")
    order = call.wholes(1, "dims")
    call.view(value, tuple(value.axes[i % len(value.axes)] for i in order))


def _swapped(call: Call) -> None:
    value = call.value(0, "self")
    rank = len(value.axes)
    if call.base in ("aten.t", "aten.numpy_T", "aten.mT"):
        first, second = rank - 2, rank - 1
    else:
        first, second = call.axis(1, "dim0", rank=rank), call.axis(2, "dim1", rank=rank)
    axes = list(value.axes)
    if rank > 1:
        axes[first], axes[second] = axes[second], axes[first]
    call.view(value, tuple(axes))


def _unsqueezed(call: Call) -> None:
    value = call.value(0, "self")
    place = call.axis(1, "dim", rank=len(value.axes) + 1)
    call.view(value, (*value.axes[:place], (), *value.axes[place:]))


def _expanded(call: Call) -> None:
    """Repeated along axes of size 1, and along new ones in front."""
    value = call.value(0, "self")
    sizes = call.outputs[0].sizes
    axes: Axes = ((),) * (len(sizes) - len(value.axes)) + value.axes
    call.view(value, tuple(axis if axis else call.trace.atoms.fresh(size) for axis, size in zip(axes, sizes, strict=True)))


def _indexed(call: Call) -> None:
    """One of several outputs of a call."""
    call.trace.bind(call.outputs[0].name, call.inputs[call.whole(1, "index")])


def _checked(call: Call) -> None:
    """Says something of a tensor, makes none."""


def _cast_input(call: Call) -> None:
    value = call.value(0, "self")
    call.trace.bind(call.outputs[0].name, Value(value.stored, value.axes, value.causal))


VIEWS: Mapping[str, Handler] = {
    **dict.fromkeys(
        (
            "aten.alias",
            "aten.clone",
            "aten.contiguous",
            "aten.detach",
            "aten.dropout",
            "aten.feature_dropout",
            "aten.lift_fresh_copy",
            "aten.native_dropout",
            "aten.type_as",
        ),
        _same,
    ),
    **dict.fromkeys(("aten.to", "aten._to_copy", "aten.float", "aten.bfloat16", "aten.half"), _cast_input),
    **dict.fromkeys(
        ("aten.view", "aten.reshape", "aten._unsafe_view", "aten.view_copy", "aten.flatten", "aten.unflatten", "aten.squeeze"),
        _reshaped,
    ),
    "aten.permute": _permuted,
    **dict.fromkeys(("aten.transpose", "aten.swapaxes", "aten.t", "aten.numpy_T", "aten.mT"), _swapped),
    "aten.unsqueeze": _unsqueezed,
    **dict.fromkeys(("aten.expand", "aten.expand_as", "aten.broadcast_to"), _expanded),
    "getitem": _indexed,
    **dict.fromkeys(("aten._assert_tensor_metadata", "aten._assert_async", "aten.sym_size", "aten._assert_scalar"), _checked),
}
