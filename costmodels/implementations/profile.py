"""The profile of a framework: how it runs the training of a model, by name.

Names are file names. A file states the fields that differ from the best that can be written by hand, each with its basis.
Files are read once a process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.implementation import Implementation
from meshwright.costmodels.model.memory_law import MemoryLaw


@dataclass(frozen=True, slots=True)
class Profile:
    """The way in which a framework runs the training of a model; ``bases`` says of each fact how it is known."""

    name: str
    framework: str
    implementation: Implementation
    bases: Mapping[str, str]


def implementation_profile(name: str) -> Profile:
    """The profile of a name; raises WorkloadError when there is none."""
    try:
        return _profiles()[name]
    except KeyError:
        raise WorkloadError(
            "unknown implementation profile",
            given=name,
            allowed=", ".join(_profiles()),
            remedy="choose one, or leave 'profile' out: the launcher's is then taken",
        ) from None


def implementation_profiles() -> tuple[Profile, ...]:
    """Every profile, by name."""
    return tuple(_profiles().values())


@cache
def _profiles() -> Mapping[str, Profile]:
    return MappingProxyType({profile.name: profile for profile in _read_profiles()})


def _read_profiles() -> Iterator[Profile]:
    entries = (entry for entry in files(__package__).joinpath("profiles").iterdir() if entry.name.endswith(".json"))
    for entry in sorted(entries, key=lambda entry: entry.name):
        document = json.loads(entry.read_text(encoding="utf-8"))
        facts: dict[str, dict[str, Any]] = document["facts"]
        yield Profile(
            name=entry.name.removesuffix(".json"),
            framework=document["framework"],
            implementation=Implementation(**{name: _value(name, fact["value"]) for name, fact in facts.items()}),
            bases=MappingProxyType({name: fact["basis"] for name, fact in facts.items()}),
        )


def _value(name: str, given: Any) -> Any:
    """The value of a field, an enum's by its word."""
    assert name in {field.name for field in fields(Implementation)}, f"a profile states {name}, which is no field"
    if name == "memory":
        return MemoryLaw(**given)
    kind = get_type_hints(Implementation)[name]
    word = next((each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, StrEnum)), None)
    return given if word is None else word(given)
