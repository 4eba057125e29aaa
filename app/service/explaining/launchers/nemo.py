"""A script of NeMo 2, in the words of plans: the arguments of its calls that are written out. It is parsed, and never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, replace

from meshwright.app.launching.flags.megatron_lm import MegatronFlags
from meshwright.app.launching.flags.nemo import CALLS, NEMO
from meshwright.app.service.explaining.launch_files import LaunchFiles
from meshwright.app.service.explaining.launchers.megatron_lm import stated_by_flags
from meshwright.app.service.explaining.start import Start
from meshwright.app.service.explaining.stated import StatedTraining
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.choices import Launcher

_MARK = "MegatronStrategy"
"""The call by which such a script is known."""
_IMPORT = re.compile(r"^[ \t]*(?:from|import) nemo\b", re.MULTILINE)
_LONGEST = 200_000
"""Characters of a script that are parsed."""
_CONFIGURED = ("Config", "Partial")
"""Calls of NeMo-Run whose first argument is the call that they stand for."""
_FLAGS = frozenset(field.name for field in fields(MegatronFlags))
_MOMENTS = {"bfloat16": "bf16", "uint8": "fp8"}


def is_script_of_nemo(text: str) -> bool:
    """Return True of a Python script that trains by NeMo's strategy, not of a script of a shell that holds one."""
    if _MARK not in text or _IMPORT.search(text) is None or len(text) > _LONGEST:
        return False
    try:
        _parsed(text)
    except InvalidInputError:
        return False
    return True


def script_of_nemo(name: str, files: LaunchFiles) -> str | None:
    """Return the text of a script that trains by NeMo's strategy; None of another, or one that was not given."""
    text = files.named(name) if name.endswith(".py") else None
    return text if text is not None and _MARK in text else None


def read_nemo(start: Start) -> StatedTraining:
    """Return what the script that was started states; raises InvalidInputError for one that can't be read."""
    text = script_of_nemo(start.words[0], start.files) if start.words else None
    if text is None:
        raise InvalidInputError("a run of NeMo is read from its script", given=" ".join(start.words[:1]) or "no script")
    read = NEMO.read(list(_words(_parsed(text))))
    found = dict(read.fields)
    precision = str(found.get("precision", "32")).casefold()
    found |= {"bf16": precision.startswith("bf16"), "fp16": precision.startswith(("16", "fp16"))}
    # Its loss is fused in parts, and its optimizer sharded as the optimizer's record says.
    found.setdefault("cross_entropy_loss_fusion", True)
    if found.get("exp_avg_dtype") in _MOMENTS:
        found["exp_avg_dtype"] = _MOMENTS[found["exp_avg_dtype"]]
    devices, nodes = found.get("devices"), found.get("nodes")
    flags = MegatronFlags(**{name: value for name, value in found.items() if name in _FLAGS})
    flags = replace(flags, group_query_attention=flags.num_query_groups is not None)
    world = start.world or (None if devices is None else devices * (nodes or 1))
    return stated_by_flags(flags, read.given, replace(start, world=world), Launcher.NEMO)


def _parsed(text: str) -> ast.Module:
    if len(text) > _LONGEST:
        raise InvalidInputError("the script is too long", given=f"{len(text):,} characters", allowed=f"{_LONGEST:,}")
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidInputError("the script is not Python that can be read", given=str(error)[:200]) from None


def _words(tree: ast.Module) -> Iterator[str]:
    """Arguments as flags, ``--section.name=value``; a value that is computed is one that a shell would fill in."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _last_name(node.func)
        if name in _CONFIGURED and node.args:
            name = _last_name(node.args[0])
        section = CALLS.get(name)
        if section is None:
            continue
        for each in node.keywords:
            if each.arg is None or isinstance(each.value, ast.Call) or _is_none(each.value):
                continue
            named = f"{section}.{each.arg}"
            if isinstance(each.value, ast.Name) and named.replace("_", "-") not in NEMO.by_name:
                # Another record, whose call is read by itself.
                continue
            yield f"--{named}={_text(each.value)}"


def _text(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=bool() as truth):
            return str(truth).casefold()
        case ast.Constant(value=str() | int() | float() as constant):
            return str(constant)
        case ast.List(elts=members) | ast.Tuple(elts=members) if all(isinstance(each, ast.Constant) for each in members):
            return f"[{','.join(_text(each) for each in members)}]"
        case ast.Attribute():
            return value.attr
        case _:
            return f"${_last_name(value)}"


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _last_name(value: ast.expr) -> str:
    match value:
        case ast.Name():
            return value.id
        case ast.Attribute():
            return value.attr
        case _:
            return ""
