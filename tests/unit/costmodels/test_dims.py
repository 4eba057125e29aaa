"""The names of dims are declared in one module, which all others import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.costmodels.model import dims

ROOT = Path(__file__).resolve().parents[3]
DECLARED = {value: name for name, value in vars(dims).items() if name.isupper() and isinstance(value, str)}
MODULES = sorted(
    path
    for folder in ("costmodels", "solver", "app/models", "app/launching", "app/evidence/training")
    for path in (ROOT / folder).rglob("*.py")
    if path != ROOT / "costmodels" / "model" / "dims.py"
)


def spelled(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the expressions that stand for dims: constants of the module, keys of a model's dims, dims of tensors."""
    for constant in tree.body:
        match constant:
            case ast.Assign(targets=[ast.Name()], value=value):
                yield value
            case ast.Assign(targets=[ast.Tuple()], value=ast.Tuple(elts=values)):
                yield from values
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id="dims" | "sizes") | ast.Attribute(attr="dims"), slice=key):
                yield key
            case ast.Call(func=ast.Attribute(attr="get", value=whose), args=[key, *_]) if _is_dims(whose):
                yield key
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[whose]) if _is_dims(whose):
                yield left
            case ast.Call(func=ast.Name(id="activation"), args=[_, *given]):
                yield from given
            case ast.Call(func=ast.Name(id="Tensor" | "Weight"), args=[_, ast.Tuple(elts=given), *_]):
                yield from given


def _is_dims(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "dims") or (isinstance(node, ast.Attribute) and node.attr == "dims")


def test_names_are_the_field_s_and_distinct() -> None:
    names = [name for name, value in vars(dims).items() if name.isupper() and isinstance(value, str)]
    assert len(DECLARED) == len(names) > 20
    assert all(name.lower() == value for value, name in DECLARED.items())
    assert {dims.BATCH, dims.SEQ} == dims.RESERVED_DIMS


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_spells_a_dim_itself(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in spelled(tree) if isinstance(node, ast.Constant) and node.value in DECLARED]
    assert not found, f"import {', '.join(DECLARED[str(node.value)] for node in found)} from costmodels.model.dims"
