"""A traced graph as a model graph: one block whose operators are those of the trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.app.base.records import read_record
from meshwright.app.models.traced.atoms import Atom, Read, Step, StepKind, Stored, atoms_of, axis_size, resolve
from meshwright.app.models.traced.naming import DimNames, roles
from meshwright.app.models.traced.products import PRODUCTS, VIEWS
from meshwright.app.models.traced.reading import TRACED_GRAPH_SCHEMA, Handler, Trace, TracedGraph
from meshwright.app.models.traced.vectors import VECTORS
from meshwright.app.models.traced.written_out import as_kernels
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import RESERVED_DIMS, SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight
from meshwright.solver.problem.graph import Block, BlockRun, ModelGraph

BLOCK = "trace"
"""Name of the one block."""

HANDLERS: Mapping[str, Handler] = {**PRODUCTS, **VECTORS}
"""The handler of each operator that computes, by its name without the overload; views have their own table."""


@dataclass(frozen=True, slots=True)
class TracedModel:
    """The model graph, and the sequence length of its trace; None where no dim of it is the sequence."""

    graph: ModelGraph
    seq_len: int | None


def is_traced_graph(document: object) -> bool:
    """Return True if a document says that it is a traced graph."""
    return isinstance(document, Mapping) and document.get("schema") == TRACED_GRAPH_SCHEMA


def read_traced_graph(document: object) -> TracedModel:
    """The model graph of a traced graph's document.

    Raises DocumentError for a document that is no traced graph, and ModelError for operators that nobody knows, by name,
    and for shapes that can't be followed.
    """
    traced = read_record(TracedGraph, document, what="traced graph")
    trace = Trace(traced)
    trace.read(as_kernels(traced), HANDLERS, VIEWS)
    steps = grouped(trace.steps)
    if not steps:
        raise ModelError("a trace computes nothing with its parameters", given=traced.name)
    names = DimNames(roles(trace), steps)
    operators = Lowering(names, trace.parameters, BLOCK).operators(steps)
    used = {dim for operator in operators for dim in operator.dims}
    graph = ModelGraph(
        name=traced.name,
        dims={dim: size for dim, size in names.sizes.items() if dim in used},
        blocks=(Block(BLOCK, operators, output=operators[-1].outputs[0].name),),
        chain=(BlockRun(BLOCK),),
    )
    return TracedModel(graph, names.traced_sizes[SEQ] if SEQ in used else None)


# Grouping: what a compiler runs in one kernel becomes one step.
#
# A step between two products that only one other such step or the loss reads joins it, as torch.compile fuses producers into
# their consumer. So the dozen calls of an RMS norm or a rotary embedding are one operator, and a residual sum that two steps
# read is one of its own. A projection that is cut into parts along its columns writes the parts.

_FUSED = (StepKind.VECTOR, StepKind.PART, StepKind.LOSS)


def grouped(steps: Sequence[Step]) -> list[Step]:
    """Steps that matter, grouped, in an order of execution; a lookup whose table an attention took over is none."""
    computing = [step for step in steps if step.kind is not StepKind.EMBEDDING or step.weights]
    live = _live(_cut_projections(_cut_convolutions(_live(computing))))
    readers = _readers(live)
    group_of: dict[int, int] = {}
    members: dict[int, list[Step]] = defaultdict(list)
    kinds: dict[int, StepKind] = {}
    for index in range(len(live) - 1, -1, -1):
        step = live[index]
        reading = [reader for stored in step.outputs for reader in readers[stored]]
        groups = {group_of[reader] for reader in reading}
        # A tensor that is read whole and in parts, as a normed query that then turns, lies in memory.
        in_memory = step.apart or len({live[reader].kind is StepKind.PART for reader in reading}) > 1
        joins = next(iter(groups)) if len(groups) == 1 and step.is_vector and not in_memory else None
        if joins is None or kinds[joins] not in _FUSED or _is_worth_keeping(step, members[joins]):
            joins = index
            kinds[index] = step.kind
        group_of[index] = joins
        members[joins].insert(0, step)
    return [_merged(members[index]) for index in sorted(members)]


def _is_worth_keeping(step: Step, readers: Sequence[Step]) -> bool:
    """Return True if the backward pass of its readers needs its output, and the output takes less memory than the tensors that
    it is made of, which its own backward pass doesn't need."""
    kept = {stored for reader in readers for stored in reader.kept}
    (written,) = step.outputs[:1] or (None,)
    if written is None or written not in kept or step.kept:
        return False
    return sum(read.stored.elements >= written.elements for read in step.reads) > 1


def _readers(steps: Sequence[Step]) -> defaultdict[Stored, list[int]]:
    """Indices of the steps that read each stored tensor."""
    readers: defaultdict[Stored, list[int]] = defaultdict(list)
    for index, step in enumerate(steps):
        for read in step.reads:
            readers[read.stored].append(index)
    return readers


def _live(steps: Sequence[Step]) -> list[Step]:
    """Steps that the loss needs, and those with parameters; without a loss, all that lead to an unread output."""
    has_loss = any(step.kind is StepKind.LOSS for step in steps)
    needed: set[Stored] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        is_root = step.kind is StepKind.LOSS or bool(step.weights) or not has_loss
        if is_root or any(stored in needed for stored in step.outputs):
            kept.append(step)
            needed.update(read.stored for read in step.reads)
    return kept[::-1]


def _cut_projections(steps: Sequence[Step]) -> list[Step]:
    """Projections of which only parts along one axis are read, the parts being all of it, write these parts."""
    readers = _readers(steps)
    gone: set[Step] = set()
    for step in steps:
        if step.kind is not StepKind.MATMUL or len(step.outputs) != 1:
            continue
        parts = [steps[index] for index in readers[step.outputs[0]]]
        if parts and _covers(step, parts):
            step.outputs = [stored for part in sorted(parts, key=_start) for stored in part.outputs]
            gone.update(parts)
    return [step for step in steps if step not in gone]


def _cut_convolutions(steps: Sequence[Step]) -> list[Step]:
    """Convolutions over the sequence, channel by channel, of which only parts of the channels are read, write these parts, and
    the function between is in their kernel, as causal_conv1d has it. What they read is cut in the same places."""
    readers = _readers(steps)
    writer = {stored: step for step in steps for stored in step.outputs}
    gone: set[Step] = set()
    cuts: dict[Step, list[Step]] = {}
    for step in steps:
        if step.kind is not StepKind.CONVOLUTION or not _is_by_channel(step):
            continue
        (source,) = (read.stored for read in step.reads)
        between = [steps[index] for index in readers[step.outputs[0]]]
        is_function = len(between) == 1 and _is_function(between[0])
        parts = [steps[index] for index in readers[between[0].outputs[0]]] if is_function else between
        if parts and _covers(step, parts):
            gone |= {*parts, *(between if is_function else ())}
            cuts[step] = [_part_of(source, part, writer.get(source)) for part in sorted(parts, key=_start)]
            if len(readers[source]) == 1 and source in writer and writer[source].kind is StepKind.PART:
                gone.add(writer[source])
            step.outputs = [stored for part in sorted(parts, key=_start) for stored in part.outputs]
            step.kept = [part.outputs[0] for part in cuts[step]]
            step.reads = [Read(stored) for stored in step.kept]
    return [each for step in steps if step not in gone for each in (*cuts.get(step, ()), step)]


def _is_by_channel(convolution: Step) -> bool:
    """Return True for a convolution of one dim whose kernel sees one channel."""
    axes = convolution.weights[0].stored.axes
    return len(convolution.reads) == 1 and len(axes) == 3 and not resolve(axes[1]) and len(convolution.outputs) == 1


def _is_function(step: Step) -> bool:
    """Return True if a step is a function of each element of one tensor."""
    plain = not step.weights and not step.reduced and not step.mixed and not step.apart
    return step.kind is StepKind.VECTOR and len(step.reads) == 1 and plain


def _part_of(source: Stored, part: Step, written: Step | None) -> Step:
    """The part of a convolution's input that a part of its output is made of; of what the input is a part of, if it is one."""
    own = atoms_of([axis for axis, _ in (part.part or ((), 0),)])
    made = next(axis for axis in part.outputs[0].axes if not atoms_of([axis]) & atoms_of(source.axes))
    axes = tuple(made if own and set(resolve(axis)) == own else axis for axis in source.axes)
    stored = Stored(f"{source.name}[{_start(part)}]", axes, source.origin)
    if written is None or written.kind is not StepKind.PART or written.part is None:
        return Step(StepKind.PART, part.name, [Read(source)], [stored], part=part.part)
    axis, start = written.part
    return Step(StepKind.PART, part.name, written.reads, [stored], part=(axis, start + _start(part)))


def _start(part: Step) -> int:
    return part.part[1] if part.part is not None else 0


def _covers(step: Step, parts: Sequence[Step]) -> bool:
    cuts = [part.part for part in parts if part.part is not None]
    if len(cuts) < len(parts):
        return False
    axis = resolve(cuts[0][0])
    columns = {atom for weight in step.weights for own in weight.stored.axes for atom in resolve(own)}
    whole = sum(part.outputs[0].elements for part in parts) == step.outputs[0].elements
    distinct = max(Counter(start for _, start in cuts).values()) == 1
    return whole and distinct and axis_size(axis) > 0 and set(axis) <= columns and all(resolve(a) == axis for a, _ in cuts)


def _merged(members: Sequence[Step]) -> Step:
    """One step for the members of a group; its outputs are those of the last one."""
    last = members[-1]
    if len(members) == 1:
        return last
    inside = {stored: member for member in members for stored in member.outputs}
    reached: dict[Step, list[Stored]] = {}
    for member in members:
        sources: list[Stored] = []
        for read in member.reads:
            sources += reached[inside[read.stored]] if read.stored in inside else [read.stored]
        reached[member] = _unique(sources)
    outputs = set(last.outputs)
    kept: list[Stored] = []
    for member in members:
        for stored in member.kept:
            is_inside = stored in inside and stored not in outputs
            kept += reached[inside[stored]] if is_inside else [stored]
    return Step(
        kind=StepKind.LOSS if last.kind is StepKind.LOSS else StepKind.VECTOR,
        name=last.name,
        reads=_unique_reads(read for member in members for read in member.reads if read.stored not in inside),
        outputs=last.outputs,
        weights=_unique_reads(weight for member in members for weight in member.weights),
        flops=sum(member.flops for member in members),
        kept=_unique(kept),
        reduced=tuple(axis for member in members for axis in member.reduced),
        mixed=tuple(
            axis for member in members for axis in (*member.mixed, *((member.part[0],) if member.part is not None else ()))
        ),
    )


def _unique(stored: Sequence[Stored]) -> list[Stored]:
    return list(dict.fromkeys(stored))


def _unique_reads(reads: Iterable[Read]) -> list[Read]:
    found: dict[Stored, Read] = {}
    for read in reads:
        found.setdefault(read.stored, read)
    return list(found.values())


# Lowering: grouped steps of a trace as operators over named dims.

MAX_NAME = 180

_KINDS = {
    StepKind.MATMUL: OperatorKind.MATMUL,
    StepKind.PRODUCT: OperatorKind.PRODUCT,
    StepKind.ATTENTION: OperatorKind.ATTENTION,
    StepKind.CONVOLUTION: OperatorKind.CONVOLUTION,
    StepKind.SCAN: OperatorKind.SCAN,
    StepKind.EMBEDDING: OperatorKind.EMBEDDING,
    StepKind.LOSS: OperatorKind.LOSS,
}


class Lowering:
    """Operators of one block from steps in order; ``block`` is its name, by which tied weights are found."""

    def __init__(self, names: DimNames, parameters: dict[str, str], block: str):
        self.names = names
        self.parameters = parameters
        self.block = block
        self._owners: dict[str, str] = {}
        self._taken: Counter[str] = Counter()

    def operators(self, steps: Sequence[Step]) -> tuple[Operator, ...]:
        """One operator a step; projections of one input whose columns go together are one, and so is what turns the queries
        and the keys of an attention."""
        fused = _fused_projections([self._operator(step) for step in steps if step.reads], self.names.followers())
        return _fused_rotations(fused, self.names.traced_sizes)

    def _operator(self, step: Step) -> Operator:
        name = self._unique(step.name)
        inputs = self._inputs(step)
        outputs = tuple(Tensor(stored.name, self.names.of(stored)) for stored in step.outputs)
        kind = _KINDS.get(step.kind) or self._vector_kind(step, inputs, outputs)
        if kind is OperatorKind.MATMUL:
            outputs = self._own_columns(step, inputs, outputs)
        if kind is OperatorKind.ELEMENTWISE:
            outputs = self._whole_where_mixed(step, inputs, outputs)
        known = {tensor.name for tensor in (*inputs, *outputs)}
        return Operator(
            name=name,
            kind=kind,
            inputs=inputs,
            outputs=outputs,
            weights=self._weights(step, name, inputs, outputs),
            saved=tuple(dict.fromkeys(stored.name for stored in step.kept if stored.name in known)),
            flops_per_element=step.flops / max(1, step.reads[0].stored.elements),
            mask=step.mask,
            chunk=step.chunk,
        )

    def _inputs(self, step: Step) -> tuple[Tensor, ...]:
        """Return the tensors that a step reads; of a norm or a loss first the rows that it reduces."""
        if step.kind is StepKind.VECTOR or step.kind is StepKind.LOSS:
            rows = step.reduced_atoms()
            step.reads.sort(key=lambda read: (-_holds(read, rows), -read.stored.elements))
        return tuple(Tensor(read.stored.name, self.names.of(read)) for read in step.reads)

    def _vector_kind(self, step: Step, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> OperatorKind:
        """A norm reduces over its weight's dims, or without one over the last dim of its first input; nothing else may mix
        what it computes, or splitting it would need more than sums of rows."""
        reduced = self.names.names(step.reduced_atoms())
        learned = {dim for weight in step.weights for dim in self._stored_dims(weight)}
        over = learned or {inputs[0].dims[-1] if inputs[0].dims else ""}
        written = {dim for tensor in outputs for dim in tensor.dims}
        mixed = self.names.names(step.mixed_atoms()) & written
        if reduced and reduced <= written and over == reduced and mixed <= reduced:
            return OperatorKind.NORM
        return OperatorKind.ELEMENTWISE

    def _own_columns(self, step: Step, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A product from a dim to itself, as tied weights or a sum with its input make it, writes another dim."""
        summed = self.names.names(atoms_of(step.contracted)) & {dim for tensor in outputs for dim in tensor.dims}
        renamed = {dim: self.names.another(dim, set(inputs[0].dims)) for dim in sorted(summed)}
        return tuple(replace(tensor, dims=tuple(renamed.get(dim, dim) for dim in tensor.dims)) for tensor in outputs)

    def _whole_where_mixed(self, step: Step, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Along a dim that mixes elements the output may be split, but the input is read whole: the dim of the output is
        another one. A head's own dims are never split, so they keep their name."""
        sizes = self.names.names(self.names.roles.head_sizes)
        mixed = self.names.names(step.mixed_atoms() | step.reduced_atoms()) - sizes
        read = {dim for tensor in inputs for dim in tensor.dims}
        renamed = {dim: self.names.another(dim, read) for dim in sorted(mixed & read)}
        return tuple(replace(tensor, dims=tuple(renamed.get(dim, dim) for dim in tensor.dims)) for tensor in outputs)

    def _weights(self, step: Step, name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> tuple[Weight, ...]:
        is_cut = step.kind is StepKind.CONVOLUTION and len(outputs) > 1
        if step.kind is not StepKind.MATMUL and not is_cut:
            return tuple(self._weight(read, name, self._stored_dims(read)) for read in step.weights)
        written = {dim for tensor in outputs for dim in tensor.dims}
        contracted = () if is_cut else tuple(dim for dim in inputs[0].dims if dim not in written)
        routed = sorted(self.names.names(atoms_of(step.routed)))
        kernel = sorted(self.names.names(atoms_of(step.weights[0].stored.axes[2:]))) if is_cut else ()
        matrix, *biases = step.weights
        features = [
            tuple(dim for dim in tensor.dims if dim not in (RESERVED_DIMS if is_cut else inputs[0].dims)) for tensor in outputs
        ]
        suffixes = [f"[{index}]" if len(outputs) > 1 else "" for index in range(len(outputs))]
        parts = list(zip(features, suffixes, strict=True))
        found = [self._weight(matrix, name, (*routed, *contracted, *own, *kernel), suffix) for own, suffix in parts]
        found += [self._weight(bias, name, own, suffix) for bias in biases for own, suffix in parts]
        given = sum(read.stored.elements for read in step.weights)
        made = sum(weight.elements(self.names.traced_sizes) for weight in found)
        if made != given:
            raise ModelError(
                f"{name} has weights whose dims don't follow from what it reads and writes", given=made, allowed=str(given)
            )
        return tuple(found)

    def _stored_dims(self, read: Read) -> tuple[str, ...]:
        """Dims of a parameter; what it learns for each token is a table as long as the sequence of the trace."""
        dims = self.names.of(read)
        return tuple(self.names.table(dim) if dim in RESERVED_DIMS else dim for dim in dims)

    def _weight(self, read: Read, operator: str, dims: tuple[str, ...], suffix: str = "") -> Weight:
        """A parameter; its second use is tied to its first."""
        key = read.stored.name + suffix
        name = self.parameters[read.stored.name] + suffix
        if key in self._owners:
            return Weight(name, dims, tied_to=self._owners[key])
        self._owners[key] = f"{self.block}/{operator}/{name}"
        return Weight(name, dims)

    def _unique(self, name: str) -> str:
        name = name[-MAX_NAME:]
        self._taken[name] += 1
        return name if self._taken[name] == 1 else f"{name}_{self._taken[name]}"


def _holds(read: Read, atoms: set[Atom]) -> int:
    return len(atoms_of(read.stored.axes) & atoms)


def _fused_projections(operators: Sequence[Operator], followers: Mapping[str, str]) -> tuple[Operator, ...]:
    """Projections of one input whose columns are split alike, as those of queries, keys and values, or of a gate and what it
    gates, run as one product: what they read is brought to each rank once."""
    groups: dict[tuple[object, ...], list[Operator]] = {}
    place: dict[str, tuple[object, ...]] = {}
    for operator in operators:
        if operator.kind is OperatorKind.MATMUL and len(operator.inputs) == 1:
            read = operator.inputs[0]
            columns = {followers.get(d, d) for tensor in operator.outputs for d in tensor.dims if d not in read.dims}
            # Projections of one module: an encoder's output is read by every layer of a decoder.
            module = operator.name.rpartition("/")[0].rpartition(".")[0]
            key = (module, read.name, operator.contracted_dims, tuple(sorted(columns)))
            groups.setdefault(key, []).append(operator)
            place[operator.name] = key
    fused: list[Operator] = []
    for operator in operators:
        group = groups.get(place[operator.name], []) if operator.name in place else []
        if len(group) < 2:
            fused.append(operator)
        elif operator is group[0]:
            fused.append(_together(group))
    return tuple(fused)


def _fused_rotations(operators: Sequence[Operator], sizes: Mapping[str, int]) -> tuple[Operator, ...]:
    """Queries and keys that only their attention reads are turned by one kernel, as fused rotary embeddings are written."""
    writer = {tensor.name: operator for operator in operators for tensor in operator.outputs}
    readers = Counter(tensor.name for operator in operators for tensor in operator.inputs)
    first: dict[str, Operator] = {}
    both: dict[str, Operator] = {}
    for attention in operators:
        turned = [writer.get(tensor.name) for tensor in attention.inputs[:2] if readers[tensor.name] == 1]
        if attention.kind is not OperatorKind.ATTENTION or len(turned) < 2:
            continue
        query, key = turned
        if query is not None and key is not None and query is not key and _turns(query) and _turns(key):
            more = key.inputs[0].elements(sizes) / query.inputs[0].elements(sizes)
            first[query.name] = query
            both[key.name] = replace(
                query,
                name=f"{query.name}+{key.name.rpartition('/')[2]}"[:MAX_NAME],
                inputs=(*query.inputs, *key.inputs),
                outputs=(*query.outputs, *key.outputs),
                flops_per_element=query.flops_per_element + key.flops_per_element * more,
            )
    return tuple(both.get(operator.name, operator) for operator in operators if operator.name not in first)


def _turns(operator: Operator) -> bool:
    """Return True if an operator maps each head of one tensor to a head, and its backward pass needs neither."""
    is_alone = len(operator.inputs) == len(operator.outputs) == 1 and not operator.weights and not operator.saved
    return operator.kind is OperatorKind.ELEMENTWISE and is_alone and operator.inputs[0].dims == operator.outputs[0].dims


def _together(group: Sequence[Operator]) -> Operator:
    first = group[0]
    short = [operator.name.rpartition("/")[0].rpartition(".")[2] or operator.name for operator in group[1:]]
    return replace(
        first,
        name="+".join((first.name, *short))[:MAX_NAME],
        outputs=tuple(tensor for operator in group for tensor in operator.outputs),
        weights=tuple(weight for operator in group for weight in operator.weights),
    )
