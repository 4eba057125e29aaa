"""Counts where code asks whether something is training or serving, which a third workload would have to find, and lists the
tables in which it would have a row.

    python -m benchmarks.kind_questions

A question is a test of a value against a class that only one kind of workload has, by `isinstance`, its `type` or a case, or a
comparison with a kind's word. What is looked up in a table under a kind is none: there a third workload is one more row.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("app", "solver", "costmodels", "meshwright")

KINDS = frozenset({"training", "serving"})
TYPES = frozenset(
    f"{kind}{of}"
    for kind in ("Training", "Serving")
    for of in ("Request", "Workload", "Source", "Layout", "Trial", "Plan", "Case", "Launcher", "Report")
) | {"StatedTraining", "StatedServer", "Trial"}
"""Names of classes that one kind of workload has and no other."""


def kind_questions() -> dict[str, list[int]]:
    """Return the files of the floors that ask for the kind of a workload, each with the lines of its questions."""
    return {path: lines for path, tree in _modules() if (lines := questions_of_kind(tree))}


def kind_tables() -> dict[str, dict[int, set[str]]]:
    """Return the files of the floors that have a table with a row for each kind, each with the lines and rows of its tables."""
    return {path: tables for path, tree in _modules() if (tables := dict(_tables(tree)))}


def _modules() -> Iterator[tuple[str, ast.AST]]:
    """Yield all modules of the floors; those of the package are behind links besides."""
    for path in (path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def _tables(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            rows = {str(each.value) for each in node.keys if isinstance(each, ast.Constant)}
            if rows >= KINDS:
                yield node.lineno, rows


def questions_of_kind(tree: ast.AST) -> list[int]:
    """Return the lines of a module that ask for the kind of a workload."""
    return sorted(_questions(tree))


def _questions(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, asked]) if _names(asked) & TYPES:
                yield node.lineno
            case ast.Compare(left=left, comparators=others) if any(_is_kind(each) for each in (left, *others)):
                yield node.lineno
            case ast.MatchClass(cls=asked) if _names(asked) & TYPES:
                yield node.lineno
            case ast.MatchValue(value=value) if _is_kind(value):
                yield node.lineno
            case _:
                pass


def _is_kind(node: ast.expr) -> bool:
    """True for a kind's word, and for a class of one kind that something's type is compared with."""
    match node:
        case ast.Constant(value=str(word)):
            return word in KINDS
        case ast.Name(id=name):
            return name in TYPES
        case _:
            return False


def _names(node: ast.AST) -> set[str]:
    """Return the last words of all names in an expression."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def main() -> None:
    """Print files with the lines of their questions, most first, and of their tables, and how many there are of both."""
    found = kind_questions()
    for path, lines in sorted(found.items(), key=lambda each: (-len(each[1]), each[0])):
        print(f"{path}: {', '.join(map(str, lines))}")
    print(f"{sum(map(len, found.values()))} questions in {len(found)} files")
    tables = kind_tables()
    for path, lines in tables.items():
        print(f"{path}: {', '.join(map(str, lines))}")
    print(f"{sum(map(len, tables.values()))} tables in {len(tables)} files")


if __name__ == "__main__":
    main()
