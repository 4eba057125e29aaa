"""Two commands of a launcher, flag by flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.app.explaining.explanation import Difference
from meshwright.app.launch_flags.flag import GivenFlag, Standing


def differences(given: Sequence[GivenFlag], better: Sequence[GivenFlag]) -> tuple[Difference, ...]:
    """Return the flags that say something of a plan and that two commands have with other values, or one alone."""
    theirs, ours = _by_field(given), _by_field(better)
    return tuple(
        Difference(_name(theirs, ours, field), _value(theirs, field), _value(ours, field))
        for field in dict.fromkeys((*theirs, *ours))
        if _meaning(theirs, field) != _meaning(ours, field)
    )


def _by_field(flags: Sequence[GivenFlag]) -> Mapping[str, GivenFlag]:
    return {flag.field: flag for flag in flags if flag.standing is Standing.READ and flag.field not in _NAMES}


_NAMES = ("model", "config_file", "deepspeed_config", "deepspeed_file", "fsdp_config")
"""Fields that name things, whose keys are told one by one, and are no choice."""


def _name(theirs: Mapping[str, GivenFlag], ours: Mapping[str, GivenFlag], field: str) -> str:
    return (theirs.get(field) or ours[field]).name


def _value(flags: Mapping[str, GivenFlag], field: str) -> str | None:
    if field not in flags:
        return None
    return flags[field].value or "on"


def _meaning(flags: Mapping[str, GivenFlag], field: str) -> object:
    return flags[field].meaning if field in flags else None
