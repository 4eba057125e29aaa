"""The start of a training run: the words behind its program, and what stands around them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.app.base.digits import is_digits
from meshwright.app.launching.parts.flag import Flag, FlagTable, ShortNames, count
from meshwright.app.launching.parts.launch_files import NO_FILES, LaunchFiles
from meshwright.costmodels.errors import InvalidInputError

# The options of ``sbatch`` that say on what a job runs (Slurm 23 to 25).


@dataclass(frozen=True, slots=True)
class AskedDevices:
    """Devices that a job asks for: how many, and which, None where it does not say."""

    number: int
    kind: str | None


def _nodes(text: str) -> int:
    """Return a number of nodes; the most of a range, as in 2-4."""
    return count(text.rsplit("-", maxsplit=1)[-1])


def _devices(text: str) -> AskedDevices:
    """Return devices of ``8`` or ``h100:8``."""
    kind, _, number = text.rpartition(":")
    return AskedDevices(count(number), kind or None)


def _resources(text: str) -> AskedDevices | None:
    """Return devices of ``gpu:8``, ``gpu:h100:8`` or ``gpu``, of a list of resources; None where none is a GPU."""
    for resource in text.split(","):
        name, _, rest = resource.partition(":")
        if name.strip() in ("gpu", "gres/gpu"):
            return _devices(rest.split("(", maxsplit=1)[0]) if rest else AskedDevices(1, None)
    return None


SBATCH = FlagTable(
    (
        Flag(("nodes", "N"), "nodes", _nodes),
        Flag(("gpus-per-node",), "devices", _devices),
        Flag(("gres",), "resources", _resources),
        Flag(("gpus", "G"), "all_devices", _devices),
        Flag(("gpus-per-task",), "devices_a_task", _devices),
        Flag(("ntasks-per-node",), "tasks_a_node", count),
        Flag(("ntasks", "n"), "tasks", count),
    )
)


# The flags of ``torchrun`` (torch.distributed.run).


def _most(text: str) -> int:
    """Return a number of nodes; the most of a range, as in 1:4."""
    return count(text.rsplit(":", maxsplit=1)[-1])


def _torchrun_devices(text: str) -> int | None:
    """Return a number of ranks; None where it is that of the devices that are there."""
    return None if text in ("auto", "gpu") else count(text)


TORCHRUN = FlagTable(
    (Flag(("nnodes",), "nodes", _most), Flag(("nproc-per-node",), "devices", _torchrun_devices)),
    harmless={
        **dict.fromkeys(("node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint", "rdzv-id"), True),
        **dict.fromkeys(("rdzv-conf", "local-ranks-filter", "role", "tee", "log-dir", "max-restarts", "redirects"), True),
        **dict.fromkeys(("standalone", "module", "m", "no-python"), False),
    },
    short_names=ShortNames.ARGPARSE,
)


# The flags of DeepSpeed's launcher (launcher/runner.py, 0.9 to 0.19).


@dataclass(frozen=True, slots=True)
class DeepSpeedLaunch:
    """The flags of DeepSpeed's launcher that say on what it runs."""

    nodes: int | None = None
    devices: int | None = None


DEEPSPEED_RUNNER = FlagTable(
    (Flag(("num-nodes",), "nodes", count), Flag(("num-gpus",), "devices", count)),
    harmless={
        **dict.fromkeys(("hostfile", "include", "i", "exclude", "e", "master-port", "master-addr", "launcher"), True),
        **dict.fromkeys(("launcher-args", "node-rank", "save-pid", "ssh-port", "bind-core-list", "min-elastic-nodes"), True),
        **dict.fromkeys(("module", "no-python", "no-local-rank", "no-ssh", "force-multi", "bind-cores-to-rank"), False),
    },
    short_names=ShortNames.ARGPARSE,
)


@dataclass(frozen=True, slots=True)
class Start:
    """A program with its flags.

    words        the words behind the program
    before       those in front of it, which start it
    world        ranks that are started; None where nothing says
    environment  variables that are set for it
    files        files that were given with the command
    document     the configuration, of a file that was given without a command
    program      the last of the words that start it, or its script; nothing of a document alone
    """

    words: Sequence[str] = ()
    before: Sequence[str] = ()
    world: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    files: LaunchFiles = NO_FILES
    document: Mapping[str, Any] | None = None
    program: str = ""


# The ranks that a run is started with: by torchrun, by DeepSpeed's launcher, or by a variable.

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
    return int(ranks) if is_digits(ranks, most=_MOST_DIGITS - 1) else None


# The nodes and devices that a batch script asks Slurm for, by its ``#SBATCH`` lines.

_LINE = re.compile(r"^[ \t]*#SBATCH[ \t]+(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BatchJob:
    """The nodes of a job, the devices on each, and which; None where the script does not say."""

    nodes: int
    devices: int | None = None
    kind: str | None = None

    @property
    def ranks(self) -> int | None:
        """Devices of the whole job."""
        return None if self.devices is None else self.nodes * self.devices

    @property
    def cluster(self) -> str | None:
        """The cluster in words; None where the script does not say which devices."""
        if self.devices is None or self.kind is None:
            return None
        return f"{self.nodes}x{self.devices}x{self.kind}" if self.nodes > 1 else f"{self.devices}x{self.kind}"

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that Slurm sets in such a job, as far as the script says them."""
        found = {"SLURM_NNODES": str(self.nodes), "SLURM_JOB_NUM_NODES": str(self.nodes)}
        if self.devices is not None:
            found |= {"SLURM_GPUS_PER_NODE": str(self.devices), "SLURM_GPUS_ON_NODE": str(self.devices)}
        return found


def read_batch_job(text: str) -> BatchJob | None:
    """Return what a script asks Slurm for; None of one that is no batch script.

    Raises InvalidInputError for a line that Slurm would refuse.
    """
    lines = _LINE.findall(text)
    if not lines:
        return None
    words: list[str] = []
    for line in lines:
        try:
            words += shlex.split(line, comments=True)
        except ValueError as error:
            raise InvalidInputError(f"an #SBATCH line can't be read: {error}", given=line) from None
    fields = SBATCH.read([_joined(word) for word in words]).fields
    nodes = fields.get("nodes", 1)
    asked = _devices_a_node(fields, nodes)
    return BatchJob(nodes, None if asked is None else asked.number, None if asked is None else asked.kind)


def _joined(word: str) -> str:
    """An option of one letter with its value behind it, ``-N4``, as ``-N=4``."""
    short = re.fullmatch(r"-([A-Za-z])([0-9].*)", word)
    return word if short is None else f"-{short[1]}={short[2]}"


def _devices_a_node(fields: Mapping[str, Any], nodes: int) -> AskedDevices | None:
    asked: AskedDevices | None = fields.get("devices") or fields.get("resources")
    if asked is not None:
        return asked
    every: AskedDevices | None = fields.get("all_devices")
    if every is not None and every.number % nodes == 0:
        return AskedDevices(every.number // nodes, every.kind)
    of_task: AskedDevices | None = fields.get("devices_a_task")
    tasks = fields.get("tasks_a_node") or (fields["tasks"] // nodes if "tasks" in fields else None)
    if of_task is not None and tasks:
        return AskedDevices(of_task.number * tasks, of_task.kind)
    return None
