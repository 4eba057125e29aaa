"""Searches of wide spaces on real clusters: the best plan, the gap and the memory after 10 s, 30 s and at the end.

Run from the root of the repository: python -m benchmarks.wide_search [--only NAME] [--limit-s S]

Each request is planned in a process of its own, under its own limit in CPU seconds of one core, after a small search that
compiles the kernels. The launchable plan that it must not lose to is planned first, by a process of its own too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from benchmarks.full_search import request
from meshwright.app.models.catalog import model
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import Progress, never_stop
from meshwright.solver.problem.choices import BatchShares, GroupOrder, Space, StageDegrees, TpOverlap
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training

MOMENTS_S = (10.0, 30.0)
"""CPU seconds after which a search is looked at, beside its end."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request of a wide space with its limit in CPU seconds and the gap that it should reach by then."""

    name: str
    request: TrainingRequest
    limit_s: float
    target_gap: float


def cases() -> Iterator[Case]:
    """The seven requests, smallest first."""
    llama_8b, llama_70b, llama_405b = model("llama-3.1-8b"), model("llama-3.1-70b"), model("llama-3.1-405b")
    unlike_nodes = [("dgx-h100", 1), ("dgx-a100", 1)]
    mixed = [("dgx-h100", 16), ("dgx-a100", 16)]
    free = Search(space=Space.FREE)
    unlike = Search(space=Space.FREE, stage_degrees=StageDegrees.ANY, schedules=(Schedule.ONE_F_ONE_B,))
    # Stages that differ and chunked products are not searched together: all else that may be open at once is.
    everything = Search(
        space=Space.FREE,
        stage_degrees=StageDegrees.ANY,
        batch_shares=BatchShares.BY_GROUP,
        group_order=GroupOrder.ANY,
        offload_optimizer=(0.0, 0.5, 1.0),
        offload_activations=(0.0, 0.5),
        tp_overlap=(TpOverlap.EXPOSED,),
    )
    yield _case("8B, 8 H100 + 8 A100, free", request(llama_8b, unlike_nodes, 64, 8192), free, 45.0, 0.0)
    yield _case("70B, 64 H100, free", request(llama_70b, [("dgx-h100", 8)], 512, 8192), free, 20.0, 0.0)
    yield _case("70B, 256 H100, free", request(llama_70b, [("dgx-h100", 32)], 512, 8192), free, 30.0, 0.0)
    yield _case("405B, 1,024 H100, free", request(llama_405b, [("dgx-h100", 128)], 1024, 8192), free, 60.0, 0.01)
    yield _case("70B, 128 H100 + 128 A100, free", request(llama_70b, mixed, 512, 8192), free, 60.0, 0.02)
    yield _case("the same, stages that differ", request(llama_70b, mixed, 512, 8192), unlike, 60.0, 0.02)
    yield _case("the same, everything open", request(llama_70b, mixed, 512, 8192), everything, 120.0, 0.03)


def _case(name: str, asked: TrainingRequest, search: Search, limit_s: float, target_gap: float) -> Case:
    return Case(name, replace(asked, search=search), limit_s, target_gap)


@dataclass(slots=True)
class CpuLimit:
    """Ends a search at a moment of this process's CPU time, so that other load changes nothing.

    One thread takes no more CPU time than passes: the kernel, which takes its time, need not be asked before that has passed.
    """

    deadline_s: float
    not_before_s: float = 0.0

    def __call__(self) -> bool:
        """Return True if the moment has come."""
        now_s = time.monotonic()
        if now_s < self.not_before_s:
            return False
        left_s = self.deadline_s - time.process_time()
        self.not_before_s = now_s + left_s
        return left_s <= 0.0

    def part(self, share: float) -> CpuLimit:
        """The limit of a part that may take this share of the time left."""
        now_s = time.process_time()
        return CpuLimit(now_s + share * max(0.0, self.deadline_s - now_s))


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of a search: CPU seconds since its start, best step, bound, and the most memory of its process so far."""

    at_s: float
    best_s: float | None
    bound_s: float | None
    memory_gib: float
    status: str = "searching"


@dataclass
class Watch:
    """Keeps the state of a search at the moments that are asked for."""

    began_s: float = field(default_factory=time.process_time)
    last: Moment = field(init=False)
    kept: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = Moment(0.0, None, None, _memory_gib())

    def __call__(self, progress: Progress) -> None:
        """Take note of a moment of the search."""
        now_s = time.process_time() - self.began_s
        while len(self.kept) < len(MOMENTS_S) and now_s >= MOMENTS_S[len(self.kept)]:
            self.kept.append(self.last)
        best = progress.best if progress.best is not None else self.last.best_s
        self.last = Moment(now_s, best, progress.bound, _memory_gib())


def _memory_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def planned(asked: TrainingRequest, limit_s: float | None) -> list[Moment]:
    """The states of a search at the moments and at its end."""
    watch = Watch()
    stop = never_stop if limit_s is None else CpuLimit(watch.began_s + limit_s)
    plan: Plan = plan_training(asked, stop=stop, progress=watch)
    certificate = plan.certificate
    ended_s = time.process_time() - watch.began_s
    kept = [*watch.kept, *[watch.last for at_s in MOMENTS_S[len(watch.kept) :] if ended_s >= at_s]]
    end = Moment(ended_s, certificate.objective, certificate.bound, _memory_gib(), certificate.status.value)
    return [*kept, end]


def _in_own_process(asked: TrainingRequest, limit_s: float | None) -> list[Moment]:
    with multiprocessing.get_context("spawn").Pool(1, _warm) as pool:
        return pool.apply(planned, (asked, limit_s))


def _warm() -> None:
    asked = request(model("llama-3.1-8b"), [("dgx-h100", 2)], 64, 8192)
    few = Search(space=Space.FREE, tp=(2,), cp=(1,), pp=(1, 2), microbatch=(1,), zero_stages=(1,))
    for search in (Search(), few):
        plan_training(replace(asked, search=search), stop=never_stop, progress=lambda progress: None)


def text(moment: Moment, launchable_s: float | None) -> str:
    """Step, ratio to the launchable plan, gap, status, memory."""
    if moment.best_s is None:
        return f"no plan, {moment.status}, {moment.memory_gib:.2f} GiB"
    gap = "?" if moment.bound_s is None else f"{(moment.best_s - moment.bound_s) / moment.best_s:.2%}"
    ratio = "" if launchable_s is None else f" ({moment.best_s / launchable_s:.3f} of launchable)"
    return f"{moment.best_s:.3f} s{ratio}, gap {gap}, {moment.status}, {moment.memory_gib:.2f} GiB"


def main() -> None:
    """One line a request and moment, as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="requests whose names contain this")
    parser.add_argument("--limit-s", type=float, default=None, help="another limit in CPU seconds for all")
    options = parser.parse_args()
    print("| request | CPU s | step, gap, status, peak memory | target gap |\n|---|---|---|---|")
    for case in cases():
        if options.only not in case.name:
            continue
        launchable = _in_own_process(replace(case.request, search=Search()), None)[-1]
        name = case.name.split(", free")[0]
        print(f"| {name}: launchable | {launchable.at_s:.1f} | {text(launchable, None)} | |", flush=True)
        for moment in _in_own_process(case.request, options.limit_s or case.limit_s):
            said = text(moment, launchable.best_s)
            print(f"| {case.name} | {moment.at_s:.1f} | {said} | {case.target_gap:.0%} |", flush=True)


if __name__ == "__main__":
    main()
