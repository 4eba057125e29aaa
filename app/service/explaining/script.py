"""A shell script as the commands that stand in it: variables and lists that it sets are put in, and nothing is run.

What is set under a condition or in a loop is left out, and so is every value that only a shell could work out. Files that it
writes by here-documents are kept as texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from meshwright.app.service.explaining.start import BatchJob, read_batch_job
from meshwright.costmodels.errors import InvalidInputError

LONGEST_SCRIPT = 200_000
"""Characters of a script that are read, and of the words that it stands for."""
MOST_WORDS = 20_000

_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^{}]*))?\})")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_OPENING = frozenset(("if", "for", "while", "until", "case"))
_CLOSING = frozenset(("fi", "done", "esac"))
_BEFORE_COMMANDS = frozenset(("then", "else", "do", "elif", "exec", "time", "!", "{"))


class _Quotes(Enum):
    """The quotes around a part of a word."""

    NONE = auto()
    DOUBLE = auto()
    SINGLE = auto()
    """Also what only a shell could work out: it stays as it is written."""


@dataclass(slots=True)
class _Word:
    """Parts of a word with their quotes; of a list in brackets its words too."""

    parts: list[tuple[str, _Quotes]] = field(default_factory=list)
    members: list[_Word] | None = None

    @property
    def plain(self) -> str:
        """The text without quotes."""
        return "".join(text for text, _ in self.parts)


@dataclass(frozen=True, slots=True)
class Script:
    """The commands of a script, each as its words, and what was left out of them.

    files   texts that it writes by here-documents, by the name of the file
    job     what it asks Slurm for; None where it is no batch script
    variables  that it sets, those with one value
    """

    commands: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    job: BatchJob | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def read_script(text: str) -> Script:
    """Return the commands of a script, or of one command; raises InvalidInputError for one that is too long or not closed."""
    if len(text) > LONGEST_SCRIPT:
        raise InvalidInputError(f"the launch command is longer than {LONGEST_SCRIPT:,} characters")
    job = read_batch_job(text)
    known: dict[str, list[str]] = {} if job is None else {name: [value] for name, value in job.environment.items()}
    commands: list[tuple[str, ...]] = []
    depth, skipped, length = 0, 0, 0
    reader = _Reader(text)
    for statement in reader.statements():
        words = list(statement)
        while words and words[0].plain in _BEFORE_COMMANDS:
            words.pop(0)
        first = words[0].plain if words else ""
        depth = max(0, depth + (first in _OPENING) - (first in _CLOSING))
        if first == "export":
            words.pop(0)
        if words and all(_ASSIGNED.match(word.plain) for word in words):
            if depth:
                skipped += 1
            else:
                for word in words:
                    _assign(word, known)
            continue
        expanded = [text for word in words for text in _expanded(word, known)]
        length += sum(map(len, expanded)) + len(expanded)
        if length > LONGEST_SCRIPT or len(expanded) > MOST_WORDS:
            raise InvalidInputError(f"the launch command is longer than {LONGEST_SCRIPT:,} characters")
        if expanded:
            commands.append(tuple(expanded))
    left_out = f"{skipped} settings of the script stand under a condition or in a loop, and were left out"
    variables = {name: values[0] for name, values in known.items() if len(values) == 1}
    return Script(tuple(commands), (left_out,) if skipped else (), reader.files, job, variables)


def _assign(word: _Word, known: dict[str, list[str]]) -> None:
    found = _ASSIGNED.match(word.plain)
    assert found is not None, "only assignments come here"
    name, adds = found[1], bool(found[2])
    if word.members is not None:
        values = [text for member in word.members for text in _expanded(member, known)]
    else:
        values = [_joined(word, known)[found.end() :]]
    known[name] = [*known.get(name, []), *values] if adds else values
    if sum(map(len, known[name])) > LONGEST_SCRIPT or len(known[name]) > MOST_WORDS:
        raise InvalidInputError(f"the launch command is longer than {LONGEST_SCRIPT:,} characters")


def _joined(word: _Word, known: dict[str, list[str]]) -> str:
    return "".join(part if quotes is _Quotes.SINGLE else _put_in(part, known) for part, quotes in word.parts)


def _put_in(text: str, known: dict[str, list[str]]) -> str:
    """The text with variables that are known; those that are not, without a default, as they are written."""

    def value(found: re.Match[str]) -> str:
        name, default = found[1] or found[2], found[3]
        if name in known:
            return " ".join(known[name])
        return found[0] if default is None else default.strip("\"'")

    return _VARIABLE.sub(value, text)


def _expanded(word: _Word, known: dict[str, list[str]]) -> Iterator[str]:
    """The words that a word stands for: what stands without quotes is split at blanks."""
    if word.members is not None:
        return
    started, current = False, ""
    for part, quotes in word.parts:
        put_in = part if quotes is _Quotes.SINGLE else _put_in(part, known)
        whole_list = quotes is _Quotes.DOUBLE and re.fullmatch(r"\$\{\w+\[@\]\}", part) is not None
        if whole_list and part[2 : part.index("[")] in known:
            yield from known[part[2 : part.index("[")]]
            continue
        if quotes is not _Quotes.NONE or put_in == part:
            started, current = True, current + put_in
            continue
        pieces = re.split(r"\s+", put_in)
        for place, piece in enumerate(pieces):
            if place and started:
                if current:
                    yield current
                current = ""
            started, current = True, current + piece
    if started and (current or any(quotes is not _Quotes.NONE for _, quotes in word.parts)):
        yield current


class _Reader:
    """The statements of a script, character by character."""

    def __init__(self, text: str):
        self._text, self._at = text, 0
        self._written, self._ends = "", list[str]()
        self.files: dict[str, str] = {}

    def statements(self) -> Iterator[list[_Word]]:
        """Each statement as its words; what is sent to files is no part of them."""
        words: list[_Word] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in "\n;&|()":
                self._at += 1
                yield words
                words = []
                if char == "\n":
                    self._take_here_documents()
            elif char in " \t\r":
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                self._skip_line()
            elif char in "<>":
                self._skip_redirection(words)
            else:
                words.append(self._word())
        yield words

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _skip_redirection(self, words: list[_Word]) -> None:
        """Leave out a redirection, the number of its stream in front, and the file behind."""
        if words and words[-1].plain.isdigit() and self._text[self._at - 1].isdigit():
            words.pop()
        begin = self._at
        while self._at < len(self._text) and self._text[self._at] in "<>&|- \t":
            self._at += 1
        if self._at < len(self._text) and self._text[self._at] not in "\n;()":
            sign, name = self._text[begin : self._at].strip(), self._word().plain
            if sign in (">", ">>"):
                self._written = name
            elif sign in ("<<", "<<-"):
                self._ends.append(name)

    def _take_here_documents(self) -> None:
        """Take the lines of the documents that begin here, up to the line that ends each."""
        for end in self._ends:
            lines: list[str] = []
            while self._at < len(self._text):
                begin = self._at
                self._skip_line()
                line = self._text[begin : self._at]
                self._at += 1
                if line.strip("\t\r") == end:
                    break
                lines.append(line)
            if self._written:
                self.files[self._written] = "\n".join(lines) + "\n"
        self._ends, self._written = [], ""

    def _word(self) -> _Word:
        word = _Word()
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\r\n;&|)<>":
                break
            if char == "(":
                if _ASSIGNED.fullmatch(word.plain) is None:
                    break
                self._at += 1
                word.members = self._members()
                break
            word.parts.append(self._part(char))
        return word

    def _members(self) -> list[_Word]:
        members: list[_Word] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == ")":
                self._at += 1
                return members
            if char.isspace():
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                self._skip_line()
            elif char in ";&|(<>":
                # No list has these without quotes.
                self._at += 1
            else:
                members.append(self._word())
        raise InvalidInputError("the launch command can't be read: No closing bracket")

    def _part(self, char: str) -> tuple[str, _Quotes]:
        begin = self._at
        if char == "\\":
            self._at += 2
            return ("" if self._text[begin + 1 : begin + 2] == "\n" else self._text[begin + 1 : begin + 2]), _Quotes.SINGLE
        if char == "'":
            return self._until("'", _Quotes.SINGLE)
        if char == '"':
            return self._double()
        if char == "`":
            inner, quotes = self._until("`", _Quotes.SINGLE)
            return f"`{inner}`", quotes
        if self._text.startswith("$(", begin):
            return self._closed("(", ")"), _Quotes.SINGLE
        if self._text.startswith("${", begin):
            return self._closed("{", "}"), _Quotes.NONE
        self._at += 1
        while self._at < len(self._text) and self._text[self._at] not in " \t\r\n;&|()<>\\'\"`$":
            self._at += 1
        return self._text[begin : self._at], _Quotes.NONE

    def _until(self, end: str, quotes: _Quotes) -> tuple[str, _Quotes]:
        begin = self._at + 1
        close = self._text.find(end, begin)
        if close < 0:
            raise InvalidInputError("the launch command can't be read: No closing quotation")
        self._at = close + 1
        return self._text[begin:close], quotes

    def _double(self) -> tuple[str, _Quotes]:
        found: list[str] = []
        self._at += 1
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return "".join(found), _Quotes.DOUBLE
            if self._text.startswith("$(", self._at):
                found.append(self._closed("(", ")"))
                continue
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                self._at += 1
                char = self._text[self._at].strip("\n")
            found.append(char)
            self._at += 1
        raise InvalidInputError("the launch command can't be read: No closing quotation")

    def _closed(self, opening: str, closing: str) -> str:
        """The text up to the bracket that closes the next one."""
        begin, depth = self._at, 0
        while self._at < len(self._text):
            char = self._text[self._at]
            depth += (char == opening) - (char == closing)
            self._at += 1
            if char == closing and depth == 0:
                return self._text[begin : self._at]
        raise InvalidInputError("the launch command can't be read: No closing bracket")
