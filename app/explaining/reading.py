"""The launcher of a command, found by the words that start it; what stands before them wraps it, what follows are its flags.

A command is a stranger's text: it is split into words, never run, and nothing that it names is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from meshwright.app.explaining.stated import StatedServer
from meshwright.app.launch_flags.flag import words_of
from meshwright.app.launch_flags.serving import TABLES, LaunchFlags
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import SERVERS

_ENDS = frozenset(("&&", "||", "|", ";", "&", ">", ">>", "2>", "2>&1", "<"))
"""Words of a shell that end a command."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


_STARTS: Mapping[Launcher, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        Launcher.VLLM: (("vllm", "serve"), ("vllm.entrypoints.openai.api_server",)),
        Launcher.SGLANG: (("sglang.launch_server",), ("sglang", "serve")),
    }
)
"""The words that start each launcher."""

EXAMPLE = "meshwright explain --gpus 8xH100 --isl 2000 --osl 300 --rate 4 -- vllm serve Qwen/Qwen3-8B -tp 4"


def read_command(text: str) -> StatedServer:
    """Return what a launch command states; raises InvalidInputError for one of no launcher that is known, or one that can't
    be read."""
    words = words_of(text)
    for launcher, starts in _STARTS.items():
        for start in starts:
            place = _place_of(start, words)
            if place is not None:
                return _server(launcher, words[:place], words[place + len(start) :])
    raise InvalidInputError(
        "this is no launch command that is known",
        given=" ".join(words[:4]) or "nothing",
        allowed=", ".join(" ".join(starts[0]) for starts in _STARTS.values()),
        remedy=f"as in: {EXAMPLE}",
    )


def _place_of(wanted: Sequence[str], words: Sequence[str]) -> int | None:
    """The place of the first of a launcher's words; a path before a program's name is not looked at."""
    for place in range(len(words) - len(wanted) + 1):
        if words[place].rsplit("/", maxsplit=1)[-1] == wanted[0] and tuple(words[place + 1 : place + len(wanted)]) == tuple(
            wanted[1:]
        ):
            return place
    return None


def _server(launcher: Launcher, before: Sequence[str], after: Sequence[str]) -> StatedServer:
    own = []
    for word in after:
        if word in _ENDS:
            break
        own.append(word)
    read = TABLES[SERVERS[launcher].engine].read(own)
    flags = LaunchFlags(**read.fields)
    model = flags.model or next(iter(read.words), None)
    return StatedServer(launcher, flags, model, read.given, _environment(before))


def _environment(words: Sequence[str]) -> dict[str, str]:
    """Variables that are assigned in front of the command."""
    return {found[1]: found[2] for word in words if (found := _ASSIGNMENT.fullmatch(word))}
