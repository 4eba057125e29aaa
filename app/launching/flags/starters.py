"""The options of ``sbatch`` that say on what a job runs (Slurm 23 to 25)."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.app.launching.flags.flag import Flag, FlagTable, count


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
)
