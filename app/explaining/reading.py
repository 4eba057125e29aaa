"""The launcher of a command, found by the words that start it; what stands before them wraps it, what follows are its flags.

A command, or a script around one, is a stranger's text: it is split into words, never run, and nothing that it names is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from meshwright.app.explaining.megatron_lm import read_megatron
from meshwright.app.explaining.script import read_script
from meshwright.app.explaining.stated import Stated, StatedServer, StatedTraining
from meshwright.app.launch_flags.serving import TABLES, LaunchFlags
from meshwright.app.launch_flags.torchrun import TORCHRUN
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import SERVERS

_NO_LAUNCHERS = frozenset(
    ("if", "elif", "while", "until", "for", "case", "[", "[[", "test", "echo", "printf", "cat", "ls", "cp", "cd")
)
"""First words of commands that name a launcher's file without starting it."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


_STARTS: Mapping[Launcher, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        Launcher.VLLM: (("vllm", "serve"), ("vllm.entrypoints.openai.api_server",)),
        Launcher.SGLANG: (("sglang.launch_server",), ("sglang", "serve")),
        Launcher.MEGATRON_LM: (("pretrain_gpt.py",),),
    }
)
"""The words that start each launcher."""

EXAMPLE = "meshwright explain --gpus 8xH100 --isl 2000 --osl 300 --rate 4 -- vllm serve Qwen/Qwen3-8B -tp 4"


def read_command(text: str) -> Stated:
    """Return what a launch command states; raises InvalidInputError for one of no launcher that is known, or one that can't
    be read."""
    script = read_script(text)
    for words in script.commands:
        if words[0] in _NO_LAUNCHERS:
            continue
        for launcher, starts in _STARTS.items():
            for start in starts:
                place = _place_of(start, words)
                if place is not None:
                    before, own = words[:place], words[place + len(start) :]
                    found = _server(launcher, before, own) if launcher in SERVERS else _training(before, own)
                    return replace(found, notes=(*script.notes, *found.notes))
    raise InvalidInputError(
        "this is no launch command that is known",
        given=" ".join(script.commands[0][:4]) if script.commands else "nothing",
        allowed=", ".join(" ".join(starts[0]) for starts in _STARTS.values()),
        remedy=f"as in: {EXAMPLE}",
    )


def _training(before: Sequence[str], own: Sequence[str]) -> StatedTraining:
    return read_megatron(own, _world(before), _environment(before))


def _place_of(wanted: Sequence[str], words: Sequence[str]) -> int | None:
    """The place of the first of a launcher's words; a path before a program's name is not looked at."""
    for place in range(len(words) - len(wanted) + 1):
        if words[place].rsplit("/", maxsplit=1)[-1] == wanted[0] and tuple(words[place + 1 : place + len(wanted)]) == tuple(
            wanted[1:]
        ):
            return place
    return None


def _world(before: Sequence[str]) -> int | None:
    """Ranks that torchrun starts; None where the words before the program do not say."""
    for place, word in enumerate(before):
        if word.rsplit("/", maxsplit=1)[-1] in _STARTERS:
            fields = TORCHRUN.read(before[place + 1 :]).fields
            devices = fields.get("devices")
            return None if devices is None else int(devices) * int(fields.get("nodes", 1))
    return None


_STARTERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


def _server(launcher: Launcher, before: Sequence[str], own: Sequence[str]) -> StatedServer:
    read = TABLES[SERVERS[launcher].engine].read(own)
    flags = LaunchFlags(**read.fields)
    model = flags.model or next(iter(read.words), None)
    return StatedServer(launcher, flags, model, read.given, _environment(before))


def _environment(words: Sequence[str]) -> dict[str, str]:
    """Variables that are assigned in front of the command."""
    return {found[1]: found[2] for word in words if (found := _ASSIGNMENT.fullmatch(word))}
