"""The ranks that a run is started with: by torchrun, by DeepSpeed's launcher, or by a variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.app.launch_flags.deepspeed import DEEPSPEED_RUNNER, DeepSpeedLaunch
from meshwright.app.launch_flags.flag import FlagTable
from meshwright.app.launch_flags.torchrun import TORCHRUN

_STARTERS: Mapping[str, FlagTable] = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), TORCHRUN),
    "deepspeed": DEEPSPEED_RUNNER,
}
_RANKS = "NGPU"
"""The variable by which torchtitan's own script is told how many ranks it starts."""
_MOST_DIGITS = 7


def world_of_starter(before: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Return the ranks that the words before a program, or a variable, say; None where neither does."""
    for place, word in enumerate(before):
        table = _STARTERS.get(word.rsplit("/", maxsplit=1)[-1])
        if table is not None:
            launch = DeepSpeedLaunch(**table.read(before[place + 1 :]).fields)
            return None if launch.devices is None else launch.devices * (launch.nodes or 1)
    ranks = environment.get(_RANKS, "")
    return int(ranks) if ranks.isdecimal() and 0 < len(ranks) < _MOST_DIGITS else None
