"""Habits of the house that neither ruff nor mypy can hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("app", "solver", "costmodels")
MODULES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
    for floor in FLOORS
    for path in sorted((ROOT / floor).rglob("*.py"))
}
CONTEXT_OF_A_THREAD = {
    "app/logs.py": "the id of the request that every log line of a thread belongs to, whoever writes it",
    "costmodels/calibration/calibration.py": "the documents of a request's own calibrations, which devices name",
}
"""Modules that keep a value beside the arguments of calls, and which."""


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of a function by its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", None), getattr(node.func, "attr", None)):
            yield node


def test_the_workload_of_a_request_is_told_by_the_type_of_the_request() -> None:
    assertions = [
        f"{module}:{node.lineno}"
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        and any("workload" in ast.unparse(call.args[0]) for call in calls(node.test, "isinstance"))
    ]
    assert assertions == [], "take a TrainingRequest or a ServingRequest instead of a request and an assertion"


def test_objects_that_outlive_a_call_keep_nothing_by_the_address_of_another() -> None:
    keyed = [
        f"{module}:{call.lineno}"
        for module, tree in MODULES.items()
        for kept in ast.walk(tree)
        if isinstance(kept, ast.ClassDef) or (isinstance(kept, ast.FunctionDef) and is_cached(kept))
        for call in calls(kept, "id")
    ]
    assert keyed == [], "an address is given to another object when its own is gone: use the object itself as the key"


def is_cached(function: ast.FunctionDef) -> bool:
    """Return True if a function remembers its answers."""
    return any("cache" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_what_a_call_depends_on_is_an_argument() -> None:
    kept = {module for module, tree in MODULES.items() if any(calls(tree, "ContextVar"))}
    assert kept == CONTEXT_OF_A_THREAD.keys(), "pass it as an argument"


@pytest.mark.parametrize("floor", FLOORS)
def test_no_function_assigns_to_a_module(floor: str) -> None:
    found = [
        f"{module}:{node.lineno}"
        for module, tree in MODULES.items()
        if module.startswith(floor)
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
    ]
    assert found == [], "what a function finds out, it returns"
