"""Why a request has no candidate at all: its own restrictions leave none, or nothing divides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.training.space.candidates import families


def no_candidate(request: TrainingRequest) -> Reason:
    """The restrictions that leave nothing, with those whose lifting alone would do; else what does not divide."""
    restricting = _restrictions(request.search)
    if restricting and _has_candidates(request, lifted=restricting):
        return _restricted_away(request, restricting)
    return _undivided(request, restricting)


def _restricted_away(request: TrainingRequest, restricting: Sequence[str]) -> Reason:
    named = f"search.{', search.'.join(restricting)}"
    enough = [f"search.{option}" for option in restricting if _has_candidates(request, lifted=(option,))]
    message = f"{named} leave no candidate for {request.cluster.n_devices} devices, whatever memory and time it takes"
    if len(restricting) == 1:
        message = message.replace(" leave ", " leaves ")
    elif enough:
        message += f"; without {' or without '.join(enough)} there are some"
    return Reason(
        constraint="search.restrictions",
        need=1.0,
        have=0.0,
        unit="candidates",
        message=message,
        remedies=tuple(f"lift {option}, or allow more values" for option in enough) or (f"lift several of {named}",),
    )


def _undivided(request: TrainingRequest, restricting: Sequence[str]) -> Reason:
    workload, n_devices = request.workload, request.cluster.n_devices
    message = (
        f"no allowed split of {n_devices} devices into dp x tp x cp x pp divides the global batch of "
        f"{workload.global_batch}, the sequence of {workload.seq_len} and the model's heads, feed-forward and vocabulary "
        f"sizes evenly, with tp inside a node and at most {len(request.model.layers)} stages"
    )
    if workload.documents is not None:
        message += "; ranks that share a sequence of packed documents exchange heads (ulysses), since rings share them unevenly"
    if restricting:
        message += f"; the request restricts search.{', search.'.join(restricting)}"
    dp_limit = max((family.mesh.dp for family in families(request)), default=workload.global_batch)
    return Reason(
        constraint="divisibility",
        need=float(n_devices),
        have=float(min(dp_limit, n_devices - 1)),
        unit="devices",
        message=message,
        remedies=(
            "choose a global batch with more divisors, or a number of devices that divides it",
            "lift restrictions in 'search', if there are any",
        ),
    )


def _has_candidates(request: TrainingRequest, *, lifted: Sequence[str]) -> bool:
    defaults: dict[str, Any] = {option.name: option.default for option in fields(Search) if option.name in lifted}
    return next(families(replace(request, search=replace(request.search, **defaults))), None) is not None


def _restrictions(search: Search) -> list[str]:
    """Options of the search that name what is allowed."""
    named = ((option, getattr(search, option.name)) for option in fields(search))
    return [option.name for option, value in named if isinstance(value, tuple) and value != option.default]
