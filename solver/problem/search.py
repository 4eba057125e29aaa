"""The search of a request: each choice declared once, with all that its consumers need to know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval, Len

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.memory.training_state import Optimizer, Tier
from meshwright.costmodels.model.memory_law import DEFAULT_RISK, Risk
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.units import STRICT_RECORD, Fraction, Name, NonNegativeInt, PositiveFloat, PositiveInt
from meshwright.solver.problem.choice import (
    EVERY_FORM,
    SERVING,
    TRAINING,
    Choice,
    Form,
    Launched,
    LedgerEntry,
    LockPlace,
    Part,
    Place,
    Published,
    Said,
    Unnamed,
    ledger_of,
)
from meshwright.solver.problem.choices import (
    DEFAULT_LAUNCHER,
    BatchShares,
    FrontierScope,
    Gradients,
    GroupOrder,
    Improvements,
    Launcher,
    OperatorSolver,
    Recompute,
    ServingMode,
    Space,
    StageDegrees,
    System,
    TpOverlap,
)
from meshwright.solver.problem.declared.constraints import CONSTRAINTS, Constraint
from meshwright.solver.problem.declared.cp_keys import CP_KEYS, CpKeys
from meshwright.solver.problem.declared.expert_overlap import EXPERT_OVERLAP, ExpertOverlap
from meshwright.solver.problem.declared.operator_splits import OperatorSplit
from meshwright.solver.problem.declared.rank_order import RANK_ORDER, RankOrder
from meshwright.solver.problem.declared.recompute_layers import RECOMPUTE_LAYERS
from meshwright.solver.problem.declared.recompute_modules import RECOMPUTE_MODULES, ModuleSet, in_order
from meshwright.solver.problem.layer_kinds import MOST_KINDS

# The kinds of choices that fields of a search are: each says what all fields of its kind have in common.


def setting(word: str, forms: frozenset[Form] = EVERY_FORM, *, said: Said, at_most: float | None = None) -> Choice:
    """Return the choice of a field that decides which plans compete and for how long, but stands in none of them."""
    return Choice(
        word=word,
        forms=forms,
        launched=Launched.NOT_OF_A_PLAN,
        place=None,
        unnamed=Unnamed.DEFAULT,
        published=Published.AS_ASKED,
        said=said,
        lock=LockPlace.NOT_OF_A_PLAN,
        at_most=at_most,
    )


def restriction(
    word: str,
    place: Place,
    *,
    forms: frozenset[Form] = TRAINING,
    launched: Launched,
    published: Published | tuple[Any, ...],
    lock: LockPlace,
    unnamed: Unnamed = Unnamed.ANY,
) -> Choice:
    """Return the choice of a field that lists the values which a plan may have."""
    return Choice(
        word=word,
        forms=forms,
        launched=launched,
        place=place,
        unnamed=unnamed,
        published=published,
        said=Said.LISTED,
        lock=lock,
        at_most=None,
    )


def degree(
    word: str,
    forms: frozenset[Form],
    *,
    launched: Launched,
    published: Published | tuple[Any, ...] = Published.AS_ASKED,
    lock: LockPlace = LockPlace.AXES,
    unnamed: Unnamed = Unnamed.ANY,
) -> Choice:
    """Return the choice of a mesh axis."""
    place = Place(Part.AXES, word)
    return restriction(word, place, forms=forms, launched=launched, published=published, lock=lock, unnamed=unnamed)


def of_stages(
    word: str, path: str, *, launched: Launched, closed: tuple[Any, ...], lock: LockPlace = LockPlace.CHOICES
) -> Choice:
    """Return the choice of something of stages that has its default alone unless a request names it, as for all published
    planners, whose values are ``closed``."""
    place = Place(Part.STAGES, path)
    return restriction(word, place, launched=launched, published=closed, lock=lock, unnamed=Unnamed.DEFAULT)


def opening(
    word: str, forms: frozenset[Form], place: Place, *, launched: Launched, lock: LockPlace, at_most: float | None = None
) -> Choice:
    """Return the choice of a field that opens a form, or an order of devices, which is not searched unless asked for."""
    return Choice(
        word=word,
        forms=forms,
        launched=launched,
        place=place,
        unnamed=Unnamed.DEFAULT,
        published=Published.AS_ASKED,
        said=Said.BY_FORM,
        lock=lock,
        at_most=at_most,
    )


MAX_TIME_LIMIT_S = 86_400.0
DEFAULT_MEMORY_LIMIT_BYTES = 2 * 2**30
"""Memory that a search may take where its request does not say; those of docs/benchmarks-training.md take 0.2 to 0.5 GiB."""

MAX_MEMORY_LIMIT_BYTES = 2**50
DEFAULT_ILP = "HiGHS"
"""The solver of integer programs where a request names none, by its name in PuLP."""
MOST_CONSTRAINTS = 64
"""Constraints of a request, at most: each is compared with every operator of the model."""
MAX_SEED = 2**53 - 1
"""The highest whole number up to which doubles, and with them JSON readers, are exact."""


_IN_ONE_PIPELINE = frozenset({Form.UNIFORM, Form.STAGEWISE})


@dataclass(frozen=True, slots=True)
class Search:
    """The space and its restrictions. An empty tuple does not restrict.

    engine                       serving engine whose layouts compete and whose host times count
    dp, tp, pp, cp, ep           allowed degrees
    etp                          allowed numbers of ranks that share an expert: tp, or 1
    ulysses                      allowed shares of cp that exchange tokens for heads; the others form rings
    attention_dp, kvp            allowed degrees of serving layouts
    microbatch                   allowed micro-batch sizes
    modes                        allowed ways of serving; pools and switching layouts are searched only where this names them
    worker_kinds                 layouts that workers of a serving plan which do both phases may have at once
    recompute, zero_stages       allowed memory choices
    recompute_layers             allowed numbers of first layers that are recomputed whole, where they are neither none nor all;
                                 none named: any
    recompute_modules            allowed sets of modules that fine-grained recomputation runs again, each in words joined by +;
                                 any: all of the model's; none named: norms, expert activations and up-projections of latents
    shard_ranks                  allowed numbers of ranks among which ZeRO shards; dp x cp for all of them
    optimizers                   optimizers that the plan may choose from; none named: the workload's alone
    gradients                    whether gradients may be released layer by layer; none named: they are kept
    offload_optimizer            shares of the optimizer states that may lie in host memory; none named: nothing does
    offload_activations          the same of saved activations
    offload_weights              the same of weights
    offload_gradients            the same of gradients
    offload_optimizer_to         whether shares of optimizer states lie in host memory or on NVMe drives; none named: in memory
    offload_weights_to           the same of weights
    tp_overlap                   allowed ways of gathers and scatters over tp
    expert_overlap               whether exchanges with experts may run under the pass of another micro-batch; none named: as
                                 the schedule runs them, exposed but for DualPipe's pairs
    schedules, virtual_stages    allowed pipeline schedules, and model chunks a rank of those that have several
    token_slices                 allowed numbers of slices that sequences pass a pipeline in; none named: 1, whole
    rank_order                   whether ranks of a stage or of a replica lie together; none named: of a stage
    cp_keys                      whether cp ranks pass keys and values around a ring or gather them
    operator_splits              what operators of the free space may split over tp beside their dims: the batch, the storage of
                                 weights that ranks use whole; none named: neither
    layer_kinds                  kinds into which equal layers fall in turn, each with shardings of its own
    constraints                  shardings of operators and tensors that are named, operators alike, and layers on a stage
    system                       only what this published planner searches
    frontier                     which plans the frontier is of; a sweep takes many searches for training, less for serving
    group_order                  in which order ranks of a training plan go through the node groups
    idle_groups                  node groups of whose nodes a training plan may leave devices idle, as many in each, or all
    stage_degrees                whether stages may differ in degrees, shardings and places of state
    batch_shares                 whether replicas may lie on one node group each and take unequal shares of the batch
    operator_solver              method that shards the operators of a training block, each to the same end
    ilp_solver                   solver that PuLP hands the integer programs of blocks to: HiGHS, or another by its name in PuLP
    risk                         chance that a training plan may run out of memory when it is started
    memory_share                 share of a device's memory that a serving engine may fill; None: the engine's own
    price_risk                   another chance, at which the plan is solved too, to say what the risk costs; None: not solved
    improvements                 whether changes of the request are solved that would make its plan better
    max_candidates               stop after this many outer candidates (deterministic on any machine)
    time_limit_s                 stop after this time with the best plan so far; the bound then leaves a gap
    memory_limit_bytes           stop, as at the time limit, when the process has grown by this since the search began; None: by
                                 `DEFAULT_MEMORY_LIMIT_BYTES`
    """

    __pydantic_config__ = STRICT_RECORD

    space: Annotated[Space, setting("space", said=Said.BY_FORM)] = Space.LAUNCHABLE
    launcher: Annotated[Launcher, setting("launcher", said=Said.BY_FORM)] = DEFAULT_LAUNCHER
    engine: Annotated[ServingEngine, setting("engine", SERVING, said=Said.BY_FORM)] = ServingEngine.VLLM
    dp: Annotated[tuple[PositiveInt, ...], degree("dp", EVERY_FORM, launched=Launched.BY_EVERY)] = ()
    tp: Annotated[tuple[PositiveInt, ...], degree("tp", EVERY_FORM, launched=Launched.BY_EVERY)] = ()
    pp: Annotated[tuple[PositiveInt, ...], degree("pp", EVERY_FORM, launched=Launched.BY_EVERY)] = ()
    cp: Annotated[
        tuple[PositiveInt, ...],
        degree("cp", EVERY_FORM, launched=Launched.BY_RULES, published=(1,)),
    ] = ()
    ep: Annotated[tuple[PositiveInt, ...], degree("ep", EVERY_FORM, launched=Launched.BY_RULES, published=(1,))] = ()
    # With a published planner, `solver.training.space.candidates` lets tp ranks share an expert alone.
    etp: Annotated[
        tuple[PositiveInt, ...],
        degree("etp", TRAINING, launched=Launched.BY_RULES, lock=LockPlace.CHOICES),
    ] = ()
    ulysses: Annotated[
        tuple[PositiveInt, ...], degree("ulysses", TRAINING, launched=Launched.BY_RULES, published=(1,), lock=LockPlace.CHOICES)
    ] = ()
    attention_dp: Annotated[
        tuple[PositiveInt, ...], degree("attention_dp", SERVING, launched=Launched.BY_RULES, lock=LockPlace.CHOICES)
    ] = ()
    kvp: Annotated[tuple[PositiveInt, ...], degree("kvp", SERVING, launched=Launched.BY_RULES, lock=LockPlace.CHOICES)] = ()
    modes: Annotated[
        tuple[ServingMode, ...],
        Len(1),
        opening("modes", SERVING, Place(Part.FORM), launched=Launched.BY_RULES, lock=LockPlace.PREFILL),
    ] = (ServingMode.AGGREGATED,)
    worker_kinds: Annotated[
        int,
        Interval(ge=1, le=4),
        opening(
            "worker_kinds",
            frozenset({Form.KINDS}),
            Place(Part.FORM),
            launched=Launched.BY_RULES,
            lock=LockPlace.WORKER_KINDS,
        ),
    ] = 1
    microbatch: Annotated[
        tuple[PositiveInt, ...],
        restriction(
            "microbatch",
            Place(Part.PIPELINES, "microbatch.size"),
            launched=Launched.BY_EVERY,
            published=Published.AS_ASKED,
            lock=LockPlace.MICROBATCH,
        ),
    ] = ()
    recompute: Annotated[
        tuple[Recompute, ...],
        restriction(
            "recompute",
            Place(Part.STAGES, "recompute"),
            launched=Launched.BY_EVERY,
            published=Published.BY_PRESET,
            lock=LockPlace.STAGES,
        ),
    ] = ()
    recompute_layers: Annotated[tuple[PositiveInt, ...], RECOMPUTE_LAYERS] = ()
    recompute_modules: Annotated[tuple[ModuleSet, ...], RECOMPUTE_MODULES] = ()
    zero_stages: Annotated[
        tuple[NonNegativeInt, ...],
        restriction(
            "zero_stage",
            Place(Part.STAGES, "zero_stage"),
            launched=Launched.BY_EVERY,
            published=Published.BY_PRESET,
            lock=LockPlace.STAGES,
        ),
    ] = ()
    # With a published planner, `solver.training.space.state_places` shards among all of dp x cp alone.
    shard_ranks: Annotated[
        tuple[PositiveInt, ...],
        restriction(
            "shard_ranks",
            Place(Part.STAGES, "shard_ranks"),
            launched=Launched.BY_RULES,
            published=Published.AS_ASKED,
            lock=LockPlace.CHOICES,
        ),
    ] = ()
    optimizers: Annotated[
        tuple[Optimizer, ...],
        restriction(
            "optimizer",
            Place(Part.PLACEMENT, "optimizer"),
            launched=Launched.BY_RULES,
            published=Published.OWN,
            lock=LockPlace.CHOICES,
            unnamed=Unnamed.OWN,
        ),
    ] = ()
    gradients: Annotated[
        tuple[Gradients, ...],
        of_stages("gradients", "gradients", launched=Launched.BY_NONE, closed=(Gradients.KEPT,)),
    ] = ()
    offload_optimizer: Annotated[
        tuple[Fraction, ...],
        of_stages("offload.optimizer", "offload.optimizer", launched=Launched.BY_RULES, closed=(0.0,)),
    ] = ()
    offload_activations: Annotated[
        tuple[Fraction, ...],
        of_stages("offload.activations", "offload.activations", launched=Launched.BY_NONE, closed=(0.0,)),
    ] = ()
    offload_weights: Annotated[
        tuple[Fraction, ...],
        of_stages("offload.weights", "offload.weights", launched=Launched.BY_RULES, closed=(0.0,)),
    ] = ()
    offload_gradients: Annotated[
        tuple[Fraction, ...],
        of_stages("offload.gradients", "offload.gradients", launched=Launched.BY_RULES, closed=(0.0,)),
    ] = ()
    offload_optimizer_to: Annotated[
        tuple[Tier, ...],
        of_stages(
            "offload.optimizer_to",
            "offload.optimizer_to",
            launched=Launched.BY_RULES,
            closed=(Tier.HOST,),
        ),
    ] = ()
    offload_weights_to: Annotated[
        tuple[Tier, ...],
        of_stages("offload.weights_to", "offload.weights_to", launched=Launched.BY_RULES, closed=(Tier.HOST,)),
    ] = ()
    tp_overlap: Annotated[
        tuple[TpOverlap, ...],
        restriction(
            "tp_overlap",
            Place(Part.PIPELINES, "tp_overlap"),
            launched=Launched.BY_RULES,
            published=(TpOverlap.EXPOSED,),
            lock=LockPlace.TP_OVERLAP,
        ),
    ] = ()
    expert_overlap: Annotated[tuple[ExpertOverlap, ...], EXPERT_OVERLAP] = ()
    schedules: Annotated[
        tuple[Schedule, ...],
        restriction(
            "schedule",
            Place(Part.PIPELINES, "schedule"),
            launched=Launched.BY_EVERY,
            published=(Schedule.ONE_F_ONE_B,),
            lock=LockPlace.SCHEDULE,
        ),
    ] = ()
    virtual_stages: Annotated[
        tuple[PositiveInt, ...],
        restriction(
            "virtual_stages",
            Place(Part.STAGES, "chunk_layers", counted=True),
            launched=Launched.BY_RULES,
            published=Published.AS_ASKED,
            lock=LockPlace.STAGES,
        ),
    ] = ()
    token_slices: Annotated[
        tuple[PositiveInt, ...],
        restriction(
            "token_slices",
            Place(Part.PIPELINES, "token_slices", counted=True),
            launched=Launched.BY_NONE,
            published=(1,),
            lock=LockPlace.SCHEDULE,
            unnamed=Unnamed.DEFAULT,
        ),
    ] = ()
    rank_order: Annotated[tuple[RankOrder, ...], RANK_ORDER] = ()
    cp_keys: Annotated[tuple[CpKeys, ...], CP_KEYS] = ()
    operator_splits: Annotated[tuple[OperatorSplit, ...], setting("operator_splits", TRAINING, said=Said.LISTED)] = ()
    layer_kinds: Annotated[int, Interval(ge=1, le=MOST_KINDS), setting("layer_kinds", TRAINING, said=Said.BY_FORM)] = 1
    constraints: Annotated[tuple[Constraint, ...], Len(0, MOST_CONSTRAINTS), CONSTRAINTS] = ()
    system: Annotated[System | None, setting("system", TRAINING, said=Said.BY_FORM)] = None
    frontier: Annotated[FrontierScope, setting("frontier", said=Said.NOT_OF_THE_SPACE)] = FrontierScope.VISITED
    group_order: Annotated[
        GroupOrder,
        opening(
            "group_order",
            _IN_ONE_PIPELINE,
            Place(Part.PLACEMENT, "group_order"),
            launched=Launched.BY_EVERY,
            lock=LockPlace.CHOICES,
        ),
    ] = GroupOrder.GIVEN
    idle_groups: Annotated[
        tuple[Name, ...],
        opening(
            "idle_devices",
            _IN_ONE_PIPELINE,
            Place(Part.PLACEMENT, "idle_devices"),
            launched=Launched.BY_EVERY,
            lock=LockPlace.CHOICES,
        ),
    ] = ()
    batch_shares: Annotated[
        BatchShares,
        opening("batch_shares", frozenset({Form.BY_GROUP}), Place(Part.FORM), launched=Launched.BY_NONE, lock=LockPlace.GROUPS),
    ] = BatchShares.EVEN
    stage_degrees: Annotated[
        StageDegrees,
        opening(
            "stage_degrees", frozenset({Form.STAGEWISE}), Place(Part.FORM), launched=Launched.BY_NONE, lock=LockPlace.STAGES
        ),
    ] = StageDegrees.SAME
    operator_solver: Annotated[OperatorSolver, setting("operator_solver", TRAINING, said=Said.NOT_OF_THE_SPACE)] = (
        OperatorSolver.AUTO
    )
    ilp_solver: Annotated[Name, setting("ilp_solver", TRAINING, said=Said.NOT_OF_THE_SPACE)] = DEFAULT_ILP
    risk: Annotated[Risk, setting("risk", TRAINING, said=Said.BY_FORM)] = DEFAULT_RISK
    memory_share: Annotated[Fraction | None, setting("memory_share", SERVING, said=Said.NOT_OF_THE_SPACE)] = None
    price_risk: Annotated[Risk | None, setting("price_risk", TRAINING, said=Said.NOT_OF_THE_SPACE)] = None
    improvements: Annotated[Improvements, setting("improvements", said=Said.NOT_OF_THE_SPACE)] = Improvements.UNASKED
    max_candidates: Annotated[PositiveInt | None, setting("max_candidates", said=Said.NOT_OF_THE_SPACE)] = None
    time_limit_s: Annotated[PositiveFloat, setting("time_limit_s", said=Said.NOT_OF_THE_SPACE, at_most=MAX_TIME_LIMIT_S)] = 60.0
    memory_limit_bytes: Annotated[
        PositiveInt | None,
        setting("memory_limit_bytes", said=Said.NOT_OF_THE_SPACE, at_most=MAX_MEMORY_LIMIT_BYTES),
    ] = None
    seed: Annotated[NonNegativeInt, setting("seed", said=Said.NOT_OF_THE_SPACE, at_most=MAX_SEED)] = 0

    def __post_init__(self) -> None:
        too_high = [stage for stage in self.zero_stages if stage > 3]
        if too_high:
            raise WorkloadError("unknown ZeRO stage", given=too_high, allowed="0, 1, 2, 3")
        object.__setattr__(self, "recompute_modules", tuple(map(in_order, self.recompute_modules)))


LEDGER: Mapping[str, LedgerEntry] = ledger_of(Search)
"""The search choices by the name of their field, in order. Made at import, so that a field that says too little stops all."""


def require_choices_of(search: Search, forms: frozenset[Form]) -> None:
    """Refuse choices that no plan of these forms has, and that are not left at their default. Raises WorkloadError."""
    strange = [
        name for name, entry in LEDGER.items() if not entry.choice.forms & forms and getattr(search, name) != entry.default
    ]
    if not strange:
        return
    kind, other = ("training", "serving") if forms & TRAINING else ("serving", "training")
    margins = {"risk", "price_risk"}.intersection(strange)
    raise WorkloadError(
        f"search restrictions of {other} do not go with a {kind} workload",
        given=", ".join(strange),
        allowed=", ".join(name for name, entry in LEDGER.items() if entry.choice.forms & forms),
        remedy="leave them out" + ("; cluster.memory_reserve is a margin of memory" if margins else ""),
    )


# The restrictions of a request, in the words of a certificate.


def restrictions_text(search: Search, forms: frozenset[Form]) -> str:
    """Return the choices of these forms that a search restricts, with the values it allows; empty where it restricts none."""
    fixed = [
        # All constraints hold; of other values a plan has one.
        f"{entry.choice.word} {(' and ' if entry.choice is CONSTRAINTS else ' or ').join(_in_order(getattr(search, name)))}"
        for name, entry in LEDGER.items()
        if entry.choice.said is Said.LISTED and entry.choice.forms & forms and getattr(search, name)
    ]
    return f"; restricted to {', '.join(fixed)}" if fixed else ""


def _in_order(values: Sequence[object]) -> list[str]:
    """The words of values, numbers by size and all else by alphabet."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values):
        return [str(number) for number in sorted(numbers)]
    return sorted(str(getattr(value, "value", value)) for value in values)
