"""Lowering: grouped steps of a trace as operators over named dims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.app.importers.traced.atoms import Atom
from meshwright.app.importers.traced.naming import DimNames
from meshwright.app.importers.traced.steps import Read, Step, StepKind, atoms_of
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import RESERVED_DIMS
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight

MAX_NAME = 180

_KINDS = {
    StepKind.MATMUL: OperatorKind.MATMUL,
    StepKind.PRODUCT: OperatorKind.PRODUCT,
    StepKind.ATTENTION: OperatorKind.ATTENTION,
    StepKind.CONVOLUTION: OperatorKind.CONVOLUTION,
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
        """One operator a step; projections of one input whose columns go together are one."""
        return _fused_projections([self._operator(step) for step in steps if step.reads], self.names.followers())

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
        if step.kind is not StepKind.MATMUL:
            return tuple(self._weight(read, name, self._stored_dims(read)) for read in step.weights)
        written = {dim for tensor in outputs for dim in tensor.dims}
        contracted = tuple(dim for dim in inputs[0].dims if dim not in written)
        matrix, *biases = step.weights
        found: list[Weight] = []
        for index, tensor in enumerate(outputs):
            features = tuple(dim for dim in tensor.dims if dim not in inputs[0].dims)
            suffix = f"[{index}]" if len(outputs) > 1 else ""
            found.append(self._weight(matrix, name, (*contracted, *features), suffix))
            found += [self._weight(bias, name, features, suffix) for bias in biases]
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


def _together(group: Sequence[Operator]) -> Operator:
    first = group[0]
    short = [operator.name.rpartition("/")[0].rpartition(".")[2] or operator.name for operator in group[1:]]
    return replace(
        first,
        name="+".join((first.name, *short))[:MAX_NAME],
        outputs=tuple(tensor for operator in group for tensor in operator.outputs),
        weights=tuple(weight for operator in group for weight in operator.weights),
    )
