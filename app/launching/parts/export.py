"""Export: a plan in the words of a launcher, with what gets lost in translation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.solver.problem.choices import Launcher


@dataclass(frozen=True, slots=True)
class ReplicaEngine:
    """An engine of one replica, for what starts engines itself and tells them their nodes and ports.

    model        checkpoint, or the directory that stands for it
    words        flags and their values, without the model's, those of nodes and ports, and copies of the replica
    environment  variables that it reads
    copies       replicas that one server of the command holds
    """

    model: str
    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    copies: int = 1


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """Equal servers of a serving launch, one command each, which all nodes of a server run.

    count             of them
    nodes, devices    of one of them
    port              at which the first node of each answers
    outside           what the command needs beside it to answer other hosts, in words of a shell
    others            what it needs beside it on all nodes but the first
    ranks_a_node      by how much FIRST_RANK grows from node to node
    meeting_port      port that MASTER_ADDR has, None where it is an address alone
    starts_by_itself  whether the command on every node is all that starts a server of several nodes
    engine            that of one replica, None where it is not told apart
    """

    count: int
    nodes: int
    devices: int
    port: int
    outside: str = ""
    others: str = ""
    ranks_a_node: int = 1
    meeting_port: int | None = None
    starts_by_itself: bool = True
    engine: ReplicaEngine | None = None


@dataclass(frozen=True, slots=True)
class ServerPools:
    """Servers of a prefill and of a decode pool, those of a pool equal; their engines are told apart."""

    prefill: ServerGroup
    decode: ServerGroup


@dataclass(frozen=True)
class Export:
    """The launch of a plan.

    launcher, version   the launcher, and its release whose flags these are
    command             what to run on every node, from the directory that holds ``files``
    servers             what the command starts where it serves with equal servers, else none
    pools               the servers of a plan of two pools, else none
    host_file           name of the file of nodes from which the command, run on the first, starts the others; usually none
    files               text of each file by name
    inexpressible       what of the plan the launcher can't do, and what happens instead
    assumptions         what the command takes for granted: paths, data, hyperparameters that no plan decides
    """

    launcher: Launcher
    version: str
    command: str
    files: Mapping[str, str] = field(default_factory=dict)
    inexpressible: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    host_file: str | None = None
    servers: ServerGroup | None = None
    pools: ServerPools | None = None
