"""Figures of a plan: what is predicted, with which error, and how far from optimal it can be; or why there is no plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from meshwright.costmodels.units import STRICT_RECORD, Joules, PerMillionTokens, PerSecond, Seconds, ShareOfPeak
from meshwright.solver.problem.choices import OperatorSolver

UNFINISHED_SEARCH = "search"
"""Constraint of the reason of a search that was stopped before it found a plan or proved that there is none."""


SECONDS = "s"
USD_PER_MILLION_TOKENS = "USD per million tokens"
"""Units of reasons that a target of time and one of cost is broken."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a request is infeasible: the tightest constraint, in numbers, and what would help."""

    __pydantic_config__ = STRICT_RECORD

    constraint: str
    need: float
    have: float
    unit: str
    message: str
    stage: int | None = None
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change of the request, and what its plan was found to reach.

    change    in words
    set       fields of the resolved request by dotted path, and their new values as JSON
    reaches   figures of the plan that was found, in words
    objective, unit   of that plan; running the changed request finds one that is no worse
    """

    __pydantic_config__ = STRICT_RECORD

    change: str
    set: Mapping[str, str]
    reaches: str
    objective: float
    unit: str

    @property
    def in_words(self) -> str:
        """The change and what its plan reaches."""
        return f"{self.change}: {self.reaches}"


def unfinished_search(considered: int, *, looked_for: str, remedies: tuple[str, ...]) -> Reason:
    """The reason of a search that was stopped after ``considered`` candidates with its question open."""
    return Reason(
        constraint=UNFINISHED_SEARCH,
        need=float(considered + 1),
        have=float(considered),
        unit="candidates",
        message=(
            f"undecided: the limit was reached after {considered:,} candidates, and the search has not found {looked_for} yet; "
            "whether there is one is not known"
        ),
        remedies=remedies,
    )


class Status(StrEnum):
    """The claim of a certificate."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNDECIDED = "undecided"
    """Nothing: the search was stopped before it found a plan or proved that there is none."""


def status_without_plan(reason: Reason) -> Status:
    """Return the claim of an answer without a plan: that nothing fits, or, of a search that was stopped, nothing at all."""
    return Status.UNDECIDED if reason.constraint == UNFINISHED_SEARCH else Status.INFEASIBLE


GIVEN_PLAN = "a given plan: no search was made"
"""The space of a certificate that speaks of one given plan alone."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The distance from optimal that the plan can have.

    ``bound`` is a proven lower bound on the predicted objective of every plan in ``space`` under the cost model; it says
    nothing of the cost model's own error, which stands in ``Predicted.bands``. ``objective`` and ``bound`` are in ``unit``,
    smaller is better. For an infeasible request both are None. ``operator_solvers`` are those that proved which shardings of
    operators are worth trying, none where each operator has one.
    """

    __pydantic_config__ = STRICT_RECORD

    status: Status
    objective: float | None
    bound: float | None
    gap: float | None
    unit: str
    space: str
    operator_solvers: tuple[OperatorSolver, ...] = ()


@dataclass(frozen=True, slots=True)
class Band:
    """Where a predicted figure is expected to fall: the relative error of the calibration behind it, and what that is."""

    __pydantic_config__ = STRICT_RECORD

    low: float
    high: float
    basis: str


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted figures; those that do not go with the workload are None.

    ``peak_memory_bytes`` is the median of the fullest device, ``peak_memory_p95_bytes`` what it exceeds in one run of twenty,
    ``chance_out_of_memory`` the chance that a device exceeds what it has beside the user's reserve. ``ttft_p95_s`` and
    ``tpot_p95_s`` are medians of measured 95th percentiles, ``..._promised_s`` what those stay below with the confidence of the
    SLO, ``chance_..._missed`` the chance that they are above its targets.
    """

    __pydantic_config__ = STRICT_RECORD

    tokens_per_s: PerSecond
    peak_memory_bytes: float
    step_time_s: Seconds | None = None
    mfu: ShareOfPeak | None = None
    ttft_p95_s: Seconds | None = None
    tpot_p95_s: Seconds | None = None
    cost_per_million_tokens: PerMillionTokens | None = None
    energy_per_step_j: Joules | None = None
    energy_per_token_j: Joules | None = None
    power_w: float | None = None
    peak_memory_p95_bytes: float | None = None
    chance_out_of_memory: float | None = None
    ttft_promised_s: Seconds | None = None
    tpot_promised_s: Seconds | None = None
    chance_ttft_missed: float | None = None
    chance_tpot_missed: float | None = None
    bands: Mapping[str, Band] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Where the time of a step goes, in seconds, on the slowest stage's path; the parts add up to the step time."""

    __pydantic_config__ = STRICT_RECORD

    compute_s: Seconds
    recompute_s: Seconds
    tp_comm_s: Seconds
    cp_comm_s: Seconds
    pp_comm_s: Seconds
    dp_comm_s: Seconds
    bubble_s: Seconds
    optimizer_s: Seconds
    ep_comm_s: Seconds = 0.0
    offload_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """A plan that lost: its axes, its objective (None when it does not fit at all), and why it lost."""

    __pydantic_config__ = STRICT_RECORD

    summary: str
    objective: float | None
    why_not: str


@dataclass(frozen=True, slots=True)
class AlsoTry:
    """A plan that is as good as the answer, as far as predictions can tell.

    step_time_s, chance_out_of_memory   of training plans
    objective, chance_missed            of serving plans: the figure of its certificate, and the chance that a target is missed,
                                        None without targets
    differs                             where it spends its time, and what it risks, unlike the answer
    """

    __pydantic_config__ = STRICT_RECORD

    summary: str
    step_time_s: Seconds | None
    peak_memory_bytes: float
    chance_out_of_memory: float | None
    differs: str
    objective: float | None = None
    chance_missed: float | None = None


@dataclass(frozen=True, slots=True)
class Equals:
    """The plans that ranking can't tell from the answer, those that differ in the micro-batch or in batch limits alone counted
    as one.

    within       how much worse than the answer they are predicted, at most, as a share of what it is ranked by
    count        how many were found, the answer among them
    all_found    False where the search ended before it had looked for all: there may be more
    also_try     those of them that differ most in what is uncertain
    basis        where the share comes from
    plainest     the one of them that needs the fewest mechanisms of its launcher; None where that is the answer itself
    """

    __pydantic_config__ = STRICT_RECORD

    within: float
    count: int
    all_found: bool
    also_try: tuple[AlsoTry, ...]
    basis: str
    plainest: AlsoTry | None = None


@dataclass(frozen=True, slots=True)
class CalibrationUse:
    """The calibration that a prediction rests on, and its measured error (relative, held-out rows)."""

    __pydantic_config__ = STRICT_RECORD

    id: str
    device: str
    median_error: float
    p95_error: float
    basis: str


@dataclass(frozen=True, slots=True)
class SearchStats:
    """The work of a search. ``candidates`` is deterministic; ``seconds`` is CPU time and is not."""

    __pydantic_config__ = STRICT_RECORD

    candidates: int
    evaluated: int
    seconds: float
