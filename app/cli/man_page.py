"""The manual page of ``meshwright``, made from its commands and options: what ``--help`` says, as ``man`` shows it.

Format: man(7), the macros of troff for manual pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_ENVIRONMENT = (
    ("MESHWRIGHT_DATABASE_URL", "SQLAlchemy URL of the plan store, SQLite or PostgreSQL; a file of the user's unless set."),
    ("NO_COLOR", "Print without colours, as --no-color."),
)
_EXITS = (
    ("0", "Good."),
    ("1", "There is no plan, or a checked plan is worse."),
    ("2", "Bad input."),
    ("3", "Internal error."),
    ("130", "Interrupted."),
    ("141", "Whoever read the output stopped reading."),
)


def man_page(group: Any, version: str) -> str:
    """Return the manual page of a group of commands, a section 1 page in troff's language."""
    return "\n".join(_lines(group, version)) + "\n"


def _lines(group: Any, version: str) -> Iterator[str]:
    name = group.name
    yield f'.TH {name.upper()} 1 "" "{_plain(name)} {_plain(version)}" "User Commands"'
    yield from (".SH NAME", f"{_plain(name)} \\- {_plain(_first_sentence(group.help))}")
    yield from (".SH SYNOPSIS", f".B {_plain(name)}", _text("[OPTION]... COMMAND [ARGUMENT]..."))
    yield from (".SH DESCRIPTION", _text(group.help))
    yield ".SH OPTIONS"
    yield from _options(group)
    yield ".SH COMMANDS"
    yield from _commands(name, group)
    for title, items in (("EXIT STATUS", _EXITS), ("ENVIRONMENT", _ENVIRONMENT)):
        yield f".SH {title}"
        for item, said in items:
            yield from (".TP", f".B {_plain(item)}", _text(said))


def _commands(path: str, group: Any) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        whole = f"{path} {name}"
        if getattr(command, "commands", None):
            yield from _commands(whole, command)
            continue
        yield f'.SS "{_plain(whole)}{"".join(f" {_plain(_value_of(each))}" for each in _arguments(command))}"'
        yield _text(command.help)
        yield from _options(command)


def _arguments(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "argument"]


def _options(command: Any) -> Iterator[str]:
    for argument in _arguments(command):
        if getattr(argument, "help", None):
            yield from (".TP", f".I {_plain(_value_of(argument))}", _text(argument.help))
    for option in command.params:
        if option.param_type_name != "option" or option.hidden:
            continue
        names = ", ".join(_plain(each) for each in (*option.opts, *option.secondary_opts))
        value = "" if option.is_flag else f" {_plain(_value_of(option))}"
        yield from (".TP", f".B {names}{value}", _text(option.help))


def _value_of(parameter: Any) -> str:
    """Return the word that stands for a parameter's value: its own, or its name."""
    return str(parameter.metavar or parameter.name.upper())


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).split(". ")[0].rstrip(".")


def _text(text: str | None) -> str:
    """Return running text as lines of troff; a paragraph's own line breaks are not kept."""
    paragraphs = [" ".join(each.split()) for each in (text or "").replace("\b", "").split("\n\n")]
    return "\n.PP\n".join(_plain(each) for each in paragraphs if each) or "\\&"


def _plain(text: str) -> str:
    """Return text that troff prints as it stands: no escape, no hyphen for a minus sign, no request at the start of a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace('"', "\\(dq").replace("\n", " ")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
