"""The launcher of a command, found by the words that start it; what stands before them wraps it, what follows are its flags.

A command, or a script around one, is a stranger's text: it is split into words, never run, and nothing that it names is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from meshwright.app.launching.flags.serving import TABLES, LaunchFlags
from meshwright.app.service.explaining.launch_files import NO_FILES, LaunchFiles, config_of
from meshwright.app.service.explaining.launchers.accelerate import read_accelerate
from meshwright.app.service.explaining.launchers.deepspeed import read_deepspeed
from meshwright.app.service.explaining.launchers.megatron_lm import read_megatron
from meshwright.app.service.explaining.launchers.torchtitan import read_torchtitan
from meshwright.app.service.explaining.script import read_script
from meshwright.app.service.explaining.start import Start, world_of_starter
from meshwright.app.service.explaining.stated import Stated, StatedServer, StatedTraining
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
        Launcher.TORCHTITAN: (("torchtitan.train",), ("torchtitan/train.py",), ("run_train.sh",)),
        Launcher.ACCELERATE: (("accelerate", "launch"), ("accelerate-launch",), ("accelerate.commands.launch",)),
    }
)
"""The words that start each launcher."""

EXAMPLE = "meshwright explain --gpus 8xH100 --isl 2000 --osl 300 --rate 4 -- vllm serve Qwen/Qwen3-8B -tp 4"


_TRAINERS: Mapping[Launcher, Callable[[Start], StatedTraining]] = MappingProxyType(
    {
        Launcher.MEGATRON_LM: read_megatron,
        Launcher.TORCHTITAN: read_torchtitan,
        Launcher.DEEPSPEED: read_deepspeed,
        Launcher.ACCELERATE: read_accelerate,
    }
)
"""Readers of the launchers of training runs."""
_BY_ARGUMENTS: Mapping[Launcher, frozenset[str]] = MappingProxyType(
    {Launcher.DEEPSPEED: frozenset(("deepspeed", "deepspeed-config"))}
)
"""Arguments of scripts by which a launcher is known."""
_CONFIGS: Mapping[str, Launcher] = MappingProxyType(
    {
        **dict.fromkeys(("parallelism", "training"), Launcher.TORCHTITAN),
        **dict.fromkeys(("distributed_type", "compute_environment", "num_processes"), Launcher.ACCELERATE),
        **dict.fromkeys(("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"), Launcher.DEEPSPEED),
    }
)
"""Keys by which a configuration that was given alone is known."""


def read_command(text: str, files: LaunchFiles = NO_FILES) -> Stated:
    """Return what a launch command, a script around it or a launcher's configuration states.

    ``files`` are those beside it. Raises InvalidInputError for one of no launcher that is known, or one that can't be read.
    """
    document = config_of(text)
    if document is not None:
        return _configured(document, files)
    script = read_script(text)
    files = files.beside(script.files)
    for words in script.commands:
        if words[0] in _NO_LAUNCHERS:
            continue
        program = _program_of(words)
        if program is None:
            continue
        if program.launcher in SERVERS:
            server = _server(program.launcher, program.before, program.own)
            return replace(server, notes=(*script.notes, *server.notes), job=script.job)
        environment = {**script.variables, **_environment(program.before)}
        world = world_of_starter(program.before, environment) or (None if script.job is None else script.job.ranks)
        start = Start(program.own, program.before, world, environment, files)
        trained = _TRAINERS[program.launcher](start)
        return replace(trained, notes=(*script.notes, *trained.notes), job=script.job)
    raise InvalidInputError(
        "this is no launch command that is known",
        given=" ".join(script.commands[0][:4]) if script.commands else "nothing",
        allowed=", ".join(" ".join(starts[0]) for starts in _STARTS.values()),
        remedy=f"as in: {EXAMPLE}",
    )


def _configured(document: Mapping[str, Any], files: LaunchFiles) -> StatedTraining:
    """The run of a configuration that was given without a command."""
    for key, launcher in _CONFIGS.items():
        if key in document:
            return _TRAINERS[launcher](Start(files=files, document=document))
    raise InvalidInputError(
        "this is no configuration of a launcher that is known",
        given=", ".join(map(str, [*document][:6])) or "no keys",
        allowed=f"a configuration with one of the keys {', '.join(_CONFIGS)}, or a launch command",
    )


@dataclass(frozen=True, slots=True)
class _Program:
    """A launcher with the words before it and its own."""

    launcher: Launcher
    before: Sequence[str]
    own: Sequence[str]


def _program_of(words: Sequence[str]) -> _Program | None:
    """The launcher that a command starts: by its own words, else by the arguments of the script that is started."""
    for launcher, starts in _STARTS.items():
        for start in starts:
            place = _place_of(start, words)
            if place is not None:
                return _Program(launcher, words[:place], words[place + len(start) :])
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
    if script is None:
        return None
    before, own = words[:script], words[script + 1 :]
    names = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in own if word.startswith("--")}
    for launcher, arguments in _BY_ARGUMENTS.items():
        if names & arguments:
            return _Program(launcher, before, own)
    return _Program(Launcher.DEEPSPEED, before, own) if _place_of(("deepspeed",), before) is not None else None


def _place_of(wanted: Sequence[str], words: Sequence[str]) -> int | None:
    """The place of the first of a launcher's words; a path before a program's name is not looked at."""
    for place in range(len(words) - len(wanted) + 1):
        if f"/{words[place]}".endswith(f"/{wanted[0]}") and tuple(words[place + 1 : place + len(wanted)]) == tuple(wanted[1:]):
            return place
    return None


def _server(launcher: Launcher, before: Sequence[str], own: Sequence[str]) -> StatedServer:
    read = TABLES[SERVERS[launcher].engine].read(own)
    flags = LaunchFlags(**read.fields)
    model = flags.model or next(iter(read.words), None)
    return StatedServer(launcher, flags, model, read.given, _environment(before))


def _environment(words: Sequence[str]) -> dict[str, str]:
    """Variables that are assigned in front of the command."""
    return {found[1]: found[2] for word in words if (found := _ASSIGNMENT.fullmatch(word))}
