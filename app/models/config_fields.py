"""Typed access to the fields of a config.json, with the class defaults that sparse files rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.costmodels.errors import ModelError
from meshwright.solver.problem.graph import MAX_LAYERS

# Larger than any size of a real model; keeps products of a few sizes far from what an int64 or a float can hold.
MAX_FIELD = 10**9


@dataclass(frozen=True)
class ConfigFields:
    """Fields of one config.json.

    document   the parsed file (of a nested file, the part that describes the text model)
    family     model_type, for messages
    defaults   value of each field that a file may leave out: the default of the config class in transformers
    aliases    other names under which a file may give a field
    """

    document: Mapping[str, Any]
    family: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def size(self, name: str) -> int:
        """A positive integer."""
        return self._integer(*self._entry(name), least=1)

    def optional_size(self, name: str) -> int | None:
        """A positive integer, or None where the file (or the class default) says null."""
        key, value = self._entry(name)
        return None if value is None else self._integer(key, value, least=1)

    def count(self, name: str) -> int:
        """An integer that may be zero."""
        return self._integer(*self._entry(name), least=0)

    def layers(self, name: str = "num_hidden_layers") -> int:
        """A number of layers, no more than a model graph may have."""
        key, value = self._entry(name)
        return self._integer(key, value, least=1, most=MAX_LAYERS)

    def size_or_auto(self, name: str, *, auto: int) -> int:
        """A positive integer, or the given value where the file (or the class default) says "auto"."""
        key, value = self._entry(name)
        return auto if value == "auto" else self._integer(key, value, least=1)

    def flag(self, name: str) -> bool:
        """true or false."""
        key, value = self._entry(name)
        if not isinstance(value, bool):
            raise self._wrong_type(key, value, "true or false")
        return value

    def optional_flag(self, name: str) -> bool:
        """true or false; null is false."""
        return self._entry(name)[1] is not None and self.flag(name)

    def optional_number(self, name: str) -> float | None:
        """A number from 0 to MAX_FIELD, or None for null."""
        key, value = self._entry(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_FIELD:
            raise self._wrong_type(key, value, f"a number from 0 to {MAX_FIELD}")
        return float(value)

    def text(self, name: str) -> str:
        """A string."""
        key, value = self._entry(name)
        if not isinstance(value, str):
            raise self._wrong_type(key, value, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """A string, or None for null."""
        return None if self._entry(name)[1] is None else self.text(name)

    def optional_words(self, name: str, *, length: int | None, allowed: tuple[str, ...]) -> tuple[str, ...] | None:
        """A list of ``length`` words (any number up to a graph's layers if None) out of ``allowed``, or None for null."""
        key, value = self._entry(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self._wrong_type(key, value, "a list of strings")
        if not value or (length is not None and len(value) != length):
            raise ModelError(
                f"{self.family}: '{key}' must have an entry for each layer",
                given=len(value),
                allowed="at least 1" if length is None else str(length),
            )
        unknown = sorted(set(value) - set(allowed))
        if unknown:
            raise ModelError(f"{self.family}: '{key}' has unknown entries", given=unknown, allowed=", ".join(allowed))
        return tuple(value)

    def optional_entries(self, name: str) -> int | None:
        """Number of entries of an object that isn't empty, or None for null."""
        key, value = self._entry(name)
        if value is None:
            return None
        if not isinstance(value, Mapping) or not value:
            raise self._wrong_type(key, value, "an object with an entry for each label")
        return len(value)

    def optional_indices(self, name: str) -> frozenset[int] | None:
        """A list of layer indices, or None for null."""
        key, value = self._entry(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong_type(key, value, "a list of layer indices")
        return frozenset(self._integer(key, index, least=0, most=MAX_LAYERS) for index in value)

    def optional_switches(self, name: str, *, least_length: int) -> tuple[bool, ...] | None:
        """A list of 0 and 1 (or false and true) of at least ``least_length``, or None for null and an empty list."""
        key, value = self._entry(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or not all(isinstance(entry, int) and entry in (0, 1) for entry in value):
            raise self._wrong_type(key, value, "a list of 0 and 1")
        if len(value) < least_length:
            raise ModelError(
                f"{self.family}: '{key}' must have an entry for each layer", given=len(value), allowed=str(least_length)
            )
        return tuple(bool(entry) for entry in value)

    def refuse(self, name: str, *, because: str) -> None:
        """Raise ModelError when the flag ``name`` is set: the model then has parts that the reader does not know."""
        if self.optional_flag(name):
            raise ModelError(f"{self.family}: '{name}' is not supported: {because}", given=True, allowed="false")

    def _entry(self, name: str) -> tuple[str, Any]:
        """The key under which the file gives the field, and its value; the class default where it does not."""
        for key in (name, *self.aliases.get(name, ())):
            if key in self.document:
                return key, self.document[key]
        if name in self.defaults:
            return name, self.defaults[name]
        raise ModelError(f"{self.family}: field '{name}' is missing", remedy=f"add '{name}' to the config.json")

    def _integer(self, key: str, value: Any, *, least: int, most: int = MAX_FIELD) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong_type(key, value, f"an integer from {least} to {most}")
        if not least <= value <= most:
            raise ModelError(f"{self.family}: '{key}' is out of range", given=value, allowed=f"{least} to {most}")
        return value

    def _wrong_type(self, key: str, value: Any, allowed: str) -> ModelError:
        return ModelError(f"{self.family}: '{key}' has the wrong type", given=value, allowed=allowed)
