"""Habits of the house that neither ruff nor mypy can hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("app", "solver", "costmodels")
CONTEXT_OF_A_THREAD = {
    "app/base/logs.py": "the id of the request that every log line of a thread belongs to, whoever writes it",
    "costmodels/calibration/calibration.py": "the documents of a request's own calibrations, which devices name",
}
"""Modules that keep a value beside the arguments of calls, and which."""

FORM_FIELDS = frozenset({"prefill", "switched", "shares", "kinds", "stagewise"})
"""Fields of a flat plan document that one form has and others leave empty."""
OF_THE_FLAT_PLAN = {
    "solver/answer/document.py": "makes the type of its form of it (`solver.answer.layouts`)",
}
"""Modules whose subject is the flat document itself."""


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of every module of the floors, by its path. Parsed when asked for: every worker collects this file."""
    paths = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree: each test looks through them, and walking takes longer than looking."""
    return tuple(ast.walk(tree))


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of a function by its name."""
    for node in nodes(tree):
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", None), getattr(node.func, "attr", None)):
            yield node


def test_the_workload_of_a_request_is_told_by_the_type_of_the_request() -> None:
    assertions = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Assert)
        and any("workload" in ast.unparse(call.args[0]) for call in calls(node.test, "isinstance"))
    ]
    assert assertions == [], "take a TrainingRequest or a ServingRequest instead of a request and an assertion"


def test_no_key_is_the_address_of_an_object() -> None:
    keyed = [
        f"{module}:{call.lineno}"
        for module, tree in modules().items()
        for call in calls(tree, "id")
        if isinstance(call.func, ast.Name)
    ]
    assert keyed == [], "an address is given to another object when its own is gone: use the object itself as the key"


def test_what_a_call_depends_on_is_an_argument() -> None:
    kept = {module for module, tree in modules().items() if any(calls(tree, "ContextVar"))}
    assert kept == CONTEXT_OF_A_THREAD.keys(), "pass it as an argument"
    copied = [module for module, tree in modules().items() if any(calls(tree, "copy_context"))]
    assert copied == [], "pass what the other thread needs"


@pytest.mark.parametrize("floor", FLOORS)
def test_no_function_assigns_to_a_module(floor: str) -> None:
    found = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if module.startswith(floor)
        for node in nodes(tree)
        if isinstance(node, ast.Global)
    ]
    assert found == [], "what a function finds out, it returns"


def truths(tree: ast.AST) -> Iterator[ast.expr]:
    """Names that a module compares with None, or takes for true in a condition."""
    for node in nodes(tree):
        match node:
            case ast.If(test=asked) | ast.IfExp(test=asked) | ast.While(test=asked) | ast.Assert(test=asked):
                yield asked
            case ast.BoolOp(values=asked_of) | ast.comprehension(ifs=asked_of):
                yield from asked_of
            case ast.UnaryOp(op=ast.Not(), operand=asked) | ast.Compare(left=asked, comparators=[ast.Constant(value=None)]):
                yield asked
            case ast.Call(func=ast.Name(id="bool" | "len"), args=[asked]):
                yield asked


def is_form_of_a_plan(asked: ast.expr) -> bool:
    """Return True for ``plan.kinds`` and its like."""
    match asked:
        case ast.Attribute(attr=field, value=ast.Name(id=owner) | ast.Attribute(attr=owner)):
            return field in FORM_FIELDS and owner.strip("_").endswith(("plan", "record"))
    return False


def test_the_form_of_a_plan_is_told_by_its_type() -> None:
    told = {module for module, tree in modules().items() if any(map(is_form_of_a_plan, truths(tree)))}
    assert told == OF_THE_FLAT_PLAN.keys(), "match on plan.layout"


@pytest.mark.parametrize("asked", ["if plan.kinds: f()", "x = [p for p in q if not p.plan.shares]", "plan.prefill is not None"])
def test_questions_about_a_form_are_noticed(asked: str) -> None:
    assert any(map(is_form_of_a_plan, truths(ast.parse(asked))))
    assert not any(map(is_form_of_a_plan, truths(ast.parse("if layout.kinds: f(plan.kinds)"))))


def test_digits_of_others_are_those_of_int() -> None:
    """str.isdigit() takes "\u00b2", of which int() makes no number: a request with it was an internal error."""
    asking = [
        f"{module}:{call.lineno}"
        for module, tree in modules().items()
        if module != "app/base/digits.py"
        for name in ("isdigit", "isdecimal", "isnumeric")
        for call in calls(tree, name)
    ]
    assert asking == [], "ask `app.base.digits.is_digits`"
