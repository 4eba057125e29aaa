"""The choices of a request, by the words of request files: objectives, spaces, launchers and forms of a plan."""

from __future__ import annotations

from enum import StrEnum


class Recompute(StrEnum):
    """Activation recomputation of a stage: nothing; norms, activation functions of routed experts and up-projections of
    latent attention; attention cores and norms; or whole layers."""

    NONE = "none"
    FINE_GRAINED = "fine-grained"
    SELECTIVE = "selective"
    FULL = "full"


class Gradients(StrEnum):
    """The lifetime of the gradients of a training step: until the step's one update, or each layer's until its own update,
    which follows its backward pass at once (LOMO, Lv et al. 2024)."""

    KEPT = "kept"
    RELEASED = "released"


class Objective(StrEnum):
    """The figure that the best plan is best at."""

    THROUGHPUT = "throughput"
    STEP_TIME = "step_time"
    DEVICES = "devices"
    COST = "cost"
    ENERGY = "energy"


class FrontierScope(StrEnum):
    """The plans that the frontier is taken of. Of a training plan: those that the search for the best one costed, or those of a
    sweep over numbers of devices and memory that is left free. A sweep of a serving plan is over all layouts and batch limits,
    and pairs of pools where these are searched, for throughput of a device against tokens per second of a user."""

    VISITED = "visited"
    SWEPT = "swept"


class Improvements(StrEnum):
    """The changes of a request that has a plan: solved, to say which would make the plan better, or not asked for."""

    UNASKED = "unasked"
    SOLVED = "solved"


class TpOverlap(StrEnum):
    """The overlap of gathers and scatters over tp with products: they run before and after whole products, or chunk by chunk
    beside them."""

    EXPOSED = "exposed"
    CHUNKED = "chunked"


class GroupOrder(StrEnum):
    """In which order ranks of a training plan go through the cluster's node groups: as given, or as is best."""

    GIVEN = "given"
    ANY = "any"


class BatchShares(StrEnum):
    """The shares of the batch of a training plan's replicas: even; or, where each node group may have whole replicas of its
    own, as many sequences for each group as is best."""

    EVEN = "even"
    BY_GROUP = "by_group"


class StageDegrees(StrEnum):
    """The degrees of a training plan's stages: all have the same degrees, sharding and place of state, or each its own."""

    SAME = "same"
    ANY = "any"


class Space(StrEnum):
    """The plans that compete: those that a launcher can express, or any sharding of any dim."""

    LAUNCHABLE = "launchable"
    FREE = "free"


class ServingMode(StrEnum):
    """The division of prompts and answers: one worker computes both, workers of two pools do, or one worker in layouts that
    switch."""

    AGGREGATED = "aggregated"
    DISAGGREGATED = "disaggregated"
    SWITCHED = "switched"


class Launcher(StrEnum):
    """Frameworks whose command line a launchable plan must fit; facts of each are in `solver.problem.launchers`."""

    MEGATRON_LM = "megatron-lm"
    MEGATRON_BRIDGE = "megatron-bridge"
    NEMO = "nemo"
    DEEPSPEED = "deepspeed"
    TORCHTITAN = "torchtitan"
    PYTORCH = "pytorch"
    NANOTRON = "nanotron"
    MAXTEXT = "maxtext"
    ACCELERATE = "accelerate"
    HF_TRAINER = "hf-trainer"
    TRL = "trl"
    AXOLOTL = "axolotl"
    LLAMA_FACTORY = "llama-factory"
    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"


OVER_MEGATRON_CORE = frozenset({Launcher.MEGATRON_LM, Launcher.MEGATRON_BRIDGE, Launcher.NEMO})
"""Launchers that train by Megatron-Core: its orders of ranks and its recomputation of some layers are theirs, too."""
DEFAULT_LAUNCHER = Launcher.MEGATRON_LM
"""The launcher of a request that names none, of serving requests, too."""


class OperatorSolver(StrEnum):
    """The method that finds how the operators of a block are sharded; all of them prove the same frontier."""

    AUTO = "auto"
    """Elimination, and the ILP for a block that is too wide for it."""
    ELIMINATION = "elimination"
    """Dynamic programming over the operators: exact, and the fastest where its tables are small."""
    ILP = "ilp"
    """An integer linear program in PuLP (Alpa, OSDI'22, section 4)."""
    CP_SAT = "cp-sat"
    """The same program for CP-SAT of OR-Tools."""


class System(StrEnum):
    """Published planners whose training space a search may be limited to (`solver.training.space.candidates`)."""

    PIPER = "piper"
    ALPA = "alpa"
    GALVATRON = "galvatron"
    AMP = "amp"
    COLOSSAL_AI = "colossal-ai"
    MERAK = "merak"
    METIS = "metis"
    MIST = "mist"
    ACESO = "aceso"
    NNSCALER = "nnscaler"
    FLEXFLOW = "flexflow"
    TOFU = "tofu"
    SUPERSCALER = "superscaler"
