"""Typed access to the fields of a config.json, with the class defaults that sparse files rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodels.errors import ModelError
from solver.graph import MAX_LAYERS

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
        return self._integer(name, self._value(name), least=1)

    def optional_size(self, name: str) -> int | None:
        """A positive integer, or None where the file (or the class default) says null."""
        value = self._value(name)
        return None if value is None else self._integer(name, value, least=1)

    def count(self, name: str) -> int:
        """An integer that may be zero."""
        return self._integer(name, self._value(name), least=0)

    def layers(self, name: str = "num_hidden_layers") -> int:
        """A number of layers, no more than a model graph may have."""
        value = self.size(name)
        if value > MAX_LAYERS:
            raise ModelError(
                f"{self.family}: '{name}' is too large",
                given=value,
                allowed=f"at most {MAX_LAYERS}",
            )
        return value

    def flag(self, name: str) -> bool:
        """true or false."""
        value = self._value(name)
        if not isinstance(value, bool):
            raise self._wrong_type(name, value, "true or false")
        return value

    def optional_flag(self, name: str) -> bool:
        """true or false; null is false."""
        return False if self._value(name) is None else self.flag(name)

    def text(self, name: str) -> str:
        """A string."""
        value = self._value(name)
        if not isinstance(value, str):
            raise self._wrong_type(name, value, "a string")
        return value

    def optional_list(
        self, name: str, *, length: int, allowed: tuple[str, ...]
    ) -> tuple[str, ...] | None:
        """A list of ``length`` words out of ``allowed``, or None for null."""
        value = self._value(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(word, str) for word in value
        ):
            raise self._wrong_type(name, value, "a list of strings")
        if len(value) != length:
            raise ModelError(
                f"{self.family}: '{name}' must have an entry for each layer",
                given=len(value),
                allowed=str(length),
            )
        unknown = sorted(set(value) - set(allowed))
        if unknown:
            raise ModelError(
                f"{self.family}: '{name}' has unknown entries",
                given=unknown,
                allowed=", ".join(allowed),
            )
        return tuple(value)

    def has(self, name: str) -> bool:
        """Whether the file itself gives the field."""
        return any(key in self.document for key in (name, *self.aliases.get(name, ())))

    def _value(self, name: str) -> Any:
        for key in (name, *self.aliases.get(name, ())):
            if key in self.document:
                return self.document[key]
        if name in self.defaults:
            return self.defaults[name]
        raise ModelError(
            f"{self.family}: field '{name}' is missing",
            remedy=f"add '{name}' to the config.json",
        )

    def _integer(self, name: str, value: Any, *, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong_type(name, value, f"an integer of at least {least}")
        if not least <= value <= MAX_FIELD:
            raise ModelError(
                f"{self.family}: '{name}' is out of range",
                given=value,
                allowed=f"{least} to {MAX_FIELD}",
            )
        return value

    def _wrong_type(self, name: str, value: Any, allowed: str) -> ModelError:
        return ModelError(
            f"{self.family}: '{name}' has the wrong type", given=value, allowed=allowed
        )
