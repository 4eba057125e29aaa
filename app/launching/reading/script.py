"""A shell script as the commands that stand in it: variables and lists that it sets are put in, and nothing is run.

Of a condition whose words are known the branch is followed that a shell takes. What is set under another one or in a loop is
left out (of a loop's own variable the first value is kept), and so is every value that only a shell could work out. Functions
are followed where they are called, and scripts that a shell is given (``bash -c``) where they stand. Files that a script writes
by here-documents or by ``echo`` are kept as texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.app.base.digits import is_digits
from meshwright.app.launching.parts.launch_files import NO_FILES, LaunchFiles
from meshwright.app.launching.parts.start import BatchJob, read_batch_job
from meshwright.app.launching.reading.conditions import Block, truth_of
from meshwright.app.launching.reading.shell_words import ASSIGNED, Quotes, Statement, Word, closing, integer_of, statements_of
from meshwright.app.launching.reading.wrappers import container_of, script_given_to_shell, script_named
from meshwright.costmodels.errors import InvalidInputError

LONGEST_SCRIPT = 200_000
"""Characters of a script that are read, and of all that is put into it for its variables."""
MOST_WORDS = 20_000
"""Words that the commands of a script may have, and statements that it may run through."""
_DEEPEST = 8
"""Scripts in scripts, calls in functions and defaults in defaults that are followed."""

_OPENING = frozenset(("for", "while", "until", "case", "select"))
_CLOSING = frozenset(("fi", "done", "esac"))
_BEFORE_COMMANDS = frozenset(("then", "else", "do", "elif", "exec", "time", "!", "{", "command"))
_DECLARING = frozenset(("export", "declare", "local", "readonly", "typeset"))
_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACED = re.compile(r"([#!]?)([A-Za-z_]\w*|[0-9]+|[@*])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_WHOLE_LIST = re.compile(r"\$\{([A-Za-z_]\w*)\[@\]\}|\$(@)|\$\{(@)\}")
_MEMBER = re.compile(r"\[([^\]=]+)\]=")


@dataclass(frozen=True, slots=True)
class Script:
    """The commands of a script, each as its words, and what was left out of them.

    lines      the line that each command begins on
    files      texts that it writes, by the name of the file
    job        what it asks Slurm or Kubernetes for; None where it asks nobody
    variables  that it sets, those with one value
    """

    commands: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    job: BatchJob | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[int, ...] = ()


def read_script(text: str, files: LaunchFiles = NO_FILES) -> Script:
    """Return the commands of a script, or of one command; raises InvalidInputError for one that is too long or not closed.

    ``files`` are those that were given with it, of which it may start others.
    """
    if len(text) > LONGEST_SCRIPT:
        raise _too_long()
    job = read_batch_job(text)
    run = _ScriptWalk(files, {} if job is None else job.environment)
    run.text(text)
    run.uncalled()
    return run.script(job)


def read_commands(
    commands: Iterable[tuple[Sequence[str], Mapping[str, str]]], files: LaunchFiles = NO_FILES, job: BatchJob | None = None
) -> Script:
    """Return the commands of containers, each of which was given as its words and the variables that are set for it."""
    run = _ScriptWalk(files, {})
    for words, environment in commands:
        run.command([*(f"{name}={value}" for name, value in environment.items()), *words], environment)
    return run.script(job)


def _too_long() -> InvalidInputError:
    return InvalidInputError(
        f"the launch command is longer than {LONGEST_SCRIPT:,} characters or {MOST_WORDS:,} words, with its variables put in"
    )


class _ScriptWalk:
    """A walk through a script: what is known of its variables, and the commands that were met."""

    def __init__(self, files: LaunchFiles, environment: Mapping[str, str]):
        self._given = files
        self._lists: dict[str, list[str]] = {name: [value] for name, value in environment.items()}
        self._tables: dict[str, dict[str, str]] = {}
        self._functions: dict[str, list[Statement]] = {}
        self._called: set[str] = set()
        self._positional: list[str] = []
        self._is_called = False
        self._files: dict[str, str] = {}
        self._commands: list[tuple[str, ...]] = []
        self._lines: list[int] = []
        self._skipped, self._loops = 0, 0
        self._line = 1
        self._deep = 0
        self._characters_left, self._words_left, self._statements_left = LONGEST_SCRIPT, MOST_WORDS, MOST_WORDS

    def script(self, job: BatchJob | None) -> Script:
        """Return what was met."""
        left_out = f"{self._skipped} settings of the script stand under a condition or in a loop, and were left out"
        variables = {name: values[0] for name, values in self._lists.items() if len(values) == 1}
        first = f"loops of which the first round is read: {self._loops}"
        notes = (*((left_out,) if self._skipped else ()), *((first,) if self._loops else ()))
        return Script(tuple(self._commands), notes, self._files, job, variables, tuple(self._lines))

    def text(self, text: str) -> None:
        """Walk through the statements of a text."""
        self._statements(statements_of(text), is_outermost=self._deep == 0)

    def uncalled(self) -> None:
        """Walk through the functions that nothing called, as if each stood at the end."""
        for name in [*self._functions]:
            if name not in self._called:
                self._called.add(name)
                self._statements(self._functions[name], is_outermost=False)

    def _spend(self, characters: int, words: int = 0) -> None:
        """Count what is about to be put in; raises InvalidInputError where all of it is too much."""
        self._characters_left -= characters
        self._words_left -= words
        if self._characters_left < 0 or self._words_left < 0:
            raise _too_long()

    def _statements(self, statements: Iterable[Statement], *, is_outermost: bool) -> None:
        blocks: list[Block] = []
        opened: str | None = None
        body: list[Statement] = []
        braces = 0
        for statement in statements:
            self._statements_left -= 1
            if self._statements_left < 0:
                raise _too_long()
            if is_outermost:
                self._line = statement.line
            words = list(statement.words)
            first = words[0].plain if words else ""
            if opened is None and first == "function" and len(words) > 1:
                opened, body, braces = words[1].plain, [], 0
                words = words[2:]
                statement = Statement(tuple(words), statement.line)
                first = words[0].plain if words else ""
            if opened is not None:
                if braces == 0 and not words:
                    continue
                if braces > 0 or first == "{":
                    braces += sum(word.plain == "{" for word in words[:1]) - (first == "}")
                    if braces > 0:
                        body.append(statement)
                        continue
                    self._functions[opened], opened = body, None
                    words = words[1:]
                else:
                    opened = None
            self._branch(blocks, words)
            is_left_out = any(block.taken is False for block in blocks)
            if blocks and blocks[-1].reads and words and not is_left_out:
                blocks[-1].tests(truth_of([self._joined(word) for word in words]), statement.operator)
            while words and words[0].plain in _BEFORE_COMMANDS:
                words.pop(0)
            if not is_left_out:
                self._statement(words, statement, is_conditional=any(block.taken is None for block in blocks))
        if opened is not None:
            self._statements(body, is_outermost=is_outermost)

    @staticmethod
    def _branch(blocks: list[Block], words: list[Word]) -> None:
        """Follow the words by which blocks open, turn and close; those before a command are taken off."""
        while words:
            match words[0].plain:
                case "if":
                    blocks.append(Block.of_if())
                case "elif" if blocks:
                    blocks[-1].asks_again()
                case "then" if blocks:
                    blocks[-1].begins()
                case "else" if blocks:
                    blocks[-1].turns()
                case word if word in _OPENING:
                    blocks.append(Block())
                    return
                case word if word in _CLOSING and blocks:
                    blocks.pop()
                    return
                case _:
                    return
            words.pop(0)

    def _statement(self, words: list[Word], statement: Statement, *, is_conditional: bool) -> None:
        first = words[0].plain if words else ""
        if first in _DECLARING:
            words = [word for word in words[1:] if not word.plain.startswith("-")]
            if not all(ASSIGNED.match(word.plain) for word in words):
                words = [word for word in words if ASSIGNED.match(word.plain)]
        if words and all(ASSIGNED.match(word.plain) for word in words):
            if is_conditional:
                self._skipped += 1
                return
            for word in words:
                self._assign(word)
            return
        if first == "for" and len(words) > 3 and words[2].plain == "in":
            rounds = self._expanded(words[3])
            value = next(rounds, None)
            if value is not None:
                self._lists[words[1].plain], self._loops = [value], self._loops + 1
            return
        if first == "let":
            self._let(words[1:], is_conditional=is_conditional)
            return
        expanded = [text for word in words for text in self._expanded(word)]
        into = None if statement.into is None else self._joined(statement.into)
        documents = [each.text if each.is_quoted else self._put_in(each.text) for each in statement.documents]
        if documents and into is None and expanded and expanded[0] == "tee":
            into = next((word for word in expanded[1:] if not word.startswith("-")), None)
        if into is not None and documents:
            self._files[into] = documents[-1]
        elif into is not None and expanded and expanded[0] in ("echo", "printf"):
            self._files[into] = " ".join(word for word in expanded[1:] if word not in ("-e", "-n", "-E")) + "\n"
        if not expanded:
            return
        match expanded[0]:
            case ":" | "unset" | "shift" | "set":
                self._builtin(expanded)
            case _:
                self.command(expanded, {}, documents[-1] if documents and into is None else None)

    def _builtin(self, words: Sequence[str]) -> None:
        if words[0] == "unset":
            for name in words[1:]:
                self._lists.pop(name, None)
        elif words[0] == "shift":
            del self._positional[:1]
        elif words[0] == "set" and "--" in words:
            self._positional, self._is_called = list(words[words.index("--") + 1 :]), True

    def command(self, words: Sequence[str], environment: Mapping[str, str], given: str | None = None) -> None:
        """Keep a command, or walk through the script or the function that it starts; ``given`` is what it reads."""
        for name, value in environment.items():
            self._lists[name] = [value]
        container = container_of(words)
        if container is not None:
            for name, value in container.environment.items():
                self._lists[name] = [value]
            words = container.words
        name = next((word for word in words if not ASSIGNED.match(word)), "")
        if name in self._functions:
            self._call(name, words[list(words).index(name) + 1 :])
            return
        nested = script_given_to_shell(words, given)
        if nested is not None:
            for known, value in nested.environment.items():
                self._lists[known] = [value]
            self._nested(nested.text, nested.arguments)
            return
        named = script_named(words)
        if named is not None:
            text = self._files.get(named.text.removeprefix("./")) or self._given.named(named.text)
            if text is not None and len(text) <= LONGEST_SCRIPT:
                self._nested(text, named.arguments if named.arguments or not named.is_sourced else None)
                return
        if not words:
            return
        self._spend(sum(map(len, words)), len(words))
        self._commands.append(tuple(words))
        self._lines.append(self._line)

    def _call(self, name: str, arguments: Sequence[str]) -> None:
        self._called.add(name)
        outside, was_called = self._positional, self._is_called
        self._positional, self._is_called = list(arguments), True
        with self._deeper():
            self._statements(self._functions[name], is_outermost=False)
        self._positional, self._is_called = outside, was_called

    def _nested(self, text: str, arguments: Sequence[str] | None) -> None:
        self._spend(len(text))
        outside, was_called = self._positional, self._is_called
        if arguments is not None:
            self._positional, self._is_called = list(arguments), True
        with self._deeper():
            self.text(text)
        self._positional, self._is_called = outside, was_called

    def _deeper(self) -> _Deeper:
        return _Deeper(self)

    def descend(self, steps: int) -> None:
        """Go a step down into what stands inside, or up again; raises InvalidInputError below the deepest."""
        self._deep += steps
        if self._deep > _DEEPEST:
            raise InvalidInputError(f"the launch command has scripts in scripts, deeper than {_DEEPEST}")

    # Variables.

    def _assign(self, word: Word) -> None:
        found = ASSIGNED.match(word.plain)
        assert found is not None, "only assignments come here"
        name, adds = found[1], bool(found[2])
        if word.members is None:
            value = self._joined(word)[found.end() :]
            if adds and len(self._lists.get(name, ())) == 1:
                value = self._lists[name][0] + value
            self._require_short(len(value))
            self._lists[name] = [value]
            return
        if word.members and all(_MEMBER.match(member.plain) for member in word.members):
            table = self._tables.setdefault(name, {})
            for member in word.members:
                key, _, value = self._joined(member).partition("]=")
                table[key[1:]] = value
            return
        values = [text for member in word.members for text in self._expanded(member)]
        self._spend(sum(map(len, values)), len(values))
        if adds:
            self._lists.setdefault(name, []).extend(values)
        else:
            self._lists[name] = values

    def _require_short(self, length: int) -> None:
        if length > LONGEST_SCRIPT:
            raise _too_long()

    def _let(self, words: Sequence[Word], *, is_conditional: bool) -> None:
        """``let`` and ``(( ))``: assignments of integers."""
        for word in words:
            name, sign, expression = self._joined(word).partition("=")
            name = name.strip()
            if not sign or _NAME.fullmatch(name) is None or expression.startswith("="):
                continue
            if is_conditional:
                self._skipped += 1
                continue
            value = integer_of(expression, self._integer)
            if value is not None:
                self._lists[name] = [str(value)]

    def _integer(self, name: str) -> str | None:
        values = self._lists.get(name)
        return None if values is None or len(values) != 1 else values[0]

    # Words with what is known put in.

    def _joined(self, word: Word) -> str:
        return "".join(part if quotes is Quotes.SINGLE else self._put_in(part) for part, quotes in word.parts)

    def _expanded(self, word: Word) -> Iterator[str]:
        """The words that a word stands for: what stands without quotes is split at blanks."""
        if word.members is not None:
            return
        started, current = False, ""
        for part, quotes in word.parts:
            whole = _WHOLE_LIST.fullmatch(part) if quotes is not Quotes.SINGLE else None
            if whole is not None:
                values = self._whole(whole[1] or "@")
                if values is not None:
                    self._spend(sum(map(len, values)), len(values))
                    if quotes is Quotes.NONE:
                        values = [piece for value in values for piece in value.split()]
                    if started and values:
                        values = [current + values[0], *values[1:]]
                    yield from values[:-1]
                    started, current = bool(values) or started, values[-1] if values else current
                    continue
            put_in = part if quotes is Quotes.SINGLE else self._put_in(part)
            if quotes is not Quotes.NONE or put_in == part:
                started, current = True, current + put_in
                continue
            pieces = re.split(r"\s+", put_in)
            for place, piece in enumerate(pieces):
                if place and started:
                    if current:
                        yield current
                    current = ""
                started, current = True, current + piece
        if started and (current or any(quotes is not Quotes.NONE for _, quotes in word.parts)):
            yield current

    def _whole(self, name: str) -> list[str] | None:
        """The words of a list; None of one that nothing sets."""
        return self._positional if name == "@" else self._lists.get(name)

    def _put_in(self, text: str, deep: int = 0) -> str:
        """The text with variables that are known; those that are not, without a default, as they are written."""
        found: list[str] = []
        at = 0
        while (sign := text.find("$", at)) >= 0:
            found.append(text[at:sign])
            value, at = self._parameter(text, sign, deep)
            self._spend(len(value))
            found.append(value)
        found.append(text[at:])
        return "".join(found)

    def _parameter(self, text: str, at: int, deep: int) -> tuple[str, int]:
        """The value of what begins at a dollar sign, and where the text goes on."""
        named = _NAME.match(text, at + 1)
        if named is not None:
            values = self._lists.get(named[0])
            return (text[at : named.end()] if values is None else self._listed(values)), named.end()
        following = text[at + 1 : at + 2]
        if is_digits(following) or following in ("@", "*"):
            value = self._of_position(following)
            return (text[at : at + 2] if value is None else value), at + 2
        if following not in ("{", "("):
            return "$", at + 1
        end = closing(text, at + 1, following)
        if end is None:
            # Nothing that follows is closed, either.
            return text[at:], len(text)
        inner = text[at + 2 : end - 1]
        value = None
        if following == "{":
            value = self._braced(inner, deep)
        elif inner.startswith("(") and inner.endswith(")"):
            worked_out = integer_of(self._put_in(inner[1:-1], deep + 1) if deep < _DEEPEST else inner, self._integer)
            value = None if worked_out is None else str(worked_out)
        return (text[at:end] if value is None else value), end

    def _listed(self, values: Sequence[str]) -> str:
        self._spend(sum(map(len, values)), len(values) - 1)
        return " ".join(values)

    def _of_position(self, sign: str) -> str | None:
        if sign in ("@", "*"):
            return self._listed(self._positional) if self._positional else ""
        place = int(sign) - 1
        if 0 <= place < len(self._positional):
            return self._positional[place]
        return "" if self._is_called and place >= 0 else None

    def _braced(self, inner: str, deep: int) -> str | None:
        """The value of what stands between ``${`` and ``}``; None where only a shell could tell."""
        found = _BRACED.fullmatch(inner)
        if found is None or deep >= _DEEPEST or found[1] == "!":
            return None
        self._spend(len(inner))
        mark, name, index, rest = found[1], found[2], found[3], found[4]
        value = self._indexed(name, index, deep)
        if mark == "#":
            values = self._lists.get(name)
            if rest or values is None:
                return None
            return str(len(values) if index in ("@", "*") else len(values[0] if values else ""))
        operator, operand = _operator(rest)
        is_given = value is not None and (value != "" or not operator.startswith(":"))
        match operator.removeprefix(":"):
            case "":
                return value
            case "-" | "=":
                if is_given:
                    return value
                default = self._put_in(_without_quotes(operand), deep + 1)
                if operator.endswith("="):
                    self._lists[name] = [default]
                return default
            case "+":
                return self._put_in(_without_quotes(operand), deep + 1) if is_given else ""
            case "?":
                return value
            case sign:
                return None if value is None else self._edited(value, sign, operand)

    def _indexed(self, name: str, index: str | None, deep: int) -> str | None:
        if name in ("@", "*") or is_digits(name):
            return self._of_position(name) if len(name) == 1 else None
        values = self._lists.get(name)
        if index is None:
            return None if values is None else self._listed(values)
        if index in ("@", "*"):
            return None if values is None else self._listed(values)
        index = self._put_in(index, deep + 1).strip("\"'")
        if name in self._tables:
            return self._tables[name].get(index)
        place = integer_of(index, self._integer)
        if values is None or place is None or not -len(values) <= place < len(values):
            return None
        return values[place]

    def _edited(self, value: str, sign: str, pattern: str) -> str | None:
        """A value with a beginning or an end cut off, or a part replaced, where the pattern is plain."""
        pattern = self._put_in(pattern)
        match sign:
            case ",,":
                return value.lower()
            case "^^":
                return value.upper()
            case "##" | "#" if pattern.startswith("*") and _is_plain(pattern[1:]):
                cut = value.rpartition(pattern[1:]) if sign == "##" else value.partition(pattern[1:])
                return cut[2] if cut[1] else value
            case "%%" | "%" if pattern.endswith("*") and _is_plain(pattern[:-1]):
                cut = value.partition(pattern[:-1]) if sign == "%%" else value.rpartition(pattern[:-1])
                return cut[0] if cut[1] else value
            case "#" | "##" if _is_plain(pattern):
                return value.removeprefix(pattern)
            case "%" | "%%" if _is_plain(pattern):
                return value.removesuffix(pattern)
            case "/" | "//":
                old, _, new = pattern.partition("/")
                if not _is_plain(old):
                    return None
                times = value.count(old) if sign == "//" else 1
                self._spend(times * len(new))
                return value.replace(old, new, times)
        return None


class _Deeper:
    """A step down, which is taken back."""

    def __init__(self, run: _ScriptWalk):
        self._run = run

    def __enter__(self) -> None:
        self._run.descend(1)

    def __exit__(self, *_: object) -> None:
        self._run.descend(-1)


_OPERATORS = (":-", ":=", ":+", ":?", "##", "%%", "//", ",,", "^^", "-", "=", "+", "?", "#", "%", "/")


def _operator(rest: str) -> tuple[str, str]:
    """What is done with a value, and by which words; what is not known is done by a shell alone."""
    if not rest:
        return "", ""
    for operator in _OPERATORS:
        if rest.startswith(operator):
            return operator, rest[len(operator) :]
    return "unknown", rest


def _is_plain(pattern: str) -> bool:
    return pattern != "" and not set(pattern) & set("*?[\\")


def _without_quotes(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text
