"""The facts about a search choice, for all who search, limit, print, lock, launch or draw it.

The choices that a candidate's mesh has beside its degrees are a kind of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints

from meshwright.solver.problem.choices import Launcher


class Form(Enum):
    """The forms of a plan (`solver.answer.layouts`)."""

    UNIFORM = "uniform"
    BY_GROUP = "by group"
    STAGEWISE = "stagewise"
    REPLICAS = "replicas"
    POOLS = "pools"
    SWITCHED = "switched"
    KINDS = "kinds"


TRAINING = frozenset({Form.UNIFORM, Form.BY_GROUP, Form.STAGEWISE})
SERVING = frozenset({Form.REPLICAS, Form.POOLS, Form.SWITCHED, Form.KINDS})
EVERY_FORM = TRAINING | SERVING


class Launched(Enum):
    """The launchers that can start plans of more than one value of a choice."""

    BY_EVERY = "every launcher of such plans"
    BY_RULES = "those whose own modules say so (`solver.problem.launchers`)"
    BY_NONE = "none: plans of the free space, or of engines without a launcher"
    NOT_OF_A_PLAN = "no plan has it"


class Part(Enum):
    """Parts of a plan's layout that hold choices."""

    FORM = "which form it is"
    AXES = "degrees of the mesh"
    STAGES = "stages"
    PIPELINES = "pipelines"
    PLACEMENT = "where ranks lie, and whose states they hold"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a choice stands in a layout: a path of fields in each part of a kind; ``counted`` where the choice is how many
    entries stand there, one where there are none."""

    part: Part
    path: str = ""
    counted: bool = False


class Unnamed(Enum):
    """The values that a request allows which does not name a choice."""

    ANY = "all that the form and the launcher have"
    DEFAULT = "the default alone"
    OWN = "what the workload has, alone"


class Published(Enum):
    """The values of a choice that published planners search, where it is not the same few values for all of them."""

    AS_ASKED = "what the request asks for"
    BY_PRESET = "what each planner's preset says"
    OWN = "what the workload has, alone"


class Said(Enum):
    """The words of a certificate on what a request restricts or opens."""

    LISTED = "in the list of restrictions, by its word"
    BY_FORM = "in the words of the form, order or engine that it opens"
    NOT_OF_THE_SPACE = "not at all: it restricts no plan"


class LockPlace(Enum):
    """Where the structure of a locked plan shows a choice."""

    AXES = "axes"
    SCHEDULE = "schedule"
    MICROBATCH = "microbatch"
    STAGES = "stages"
    TP_OVERLAP = "tp_overlap"
    PREFILL = "prefill"
    WORKER_KINDS = "worker_kinds"
    GROUPS = "groups"
    CHOICES = "choices"
    NOT_OF_A_PLAN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The facts about a field of `Search` beside its type, bounds and default. Nothing has a default here: all is to be said.

    word        its name in certificates and locks
    forms       forms of plans that have it
    launched    which launchers can start plans of more than one value of it
    place       where it stands in a plan's layout, None for what decides of no layout
    unnamed     what a request that does not name it allows
    published   what published planners search of it: a few values for all of them, or who says
    said        how a certificate says what a request restricts
    lock        where the structure of a locked plan shows it
    at_most     the highest number that a request may give, None for no number and for those without a limit of their own
    """

    word: str
    forms: frozenset[Form]
    launched: Launched
    place: Place | None
    unnamed: Unnamed
    published: Published | tuple[Any, ...]
    said: Said
    lock: LockPlace
    at_most: float | None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A choice in the ledger: the field of `Search` that it is, its default, and what it says of itself."""

    name: str
    default: Any
    choice: Choice

    @property
    def lists(self) -> bool:
        """True if a request lists allowed values, rather than naming one."""
        return isinstance(self.default, tuple)


def ledger_of(record: type[Any]) -> Mapping[str, LedgerEntry]:
    """The entries of a record's fields, in order; raises TypeError for a field that says nothing, or what can't be."""
    hints = get_type_hints(record, include_extras=True)
    found: dict[str, LedgerEntry] = {}
    for each in fields(record):
        said = [item for item in _annotations(hints[each.name]) if isinstance(item, Choice)]
        if len(said) != 1:
            raise TypeError(f"{record.__name__}.{each.name} says what it is {len(said)} times: annotate it with one Choice")
        entry = LedgerEntry(each.name, each.default, said[0])
        _require_sense(entry)
        found[each.name] = entry
    return MappingProxyType(found)


def _annotations(hint: object) -> tuple[object, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _require_sense(entry: LedgerEntry) -> None:
    """Raise TypeError where two things that a choice says do not go together."""
    name, choice = entry.name, entry.choice
    faults = {
        "its word is empty": not choice.word,
        "no form has it": not choice.forms,
        "it stands in a plan, but no lock shows it": choice.place is not None and choice.lock is LockPlace.NOT_OF_A_PLAN,
        "launchers have it or have it not, but it stands in no plan": (choice.launched is Launched.NOT_OF_A_PLAN)
        != (choice.place is None),
        "a lock shows what stands in no plan": choice.place is None and choice.lock is not LockPlace.NOT_OF_A_PLAN,
        "it restricts plans, but no certificate says so": choice.place is not None and choice.said is Said.NOT_OF_THE_SPACE,
        "only values that a request names can be listed": choice.said is Said.LISTED and not entry.lists,
        "only values that a request names can be limited to a few": isinstance(choice.published, tuple) and not entry.lists,
    }
    broken = [fault for fault, is_broken in faults.items() if is_broken]
    if broken:
        raise TypeError(f"the choice {name} can't be used: {'; '.join(broken)}")


class Degrees(Protocol):
    """The degrees of a mesh by which its choices differ."""

    @property
    def dp(self) -> int:
        """Replicas."""

    @property
    def pp(self) -> int:
        """Stages."""

    @property
    def cp(self) -> int:
        """Ranks of a sequence."""

    @property
    def ulysses(self) -> int:
        """Those of them that exchange tokens for heads."""


class RankedDegrees(Degrees, Protocol):
    """The same, and how many of the mesh's ranks hold the same experts."""

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlikeStages:
    """Why stages that differ have the usual value of a choice alone: for those who ask for another, or give a plan of it."""

    asked: str
    given: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshChoice(Choice):
    """A choice of one of a few values, the usual one first.

    values         in order of preference among equals
    is_open        whether plans of such degrees differ by value; where they do not, they have the usual one
    launched_by    the values that a launcher can start on a mesh
    words          of values in the name of a candidate; those of the usual one are left out
    mechanisms     what must be set up for a value, in words
    unlike_stages  why stages that differ have the usual value alone
    """

    values: type[StrEnum]
    is_open: Callable[[Degrees], bool]
    launched_by: Callable[[Launcher, RankedDegrees], Collection[Any]]
    words: Mapping[Any, str]
    mechanisms: Mapping[Any, str]
    unlike_stages: UnlikeStages

    @property
    def usual(self) -> Any:
        """The value of plans that say nothing."""
        return next(iter(self.values))

    @property
    def unnamed_values(self) -> tuple[Any, ...]:
        """The values of a request that names none."""
        return tuple(self.values) if self.unnamed is Unnamed.ANY else (self.usual,)
