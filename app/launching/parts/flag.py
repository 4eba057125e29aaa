"""A table of a launcher's flags, and a command read by it: nothing that a command says is passed over in silence."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import DType

LONGEST_COMMAND = 20_000
"""Characters of a launch command that are read."""

_FLAG = re.compile(r"--?[A-Za-z]")
_SHELL = re.compile(r"\$")
"""The mark of a value that a shell fills in."""


class Standing(StrEnum):
    """The part that a flag of a command has in what is said of it."""

    READ = "read"
    """It is part of the plan or of the request."""
    HARMLESS = "harmless"
    """It changes neither speed nor memory, or names what no plan decides."""
    NOT_PRICED = "not priced"
    """It may change speed or memory, and no prediction takes it into account."""
    UNKNOWN = "unknown"
    """No table has it."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that says something of a plan or its request.

    names   its spellings without leading hyphens and with hyphens between words; exporters write the first
    field   what it says, a field of the record that its table reads into
    read    the value of a text; None of a switch, which has none
    means   of a switch: the value that it stands for
    many    whether it takes all words up to the next flag, which ``read`` is given with blanks between
    is_name whether it is read even where a shell fills in its value
    optional  whether it may stand without a value, as ``means`` then: a switch that takes true and false, too
    """

    names: tuple[str, ...]
    field: str
    read: Callable[[str], Any] | None = None
    means: Any = True
    many: bool = False
    is_name: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """A flag as a command gives it.

    name, value   as they are written
    why           what it changes, of one that is not priced; what it is short for, of one that is cut short
    field         what it says, of one that is read, and ``meaning`` the value of that
    whole         its name in the table, of one that is cut short
    """

    name: str
    value: str | None
    standing: Standing
    why: str = ""
    field: str = ""
    meaning: Any = None
    whole: str = ""

    @property
    def table_name(self) -> str:
        """The name that tables have it by."""
        return self.whole or _name(self.name)


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A command read by a table: fields and their values, every flag that was given, and the words that belong to none."""

    fields: Mapping[str, Any]
    given: tuple[GivenFlag, ...]
    words: tuple[str, ...]


class ShortNames(StrEnum):
    """The names that a launcher's parser takes for a flag beside its own."""

    NONE = "none"
    """Whole names alone, as click, Hydra and argparse without abbreviations take them."""
    ARGPARSE = "argparse"
    """The beginning of one name. One that several begin with is refused."""
    OF_A_SCRIPT = "of a script"
    """The same of a script with flags of its own: one that several names of the table begin with may be the script's."""


@dataclass(frozen=True)
class FlagTable:
    """The flags of a launcher.

    flags        those that say something of a plan or its request
    harmless     others that change neither speed nor memory; True of those that take a value
    not_priced   others that may, each with what it changes
    switches     those of ``not_priced`` that take no value
    sections     beginnings of the names of others, up to a dot: what they change, or nothing
    short_names  what its parser does with names that are cut short
    """

    flags: tuple[Flag, ...]
    harmless: Mapping[str, bool] = field(default_factory=dict)
    not_priced: Mapping[str, str] = field(default_factory=dict)
    switches: frozenset[str] = frozenset()
    sections: Mapping[str, str] = field(default_factory=dict)
    short_names: ShortNames = ShortNames.NONE

    @cached_property
    def by_name(self) -> Mapping[str, Flag]:
        """Each flag under each of its spellings."""
        return {name: each for each in self.flags for name in each.names}

    @cached_property
    def _by_field(self) -> Mapping[str, Flag]:
        return {each.field: each for each in reversed(self.flags)}

    def name(self, said: str) -> str:
        """Return the spelling under which exporters write a field."""
        return self._by_field[said].names[0]

    def spellings(self, said: str) -> tuple[str, ...]:
        """Return every spelling of the flags that say a field."""
        return tuple(name for each in self.flags if each.field == said for name in each.names)

    @cached_property
    def _long_names(self) -> tuple[str, ...]:
        """Names that may be cut short: those behind two hyphens, without a section."""
        every = (*self.by_name, *self.harmless, *self.not_priced)
        return tuple(name for name in every if len(name) > _SHORT and "." not in name)

    def whole_names(self, written: str) -> tuple[str, ...]:
        """Return the name of a flag as it is written, else the names that it may be cut short of: the first of each flag.

        Nothing where the table has no such flag, or its launcher takes no names that are cut short.
        """
        name = _name(written)
        if name in self.by_name or name in self.harmless or name in self.not_priced:
            return (name,)
        if self.short_names is ShortNames.NONE or not written.startswith("--") or not name:
            return ()
        found: dict[Flag | str, str] = {}
        for each in self._long_names:
            if each.startswith(name):
                found.setdefault(self.by_name.get(each, each), each)
        return tuple(found.values())

    def read(self, words: Sequence[str]) -> ParsedCommand:
        """Return what the words of a command say; the last of several of one flag holds.

        Raises InvalidInputError for a flag without its value, with one that the launcher would refuse, or cut so short that it
        could be several.
        """
        fields: dict[str, Any] = {}
        given: list[GivenFlag] = []
        left: list[str] = []
        rest = deque(words)
        while rest:
            word = rest.popleft()
            if not _FLAG.match(word):
                left.append(word)
                continue
            written, has_value, value = word.partition("=")
            name, said = self._named(written)
            whole = name if name != _name(written) else ""
            known = self.by_name.get(name)
            text = value if has_value else self._value_after(name, known, rest)
            if known is None:
                aside = self._aside(written, name, text)
                given.append(replace(aside, why="; ".join(filter(None, (said, aside.why))), whole=whole))
                continue
            if known.read is not None and text is None and not known.optional:
                raise InvalidInputError(f"the launch flag --{name} has no value")
            if known.read is not None and not known.is_name and text is not None and _SHELL.search(text):
                why = "a shell fills in its value; taken as not given"
                given.append(GivenFlag(written, text, Standing.NOT_PRICED, why, whole=whole))
                continue
            value_of = known.means if known.read is None or text is None else _value(name, text, known.read)
            fields[known.field] = value_of
            given.append(GivenFlag(written, text, Standing.READ, said, known.field, value_of, whole))
        return ParsedCommand(fields, tuple(given), tuple(left))

    def _named(self, written: str) -> tuple[str, str]:
        """Return the name of a flag, and what is to be said of one that is cut short.

        Raises InvalidInputError where the launcher would refuse it since it could be several.
        """
        name, names = _name(written), self.whole_names(written)
        if names in ((), (name,)):
            return name, ""
        if len(names) == 1:
            return names[0], f"short for --{names[0]}"
        if self.short_names is ShortNames.OF_A_SCRIPT:
            # Nothing is lost where all are harmless.
            return name, "" if set(names) <= self.harmless.keys() else f"it may be short for any of {_listed(names)}"
        raise InvalidInputError(
            f"the launch flag --{name} is cut so short that it could be several",
            given=written,
            allowed=_listed(names),
            remedy="write its whole name",
        )

    def _value_after(self, name: str, known: Flag | None, rest: deque[str]) -> str | None:
        """Take the value of a flag from the words behind it; None where it has none."""
        has_none = known.read is None if known is not None else not self.harmless.get(name, name not in self.switches)
        if has_none or not rest or _is_flag(rest[0]):
            return None
        if known is not None and known.optional and not _reads(known, rest[0]):
            return None
        if known is None or not known.many:
            return rest.popleft()
        values: list[str] = []
        while rest and not _is_flag(rest[0]):
            values.append(rest.popleft())
        return " ".join(values)

    def _aside(self, written: str, name: str, text: str | None) -> GivenFlag:
        if name in self.harmless:
            return GivenFlag(written, text, Standing.HARMLESS)
        if name in self.not_priced:
            return GivenFlag(written, text, Standing.NOT_PRICED, self.not_priced[name])
        for begin, why in self.sections.items():
            if name.startswith(f"{begin}."):
                return GivenFlag(written, text, Standing.NOT_PRICED if why else Standing.HARMLESS, why)
        return GivenFlag(written, text, Standing.UNKNOWN)


def words_of(command: str) -> list[str]:
    """Return the words of a command as a shell splits them, ends of lines that are continued left out.

    Raises InvalidInputError for a command that is too long or that no shell can split.
    """
    if len(command) > LONGEST_COMMAND:
        raise InvalidInputError(f"the launch command is longer than {LONGEST_COMMAND:,} characters")
    try:
        return shlex.split(command.replace("\\\n", " "))
    except ValueError as error:
        raise InvalidInputError(f"the launch command can't be read: {error}") from None


_SHORT = 3
"""Letters of names that stand behind one hyphen, as ``-tp``."""


def _name(written: str) -> str:
    """Return the name of a flag as tables have it."""
    return written.lstrip("-").replace("_", "-")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"--{name}" for name in names)


def _is_flag(word: str) -> bool:
    """Return True for a word that begins another flag; a hyphen before a digit begins a value."""
    return _FLAG.match(word) is not None


def _reads(known: Flag, word: str) -> bool:
    """Return True for a word that is a value of a flag."""
    try:
        return known.read is not None and known.read(word) is not None
    except (ValueError, KeyError):
        return False


def _value(name: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidInputError(f"the launch flag --{name} can't have this value: {text}") from None


_TRUTHS = {**dict.fromkeys(("true", "1", "yes", "on"), True), **dict.fromkeys(("false", "0", "no", "off"), False)}


def truth(text: str) -> bool:
    """Return True or False of its usual words; raises KeyError for anything else."""
    return _TRUTHS[text.casefold()]


def count(text: str) -> int:
    """Return a positive integer; raises ValueError for anything else."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def share(text: str) -> float:
    """Return a share above 0 and up to 1; raises ValueError for anything else."""
    number = float(text)
    if not 0.0 < number <= 1.0:
        raise ValueError(text)
    return number


# Number formats by the names that serving engines give them.

_CACHES = {
    **dict.fromkeys(("fp8", "fp8-e4m3", "fp8_e4m3", "fp8-e5m2", "fp8_e5m2"), DType.FP8),
    **dict.fromkeys(("bfloat16", "bf16", "float16", "fp16"), DType.BF16),
}
_WORKING = {
    **dict.fromkeys(("bfloat16", "bf16"), DType.BF16),
    **dict.fromkeys(("float16", "fp16", "half"), DType.FP16),
}


def cache(text: str) -> DType | None:
    """Return the format of a cache; None of ``auto``, which leaves it to the checkpoint. Raises KeyError for others."""
    return None if text == "auto" else _CACHES[text.casefold()]


def working(text: str) -> DType | None:
    """Return the working format; None of ``auto``, which leaves it to the checkpoint. Raises KeyError for others."""
    return None if text == "auto" else _WORKING[text.casefold()]
