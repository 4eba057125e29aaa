"""Writes a program of ``torch.export`` as a traced graph: JSON that is read without PyTorch.

This file needs PyTorch and nothing of ours, so that it can be copied to where the model is. From the shell:

    python torch_export.py train.py:traced graph.json.gz

where ``traced()`` returns ``torch.export.export(model, args, kwargs)``. Weights may lie on the ``meta`` device: no value is
read. Shapes must be static; trace a batch of at least 2 (export treats sizes of 1 as broadcast) and the sequence length
that you train with.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

_TO_THE_END = 2**62
"""Slices without an end are written with the largest integer."""
_HUGE = 1e18
"""Numbers that stand for infinity in masks are written as text."""
SCHEMA = "meshwright.traced-graph/1"


def traced_document(program: Any, *, name: str) -> dict[str, Any]:
    """The traced graph of a ``torch.export.ExportedProgram`` as a JSON value; raises ValueError for dynamic shapes."""
    import torch

    signature = program.graph_signature
    parameters = dict(signature.inputs_to_parameters)
    constants = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    used = {node for reader in program.graph.nodes for node in reader.all_input_nodes}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "name": name,
        "producer": f"torch {torch.__version__}",
        "parameters": [],
        "constants": [],
        "inputs": [],
        "operators": [],
    }
    for node in program.graph.nodes:
        if node.op == "placeholder" and node in used and _is_tensor(node.meta.get("val")):
            (tensor,) = _tensors(node.name, node.meta["val"])
            if node.name in parameters:
                document["parameters"].append({"tensor": tensor, "name": parameters[node.name]})
            else:
                document["constants" if node.name in constants else "inputs"].append(tensor)
        elif node.op == "get_attr" and _is_tensor(node.meta.get("val")):
            document["constants"] += _tensors(node.name, node.meta["val"])
        elif node.op == "call_function":
            document["operators"].append(_operator(node))
    return document


def write_traced_graph(program: Any, path: str | Path, *, name: str | None = None) -> None:
    """Write the traced graph of a program to ``path``, compressed where that ends in ``.gz``."""
    path = Path(path)
    stem = path.name.removesuffix(".gz").removesuffix(".json")
    text = json.dumps(traced_document(program, name=name or stem), separators=(",", ":"), allow_nan=False).encode()
    # No time stamp: the same program gives the same file.
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _operator(node: Any) -> dict[str, Any]:
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    value = node.meta.get("val")
    target = node.target
    return {
        "op": str(target) if not callable(target) or hasattr(target, "overloads") else _callable_name(target),
        "module": modules[-1] if modules else "",
        "args": [_argument(argument) for argument in node.args],
        "kwargs": {key: _argument(argument) for key, argument in node.kwargs.items()},
        "outputs": _tensors(node.name, value),
    }


def _callable_name(target: Any) -> str:
    text = str(target)
    return text if hasattr(target, "overloadpacket") else getattr(target, "__name__", text)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _tensors(name: str, value: Any) -> list[list[Any]]:
    """[name, format, size...] of a tensor; of several, their names end in their index."""
    if isinstance(value, (tuple, list)):
        return [tensor for i, part in enumerate(value) for tensor in _tensors(f"{name}:{i}", part)]
    if not _is_tensor(value):
        return []
    sizes = [_static(size, name) for size in value.shape]
    return [[name, str(value.dtype).removeprefix("torch."), *sizes]]


def _static(size: Any, name: str) -> int:
    if not isinstance(size, int):
        raise ValueError(f"tensor {name} has the dynamic size {size}; export with static shapes (no dynamic_shapes)")
    return size


def _argument(argument: Any) -> Any:
    """Tensors as {"tensor": name}, several of one call as a list, numbers and lists as they are, all else as text."""
    if hasattr(argument, "op") and hasattr(argument, "meta"):
        value = argument.meta.get("val")
        if isinstance(value, (tuple, list)):
            return [{"tensor": f"{argument.name}:{i}"} for i in range(len(value))]
        return {"tensor": argument.name} if _is_tensor(value) else argument.name
    if isinstance(argument, (list, tuple)):
        return [_argument(part) for part in argument]
    if isinstance(argument, int) and abs(argument) >= _TO_THE_END:
        return None
    if isinstance(argument, float) and not abs(argument) < _HUGE:
        return str(argument)
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    return str(argument)


def _program(source: str) -> Any:
    """The program that FILE.py:FUNCTION returns, or that a .pt2 file holds."""
    import torch

    if source.endswith(".pt2"):
        return torch.export.load(source)
    file, _, function = source.rpartition(":")
    spec = importlib.util.spec_from_file_location("traced_model", file)
    if not function or spec is None or spec.loader is None:
        raise SystemExit(f"can't read {source}: give FILE.py:FUNCTION or a .pt2 file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).resolve().parent))
    spec.loader.exec_module(module)
    return getattr(module, function)()


def main() -> None:
    """Write the traced graph of FILE.py:FUNCTION or of a .pt2 file."""
    parser = argparse.ArgumentParser(description="Write a program of torch.export as a traced graph of Meshwright.")
    parser.add_argument("program", help="FILE.py:FUNCTION, which returns torch.export.export(...), or a .pt2 file")
    parser.add_argument("output", help="file to write, .json or .json.gz")
    parser.add_argument("--name", help="name of the model; the file's when left out")
    given = parser.parse_args()
    write_traced_graph(_program(given.program), given.output, name=given.name)


if __name__ == "__main__":
    main()
