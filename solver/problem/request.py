"""The request: workload, service level objective, objective and the space to search.

These records are read from request files as they are (Pydantic validates them at the edge, strictly) and enter the
digest of the request, so a change of a default is a change of schema version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Literal, TypeVar

from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.from_runs import DEFAULT_CONFIDENCE, Confidence
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.adapter import ATTENTION, Adapter, BaseFormat
from meshwright.costmodels.model.dims import EXPERTS, POSITIONS
from meshwright.costmodels.model.documents import MAX_PACKED_TOKENS, DocumentLengths, Fill, PackedDocuments
from meshwright.costmodels.model.experts import BALANCED, ExpertRouting
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat, WeightFormat
from meshwright.costmodels.network.token_dispatch import DispatchFormat, TokenDispatch
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.serving.engine_profile import Quantised
from meshwright.costmodels.serving.speculation import Speculation
from meshwright.costmodels.units import STRICT_RECORD, DType, Fraction, NonNegativeInt, PositiveFloat, PositiveInt
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.declared.constraints import require_satisfiable
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.layer_kinds import with_layer_kinds
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import (
    ClosedArrivals,
    EmpiricalLength,
    FixedLength,
    GammaArrivals,
    LognormalLength,
    PoissonArrivals,
    PrefixCache,
    ScheduleArrivals,
    TraceArrivals,
)

REQUEST_SCHEMA = "meshwright.request/1"


@dataclass(frozen=True, slots=True)
class TrainingWorkload:
    """Training: ``global_batch`` sequences of ``seq_len`` tokens a step.

    ``precision`` is the working format of weights and activations, ``matmul`` that of the layers' matrix products,
    ``saved_activations`` that of what layers keep for the backward pass. ``experts`` says how tokens spread over routed
    experts: ranks that hold some of them wait for the one with the most rows; ``dispatch`` how tokens get there, and in
    which ``dispatch_format``.
    ``implementation`` is how the user's framework runs it; None: as the search's launcher does. With an ``adapter`` its
    matrices alone are trained. With ``lengths`` sequences hold documents that don't see one another. ``mtp_layers`` modules
    beside the head each predict one more token (`solver.problem.token_prediction`). ``run_tokens`` are those of the whole run,
    of which no plan depends: answers say its days and its cost.
    """

    __pydantic_config__ = STRICT_RECORD

    kind: Literal["training"]
    global_batch: PositiveInt
    seq_len: PositiveInt
    precision: DType = DType.BF16
    optimizer: Optimizer = Optimizer.ADAMW
    gradient_dtype: DType = DType.FP32
    matmul: MatmulRecipe = MatmulRecipe.WORKING
    saved_activations: SavedFormat = SavedFormat.WORKING
    experts: ExpertRouting = BALANCED
    dispatch: TokenDispatch = TokenDispatch.COPIES
    dispatch_format: DispatchFormat = DispatchFormat.WORKING
    implementation: StatedImplementation | None = None
    adapter: Adapter | None = None
    lengths: DocumentLengths | None = None
    mtp_layers: NonNegativeInt = 0
    run_tokens: PositiveInt | None = None

    def __post_init__(self) -> None:
        if self.adapter is not None and self.mtp_layers:
            raise WorkloadError("adapters train no layers that predict tokens", given=self.mtp_layers, allowed="mtp_layers: 0")
        if self.experts.redundant_experts:
            raise WorkloadError(
                "training keeps one copy of each expert", given=self.experts.redundant_experts, allowed="0 redundant_experts"
            )
        _require_one_of("precision", self.precision, (DType.BF16, DType.FP16, DType.FP32))
        _require_one_of("gradient_dtype", self.gradient_dtype, (DType.BF16, DType.FP16, DType.FP32))
        if self.matmul is not MatmulRecipe.WORKING:
            _require_one_of("precision beside a matmul recipe", self.precision, (DType.BF16, DType.FP16))
        if self.saved_activations is not SavedFormat.WORKING:
            _require_one_of("precision beside saved_activations", self.precision, (DType.BF16, DType.FP16))
        if self.documents is not None and self.seq_len > MAX_PACKED_TOKENS:
            raise WorkloadError(
                "sequences are too long to be packed", given=self.seq_len, allowed=f"at most {MAX_PACKED_TOKENS} seq_len"
            )

    @property
    def documents(self) -> PackedDocuments | None:
        """The documents that sequences are packed of; None where each is one of ``seq_len`` tokens."""
        packed = self.lengths is not None and self.lengths.fill is Fill.PACKED
        return PackedDocuments(self.lengths, self.seq_len) if packed and self.lengths is not None else None


Arrivals = PoissonArrivals | GammaArrivals | ScheduleArrivals | TraceArrivals | ClosedArrivals


Length = FixedLength | LognormalLength | EmpiricalLength


COST_TARGET = "max_cost_per_million_tokens"
"""The target of an SLO that is money."""

WEIGHT_FORMATS: Mapping[DType, tuple[WeightFormat, ...]] = {
    DType.BF16: (WeightFormat.BF16, WeightFormat.INT8, WeightFormat.INT4),
    DType.FP16: (WeightFormat.FP16, WeightFormat.INT8, WeightFormat.INT4),
    DType.FP8: (WeightFormat.FP8, WeightFormat.FP8_BLOCK),
    DType.FP4: (WeightFormat.NVFP4, WeightFormat.MXFP4),
}
"""Formats that weights can be stored in, by the precision that they compute in; the first is the default."""


@dataclass(frozen=True, slots=True)
class ServingWorkload:
    """Serving: requests of a prompt and an output length, and how they arrive. A trace has its own lengths.

    precision          format that the layers' products compute in; fp4 computes in 16 bits on devices without it
    kv_dtype           format of the cache, by default that of what is not quantised
    prefix_hit_ratio   share of each prompt whose keys and values are in the prefix cache already
    prefix_cache       what requests find in it, each by itself, and what all share
    weights            format that quantised weights are stored in, by default the precision's own
    quantised          which weights are
    experts            how tokens spread over routed experts, and copies of hot ones
    speculation        drafted tokens that steps verify, how many are kept, and what they cost; None drafts nothing
    router             how requests reach equal replicas; a trace that says random is dealt out round robin

    It has no implementation but its engine's, and no run that ends.
    """

    __pydantic_config__ = STRICT_RECORD

    implementation: ClassVar[None] = None
    run_tokens: ClassVar[None] = None

    kind: Literal["serving"]
    arrivals: Arrivals
    prompt_tokens: Length | None = None
    output_tokens: Length | None = None
    precision: DType = DType.BF16
    kv_dtype: DType | None = None
    prefix_hit_ratio: Fraction = 0.0
    prefix_cache: PrefixCache | None = None
    weights: WeightFormat | None = None
    quantised: Quantised = Quantised.PROJECTIONS
    experts: ExpertRouting = BALANCED
    speculation: Speculation | None = None
    router: Router = Router.RANDOM

    def __post_init__(self) -> None:
        if self.router is not Router.RANDOM and isinstance(self.arrivals, ClosedArrivals):
            raise WorkloadError(
                "a router deals requests that arrive by themselves; clients of a closed loop are shared evenly by replicas",
                given=self.router.value,
                allowed=f"router {Router.RANDOM.value}, or other arrivals",
            )
        traced = isinstance(self.arrivals, TraceArrivals)
        for name, length in (("prompt_tokens", self.prompt_tokens), ("output_tokens", self.output_tokens)):
            if traced and length is not None:
                raise WorkloadError(f"{name} does not go with a trace, which has lengths of its own", given=length)
            if not traced and length is None:
                raise WorkloadError(f"{name} is missing", allowed="fixed, mean and p95, or empirical; only a trace has its own")
        self._require_one_account_of_hits()
        _require_one_of("precision", self.precision, tuple(WEIGHT_FORMATS))
        if self.kv_dtype is not None:
            _require_one_of("kv_dtype", self.kv_dtype, (DType.BF16, DType.FP16, DType.FP8))
        if self.weight_format not in WEIGHT_FORMATS[self.precision]:
            raise WorkloadError(
                "weights of this format do not compute in this precision",
                given={"weights": self.weight_format.value, "precision": self.precision.value},
                allowed=", ".join(weights.value for weights in WEIGHT_FORMATS[self.precision]),
            )

    def _require_one_account_of_hits(self) -> None:
        recorded = isinstance(self.arrivals, TraceArrivals) and bool(self.arrivals.cached_tokens)
        drawn = self.prefix_cache is not None and self.prefix_cache.hit_ratio > 0.0
        told = {
            "prefix_hit_ratio": self.prefix_hit_ratio > 0.0,
            "prefix_cache": self.prefix_cache is not None and (drawn or not recorded),
            "cached tokens of the trace": recorded,
        }
        given = [name for name, is_told in told.items() if is_told]
        if len(given) > 1:
            raise WorkloadError(
                "hits of the prefix cache are told twice", given=given, allowed="one; a trace's with system_tokens"
            )

    @property
    def hits_by_request(self) -> bool:
        """True if requests differ in what they find in the prefix cache, or share some of it."""
        return self.prefix_cache is not None or (isinstance(self.arrivals, TraceArrivals) and bool(self.arrivals.cached_tokens))

    def without_prefix_cache(self) -> ServingWorkload:
        """The workload whose prompts find nothing in the prefix cache."""
        arrivals = replace(self.arrivals, cached_tokens=()) if isinstance(self.arrivals, TraceArrivals) else self.arrivals
        return replace(self, arrivals=arrivals, prefix_cache=None, prefix_hit_ratio=0.0)

    @property
    def weight_format(self) -> WeightFormat:
        """The stored format of quantised weights: as named, else the first format of the precision."""
        return self.weights or WEIGHT_FORMATS[self.precision][0]


Workload = TrainingWorkload | ServingWorkload


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objective; what is left out is not promised.

    ``confidence`` is the chance with which each target is to hold on the real machines, given the error that predictions of
    its kind have had; at 0.5 the prediction itself decides.
    """

    __pydantic_config__ = STRICT_RECORD

    min_tokens_per_s: PositiveFloat | None = None
    max_step_time_s: PositiveFloat | None = None
    max_cost_per_million_tokens: PositiveFloat | None = None
    p95_ttft_ms: PositiveFloat | None = None
    p95_tpot_ms: PositiveFloat | None = None
    confidence: Confidence = DEFAULT_CONFIDENCE


@dataclass(frozen=True)
class TrainingRequest:
    """Everything a training plan depends on, references resolved.

    calibrations   measured ones that devices of the cluster name; those that are shipped need no entry

    Equal layers of the model are told apart where the search has several kinds of them.
    """

    model: ModelGraph
    cluster: Cluster
    workload: TrainingWorkload
    slo: Slo = field(default_factory=Slo)
    objective: Objective = Objective.THROUGHPUT
    search: Search = field(default_factory=Search)
    calibrations: tuple[Calibration, ...] = ()

    def __post_init__(self) -> None:
        positions = self.model.dims.get(POSITIONS)
        if positions is not None and self.workload.seq_len > positions:
            raise WorkloadError(
                "the sequence is longer than the model has position embeddings",
                given=self.workload.seq_len,
                allowed=f"at most {positions}",
            )
        _require_adapted(self.model, self.workload)
        object.__setattr__(self, "model", with_layer_kinds(self.model, self.search.layer_kinds))
        require_satisfiable(self.search.constraints, self.model)
        _require_targets_of(self.slo, self.workload)
        if self.slo.max_cost_per_million_tokens is not None and not self.cluster.price_per_hour:
            raise WorkloadError(
                "a limit of cost needs a price of every device",
                given=", ".join(group.node.device.name for group in self.cluster.groups),
                remedy="describe the node inline with device.price_per_hour, or leave slo.max_cost_per_million_tokens out",
            )

    @property
    def longest_steps_s(self) -> dict[str, float]:
        """Longest step that each target allows, by its name in an SLO: on all devices, where it limits their cost."""
        tokens, slo = self.workload.global_batch * self.workload.seq_len, self.slo
        limits: dict[str, float] = {}
        if slo.max_step_time_s is not None:
            limits["max_step_time_s"] = slo.max_step_time_s
        if slo.min_tokens_per_s is not None:
            limits["min_tokens_per_s"] = tokens / slo.min_tokens_per_s
        price = self.cluster.price_per_hour
        if slo.max_cost_per_million_tokens is not None and price:
            limits[COST_TARGET] = slo.max_cost_per_million_tokens * (tokens / 1e6) / (price / 3600.0)
        return limits

    @property
    def usd_per_million_tokens_of_a_second(self) -> float | None:
        """Return what each second of a step adds to the cost of a million tokens, on all devices; None without prices."""
        tokens, price = self.workload.global_batch * self.workload.seq_len, self.cluster.price_per_hour
        return price / 3600.0 / (tokens / 1e6) if price else None

    @property
    def longest_step_s(self) -> float:
        """Longest step that the targets allow; infinite without any."""
        return min(self.longest_steps_s.values(), default=math.inf)


@dataclass(frozen=True)
class ServingRequest:
    """Everything a serving plan depends on, references resolved.

    calibrations   measured ones that devices of the cluster name; those that are shipped need no entry
    """

    model: ModelGraph
    cluster: Cluster
    workload: ServingWorkload
    slo: Slo = field(default_factory=Slo)
    objective: Objective = Objective.THROUGHPUT
    search: Search = field(default_factory=Search)
    calibrations: tuple[Calibration, ...] = ()

    def __post_init__(self) -> None:
        _require_targets_of(self.slo, self.workload)

    @property
    def longest_steps_s(self) -> dict[str, float]:
        """None: no target of serving is one of a step."""
        return {}


PlanRequest = TrainingRequest | ServingRequest

Asked = TypeVar("Asked", bound=PlanRequest)

REQUESTS: Mapping[str, type[PlanRequest]] = {"training": TrainingRequest, "serving": ServingRequest}
"""The request of each kind of workload."""


def plan_request(
    model: ModelGraph,
    cluster: Cluster,
    workload: Workload,
    *,
    slo: Slo,
    objective: Objective,
    search: Search,
    calibrations: tuple[Calibration, ...] = (),
) -> PlanRequest:
    """Return the request of a workload, of its kind. Raises WorkloadError for parts that do not go together."""
    request: Callable[..., PlanRequest] = REQUESTS[workload.kind]
    return request(model, cluster, workload, slo, objective, search, calibrations)


_TARGETS = {
    "training": ("min_tokens_per_s", "max_step_time_s", "max_cost_per_million_tokens"),
    "serving": ("p95_ttft_ms", "p95_tpot_ms"),
}
"""Fields of an SLO that go with each kind of workload."""


def _require_targets_of(slo: Slo, workload: Workload) -> None:
    allowed = _TARGETS[workload.kind]
    others = [each.name for each in fields(slo) if each.name not in (*allowed, "confidence")]
    given = [name for name in others if getattr(slo, name) is not None]
    if given:
        raise WorkloadError(f"SLO fields do not go with a {workload.kind} workload", given=given, allowed=", ".join(allowed))


def _require_adapted(model: ModelGraph, workload: TrainingWorkload) -> None:
    adapter = workload.adapter
    if adapter is None:
        return
    if EXPERTS in model.dims and not (set(adapter.targets) <= ATTENTION and adapter.base_format is BaseFormat.WORKING):
        raise WorkloadError(
            "adapters beside routed experts, and packed weights of theirs, are not planned",
            given={"model": model.name, "targets": [each.value for each in adapter.targets], "base": adapter.base_format.value},
            allowed="targets: [q_proj, k_proj, v_proj, o_proj], base_format: working; or a dense model",
        )
    if not any(adapter.sides(operator, model.dims) for block in model.blocks for operator in block.operators):
        raise WorkloadError(
            "the model has none of the adapter's targets",
            given=[target.value for target in adapter.targets],
            allowed="projections that the model has",
        )
    for name, given, allowed in (
        ("optimizer", workload.optimizer, Optimizer.ADAMW),
        ("matmul", workload.matmul, MatmulRecipe.WORKING),
        ("saved_activations", workload.saved_activations, SavedFormat.WORKING),
    ):
        if given is not allowed:
            raise WorkloadError(f"{name} can't be used beside an adapter", given=given.value, allowed=allowed.value)


def _require_one_of(field_name: str, value: DType, allowed: tuple[DType, ...]) -> None:
    if value not in allowed:
        raise WorkloadError(
            f"{field_name} can't be used here", given=value.value, allowed=", ".join(dtype.value for dtype in allowed)
        )
