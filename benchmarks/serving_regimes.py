"""Points in the regimes in which predictions err differently: phases, drafts, what a row states, load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from meshwright.app.evidence.serving.deployment import Deployment, Drafts
from meshwright.app.evidence.serving.rows import MeasuredPoint

FEW_CLIENTS, SOME_CLIENTS = 8, 64
"""Clients of a replica up to which its load is low, and up to which it is medium."""

_DIGITS = 4


class ServingLoad(StrEnum):
    """Clients of a replica that decodes: up to 8, up to 64, more, or every request queued at the start."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Regime:
    """The kind of a point. ``stated`` says that its row leaves neither degrees, workers nor drafts open."""

    pools: bool
    drafts: Drafts
    stated: bool
    load: ServingLoad


def regime(deployed: Deployment) -> Regime:
    """Return the regime of a row that can be predicted."""
    return Regime(
        pools=deployed.prefill is not None,
        drafts=deployed.drafts,
        stated=deployed.stated and deployed.drafts is not Drafts.UNKNOWN,
        load=_load(deployed),
    )


def _load(deployed: Deployment) -> ServingLoad:
    if deployed.clients is None:
        return ServingLoad.FULL
    each = deployed.clients / deployed.decode.count
    if each <= FEW_CLIENTS:
        return ServingLoad.LOW
    return ServingLoad.MEDIUM if each <= SOME_CLIENTS else ServingLoad.HIGH


def without_copies(points: Iterable[MeasuredPoint]) -> list[MeasuredPoint]:
    """The points with copies of one measurement counted once: same lengths, clients and devices, and figures equal to four
    digits. The first one stays."""
    kept: dict[tuple[object, ...], MeasuredPoint] = {}
    for point in points:
        run, outcome = point.run, point.outcome
        measured = (outcome.ttft_ms, outcome.tpot_ms, outcome.output_tokens_per_s)
        asked = (run.prompt_tokens, run.output_tokens, run.concurrency, run.gpu.casefold(), run.engine)
        kept.setdefault((*asked, *(_rounded(figure) for figure in measured)), point)
    return list(kept.values())


def _rounded(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.{_DIGITS}g}"
