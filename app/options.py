"""What several groups of the command line take alike."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]


def group_of(name: str, *, purpose: str, exit_codes: str | None = None) -> typer.Typer:
    """A group of commands whose help is plain text and whose errors are shown without a traceback."""
    return typer.Typer(
        name=name,
        help=purpose,
        epilog=exit_codes,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
