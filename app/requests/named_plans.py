"""A plan by the name that another plan's answer gives it: runners-up, plans of the frontier, equal plans.

Names are written by `solver.training.space.candidates` (``dp 2, tp 1, pp 4, cp 1, micro-batch 1, ZeRO-1, recompute none``)
and by the layouts of serving engines (``2 replicas of tp 8 x pp 2``). What a name says restricts the search of the request;
what it leaves out is searched. Names of forms that one restriction can't say (pools, kinds of workers, parts of the cluster)
are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.carried_choices import OF_MESHES, StageChoices
from meshwright.solver.problem.choices import BatchShares, Recompute, StageDegrees
from meshwright.solver.problem.declared.recompute_modules import read_mode
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.problem.search import Search

_TRAINING = re.compile(r"dp (?P<dp>\d+), tp (?P<tp>\d+), pp (?P<pp>\d+), cp (?P<cp>\d+), (?P<rest>.*)", re.DOTALL)
_SERVING = re.compile(r"(?:(?P<dp>\d+) replicas? of )?(?P<layout>tp \d+(?: x [a-z ]+ \d+)*)")
_ZERO = re.compile(r"ZeRO-(\d)(?: within (\d+) ranks)?")
_SCHEDULE = re.compile(r"(?P<name>[a-z0-9-]+)(?: x (?P<chunks>\d+))?(?: x (?P<slices>\d+) slices)?")
_SERVING_DEGREES = ("tp", "kvp", "cp", "attention_dp", "ep", "pp")


def names_of(plan: Plan) -> Iterator[str]:
    """The names under which a plan's answer speaks of other plans."""
    yield from (each.summary for each in plan.runners_up)
    yield from (each.summary for each in plan.frontier)
    if plan.equals is not None:
        yield from (each.summary for each in plan.equals.also_try)
        if plan.equals.plainest is not None:
            yield plan.equals.plainest.summary


def request_of_name(request: PlanRequest, name: str) -> PlanRequest | None:
    """Return the request whose search holds what a name says and nothing beside it; None of a name that can't be read so."""
    try:
        found = _READ[request.workload.kind](request.search, name)
        return None if found is None else replace(request, search=found)
    except (ValueError, InvalidInputError):
        # A number or a word that no search has.
        return None


def _trained(search: Search, name: str) -> Search | None:
    found = _TRAINING.fullmatch(name)
    if found is None:
        return None
    degrees: dict[str, Any] = {axis: (int(found[axis]),) for axis in ("dp", "tp", "pp", "cp")}
    one_form = replace(search, **degrees, ep=(1,), batch_shares=BatchShares.EVEN, stage_degrees=StageDegrees.SAME)
    one_form = replace(one_form, schedules=(Schedule.ONE_F_ONE_B,))
    parts = found["rest"].split(", ")
    for part in parts:
        one_form = _with_part(one_form, part)
    # What a name does not say of its mesh is as usual.
    of_mesh: dict[str, Any] = {
        name: tuple(value for value, words in choice.words.items() if words in parts) or (choice.usual,)
        for name, choice in OF_MESHES.items()
    }
    return replace(one_form, **of_mesh)


def _with_part(search: Search, part: str) -> Search:
    """The search restricted by one part of a name. Parts that no restriction says follow from the others."""
    kind, _, number = part.rpartition(" ")
    if kind in ("ep", "ulysses"):
        degree: dict[str, Any] = {kind: (int(number),)}
        return replace(search, **degree)
    if kind == "micro-batch":
        return replace(search, microbatch=(int(number),))
    zero = _ZERO.fullmatch(part)
    if zero is not None:
        shard_ranks = () if zero[2] is None else (int(zero[2]),)
        return replace(search, zero_stages=(int(zero[1]),), shard_ranks=shard_ranks or search.shard_ranks)
    of_stages = StageChoices.of_words(part)
    if of_stages is not None:
        return of_stages.restricted(replace(search, recompute=(Recompute.FULL,)))
    if part.startswith("recompute "):
        modes = [read_mode(words) for words in part.removeprefix("recompute ").split("/")]
        sets = tuple(modules for _, modules in modes if modules is not None)
        return replace(search, recompute=tuple(mode for mode, _ in modes), recompute_modules=sets or search.recompute_modules)
    schedule = _SCHEDULE.fullmatch(part)
    if schedule is not None and schedule["name"] in set(Schedule):
        chunks = () if schedule["chunks"] is None else (int(schedule["chunks"]),)
        slices = () if schedule["slices"] is None else (int(schedule["slices"]),)
        return replace(
            search,
            schedules=(Schedule(schedule["name"]),),
            virtual_stages=chunks or search.virtual_stages,
            token_slices=slices or search.token_slices,
        )
    return search


def _served(search: Search, name: str) -> Search | None:
    found = _SERVING.fullmatch(name)
    if found is None:
        return None
    degrees: dict[str, Any] = dict.fromkeys(_SERVING_DEGREES, (1,))
    for part in found["layout"].split(" x "):
        axis, _, degree = part.rpartition(" ")
        degrees[axis.replace(" ", "_")] = (int(degree),)
    if degrees.keys() != set(_SERVING_DEGREES):
        return None
    return replace(search, **degrees, dp=search.dp if found["dp"] is None else (int(found["dp"]),), worker_kinds=1)


_READ: Mapping[str, Callable[[Search, str], Search | None]] = {"training": _trained, "serving": _served}
"""What reads the names of plans of each kind of workload."""
