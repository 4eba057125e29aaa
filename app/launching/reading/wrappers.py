"""Commands around a launch command: containers, whose image says which program its arguments are for, and shells that are given
a script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SHELLS = ("bash", "sh", "zsh", "dash", "ash", "ksh")
_SCRIPT_ENDS = (".sh", ".bash", ".sbatch", ".slurm")


def basename(word: str) -> str:
    """Return the name of a program without the folders in front of it."""
    return word.rsplit("/", maxsplit=1)[-1]


# Containers.

_ENGINES = ("docker", "podman", "nerdctl")
_SWITCHES = frozenset(
    (
        *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "--rm", "--init", "--privileged", "-P", "--publish-all"),
        *("--read-only", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--disable-content-trust", "-q", "--quiet"),
        *("--no-hosts", "--replace", "--use-api-socket"),
    )
)
"""Options of ``docker run`` without a value; all others have one (docs.docker.com, docker container run)."""
_SHORT_SWITCHES = frozenset("ditPq")
_IMAGES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"(^|/)vllm-openai([-\w.]*)$|(^|/)vllm-(cpu|tpu|rocm|xpu|neuron)[-\w.]*$|(^|/)vllm/vllm$"), ("vllm", "serve")),
    (re.compile(r"(^|/)vllm-runtime$"), ()),
    (re.compile(r"(^|/)huggingfaceserver([-\w.]*)$"), ("vllm", "serve")),
)
"""Programs that images start by themselves, by the names of the images: arguments of a container are theirs."""
_PROGRAM = re.compile(r"(/[\w./-]+/)?(python[\d.]*|vllm|bash|sh|torchrun|ray|nsys)")
"""A first argument that is a command by itself."""


@dataclass(frozen=True, slots=True)
class Container:
    """What a container runs, with the variables that are set for it."""

    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def started_by_image(image: str, arguments: Sequence[str]) -> Sequence[str]:
    """Return the command of a container that is given arguments and no entry point.

    An image of vLLM's server takes flags, or a model; what begins with a program is a command by itself.
    """
    name = re.sub(r"(:[\w.-]+)?(@sha256:\w+)?$", "", image)
    for pattern, program in _IMAGES:
        if pattern.search(name):
            by_itself = not program or (len(arguments) > 0 and _PROGRAM.fullmatch(arguments[0]) is not None)
            return arguments if by_itself else (*program, *arguments)
    return arguments


def container_of(words: Sequence[str]) -> Container | None:
    """Return what ``docker run`` starts; None of words that start no container."""
    place = _place_of_run(words)
    if place is None:
        return None
    environment: dict[str, str] = {}
    entry: list[str] = []
    while place < len(words) and words[place].startswith("-"):
        name, has_value, value = words[place].partition("=")
        place += 1
        if _is_switch(name):
            continue
        if not has_value and name[:2] == "-e" and len(name) > 2 and not name.startswith("--"):
            name, value = "-e", name[2:]
        elif not has_value:
            value = words[place] if place < len(words) else ""
            place += 1
        elif name[:2] == "-e" and not name.startswith("--"):
            name, value = "-e", f"{name[2:]}={value}".removeprefix("=")
        if name in ("-e", "--env") and (found := _ASSIGNMENT.fullmatch(value)):
            environment[found[1]] = found[2]
        elif name == "--entrypoint":
            entry = [value] if value else []
    if place >= len(words):
        return None
    image, arguments = words[place], words[place + 1 :]
    inside = [*entry, *arguments] if entry else started_by_image(image, arguments)
    return Container([*(f"{name}={value}" for name, value in environment.items()), *inside], environment)


def _place_of_run(words: Sequence[str]) -> int | None:
    for place, word in enumerate(words):
        if basename(word) in _ENGINES:
            behind = place + 1
            if behind < len(words) and words[behind] == "container":
                behind += 1
            return behind + 1 if behind < len(words) and words[behind] == "run" else None
    return None


def _is_switch(name: str) -> bool:
    return name in _SWITCHES or (
        name.startswith("-") and not name.startswith("--") and len(name) > 1 and set(name[1:]) <= _SHORT_SWITCHES
    )


# Shells that are given a script.


@dataclass(frozen=True, slots=True)
class GivenScript:
    """A script that a command has a shell run: its text, or the name of its file; its arguments, and variables set for it."""

    text: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_sourced: bool = False


def script_given_to_shell(words: Sequence[str], read: str | None = None) -> GivenScript | None:
    """Return the script of ``bash -c``, ``eval`` or of a shell that reads a here-document; None of any other command."""
    first = next((place for place, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), None)
    if first is not None and words[first] == "eval":
        return GivenScript(" ".join(words[first + 1 :]), environment=assigned(words[:first]))
    place = next((place for place, word in enumerate(words) if basename(word) in _SHELLS), None)
    if place is None:
        return None
    found = _behind_c(words, place + 1)
    if found is not None:
        return GivenScript(words[found], words[found + 2 :], assigned(words[:place]))
    if read is not None and all(option.startswith("-") for option in words[place + 1 :]):
        return GivenScript(read, environment=assigned(words[:place]))
    return None


def assigned(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that words assign."""
    return {found[1]: found[2] for word in words if (found := _ASSIGNMENT.fullmatch(word))}


def _behind_c(words: Sequence[str], place: int) -> int | None:
    """The place of the script behind a shell's options, one of which holds a c."""
    is_given = False
    while place < len(words) and words[place][:1] in ("-", "+"):
        option = words[place]
        if not option.startswith("--"):
            is_given = is_given or "c" in option
            # -o and -O take the name of a setting.
            place += option[-1:] in ("o", "O")
        place += 1
    return place if is_given and place < len(words) else None


def script_named(words: Sequence[str]) -> GivenScript | None:
    """Return the file that a command has a shell run, with its arguments; None of any other command."""
    first = next((place for place, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), None)
    if first is None:
        return None
    if words[first] in ("source", ".") and first + 1 < len(words):
        return GivenScript(words[first + 1], words[first + 2 :], is_sourced=True)
    for place, word in enumerate(words):
        if basename(word) in _SHELLS:
            behind = place + 1
            while behind < len(words) and words[behind][:1] in ("-", "+"):
                behind += 1 + (words[behind][-1:] in ("o", "O"))
            return GivenScript(words[behind], words[behind + 1 :]) if behind < len(words) else None
    if words[first].endswith(_SCRIPT_ENDS) and words[first].startswith(("./", "/")):
        return GivenScript(words[first], words[first + 1 :])
    return None
