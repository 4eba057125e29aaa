"""Writes a model in ONNX as a traced graph: JSON that is read without onnx.

This file needs the package onnx and nothing of ours, so that it can be copied to where the model is. From the shell:

    python onnx_export.py model.onnx graph.json.gz --size batch=2 --size sequence=4096

Sizes are given for the dynamic axes of the inputs; what is computed from them is worked out node by node. No value of a weight
is read: files of external data need not be there, but for those that hold masks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_node_outputs

from meshwright.app.base.digits import is_digits

SCHEMA = "meshwright.traced-graph/1"
FORMATS = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.BOOL: "bool",
    onnx.TensorProto.UINT8: "uint8",
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.INT16: "int16",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT64: "int64",
}
"""Formats of tensors, by their names in PyTorch."""
_DEFAULT_DOMAIN = "ai.onnx"
_MOST_NODES = 100_000
"""Nodes of a model: the planner reads no more calls."""
_MOST_AXES = 16
"""Axes of a tensor: the planner reads no more."""
_MOST_FOLDED = 64
"""Elements of a tensor that is worked out: shapes, axes and bounds have one for each axis, masks and positions have more."""
_FOLDED = frozenset((
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Floor",
    "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or",
    "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Shape", "Size", "Slice",
    "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where",
))  # fmt: skip
"""Operators that shapes are computed with, each in time that grows with its tensors."""
_HUGE = 1e18
"""Numbers beyond it, which stand for infinity in masks, are written as text, and so are those below its reciprocal."""
_LONGEST_CHAIN = 8
"""Calls between the scores of an attention and its softmax: a scale, a mask, casts."""
_SAME_NAME = (
    "Abs", "Add", "Cos", "Div", "Einsum", "Elu", "Erf", "Exp", "Gelu", "Log", "Mul", "Neg", "Pow", "Reciprocal", "Relu",
    "Sigmoid", "Sin", "Softplus", "Sqrt", "Sub", "Tanh", "Where",
)  # fmt: skip
_NAMES = {
    **{name: name.lower() for name in _SAME_NAME},
    "Clip": "clamp",
    "HardSwish": "hardswish",
    "LeakyRelu": "leaky_relu",
    "Max": "maximum",
    "Min": "minimum",
    "Sum": "add",
    "Swish": "silu",
    "Less": "lt",
    "LessOrEqual": "le",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "MatMul": "matmul",
    "Tile": "repeat",
    "Pad": "pad",
}
_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax", "ReduceMin": "amin"}
_POOLS = {"MaxPool": "max_pool", "AveragePool": "avg_pool"}
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_COPIES = frozenset({"Cast", "CastLike", "Dropout", "Identity"})
_LEARNED = frozenset({"aten.view", "aten.permute", "aten.alias", "aten.expand", "aten.slice", "aten.transpose"})
"""Calls whose output is a parameter where what they read is one."""


def traced_document(
    model: onnx.ModelProto, *, name: str, folder: Path | None = None, sizes: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The traced graph of a model as a JSON value.

    folder   where files of external data lie, of which masks are read
    sizes    of dynamic axes, by their names

    Raises ValueError for sizes that stay unknown, and for files that are no model.
    """
    translation = _Translation(model, folder, sizes or {})
    for node in model.graph.node:
        translation.read(node)
    return {
        "schema": SCHEMA,
        "name": name,
        "producer": f"onnx of {model.producer_name or 'unknown'} {model.producer_version}".strip(),
        **translation.document(),
    }


def parsed_model(content: bytes) -> onnx.ModelProto:
    """The model in the bytes of a file, without external data; raises ValueError."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf has an error of its own for each of its implementations.
        raise ValueError(f"the file holds no model in ONNX: {error}") from None
    if not model.graph.node or not model.opset_import:
        raise ValueError("the file holds no model in ONNX: it has no nodes or no operator set")
    if len(model.graph.node) > _MOST_NODES:
        raise ValueError(f"the model has {len(model.graph.node)} nodes, more than {_MOST_NODES}")
    # What is not UTF-8 is handed out as bytes.
    if not all(isinstance(text, str) for text in _texts(model)):
        raise ValueError("the file holds no model in ONNX: a name is not text in UTF-8")
    return model


def _texts(model: onnx.ModelProto) -> Iterator[object]:
    yield from (model.producer_name, model.producer_version)
    yield from (each.domain for each in model.opset_import)
    yield from (tensor.name for tensor in model.graph.initializer)
    for node in model.graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (text for each in node.metadata_props for text in (each.key, each.value))
    for given in (*model.graph.input, *model.graph.output):
        yield given.name
        yield from (dim.dim_param for dim in given.type.tensor_type.shape.dim)


def write_traced_graph(
    source: str | Path, path: str | Path, *, name: str | None = None, sizes: Mapping[str, int] | None = None
) -> None:
    """Write the traced graph of an ONNX file to ``path``, compressed where that ends in ``.gz``; raises ValueError, OSError."""
    source, path = Path(source), Path(path)
    model = parsed_model(source.read_bytes())
    document = traced_document(model, name=name or source.stem, folder=source.parent, sizes=sizes)
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    # No time stamp: the same model gives the same file.
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


@dataclass(frozen=True)
class _Tensor:
    """Name, element type of ONNX, and sizes."""

    name: str
    kind: int
    sizes: tuple[int, ...]

    def entry(self) -> list[Any]:
        return [self.name, FORMATS[self.kind], *self.sizes]

    def proto(self) -> onnx.TypeProto:
        return helper.make_tensor_type_proto(self.kind, self.sizes)

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def is_float(self) -> bool:
        return FORMATS[self.kind].startswith(("float", "bfloat"))

    @property
    def is_table(self) -> bool:
        return sum(size > 1 for size in self.sizes) > 1


@dataclass
class _Call:
    """A call that is written."""

    op: str
    module: str
    args: list[Any]
    outputs: list[_Tensor]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def reads(self) -> Iterator[str]:
        """Names of the tensors among the arguments."""
        for argument in (*self.args, *self.kwargs.values()):
            for each in argument if isinstance(argument, list) else [argument]:
                if isinstance(each, dict):
                    yield each["tensor"]

    def entry(self) -> dict[str, Any]:
        """The call as it is in the document."""
        outputs = [tensor.entry() for tensor in self.outputs]
        return {"op": self.op, "module": self.module, "args": self.args, "kwargs": self.kwargs, "outputs": outputs}


class _Translation:
    """The graph read so far."""

    def __init__(self, model: onnx.ModelProto, folder: Path | None, sizes: Mapping[str, int]):
        self.model = model
        self.folder = folder
        self.calls: list[_Call] = []
        self.writer: dict[str, _Call] = {}
        self.producer: dict[str, onnx.NodeProto] = {}
        self.readers = Counter(name for node in model.graph.node for name in node.input)
        self.readers.update(output.name for output in model.graph.output)
        self.tensors: dict[str, _Tensor] = {}
        self.values: dict[str, np.ndarray[Any, Any]] = {}
        self.stored: dict[str, onnx.TensorProto] = {}
        self.root: dict[str, str] = {}
        """The initializer that a tensor is a view of."""
        self.active: set[str] = set()
        """Tensors that depend on a parameter or on an input of real numbers."""
        self.given: set[str] = set()
        """Tensors that depend on an input."""
        self.opsets = {"" if each.domain == _DEFAULT_DOMAIN else each.domain: each.version for each in model.opset_import}
        for tensor in model.graph.initializer:
            self._store(tensor)
            if self.tensors[tensor.name].is_float:
                self.root[tensor.name] = tensor.name
        self.inputs = [self._input(each, sizes) for each in model.graph.input if each.name not in self.stored]
        if self.inputs and self.inputs[0].sizes[:1] == (1,):
            raise ValueError(
                f"input {self.inputs[0].name} has a batch of 1, which can't be told from broadcasts; export a batch of 2 or "
                "more, or a dynamic one and give its size: --size NAME=2"
            )

    def _input(self, given: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> _Tensor:
        found = []
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            size = dim.dim_value if dim.HasField("dim_value") else sizes.get(dim.dim_param)
            if size is None:
                named = f"{dim.dim_param}" if dim.dim_param else f"of axis {axis}, which has no name: export it with one"
                raise ValueError(
                    f"input {given.name} has the dynamic size {named}; write the graph with onnx_export.py "
                    f"--size {dim.dim_param or 'NAME'}=N, or export with static shapes"
                )
            found.append(size)
        kind = given.type.tensor_type.elem_type
        tensor = self._known(_Tensor(given.name, kind, tuple(found)), f"input {given.name}")
        self.given.add(tensor.name)
        if tensor.is_float:
            self.active.add(tensor.name)
        return tensor

    def _known(self, tensor: _Tensor, where: str) -> _Tensor:
        if tensor.kind not in FORMATS:
            raise ValueError(f"{where} has a tensor of another format than {', '.join(FORMATS.values())}")
        if len(tensor.sizes) > _MOST_AXES or any(size < 0 for size in tensor.sizes):
            raise ValueError(f"{where} has a tensor of more than {_MOST_AXES} axes, or of a negative size")
        self.tensors[tensor.name] = tensor
        return tensor

    def _store(self, stored: onnx.TensorProto) -> None:
        tensor = self._known(_Tensor(stored.name, stored.data_type, tuple(stored.dims)), f"initializer {stored.name}")
        self.stored[stored.name] = stored
        is_here = stored.data_location != onnx.TensorProto.EXTERNAL
        if is_here and len(tensor.sizes) < 2 and tensor.elements <= _MOST_FOLDED:
            try:
                self.values[stored.name] = numpy_helper.to_array(stored)
            except (ValueError, TypeError) as error:
                raise ValueError(f"initializer {stored.name} can't be read: {error}") from None

    # A node: what is known of its outputs, then its call.

    def read(self, node: onnx.NodeProto) -> None:
        """Read one node; raises ValueError for one whose outputs have no static shapes."""
        where = f"node {node.name or next(iter(node.output), '?')} ({node.op_type})"
        if any(each.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for each in node.attribute):
            raise ValueError(f"{where} chooses or repeats a graph as it runs; export the model without control flow")
        missing = next((name for name in node.input if name and name not in self.tensors), None)
        if missing is not None:
            raise ValueError(f"{where} reads {missing!r}, which nothing writes before it")
        try:
            outputs = self._outputs(node, where)
            self.producer.update((tensor.name, node) for tensor in outputs)
            if node.op_type == "Constant":
                self._constant(node, outputs[0], where)
            elif not self._fold(node, outputs, where):
                _TRANSLATIONS.get(node.op_type, _plain)(self, node, outputs)
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"{where} has inputs or attributes that don't fit its operator: {error!r}") from None

    def _outputs(self, node: onnx.NodeProto, where: str) -> list[_Tensor]:
        domain = "" if node.domain == _DEFAULT_DOMAIN else node.domain
        version = self.version(domain)
        types = {name: self.tensors[name].proto() for name in node.input if name}
        known = {name: numpy_helper.from_array(self.values[name], name) for name in node.input if name in self.values}
        try:
            schema = onnx.defs.get_schema(node.op_type, version, domain)
            found = infer_node_outputs(schema, node, types, known, opset_imports=[helper.make_opsetid(domain, version)])
        except onnx.defs.SchemaError:
            raise ValueError(
                f"{where} is an operator of {node.domain or 'ONNX'!r} {version} that nobody knows here; export the model "
                "without fusions for one runtime, and its functions inlined (onnx.inliner.inline_local_functions)"
            ) from None
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as error:
            raise ValueError(f"{where} can't have the shapes that it reads: {error}") from None
        tensors = []
        for name in node.output:
            if not name:
                continue
            shape = found[name].tensor_type.shape.dim if name in found else None
            is_static = name in found and found[name].tensor_type.HasField("shape")
            if shape is None or not is_static or not all(dim.HasField("dim_value") for dim in shape):
                raise ValueError(
                    f"{where} writes {name!r}, whose sizes depend on values or stay unknown; export the model with static "
                    "shapes"
                )
            kind = found[name].tensor_type.elem_type
            tensors.append(self._known(_Tensor(name, kind, tuple(dim.dim_value for dim in shape)), where))
        if not tensors:
            raise ValueError(f"{where} writes nothing")
        return tensors

    def _constant(self, node: onnx.NodeProto, output: _Tensor, where: str) -> None:
        value = _attribute(node, "value")
        if not isinstance(value, onnx.TensorProto):
            plain = next((helper.get_attribute_value(each) for each in node.attribute), None)
            if not isinstance(plain, (int, float)) and not (isinstance(plain, list) and plain):
                raise ValueError(f"{where} holds no numbers")
            value = numpy_helper.from_array(np.array(plain, dtype=helper.tensor_dtype_to_np_dtype(output.kind)))
        stored = onnx.TensorProto()
        stored.CopyFrom(value)
        stored.name = output.name
        self._store(stored)

    def _fold(self, node: onnx.NodeProto, outputs: Sequence[_Tensor], where: str) -> bool:
        """Work out a small tensor of which all that it is made of is known."""
        (output,) = outputs[:1]
        if node.op_type == "Shape":
            sizes = self.tensors[node.input[0]].sizes
            self.values[output.name] = np.array(
                sizes[slice(_attribute(node, "start", 0), _attribute(node, "end", None))], dtype=np.int64
            )
            return True
        # Masks are no shapes, small as they may be: how they are made tells the reader that they hide later tokens.
        is_shape = len(output.sizes) < 2 or output.kind == onnx.TensorProto.INT64
        is_small = len(outputs) == 1 and is_shape and output.elements <= _MOST_FOLDED
        known = node.op_type in _FOLDED and all(not name or name in self.values for name in node.input)
        if not is_small or not known:
            return False
        names = list(dict.fromkeys(name for name in node.input if name))
        inputs = [helper.make_tensor_value_info(name, self.tensors[name].kind, None) for name in names]
        written = [helper.make_tensor_value_info(output.name, output.kind, None)]
        graph = helper.make_graph([node], "shapes", inputs, written)
        try:
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.version(""))])
            with np.errstate(all="ignore"):
                found = ReferenceEvaluator(model).run(None, {name: self.values[name] for name in names})
        except Exception as error:  # The reference raises whatever its operators do.
            raise ValueError(f"{where} can't be worked out: {error}") from None
        self.values[output.name] = np.asarray(found[0])
        return True

    # What translations use.

    def version(self, domain: str) -> int:
        """The operator set of a domain; 0 where the model has none."""
        return int(self.opsets.get(domain, 0))

    def argument(self, name: str) -> Any:
        """A tensor as an argument: a number where it is one that is known."""
        if self.tensors[name].sizes or name not in self.values:
            return {"tensor": name}
        number = self.values[name].item()
        is_plain = isinstance(number, bool) or number == 0 or 1 / _HUGE < abs(number) < _HUGE
        return number if is_plain else str(number)

    def wholes(self, node: onnx.NodeProto, place: int, attribute: str) -> list[int] | None:
        """Whole numbers that an input or, in older operator sets, an attribute gives; None where neither does."""
        if len(node.input) > place and node.input[place]:
            name = node.input[place]
            if name not in self.values:
                raise ValueError(
                    f"node {node.name or node.output[0]} ({node.op_type}) takes {name!r}, which is known only as the model "
                    "runs; export the model with static shapes"
                )
            return [int(number) for number in self.values[name].reshape(-1)]
        found = _attribute(node, attribute)
        return None if found is None else [int(number) for number in (found if isinstance(found, list) else [found])]

    def call(self, node: onnx.NodeProto, op: str, args: list[Any], outputs: Sequence[_Tensor], **kwargs: Any) -> None:
        """Append a call, and note what its outputs are made of."""
        made = _Call(op, _module(node), args, list(outputs), kwargs)
        self.calls.append(made)
        reads = list(made.reads())
        is_lookup = self.is_lookup(op, reads)
        for tensor in outputs:
            self.writer[tensor.name] = made
            if is_lookup or any(name in self.active for name in reads):
                self.active.add(tensor.name)
            if any(name in self.given for name in reads):
                self.given.add(tensor.name)
            if (op in _LEARNED and reads[0] in self.root) or (
                op in ("aten.embedding", "aten.index") and reads[0] in self.root and not self.given & set(reads)
            ):
                self.root[tensor.name] = self.root[reads[0]]

    def is_lookup(self, op: str, reads: Sequence[str]) -> bool:
        """Return True for a lookup by tokens, or by two positions, as of a table of relative ones. A table that is looked up by
        one position may be learned or that of rotary embeddings: what it meets tells."""
        return op == "aten.embedding" and (reads[1] in self.given or self.tensors[reads[1]].is_table)

    def _learned(self, call: _Call) -> Iterator[str]:
        """Initializers that a call shows to be parameters: they meet an activation, and are no mask and no table that it is
        multiplied by element by element, as those of rotary embeddings."""
        reads = list(call.reads())
        if self.is_lookup(call.op, reads):
            yield self.root[reads[0]]
        elif call.op != "aten.scaled_dot_product_attention" and any(name in self.active for name in reads):
            is_factor = call.op in ("aten.mul", "aten.div")
            yield from (
                self.root[name] for name in reads if name in self.root and not (is_factor and self.tensors[name].is_table)
            )

    def view(self, node: onnx.NodeProto, source: str, suffix: str, kind: str, args: list[Any], sizes: Sequence[int]) -> str:
        """Append a view of a tensor under a name of its own; returns the name."""
        tensor = self._known(_Tensor(f"{node.output[0]}:{suffix}", self.tensors[source].kind, tuple(sizes)), node.op_type)
        self.call(node, kind, [{"tensor": source}, *args], [tensor])
        return tensor.name

    def scalar(self, name: str) -> bool:
        """Return True for a tensor of one element that depends on no parameter."""
        return self.tensors[name].elements == 1 and name not in self.active

    # The document.

    def document(self) -> dict[str, Any]:
        """What the graph's outputs need; a loss is added to one that ends in logits."""
        needed = {output.name for output in self.model.graph.output}
        if not any(call.op == "aten.cross_entropy_loss" for call in self.calls):
            needed |= set(self._loss())
        kept: list[_Call] = []
        for call in reversed(self.calls):
            if any(tensor.name in needed for tensor in call.outputs):
                kept.append(call)
                needed.update(call.reads())
        parameters = list(dict.fromkeys(name for call in reversed(kept) for name in self._learned(call)))
        learned = set(parameters)
        others = [name for name in {**self.stored, **self.values} if name in needed and name not in learned]
        written = {tensor.name for call in kept for tensor in call.outputs}
        constants = [self.tensors[name] for name in others if name not in written]
        masks = [tensor for tensor in constants if self._is_triangle(tensor)]
        calls = [_Call("aten.tril", "", [{"tensor": f"{mask.name}:stored"}, 0], [mask]) for mask in masks]
        renamed = {mask.name for mask in masks}
        return {
            "parameters": [{"tensor": self.tensors[name].entry(), "name": name} for name in parameters],
            "constants": [
                [f"{tensor.name}:stored", *tensor.entry()[1:]] if tensor.name in renamed else tensor.entry()
                for tensor in constants
            ],
            "inputs": [tensor.entry() for tensor in self.inputs if tensor.name in needed],
            "operators": [call.entry() for call in (*calls, *reversed(kept))],
        }

    def _loss(self) -> Iterator[str]:
        """Add the loss of an output that a product with a parameter writes: training needs one, and what it costs."""
        for output in self.model.graph.output:
            made = self.writer.get(output.name)
            while made is not None and made.op in ("aten.alias", "aten.view") and self._keeps_last(made):
                made = self.writer.get(made.args[0]["tensor"])
            is_product = made is not None and made.op in ("aten.matmul", "aten.mm", "aten.addmm")
            if made is None or not is_product or not any(name in self.root for name in made.reads()):
                continue
            logits = self.tensors[output.name]
            rows = math.prod(logits.sizes[:-1])
            labels = self._known(_Tensor("labels:of the loss", onnx.TensorProto.INT64, logits.sizes[:-1]), "the loss")
            self.inputs.append(labels)
            node = helper.make_node("SoftmaxCrossEntropyLoss", [], [f"{output.name}:loss"])
            flat = self.view(node, logits.name, "logits", "aten.view", [[rows, logits.sizes[-1]]], (rows, logits.sizes[-1]))
            target = self.view(node, labels.name, "labels", "aten.view", [[rows]], (rows,))
            loss = _Tensor(f"{output.name}:loss", logits.kind, ())
            self.call(node, "aten.cross_entropy_loss", [{"tensor": flat}, {"tensor": target}], [loss])
            yield loss.name
            return

    def _keeps_last(self, call: _Call) -> bool:
        source = self.tensors[call.args[0]["tensor"]]
        return source.sizes[-1:] == call.outputs[0].sizes[-1:]

    def _is_triangle(self, tensor: _Tensor) -> bool:
        """Return True for a stored mask that hides later tokens: in the first row and in that of the middle, what lies behind
        the diagonal has one value and the diagonal another."""
        side = tensor.sizes[-1] if tensor.sizes else 0
        if len(tensor.sizes) < 2 or tensor.sizes[-2] != side or side < 2 or tensor.name not in self.stored:
            return False
        return all(_hides(self._row(tensor, place), place) for place in (0, (side - 1) // 2))

    def _row(self, tensor: _Tensor, place: int) -> np.ndarray[Any, Any]:
        """A row of the first matrix of a stored tensor."""
        stored = self.stored[tensor.name]
        kind = helper.tensor_dtype_to_np_dtype(tensor.kind)
        width, whole = tensor.sizes[-1] * kind.itemsize, tensor.elements * kind.itemsize
        try:
            if stored.data_location == onnx.TensorProto.EXTERNAL:
                facts = {each.key: each.value for each in stored.external_data}
                start = int(facts.get("offset", 0))
                with self._external(facts.get("location", "")) as file:
                    is_whole = file.seek(0, 2) - start >= whole
                    file.seek(start + place * width)
                    content = file.read(width) if is_whole else b""
            elif stored.HasField("raw_data"):
                content = stored.raw_data[place * width : (place + 1) * width] if len(stored.raw_data) >= whole else b""
            else:
                return np.asarray(numpy_helper.to_array(stored).reshape(-1, tensor.sizes[-1])[place])
            return np.frombuffer(content, dtype=kind, count=tensor.sizes[-1])
        except (OSError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise ValueError(f"constant {tensor.name} of sizes {list(tensor.sizes)} can't be read: {error}") from None

    def _external(self, location: str) -> BinaryIO:
        """A file of external data, which lies beside the model or below it."""
        folder = (self.folder or Path()).resolve()
        path = (folder / location).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            raise ValueError(f"it may be a mask, and its file {location!r} is not beside the model; put it there")
        return path.open("rb")


def _hides(row: np.ndarray[Any, Any], place: int) -> bool:
    behind = row[place + 1 :]
    return bool((behind == behind[0]).all() and behind[0] != row[place])


def _attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)


def _text(node: onnx.NodeProto, name: str, default: str) -> str:
    found = _attribute(node, name, default.encode())
    return found.decode(errors="replace") if isinstance(found, bytes) else default


def _module(node: onnx.NodeProto) -> str:
    """The path of the module that made a node: PyTorch's exporters write it into its properties or into its name."""
    for each in node.metadata_props:
        if each.key == "namespace":
            scopes = each.value.split("/")[:-1]
            return scopes[-1].split(": ")[0].strip() if scopes else ""
    return ".".join(node.name.split("/")[1:-1])


# Translations of operators; each appends the calls of a node.

_Translator = Callable[[_Translation, onnx.NodeProto, Sequence[_Tensor]], None]


def _plain(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    """An operator of the same arguments; what has no name of PyTorch keeps its own, by which the planner refuses it."""
    name = _NAMES.get(node.op_type)
    args = [graph.argument(each) if each else None for each in node.input]
    graph.call(node, f"aten.{name}" if name else f"onnx.{node.op_type}", args, outputs)


def _copy(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    graph.call(node, "aten.alias", [{"tensor": node.input[0]}], outputs[:1])


def _view(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    graph.call(node, "aten.view", [{"tensor": node.input[0]}, list(outputs[0].sizes)], outputs)


def _permute(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    order = _attribute(node, "perm", list(range(len(outputs[0].sizes)))[::-1])
    graph.call(node, "aten.permute", [{"tensor": node.input[0]}, order], outputs)


def _expand(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    graph.call(node, "aten.expand", [{"tensor": node.input[0]}, list(outputs[0].sizes)], outputs)


def _slice(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    """A slice along each axis that it shortens."""
    starts, ends = (graph.wholes(node, place, name) or [] for place, name in ((1, "starts"), (2, "ends")))
    axes = graph.wholes(node, 3, "axes") or list(range(len(starts)))
    steps = graph.wholes(node, 4, "steps") or [1] * len(starts)
    name, sizes = node.input[0], list(graph.tensors[node.input[0]].sizes)
    cuts = [cut for cut in zip(axes, starts, ends, steps, strict=True) if sizes[cut[0]] != outputs[0].sizes[cut[0]]]
    if not cuts:
        flips = [axis for axis, step in zip(axes, steps, strict=True) if step < 0]
        graph.call(node, "aten.flip" if flips else "aten.alias", [{"tensor": name}, *([flips] if flips else [])], outputs)
    for place, (axis, start, _, step) in enumerate(cuts):
        sizes[axis] = outputs[0].sizes[axis]
        start = min(max(start + graph.tensors[name].sizes[axis] if start < 0 else start, 0), graph.tensors[name].sizes[axis])
        args = [axis, start, start + (sizes[axis] - 1) * step + 1, step]
        if place == len(cuts) - 1:
            graph.call(node, "aten.slice", [{"tensor": name}, *args], outputs)
        else:
            name = graph.view(node, name, f"cut {place}", "aten.slice", args, sizes)


def _gather(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    """A lookup in a table, one place along an axis, or places by an index."""
    source, index = graph.tensors[node.input[0]], node.input[1]
    axis = _attribute(node, "axis", 0) % max(1, len(source.sizes))
    if index in graph.values and not graph.tensors[index].sizes:
        graph.call(node, "aten.select", [{"tensor": source.name}, axis, int(graph.values[index])], outputs)
    elif source.name in graph.root and len(source.sizes) == 2 and axis == 0:
        graph.call(node, "aten.embedding", [{"tensor": source.name}, {"tensor": index}], outputs)
    else:
        graph.call(node, "aten.index", [{"tensor": source.name}, [*[None] * axis, {"tensor": index}]], outputs)


def _split(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    axis = _attribute(node, "axis", 0)
    parts = [tensor.sizes[axis] for tensor in outputs]
    graph.call(node, "aten.split_with_sizes", [{"tensor": node.input[0]}, parts, axis], outputs)


def _concat(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    graph.call(node, "aten.cat", [[{"tensor": name} for name in node.input], _attribute(node, "axis")], outputs)


def _softmax(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    """Before operator set 13 all axes from one on are one row; the last one alone means the same in both."""
    is_new = graph.version("") >= 13
    axis, rank = _attribute(node, "axis", -1 if is_new else 1), len(outputs[0].sizes)
    if not is_new and axis % rank != rank - 1:
        raise ValueError(
            f"node {node.name} ({node.op_type}) is over several axes; convert the model to operator set 13 or later"
        )
    kind = "aten.softmax" if node.op_type == "Softmax" else "aten.log_softmax"
    graph.call(node, kind, [{"tensor": node.input[0]}, axis], outputs)


def _norm(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    kind = "aten.layer_norm" if node.op_type == "LayerNormalization" else "aten.rms_norm"
    source, *learned = (name for name in node.input if name)
    shape = list(graph.tensors[source].sizes)[_attribute(node, "axis", -1) :]
    graph.call(node, kind, [{"tensor": source}, shape, *({"tensor": name} for name in learned)], outputs[:1])


def _channel_norm(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    kind = "aten.batch_norm" if node.op_type == "BatchNormalization" else "aten.group_norm"
    graph.call(node, kind, [{"tensor": name} for name in node.input[:3]], outputs[:1])


def _reduce(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    axes = graph.wholes(node, 1, "axes") or []
    if not axes and _attribute(node, "noop_with_empty_axes", 0):
        _copy(graph, node, outputs)
    else:
        keeps = bool(_attribute(node, "keepdims", 1))
        graph.call(node, f"aten.{_REDUCTIONS[node.op_type]}", [{"tensor": node.input[0]}, axes, keeps], outputs)


def _pool(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    spatial = len(outputs[0].sizes) - 2
    if node.op_type == "GlobalAveragePool":
        graph.call(node, "aten.mean", [{"tensor": node.input[0]}, list(range(2, 2 + spatial)), True], outputs)
    else:
        graph.call(node, f"aten.{_POOLS[node.op_type]}{spatial}d", [{"tensor": node.input[0]}], outputs[:1])


def _cumulative(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    graph.call(node, "aten.cumsum", [{"tensor": node.input[0]}, *(graph.wholes(node, 1, "axis") or [0])], outputs)


def _top(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    axis = _attribute(node, "axis", -1)
    graph.call(node, "aten.topk", [{"tensor": node.input[0]}, outputs[0].sizes[axis], axis], outputs)


def _triangle(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    graph.call(node, "aten.triu" if _attribute(node, "upper", 1) else "aten.tril", [{"tensor": node.input[0]}], outputs)


def _convolution(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    source, weight, *bias = ({"tensor": name} for name in node.input if name)
    spatial = len(outputs[0].sizes) - 2
    pads = _attribute(node, "pads", [0] * 2 * spatial)
    # Unequal pads, or those that a rule gives: the reader takes the sizes of the output for what they are.
    is_even = _text(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID") and pads[:spatial] == pads[spatial:]
    strides, dilations = (_attribute(node, name, [1] * spatial) for name in ("strides", "dilations"))
    how = [strides, pads[:spatial] if is_even else "same", dilations, False, [0] * spatial, _attribute(node, "group", 1)]
    graph.call(node, "aten.convolution", [source, weight, bias[0] if bias else None, *how], outputs)


def _gemm(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    left, right, *added = (name for name in node.input if name)
    if _attribute(node, "transA", 0):
        left = graph.view(node, left, "left", "aten.transpose", [0, 1], graph.tensors[left].sizes[::-1])
    if _attribute(node, "transB", 0):
        right = graph.view(node, right, "right", "aten.transpose", [0, 1], graph.tensors[right].sizes[::-1])
    op = "aten.addmm" if added else "aten.mm"
    graph.call(node, op, [{"tensor": name} for name in (*added, left, right)], outputs)


def _add(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    """An Add of a bias to a product that nothing else reads is part of the product, as in a linear layer."""
    for product, bias in (node.input, node.input[::-1]):
        made = graph.writer.get(product)
        is_product = made is not None and made.op == "aten.matmul" and graph.readers[product] == 1
        is_bias = bias in graph.root and graph.tensors[bias].sizes == graph.tensors[product].sizes[-1:]
        if made is not None and is_product and is_bias and made.args[1]["tensor"] in graph.root:
            graph.call(node, "aten.addmm", [{"tensor": bias}, *made.args], outputs)
            graph.calls[-1].module = made.module
            return
    _plain(graph, node, outputs)


def _where(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    """A softmax whose rows are masked whole has no value; what puts zeros there costs nothing."""
    asked = graph.producer.get(node.input[0])
    if asked is not None and asked.op_type == "IsNaN" and asked.input[0] == node.input[2]:
        graph.call(node, "aten.alias", [{"tensor": node.input[2]}], outputs)
    else:
        _plain(graph, node, outputs)


def _matmul(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    """A product; of a softmax of scores with values it is an attention, which runtimes and compilers run as one kernel."""
    found = _scores(graph, node.input[0]) if node.input[1] in graph.active else None
    if found is None:
        _plain(graph, node, outputs)
        return
    product, mask = found
    query, key = (_unscaled(graph, name) for name in product.input)
    sizes = graph.tensors[key].sizes
    key = graph.view(node, key, "keys", "aten.transpose", [-2, -1], (*sizes[:-2], sizes[-1], sizes[-2]))
    args = [{"tensor": name} for name in (query, key, node.input[1])]
    graph.call(node, "aten.scaled_dot_product_attention", [*args, mask], outputs)


def _scores(graph: _Translation, name: str) -> tuple[onnx.NodeProto, Any] | None:
    """The product of queries and keys that a tensor is the softmax of, and the mask; None where it is something else."""
    softmax = _before(graph, name, _COPIES | {"Where"})
    rank = len(graph.tensors[name].sizes)
    if softmax is None or softmax.op_type != "Softmax" or _attribute(softmax, "axis", -1) not in (-1, rank - 1) or rank < 3:
        return None
    name, mask = softmax.input[0], None
    for _ in range(_LONGEST_CHAIN):
        node = graph.producer.get(name)
        if node is None or graph.readers[name] != 1:
            return None
        if node.op_type == "MatMul":
            ranks = {len(graph.tensors[each].sizes) for each in node.input}
            return (node, mask) if ranks == {rank} and all(each in graph.active for each in node.input) else None
        sides = [each for each in node.input if not graph.scalar(each)]
        scores = [each for each in sides if _leads_to_product(graph, each)]
        masks = [each for each in sides if each not in scores]
        if node.op_type not in ("Add", "Where", "Mul", "Div", *_COPIES) or len(scores) != 1 or len(masks) > 1:
            return None
        if masks and (mask is not None or node.op_type in ("Mul", "Div")):
            return None
        mask, name = ({"tensor": masks[0]} if masks else mask), scores[0]
    return None


def _leads_to_product(graph: _Translation, name: str) -> bool:
    """Return True if a product lies behind masks and scales of a tensor, and it is an activation."""
    for _ in range(_LONGEST_CHAIN):
        node = graph.producer.get(name)
        if node is None or name not in graph.active:
            return False
        if node.op_type == "MatMul":
            return True
        active = [each for each in node.input if each in graph.active]
        if node.op_type not in ("Add", "Where", "Mul", "Div", *_COPIES) or not active:
            return False
        name = active[0]
    return False


def _before(graph: _Translation, name: str, passed: frozenset[str]) -> onnx.NodeProto | None:
    """The node that writes a tensor, before those that pass it on unchanged."""
    for _ in range(_LONGEST_CHAIN):
        node = graph.producer.get(name)
        if node is None or node.op_type not in passed:
            return node
        made = graph.writer.get(name)
        if made is None or made.op != "aten.alias":
            return None
        name = made.args[0]["tensor"]
    return None


def _unscaled(graph: _Translation, name: str) -> str:
    """A tensor before it is multiplied by a number."""
    node = graph.producer.get(name)
    if node is not None and node.op_type in ("Mul", "Div") and graph.scalar(node.input[1]):
        return str(node.input[0])
    return name


def _attention(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    """Inputs (b, heads, s, d), or (b, s, heads x d) with the heads as attributes."""
    names = list(node.input[:3])
    mask = {"tensor": node.input[3]} if len(node.input) > 3 and node.input[3] else None
    if any(node.input[4:6]):
        raise ValueError(f"node {node.name} ({node.op_type}) reads keys of earlier calls; export the model without its cache")
    is_flat = len(graph.tensors[names[0]].sizes) == 3
    if is_flat:
        heads = [_attribute(node, which, 1) for which in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        for place, (name, count) in enumerate(zip(names, heads, strict=True)):
            batch, tokens, width = graph.tensors[name].sizes
            cut = (batch, tokens, count, width // count)
            name = graph.view(node, name, f"heads {place}", "aten.view", [list(cut)], cut)
            cut = (batch, count, tokens, width // count)
            names[place] = graph.view(node, name, f"turned {place}", "aten.permute", [[0, 2, 1, 3]], cut)
    args = [*({"tensor": name} for name in names), mask, 0.0, bool(_attribute(node, "is_causal", 0))]
    if not is_flat:
        graph.call(node, "aten.scaled_dot_product_attention", args, outputs[:1])
        return
    (batch, count, tokens, _), width = graph.tensors[names[0]].sizes, graph.tensors[names[2]].sizes[3]
    made = graph.view(node, names[0], "attended", "aten.alias", [], (batch, count, tokens, width))
    graph.calls[-1] = _Call("aten.scaled_dot_product_attention", _module(node), args, [graph.tensors[made]])
    made = graph.view(node, made, "back", "aten.permute", [[0, 2, 1, 3]], (batch, tokens, count, width))
    graph.call(node, "aten.view", [{"tensor": made}, list(outputs[0].sizes)], outputs[:1])


def _cross_entropy(graph: _Translation, node: onnx.NodeProto, outputs: Sequence[_Tensor]) -> None:
    logits, labels = node.input[:2]
    before = graph.producer.get(logits)
    if node.op_type == "NegativeLogLikelihoodLoss" and before is not None and before.op_type == "LogSoftmax":
        logits = before.input[0]
    graph.call(node, "aten.cross_entropy_loss", [{"tensor": logits}, {"tensor": labels}], outputs[:1])


_TRANSLATIONS: Mapping[str, _Translator] = {
    **dict.fromkeys(_COPIES, _copy),
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys((*_POOLS, "GlobalAveragePool"), _pool),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _norm),
    **dict.fromkeys(("BatchNormalization", "GroupNormalization", "InstanceNormalization"), _channel_norm),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"), _cross_entropy),
    "Add": _add,
    "Attention": _attention,
    "Concat": _concat,
    "Conv": _convolution,
    "CumSum": _cumulative,
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Slice": _slice,
    "Split": _split,
    "TopK": _top,
    "Transpose": _permute,
    "Trilu": _triangle,
    "Where": _where,
}


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not is_digits(number) or len(number) > len(str(2**31)) or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give NAME=N, as batch=2")
    return name, int(number)


def main() -> None:
    """Write the traced graph of an ONNX file."""
    parser = argparse.ArgumentParser(description="Write a model in ONNX as a traced graph of Meshwright.")
    parser.add_argument("model", help="the .onnx file")
    parser.add_argument("output", help="file to write, .json or .json.gz")
    parser.add_argument("--name", help="name of the model; the file's when left out")
    parser.add_argument(
        "--size", action="append", type=_size, default=[], help="NAME=N: the size of a dynamic axis of the inputs"
    )
    given = parser.parse_args()
    try:
        write_traced_graph(given.model, given.output, name=given.name, sizes=dict(given.size))
    except (ValueError, OSError) as error:
        raise SystemExit(f"can't write {given.output}: {error}") from None


if __name__ == "__main__":
    main()
