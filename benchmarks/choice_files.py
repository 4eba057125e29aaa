"""Lists the files of code that name a search choice: what taking it out, or putting one like it in, would touch.

    python -m benchmarks.choice_files rank_order [--also WORD ...]

A file names a choice where an identifier, an argument, a part of a module's path or a string is the name of its field, or where
it imports the type of its values. Comments and docstrings do not count. What knows a choice under another word is found by that
word.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import get_args, get_type_hints

from meshwright.solver.problem.search import LEDGER, Search

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("app", "solver", "costmodels")


def files_that_name(choice: str, *, also: frozenset[str] = frozenset()) -> dict[str, list[int]]:
    """Return the files of the three floors that name a choice, or another word for it, each with its lines."""
    words = {choice, *also}
    types = {(each.__module__, each.__name__) for each in _types_of(choice)}
    found: dict[str, list[int]] = {}
    for path in (path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        lines = {line for line, said in _said(tree) if said in words} | {
            line for line, module, name in _imported(tree) if (module, name) in types
        }
        if lines:
            found[str(path.relative_to(ROOT))] = sorted(lines)
    return found


def _types_of(choice: str) -> Iterator[type[Enum]]:
    """Yield the type of a choice's values, where it is one that the solver has for choices."""
    hint = get_type_hints(Search)[choice]
    for each in (hint, *get_args(hint)):
        if isinstance(each, type) and issubclass(each, Enum) and each.__module__.startswith("meshwright.solver."):
            yield each


def _said(tree: ast.AST) -> Iterator[tuple[int, object]]:
    """Yield all identifiers and constants of a module, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=said) | ast.Attribute(attr=said) | ast.arg(arg=said) | ast.keyword(arg=str(said)):
                yield node.lineno, said
            case ast.FunctionDef(name=said) | ast.ClassDef(name=said) | ast.alias(name=said):
                yield node.lineno, said
            case ast.ImportFrom(module=str(path)):
                yield from ((node.lineno, said) for said in path.split("."))
            case ast.Constant(value=said):
                yield node.lineno, said
            case _:
                pass


def _imported(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, node.module or "", each.name) for each in node.names)


def main() -> None:
    """Print the files that name a choice, and how many they are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("choice", choices=tuple(LEDGER), metavar="NAME")
    parser.add_argument("--also", nargs="*", default=[], metavar="WORD", help="other words for it")
    options = parser.parse_args()
    found = files_that_name(options.choice, also=frozenset(options.also))
    for path, lines in found.items():
        print(f"{path}: {', '.join(map(str, lines))}")
    print(f"{len(found)} files")


if __name__ == "__main__":
    main()
