"""The text of a shell script as statements of words, each part of a word with its quotes; nothing is put in or run.

With it the arithmetic of shells: integers, as in ``$(( NODES * 8 ))``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from meshwright.app.base.digits import is_digits
from meshwright.costmodels.errors import InvalidInputError

_LONGEST_EXPRESSION = 500
"""Characters of an expression that is worked out."""
_LARGEST = 2**63
_MOST_BRACKETS = 20
_TOKEN = re.compile(r"\s*(?:(\d+)|\$?\{?([A-Za-z_]\w*)\}?|(\*\*|<<|>>|[-+*/%()]))")

_RANKS = {"<<": 1, ">>": 1, "+": 2, "-": 2, "*": 3, "/": 3, "%": 3, "**": 4}
"""How tightly operators bind."""


class _UndecidedError(Exception):
    """Raised for what is no such expression, or depends on what is not known."""


def integer_of(text: str, value_of: Callable[[str], str | None]) -> int | None:
    """Return the value of an expression; None for what a shell alone could work out.

    ``value_of`` gives the text of a variable, None of one that is not known.
    """
    if len(text) > _LONGEST_EXPRESSION or text.count("(") > _MOST_BRACKETS:
        return None
    try:
        expression = _Expression(_tokens(text.strip()), value_of)
        return expression.whole()
    except (_UndecidedError, ValueError):
        return None


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _UndecidedError
        tokens.append(found[1] or found[2] or found[3])
        at = found.end()
    return tokens


class _Expression:
    """An expression that is worked out from left to right, tighter operators first."""

    def __init__(self, tokens: list[str], value_of: Callable[[str], str | None]):
        self._tokens, self._value_of, self._at = tokens, value_of, 0

    def whole(self) -> int:
        value = self._from(0)
        if self._at < len(self._tokens):
            raise _UndecidedError
        return value

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise _UndecidedError
        self._at += 1
        return self._tokens[self._at - 1]

    def _from(self, rank: int) -> int:
        value = self._single()
        while self._at < len(self._tokens) and _RANKS.get(self._tokens[self._at], -1) >= rank:
            sign = self._next()
            # Powers are worked out from the right.
            value = _applied(sign, value, self._from(_RANKS[sign] + (sign != "**")))
        return value

    def _single(self) -> int:
        signed = 1
        token = self._next()
        while token in ("-", "+"):
            signed *= -1 if token == "-" else 1
            token = self._next()
        if token == "(":
            value = self._from(0)
            if self._next() != ")":
                raise _UndecidedError
            return signed * value
        if is_digits(token):
            return signed * _small(token)
        text = self._value_of(token)
        if text is None or not is_digits(text.strip().removeprefix("-")):
            raise _UndecidedError
        return signed * _small(text.strip())


def _small(digits: str) -> int:
    if len(digits) > len(str(_LARGEST)):
        raise _UndecidedError
    return int(digits)


def _applied(sign: str, left: int, right: int) -> int:
    if sign in ("/", "%") and right == 0:
        raise _UndecidedError
    if sign in ("**", "<<", ">>") and not 0 <= right < _LARGEST.bit_length():
        raise _UndecidedError
    match sign:
        case "+":
            value = left + right
        case "-":
            value = left - right
        case "*":
            value = left * right
        case "/":
            # Shells round towards zero.
            value = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        case "%":
            value = abs(left) % abs(right) * (-1 if left < 0 else 1)
        case "<<":
            value = left << right
        case ">>":
            value = left >> right
        case _:
            value = left**right
    if abs(value) >= _LARGEST:
        raise _UndecidedError
    return value


ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
"""The beginning of an assignment."""
_ENDS = " \t\r\n;&|()<>"
_CLOSED_BY = {"(": ")", "{": "}"}
_STDOUT = "1"


class Quotes(Enum):
    """The quotes around a part of a word."""

    NONE = auto()
    DOUBLE = auto()
    SINGLE = auto()
    """Also what only a shell could work out: it stays as it is written."""


Part = tuple[str, Quotes]


@dataclass(slots=True)
class Word:
    """Parts of a word with their quotes; of a list in brackets its words too."""

    parts: list[Part] = field(default_factory=list)
    members: list[Word] | None = None

    @property
    def plain(self) -> str:
        """The text without quotes."""
        return "".join(text for text, _ in self.parts)


@dataclass(frozen=True, slots=True)
class HereDocument:
    """A here-document; in one whose end is quoted nothing is put in."""

    text: str
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a script.

    line        the line that it begins on
    into        the file that its output goes to
    documents   texts that it reads from the script itself
    operator    && or || where it joins the next statement, else empty
    """

    words: tuple[Word, ...]
    line: int
    into: Word | None = None
    documents: tuple[HereDocument, ...] = ()
    operator: str = ""


def statements_of(text: str) -> Iterator[Statement]:
    """Return the statements of a script one by one; raises InvalidInputError where a quote or a bracket is not closed.

    A function begins with a statement of the word ``function`` and its name; ``(( ))`` is ``let``.
    """
    return _Lexer(text).statements()


def closing(text: str, at: int, opening: str) -> int | None:
    """Return the place behind the bracket that closes the one at a place; None where none does."""
    end, depth = _CLOSED_BY[opening], 0
    for place in range(at, len(text)):
        char = text[place]
        if char == opening:
            depth += 1
        elif char == end:
            depth -= 1
            if depth == 0:
                return place + 1
    return None


class _Lexer:
    """A walk through a script, character by character."""

    def __init__(self, text: str):
        self._text, self._at = text, 0
        self._line, self._counted = 1, 0
        self._open_to = 0
        self._into: Word | None = None
        self._ends: list[tuple[str, bool, bool]] = []

    def statements(self) -> Iterator[Statement]:
        words: list[Word] = []
        line = 1
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "(" and not words and (inner := self._arithmetic()) is not None:
                words, line = [Word([("let", Quotes.NONE)]), Word([(inner, Quotes.DOUBLE)])], self._line_here()
            elif char == "(" and len(words) == 1 and self._opens_function():
                words.insert(0, Word([("function", Quotes.NONE)]))
                yield Statement(tuple(words), line)
                words = []
            elif char == "\n":
                self._at += 1
                documents = self._here_documents()
                yield Statement(tuple(words), line, self._into, documents)
                words, self._into = [], None
            elif char in ";&|()":
                pair = self._text[self._at : self._at + 2]
                operator = pair if pair in ("&&", "||") else ""
                self._at += len(operator) or 1
                # The document of a line belongs to what its output goes to, wherever that stands.
                yield Statement(tuple(words), line, None if self._ends else self._into, operator=operator)
                words = []
                self._into = self._into if self._ends else None
            elif char in " \t\r":
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                self._skip_line()
            elif char in "<>":
                self._redirection(words)
            else:
                if not words:
                    line = self._line_here()
                words.append(self._word())
        yield Statement(tuple(words), line, self._into)

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _arithmetic(self) -> str | None:
        """What stands between ``((`` and ``))``, which is taken; None where nothing does."""
        # Up to that place nothing is closed: a line of ``((`` is searched once and not from each of them.
        if self._at < self._open_to or not self._text.startswith("((", self._at):
            return None
        line_end = self._text.find("\n", self._at)
        line_end = len(self._text) if line_end < 0 else line_end
        end = self._text.find("))", self._at, line_end)
        if end < 0:
            self._open_to = line_end
            return None
        inner, self._at = self._text[self._at + 2 : end], end + 2
        return inner

    def _opens_function(self) -> bool:
        """Take the brackets behind the name of a function, where these are such."""
        found = re.compile(r"\([ \t]*\)").match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found is not None

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _redirection(self, words: list[Word]) -> None:
        """Leave out a redirection, the number of its stream in front, and the file behind."""
        stream = _STDOUT
        if words and is_digits(self._text[self._at - 1]) and is_digits(words[-1].plain):
            stream = words.pop().plain
        begin = self._at
        while self._at < len(self._text) and self._text[self._at] in "<>&|- \t":
            self._at += 1
        if self._at < len(self._text) and self._text[self._at] not in "\n;()":
            sign, name = self._text[begin : self._at].strip(), self._word()
            if sign in (">", ">>", ">|") and stream == _STDOUT:
                self._into = name
            elif sign in ("<<", "<<-"):
                is_quoted = any(quotes is not Quotes.NONE for _, quotes in name.parts)
                self._ends.append((name.plain, is_quoted, sign == "<<-"))

    def _here_documents(self) -> tuple[HereDocument, ...]:
        """Take the lines of the documents that begin here, up to the line that ends each."""
        found = []
        for end, is_quoted, is_indented in self._ends:
            lines: list[str] = []
            while self._at < len(self._text):
                begin = self._at
                self._skip_line()
                line = self._text[begin : self._at]
                self._at += 1
                if line.strip("\t\r") == end:
                    break
                lines.append(line.lstrip("\t") if is_indented else line)
            found.append(HereDocument("\n".join(lines) + "\n", is_quoted))
        self._ends = []
        return tuple(found)

    def _word(self) -> Word:
        word = Word()
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "(" and ASSIGNED.fullmatch(word.plain) is not None:
                self._at += 1
                word.members = self._members()
                break
            if char in _ENDS:
                break
            word.parts += self._parts(char)
        return word

    def _members(self) -> list[Word]:
        members: list[Word] = []
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
        raise self._not_closed("bracket")

    def _parts(self, char: str) -> list[Part]:
        begin = self._at
        if char == "\\":
            self._at += 2
            return [("" if self._text[begin + 1 : begin + 2] == "\n" else self._text[begin + 1 : begin + 2], Quotes.SINGLE)]
        if char == "'":
            return [(self._until("'"), Quotes.SINGLE)]
        if char == '"':
            return self._double()
        if char == "`":
            return [(f"`{self._until('`')}`", Quotes.SINGLE)]
        if char == "$" and self._text[begin + 1 : begin + 2] in ("(", "{"):
            inner = self._closed()
            return [(inner, Quotes.SINGLE if inner.startswith("$(") and not inner.startswith("$((") else Quotes.NONE)]
        self._at += 1
        if char == "$" and self._text[self._at : self._at + 1] in ("@", "*"):
            self._at += 1
            return [(self._text[begin : self._at], Quotes.NONE)]
        while self._at < len(self._text) and self._text[self._at] not in " \t\r\n;&|()<>\\'\"`$":
            self._at += 1
        return [(self._text[begin : self._at], Quotes.NONE)]

    def _until(self, end: str) -> str:
        begin = self._at + 1
        close = self._text.find(end, begin)
        if close < 0:
            raise self._not_closed("quotation")
        self._at = close + 1
        return self._text[begin:close]

    def _double(self) -> list[Part]:
        """The parts between double quotes: what is escaped stands as it is."""
        parts: list[Part] = []
        found: list[str] = []
        begin = self._at
        self._at += 1
        while self._at < len(self._text):
            char = self._text[self._at]
            following = self._text[self._at + 1 : self._at + 2]
            if char == '"':
                self._at += 1
                return [*parts, ("".join(found), Quotes.DOUBLE)]
            if char == "$" and following in ("(", "{"):
                found.append(self._closed())
                continue
            if char == "\\" and following in ("$", "`"):
                parts += [("".join(found), Quotes.DOUBLE), (following, Quotes.SINGLE)]
                found = []
                self._at += 2
                continue
            if char == "\\" and following in ('"', "\\", "\n"):
                self._at += 1
                char = following.strip("\n")
            found.append(char)
            self._at += 1
        self._at = begin
        raise self._not_closed("quotation")

    def _closed(self) -> str:
        """The text from a dollar sign up to the bracket that closes the one behind it."""
        begin = self._at
        end = closing(self._text, begin + 1, self._text[begin + 1])
        if end is None:
            raise self._not_closed("bracket")
        self._at = end
        return self._text[begin:end]

    def _not_closed(self, mark: str) -> InvalidInputError:
        return InvalidInputError(f"the launch command can't be read: No closing {mark}", given=f"line {self._line_here()}")
