"""The nodes and devices that a batch script asks Slurm for, by its ``#SBATCH`` lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.app.launch_flags.slurm import SBATCH, AskedDevices
from meshwright.costmodels.errors import InvalidInputError

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
