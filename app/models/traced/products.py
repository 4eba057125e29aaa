"""Products: linear layers, products of two activations, convolutions, attention, lookups and the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.app.models.traced.atoms import Axes, Axis, Origin, Read, Step, StepKind, Stored, Value, axis_size, resolve
from meshwright.app.models.traced.reading import Handler, TracedCall
from meshwright.app.models.traced.written_out import SCAN
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.operators import AttentionMask

_TEMPLATE = "use a template of the model"
_SOFTMAX_FLOPS = 5.0
"""Maximum, subtraction, exponential, sum, division (survey section 5.1)."""


def _linear(call: TracedCall) -> None:
    weight = call.value(1, "weight")
    _multiply(call, call.value(0, "input"), _transposed(weight), call.optional(2, "bias"))


def _addmm(call: TracedCall) -> None:
    _multiply(call, call.value(1, "mat1"), call.value(2, "mat2"), call.value(0, "self"))


def _mm(call: TracedCall) -> None:
    _multiply(call, call.value(0, "self"), call.value(1, "mat2"), None)


def _transposed(value: Value) -> Value:
    return replace(value, axes=(*value.axes[:-2], value.axes[-1], value.axes[-2]))


def _multiply(call: TracedCall, left: Value, right: Value, added: Value | None) -> None:
    """left (..., n, k) x right (..., k, m); a vector on either side has no n or no m."""
    if left.picks and left.origin is Origin.PARAMETER and right.origin is Origin.ACTIVATION:
        _of_picked(call, left, right)
        return
    if Origin.CONSTANT in (left.origin, right.origin):
        raise ModelError(f"{call.name} multiplies by a constant", remedy="make it a parameter, or leave it out of the trace")
    if right.origin is Origin.PARAMETER and left.origin is Origin.ACTIVATION and len(right.axes) <= 2:
        _equal(call, left.axes[-1], right.axes[0])
        features = right.axes[1:]
        axes = (*left.axes[:-1], *features)
        reads = [left, right] if added is None else [left, right, added]
        if added is not None and features:
            _equal(call, added.axes[-1], features[0])
        call.emit(StepKind.MATMUL, reads, [axes], kept=[left.stored], contracted=(left.axes[-1],))
        return
    if Origin.PARAMETER in (left.origin, right.origin):
        raise ModelError(
            f"{call.name} multiplies parameters from the left or in a batch",
            allowed="activation x parameter matrix",
            remedy="write it as a linear layer",
        )
    _product(call, left, right)


def _of_picked(call: TracedCall, picked: Value, rows: Value) -> None:
    """Matrices (r, n, k) that a router picked for each row, by what the rows (r, k, 1) hold."""
    if len(picked.axes) != 3 or len(rows.axes) != 3 or rows.axes[2]:
        raise ModelError(f"{call.name} multiplies picked matrices by more than a row each", remedy=_TEMPLATE)
    _equal(call, picked.axes[0], rows.axes[0])
    _equal(call, picked.axes[2], rows.axes[1])
    _by_expert(call, rows, picked, (rows.axes[0], picked.axes[1], ()), rows.axes[1])


def _grouped(call: TracedCall) -> None:
    """Rows (r, k), sorted by experts, by the matrix of each row's own expert: (experts, k, n)."""
    rows, experts, ends = call.value(0, "self"), call.value(1, "mat2"), call.value(2, "offs")
    if experts.origin is not Origin.PARAMETER or len(experts.axes) != 3 or not ends.picks:
        raise ModelError(f"{call.name} multiplies by matrices that no router picks", remedy=_TEMPLATE)
    _equal(call, ends.picks, experts.axes[0])
    _equal(call, rows.axes[1], experts.axes[1])
    _by_expert(call, rows, replace(experts, picks=ends.picks), (rows.axes[0], experts.axes[2]), rows.axes[1])


def _by_expert(call: TracedCall, rows: Value, experts: Value, axes: Axes, summed: Axis) -> None:
    """A product of each row with the matrix of its expert."""
    call.emit(StepKind.MATMUL, [rows, experts], [axes], kept=[rows.stored], contracted=(summed,), routed=(experts.picks,))


def _product(call: TracedCall, left: Value, right: Value) -> None:
    """Two activations: every axis before the last two is in both and in the output."""
    if len(left.axes) < 2 or len(right.axes) < 2:
        raise ModelError(f"{call.name} multiplies an activation by a vector", remedy="write it as an elementwise product")
    atoms = call.trace.atoms
    batch: list[Axis] = []
    for a, b in zip(left.axes[-3::-1], right.axes[-3::-1], strict=False):
        if a and b:
            _equal(call, a, b)
        batch.insert(0, a or b)
    longer = left.axes if len(left.axes) > len(right.axes) else right.axes
    batch = [*longer[: len(longer) - 2 - len(batch)], *batch]
    rows, columns, summed = left.axes[-2], right.axes[-1], left.axes[-1]
    renamed: list[tuple[Axis, Axis]] = []
    if not _is_scores(call, summed):
        _equal(call, summed, right.axes[-2])
    else:
        renamed.append((right.axes[-2], summed))
    out_columns = columns
    if set(resolve(columns)) & set(resolve(rows)):
        # Scores of self-attention: their columns are the same tokens as their rows, but another dim.
        out_columns = atoms.fresh(axis_size(columns))
        call.trace.copies.update(out_columns)
        renamed.append((columns, out_columns))
    call.emit(
        StepKind.PRODUCT,
        [Read(left.stored), Read(right.stored, tuple(renamed))],
        [(*batch, rows, out_columns)],
        kept=[left.stored, right.stored],
    )


def _is_scores(call: TracedCall, axis: Axis) -> bool:
    copies = {atom for copy in call.trace.copies for atom in copy.resolved()}
    return not copies.isdisjoint(resolve(axis))


def _equal(call: TracedCall, first: Axis, second: Axis) -> None:
    if axis_size(first) != axis_size(second) or not call.trace.atoms.unify(first, second):
        raise ModelError(
            f"{call.name} reads tensors whose dims don't match",
            given=[[atom.size for atom in resolve(axis)] for axis in (first, second)],
        )


def _attention(call: TracedCall) -> None:
    query, key, value = call.value(0, "query"), call.value(1, "key"), call.value(2, "value")
    mask = call.optional(3, "attn_mask")
    for q, k, v in zip(query.axes[:-3], key.axes[:-3], value.axes[:-3], strict=True):
        _equal(call, q, k)
        _equal(call, q, v)
    heads, groups = query.axes[-3], key.axes[-3]
    if axis_size(heads) != axis_size(groups):
        # Grouped queries: key and value heads are repeated for as many query heads.
        groups = (*groups, *call.trace.atoms.fresh(axis_size(heads) // axis_size(groups)))
        _equal(call, value.axes[-3], key.axes[-3])
    else:
        _equal(call, heads, value.axes[-3])
    _equal(call, heads, groups)
    _equal(call, query.axes[-1], key.axes[-1])
    if axis_size(value.axes[-1]) == axis_size(key.axes[-1]):
        _equal(call, value.axes[-1], key.axes[-1])
    _equal(call, key.axes[-2], value.axes[-2])
    is_causal = bool(call.argument(5, "is_causal", False)) or (mask is not None and mask.causal)
    axes = (*query.axes[:-1], value.axes[-1])
    step = call.emit(
        StepKind.ATTENTION,
        [query, key, value],
        [axes],
        mask=AttentionMask.CAUSAL if is_causal else AttentionMask.FULL,
        kept=[query.stored, key.stored, value.stored],
    )
    step.reads = [Read(query.stored), Read(key.stored), Read(value.stored)]
    step.kept.append(step.outputs[0])
    if mask is not None and mask.lookup is not None:
        _take_table(call, step, heads, mask, mask.lookup)
    call.trace.note_attention(query, key, value)


def _scan(call: TracedCall) -> None:
    """x (b, s, h, p), dt (b, s, h), B and C (b, s, g, n); the weights have an entry for each head."""
    x, dt, b, c = (call.value(place, name) for place, name in enumerate(("x", "dt", "B", "C")))
    weights = [call.value(place, name) for place, name in ((4, "A_log"), (5, "D"), (6, "dt_bias"))]
    if len(x.axes) != 4 or len(dt.axes) != 3 or len(b.axes) != 4 or len(c.axes) != 4:
        raise ModelError(f"{call.name} scans tensors of another rank than heads and groups have", remedy=_TEMPLATE)
    for own, other in (*((x.axes[at], dt.axes[at]) for at in range(3)), *((x.axes[at], b.axes[at]) for at in range(2))):
        _equal(call, own, other)
    for weight in weights:
        _equal(call, x.axes[2], weight.axes[0])
    _equal(call, b.axes[2], c.axes[2])
    _equal(call, b.axes[3], c.axes[3])
    groups, state = (b.axes[2], b.axes[3]) if b.axes[2] else call.trace.atoms.led_by_one(b.axes[3])
    call.emit(
        StepKind.SCAN,
        [x, b, c, dt, *weights],
        [x.axes],
        kept=[x.stored, b.stored, c.stored, dt.stored],
        chunk=call.whole(7, "chunk"),
    )
    call.trace.scanned.append((x, replace(b, axes=(*b.axes[:2], groups, state))))


def _take_table(call: TracedCall, attention: Step, heads: Axis, bias: Value, lookup: Step) -> None:
    """A table with a column for each head, in which a bias of scores was looked up, is a weight of the first attention that
    reads it: its kernel looks it up. The lookup is left without its table."""
    columns = [resolve(weight.stored.axes[-1]) for weight in lookup.weights]
    if len(bias.axes) > 2 and columns == [resolve(bias.axes[-3])]:
        _equal(call, bias.axes[-3], heads)
        attention.weights, lookup.weights = lookup.weights, []


def _embedding(call: TracedCall) -> None:
    table, index = call.value(0, "weight"), call.value(1, "indices")
    step = call.emit(StepKind.EMBEDDING, [table], [(*index.axes, table.axes[-1])])
    # The index is a constant, and the lookup's only input.
    step.reads = [Read(Stored(f"{index.stored.name}:{step.outputs[0].name}", index.axes, Origin.ACTIVATION))]
    call.trace.bind(step.outputs[0].name, Value(step.outputs[0], step.outputs[0].axes, lookup=step))


def _indexed(call: TracedCall) -> None:
    """Entries of a parameter by a constant index are a lookup; of an activation, a part whose places are mixed. By a router's
    choices, tokens go to their experts and back, and parameters are those of the experts."""
    source = call.value(0, "self")
    index = next(value for value in call.inputs[1:])
    entries = call.argument(1, "indices")
    if index.picks and len(entries) == 1:
        _routed(call, source, index)
        return
    if source.origin is Origin.PARAMETER and len(entries) == 1 and len(source.axes) == 2:
        step = call.emit(StepKind.EMBEDDING, [source], [(*index.axes, source.axes[-1])])
        step.reads = [Read(Stored(f"{index.stored.name}:{step.outputs[0].name}", index.axes, Origin.ACTIVATION))]
        return
    if index.origin is not Origin.CONSTANT:
        raise ModelError(f"{call.name} picks places that depend on parameters", remedy=_TEMPLATE)
    kept = len(source.axes) - len(entries)
    made = call.fresh()
    call.emit(StepKind.VECTOR, [source], [(*made[: len(made) - kept], *source.axes[len(entries) :])])


def _routed(call: TracedCall, source: Value, index: Value) -> None:
    """Rows of tokens at the choices of a router: a copy of a token for each of its experts, or the copies in another order."""
    axes = (*index.axes, *source.axes[1:])
    if source.origin is Origin.PARAMETER:
        _equal(call, index.picks, source.axes[0])
        call.view(replace(source, picks=index.picks), axes)
        return
    tokens, chosen = resolve(source.axes[0]), tuple(atom for axis in index.axes for atom in resolve(axis))
    if chosen[: len(tokens)] != tokens:
        raise ModelError(f"{call.name} picks rows that are not the router's tokens", remedy=_TEMPLATE)
    if chosen == tokens:
        call.view(source, axes)
    else:
        call.emit(StepKind.VECTOR, [source], [axes], apart=True)


def _loss(call: TracedCall) -> None:
    logits, labels = call.value(0, "self"), call.value(1, "target")
    rows = (*logits.axes[:1], *logits.axes[2:])
    if len(logits.axes) == len(labels.axes):
        reads, rows = [logits, labels], logits.axes[:1]
    else:
        reads = [logits]
    step = call.emit(
        StepKind.LOSS,
        reads,
        [rows],
        flops=_SOFTMAX_FLOPS * logits.stored.elements,
        kept=[logits.stored],
    )
    # What is done with the loss itself, a number, costs nothing.
    info = call.outputs[0]
    call.trace.bind(info.name, Value(Stored(info.name, call.fresh(), Origin.CONSTANT), call.fresh()))
    step.outputs = [Stored(f"{info.name}:rows", rows, Origin.ACTIVATION)]


def _convolution(call: TracedCall) -> None:
    """Input (b, c, ...), weight (c', c / groups, ...). Of the model's own input, patches that don't overlap are multiplied by a
    matrix; elsewhere kernels that move by more than one element leave no dim of the input in the output."""
    source, weight, bias = call.value(0, "input"), call.value(1, "weight"), call.optional(2, "bias")
    spatial = len(weight.axes) - 2
    stride, padding, dilation = (
        _spread(call.argument(at, name, default), spatial)
        for at, name, default in ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))
    )
    groups = call.whole(8 if call.base == "aten.convolution" else 6, "groups", 1)
    if call.base == "aten.convolution" and call.argument(6, "transposed", False):
        raise ModelError("a transposed convolution has no strategies", given=call.name)
    _split_groups(call, source.axes[1], weight, groups)
    sizes = call.outputs[0].sizes[-spatial:]
    places = range(spatial)
    wholes = [axis_size(axis) for axis in source.axes[2:]]
    widths = [axis_size(axis) for axis in weight.axes[2:]]
    is_input = any(source.stored is given.stored for given in call.trace.inputs)
    are_patches = groups == 1 and all(
        padding[i] == 0 and dilation[i] == 1 and widths[i] == stride[i] and sizes[i] * widths[i] == wholes[i] for i in places
    )
    is_product = are_patches and (is_input or all(width == 1 for width in widths))
    out = [call.trace.atoms.fresh(size) for size in sizes]
    for i in places:
        if is_product:
            _equal(call, source.axes[2 + i], (*out[i], *weight.axes[2 + i]))
        elif stride[i] == 1 and sizes[i] == wholes[i]:
            _equal(call, source.axes[2 + i], out[i])
    axes = (source.axes[0], weight.axes[0], *out)
    if bias is not None:
        _equal(call, bias.axes[0], weight.axes[0])
    reads = [source, weight] if bias is None else [source, weight, bias]
    kind = StepKind.MATMUL if is_product else StepKind.CONVOLUTION
    call.emit(kind, reads, [axes], kept=[source.stored], contracted=weight.axes[1:] if is_product else ())


def _split_groups(call: TracedCall, channels: Axis, weight: Value, groups: int) -> None:
    """Input channels are groups x those that a kernel sees, output channels groups x the rest."""
    group = call.trace.atoms.fresh(groups)
    _equal(call, channels, (*group, *weight.axes[1]))
    if groups > 1:
        rest = call.trace.atoms.fresh(axis_size(weight.axes[0]) // groups)
        _equal(call, weight.axes[0], (*group, *rest))


def _spread(given: object, count: int) -> tuple[int, ...]:
    if isinstance(given, int):
        return (given,) * count
    if isinstance(given, Sequence) and all(isinstance(number, int) for number in given) and given:
        numbers = tuple(given)
        return numbers * count if len(numbers) == 1 else numbers
    # "same" and "valid": the sizes of the output say what is needed.
    return (-1,) * count


PRODUCTS: Mapping[str, Handler] = {
    "aten.linear": _linear,
    "aten.addmm": _addmm,
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.matmul"), _mm),
    "aten.scaled_dot_product_attention": _attention,
    **dict.fromkeys(("aten._grouped_mm", "transformers.grouped_mm_fallback"), _grouped),
    SCAN: _scan,
    "aten.embedding": _embedding,
    "aten.index": _indexed,
    "aten.cross_entropy_loss": _loss,
    **dict.fromkeys(("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution"), _convolution),
}


# Calls that move nothing: views, permutations, casts and copies, which a compiler folds into the kernels around them.


def _same(call: TracedCall) -> None:
    value = call.value(0, "self")
    call.view(value, value.axes)


def _reshaped(call: TracedCall) -> None:
    value = call.value(0, "self")
    axes, mixed = call.trace.atoms.regrouped(value.axes, call.outputs[0].sizes)
    if mixed and value.origin is Origin.ACTIVATION:
        # No dim of the view is a dim of the tensor: each rank needs all of what is mixed.
        call.emit(StepKind.VECTOR, [value], [axes], mixed=(tuple(mixed),))
    else:
        call.view(value, axes)


def _permuted(call: TracedCall) -> None:
    value = call.value(0, "self")
    order = call.wholes(1, "dims")
    call.view(value, tuple(value.axes[i % len(value.axes)] for i in order))


def _swapped(call: TracedCall) -> None:
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


def _unsqueezed(call: TracedCall) -> None:
    value = call.value(0, "self")
    place = call.axis(1, "dim", rank=len(value.axes) + 1)
    call.view(value, (*value.axes[:place], (), *value.axes[place:]))


def _expanded(call: TracedCall) -> None:
    """Repeated along axes of size 1, and along new ones in front."""
    value = call.value(0, "self")
    sizes = call.outputs[0].sizes
    axes: Axes = ((),) * (len(sizes) - len(value.axes)) + value.axes
    call.view(value, tuple(axis if axis else call.trace.atoms.fresh(size) for axis, size in zip(axes, sizes, strict=True)))


def _indexed_view(call: TracedCall) -> None:
    """One of several outputs of a call."""
    call.trace.bind(call.outputs[0].name, call.inputs[call.whole(1, "index")])


def _checked(call: TracedCall) -> None:
    """Says something of a tensor, makes none."""


def _cast_input(call: TracedCall) -> None:
    value = call.value(0, "self")
    call.trace.bind(call.outputs[0].name, value)


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
        (
            "aten.view",
            "aten.view_as",
            "aten.reshape",
            "aten.reshape_as",
            "aten._unsafe_view",
            "aten.view_copy",
            "aten.flatten",
            "aten.unflatten",
            "aten.squeeze",
        ),
        _reshaped,
    ),
    "aten.permute": _permuted,
    **dict.fromkeys(("aten.transpose", "aten.swapaxes", "aten.t", "aten.numpy_T", "aten.mT"), _swapped),
    "aten.unsqueeze": _unsqueezed,
    **dict.fromkeys(("aten.expand", "aten.expand_as", "aten.broadcast_to"), _expanded),
    "getitem": _indexed_view,
    **dict.fromkeys(("aten._assert_tensor_metadata", "aten._assert_async", "aten.sym_size", "aten._assert_scalar"), _checked),
}
