"""The start of a training run: the words behind its program, and what stands around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.app.explaining.launch_files import NO_FILES, LaunchFiles


@dataclass(frozen=True, slots=True)
class Start:
    """A program with its flags.

    words        the words behind the program
    before       those in front of it, which start it
    world        ranks that are started; None where nothing says
    environment  variables that are set for it
    files        files that were given with the command
    document     the configuration, of a file that was given without a command
    """

    words: Sequence[str] = ()
    before: Sequence[str] = ()
    world: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    files: LaunchFiles = NO_FILES
    document: Mapping[str, Any] | None = None
