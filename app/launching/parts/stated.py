"""The statements of a launch command, in records of ours: its launcher, model and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from meshwright.app.launching.parts.flag import GivenFlag
from meshwright.app.launching.parts.serving import LaunchFlags
from meshwright.app.launching.parts.start import BatchJob
from meshwright.costmodels.memory.training_state import NOTHING_OFFLOADED, Offload
from meshwright.solver.problem.carried_choices import USUAL_MESH, USUAL_STAGE, MeshChoices, StageChoices
from meshwright.solver.problem.choices import Launcher, Recompute, TpOverlap
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.declared.recompute_modules import RecomputeModule


@dataclass(frozen=True, slots=True)
class StatedServer:
    """The command of a server.

    model         as the command names it; None where it names none
    environment   variables that are set in front of the command
    notes         what was taken for granted in reading it
    job           what the script around it asks Slurm for
    """

    kind: ClassVar[str] = "serving"

    launcher: Launcher
    flags: LaunchFlags
    model: str | None
    given: tuple[GivenFlag, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()
    job: BatchJob | None = None


class Loaders(StrEnum):
    """The ranks that read a checkpoint's weights into host memory when a run starts."""

    NONE = "none"
    """Weights are drawn, or read, where they are needed."""
    FIRST = "the first rank of a node"
    EACH = "each rank"


@dataclass(frozen=True, slots=True)
class StatedTraining:
    """The command of a training run, in the words of plans; None where it says nothing.

    model, config       the model by name, or its sizes as a config.json
    world               ranks that it starts
    data_parallel       replicas, where they are said and do not follow from the other degrees
    shard_ranks         ranks that state is sharded over, or ``optimizer_copies`` how often it is held; None: over all, once
    parts               decoder layers of each stage or virtual stage in order of the model; empty: evenly
    accumulation        micro-batches of a replica, where they are said and not the batch
    workload            fields of the request's workload
    loaders             the ranks that read the checkpoint into host memory first
    problems            rules of the launcher that it breaks, whatever the model and the devices are
    not_counted         parts of the run that no figure counts
    of_program          the program that trains so, where it is not the launcher's own
    """

    kind: ClassVar[str] = "training"

    launcher: Launcher
    given: tuple[GivenFlag, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    job: BatchJob | None = None
    model: str | None = None
    config: Mapping[str, Any] | None = None
    world: int | None = None
    data_parallel: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ulysses: int = 1
    ep: int = 1
    etp: int | None = None
    chunks: int = 1
    parts: tuple[int, ...] = ()
    schedule: str | None = None
    microbatch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    zero_stage: int = 0
    optimizer_copies: int | None = None
    shard_ranks: int | None = None
    sequence_parallel: bool = False
    tp_overlap: TpOverlap = TpOverlap.EXPOSED
    expert_overlap: ExpertOverlap | None = None
    mesh: MeshChoices = USUAL_MESH
    recompute: Recompute = Recompute.NONE
    stages: StageChoices = USUAL_STAGE
    offload: Offload = NOTHING_OFFLOADED
    workload: Mapping[str, Any] = field(default_factory=dict)
    loaders: Loaders = Loaders.NONE
    not_counted: tuple[str, ...] = ()
    of_program: str = ""


Stated = StatedServer | StatedTraining


def stated_modules(named: Sequence[str]) -> tuple[Recompute, StageChoices, tuple[str, ...]]:
    """Return what Megatron-Core's selective recomputation of modules is, attention's alone where none is named, and what of it
    no figure takes into account."""
    known = [module for module in named or ("core_attn",) if module in set(RecomputeModule)]
    others = [module for module in named if module not in known]
    notes = (f"recomputed modules that no figure takes into account: {', '.join(others)}",) if others else ()
    return (*StageChoices.of_modules(known), notes)
