"""Attention groups in lockstep, written for clarity: a plain engine for each group, and one step of all at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.simulation.replica import BatchLimits
from meshwright.costmodels.queueing.step_times import GroupTimes
from tests.unit.costmodels.queueing.reference_engine import ReferenceEngine


class _Group(ReferenceEngine):
    """A group by itself, which notes how many tokens its step has, of prompts and in all."""

    tokens = prompt_tokens = 0
    prompts_wait = False

    def _chunks(self, slot, budget):  # type: ignore[no-untyped-def]
        return [] if self.prompts_wait else super()._chunks(slot, budget)

    def has_a_prompt(self, now: float) -> bool:
        self.now = now
        return bool(self.slots[0].prefilling) or self._admissible(self.slots[0], self.limits.step_tokens)

    def _stage_s(self, stage, slot, chunks):  # type: ignore[no-untyped-def]
        self.prompt_tokens = sum(size for _, size in chunks)
        self.tokens = len(slot.getting_a_token) * self.times.query_tokens + self.prompt_tokens
        return super()._stage_s(stage, slot, chunks)

    def own_part_s(self, now: float) -> float | None:
        """Form a step; its time, or None where there is nothing to do."""
        self.now, self.stage_free_s = now, [now]
        return self.slots[0].ready_s - now if self._start(self.slots[0]) else None  # type: ignore[operator]

    def finish(self, now: float) -> None:
        self.now = now
        self._finish(self.slots[0])


class ReferenceGroups:
    """Runs a stream through a replica; in a closed loop with so many clients, whose next requests follow their answers."""

    def __init__(self, times: GroupTimes, stream: RequestStream, limits: BatchLimits, *, clients: int | None = None):
        self.times = times
        self.requests = ReferenceEngine(times.own, stream, limits).requests
        self.coming = list(self.requests)
        # Least times of steps with prompts are those of whole steps.
        self.least_s = float(times.own.least_prompt_s[0])
        own = replace(times.own, least_prompt_s=np.zeros(1))
        self.groups = [_Group(own, stream[:0], limits) for _ in range(times.groups)]
        self.turn = self.waited = 0
        for place, request in enumerate(self.requests if clients is not None else []):
            request.arrival_s = 0.0 if place < clients else np.inf  # type: ignore[operator]

    def run(self) -> tuple[list[float], list[float]]:
        now = 0.0
        while any(np.isnan(request.last_s) for request in self.requests):
            self._deal(now)
            self._join_prompts(now)
            own = {group: own_s for group in self.groups if (own_s := group.own_part_s(now)) is not None}
            if not own:
                now = self.coming[0].arrival_s
                continue
            tokens = [group.tokens for group in own]
            step_s = max(own.values()) + float(self.times.joint_s(np.array([sum(tokens)]), np.array([max(tokens)]))[0])
            now += max(step_s, self.least_s) if any(group.prompt_tokens for group in own) else step_s
            for group in own:
                group.finish(now)
            answered = sum(request.last_s == now for request in self.requests)
            for request in [request for request in self.coming if request.arrival_s == np.inf][:answered]:
                request.arrival_s = now
        return [r.first_s for r in self.requests], [r.last_s for r in self.requests]

    def _deal(self, now: float) -> None:
        while self.coming and self.coming[0].arrival_s <= now:
            turns = [(self.turn + k) % len(self.groups) for k in range(len(self.groups))]
            chosen = min(turns, key=self._score)
            self.groups[chosen].waiting.append(self.coming.pop(0))
            self.turn = (chosen + 1) % len(self.groups)

    def _join_prompts(self, now: float) -> None:
        if not self.times.joined_steps:
            return
        together = all(group.has_a_prompt(now) for group in self.groups)
        all_decode = all(group.slots[0].decoding for group in self.groups)
        self.waited = 0 if together or not all_decode else (self.waited + 1) % self.times.joined_steps
        for group in self.groups:
            group.prompts_wait = self.waited > 0

    def _score(self, number: int) -> int:
        group, dealing = self.groups[number], self.times.dealing
        return len(group.waiting) * dealing.waiting + len(group.slots[0].admitted) * dealing.running
