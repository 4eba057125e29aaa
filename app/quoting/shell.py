"""Text in scripts of a POSIX shell: a word, a comment, a file that the script writes."""

from __future__ import annotations

import shlex

from meshwright.app.quoting.readable import readable, without_commands

END_OF_FILE = "END_OF_FILE"


def shell_word(text: str) -> str:
    """One word of a command, whatever it holds. Hidden characters are spelled out: no path that we write has any."""
    # What has "##[" in it is quoted; closing and opening the quotes inside changes no word, but it is no workflow command then.
    return shlex.quote(readable(text)).replace("##[", "#''#[")


def shell_comment(text: str) -> str:
    """A comment of one line."""
    return f"# {without_commands(readable(text))}"


def here_document(name: str, text: str) -> str:
    """Commands that write a text to a file; the line that ends the text is none of its own lines."""
    lines, end = text.rstrip().split("\n"), END_OF_FILE
    while end in lines:
        end += "_"
    return "\n".join([f"cat > {shell_word(name)} <<'{end}'", *lines, end])
