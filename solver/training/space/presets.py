"""The spaces of published planners, in this solver's terms: what each of them can choose, and nothing else.

Every preset is a part of the full space, so the full space is never worse. Only the space is a planner's: costs, exactness
and memory limits are ours. What a planner leaves to its user (recompute in Alpa) is open in its preset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.solver.problem.choice import LedgerEntry, Published
from meshwright.solver.problem.choices import Recompute, System
from meshwright.solver.problem.search import LEDGER, Search

T = TypeVar("T")
_WHOLE_LAYERS = (Recompute.NONE, Recompute.FULL)


@dataclass(frozen=True, slots=True)
class Preset:
    """The space of a planner beside dp, tp, pp and micro-batches; none of them has cp, ep, virtual stages or chunked products.

    zero_stages         state sharding
    recompute           activation recomputation
    uneven_stages       whether stages may differ in their number of layers by more than the ends of the model ask for
    sequence_parallel   whether norms are sharded over the sequence beside tp
    """

    zero_stages: tuple[int, ...] = (0,)
    recompute: tuple[Recompute, ...] = (Recompute.NONE,)
    uneven_stages: bool = True
    sequence_parallel: bool = False

    def restrict(self, search: Search, own: Optimizer) -> Search:
        """Return the part of a search's space that the planner has, of a workload with its ``own`` optimizer.

        Raises WorkloadError where nothing is left.
        """
        had = {name: self._has(entry, own) for name, entry in LEDGER.items()}
        left: dict[str, Any] = {
            name: _both(name, getattr(search, name), values) for name, values in had.items() if values is not None
        }
        return replace(search, **left)

    def _has(self, entry: LedgerEntry, own: Optimizer) -> tuple[Any, ...] | None:
        """The values of a choice that the planner searches; None where it takes what is asked for."""
        match entry.choice.published:
            case Published.AS_ASKED:
                return None
            case Published.BY_PRESET:
                values: tuple[Any, ...] = getattr(self, entry.name)
                return values
            case Published.OWN:
                return (own,)
            case values:
                return values


PRESETS = {
    # NeurIPS'21: dp, tp and recomputation of whole layers by dynamic programming over uneven stages.
    System.PIPER: Preset(recompute=_WHOLE_LAYERS),
    # OSDI'22: uneven stages, and operators sharded over dp and tp, weight updates too (its section 4.2, as ZeRO 2 and 3);
    # recomputation is the user's.
    System.ALPA: Preset(zero_stages=(0, 2, 3), recompute=_WHOLE_LAYERS),
    # VLDB'22, and TKDE'24 (BMW) for recomputation: equal stages, dp or fully sharded dp.
    System.GALVATRON: Preset(zero_stages=(0, 3), recompute=_WHOLE_LAYERS, uneven_stages=False),
    # NeurIPS'22: degrees and uneven stages on unequal devices; no state sharding, no recomputation.
    System.AMP: Preset(),
    # ICPP'23 and its auto-parallel: sharding conversion and activation checkpoints, sequence parallelism, equal stages.
    System.COLOSSAL_AI: Preset(recompute=_WHOLE_LAYERS, uneven_stages=False, sequence_parallel=True),
    # TPDS'23: equal shards of the graph in 3D parallelism, with recomputation.
    System.MERAK: Preset(recompute=_WHOLE_LAYERS, uneven_stages=False),
    # ATC'24: uneven stages on unequal devices; no state sharding, no recomputation.
    System.METIS: Preset(),
    # EuroSys'25: ZeRO and recomputation of whole layers with uneven stages, tuned together.
    System.MIST: Preset(zero_stages=(0, 1, 2, 3), recompute=_WHOLE_LAYERS, sequence_parallel=True),
    # EuroSys'24: uneven stages, degrees and recomputation by operator, improved bottleneck by bottleneck.
    System.ACESO: Preset(recompute=tuple(Recompute)),
    # OSDI'24: plans under constraints of the user; uneven stages, recomputation, optimizer state sharding.
    System.NNSCALER: Preset(zero_stages=(0, 1), recompute=_WHOLE_LAYERS),
}


def preset_of(search: Search) -> Preset | None:
    """The preset that a search is limited to; None for the full space."""
    return None if search.system is None else PRESETS[search.system]


def _both(name: str, asked: Sequence[T], had: tuple[T, ...]) -> tuple[T, ...]:
    """Values that the request allows and the planner has; an empty request allows all."""
    left = tuple(value for value in had if not asked or value in asked)
    if not left:
        raise WorkloadError(
            f"search.{name} leaves nothing of the system's space",
            given=", ".join(map(str, asked)),
            allowed=", ".join(map(str, had)),
        )
    return left
