"""A second simulator of continuous batching, written for clarity: one step at a time, plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.simulation.replica import Admission, BatchLimits, Scheduling
from meshwright.costmodels.queueing.step_times import StepTimes

PROMPTS_FIRST = (Scheduling.PREFILL_FIRST, Scheduling.CHUNKS_FIRST)
CUTTING = (Scheduling.CHUNKED_PREFILL, Scheduling.CHUNKS_FIRST)


@dataclass(eq=False)
class _Request:
    arrival_s: float
    prompt: int
    output: int
    cached: int = 0
    answer: int = 0
    uncounted: int = 0
    shared: int = 0
    prefilled: int = 0
    generated: int = 0
    first_s: float = np.nan
    last_s: float = np.nan

    @property
    def to_prefill(self) -> int:
        return self.prompt + self.generated


@dataclass(eq=False)
class _Slot:
    """A batch that goes through the pipeline as one, and what its step in flight does."""

    prefilling: list[_Request] = field(default_factory=list)
    decoding: list[_Request] = field(default_factory=list)
    admitted: list[_Request] = field(default_factory=list)
    ready_s: float | None = None
    getting_a_token: list[_Request] = field(default_factory=list)
    completing: list[_Request] = field(default_factory=list)


class ReferenceEngine:
    """Runs a stream through an engine; ``first_s`` and ``last_s`` are the times of first and last tokens."""

    def __init__(self, times: StepTimes, stream: RequestStream, limits: BatchLimits):
        self.times, self.limits = times, limits
        self.kv_tokens = limits.kv_tokens - stream.shared_tokens
        cached = np.zeros(len(stream), dtype=int) if stream.cached_tokens is None else stream.cached_tokens
        columns = (stream.arrival_s, stream.prompt_tokens, stream.output_tokens, cached)
        self.requests = [
            _Request(float(a), int(p), int(o), min(int(c), int(p) - 1), int(o)) for a, p, o, c in zip(*columns, strict=True)
        ]
        for request in self.requests:
            request.shared = min(request.cached, stream.shared_tokens)
        if stream.rounds is not None:
            for request, rounds in zip(self.requests, stream.rounds, strict=True):
                request.output = 1 + int(rounds)
                request.uncounted = (request.answer - request.output) // 2
        self.waiting = list(self.requests)
        self.slots = [_Slot() for _ in range(times.stages)]
        self.stage_free_s = [0.0] * times.stages
        self.per_slot = -(-limits.sequences // times.stages)
        self.turn = 0
        self.now = 0.0

    def run(self) -> tuple[list[float], list[float]]:
        while True:
            for slot in self.slots:
                if slot.ready_s is not None and slot.ready_s <= self.now:
                    self._finish(slot)
            if all(not np.isnan(request.last_s) for request in self.requests):
                return [r.first_s for r in self.requests], [r.last_s for r in self.requests]
            if self.stage_free_s[0] > self.now or not self._start_any():
                self.now = self._next_event()

    def _next_event(self) -> float:
        events = [slot.ready_s for slot in self.slots if slot.ready_s is not None]
        if any(slot.ready_s is None for slot in self.slots):
            if self.stage_free_s[0] > self.now:
                events.append(self.stage_free_s[0])
            else:
                events += [r.arrival_s for r in self.waiting if r.arrival_s > self.now][:1]
        return min(events)

    def _start_any(self) -> bool:
        for k in range(len(self.slots)):
            number = (self.turn + k) % len(self.slots)
            slot = self.slots[number]
            if slot.ready_s is None and self._start(slot):
                self.turn = (number + 1) % len(self.slots)
                return True
        return False

    def _start(self, slot: _Slot) -> bool:
        self._evict(slot)
        decoding = list(slot.decoding)
        prefill_first = self.limits.scheduling in PROMPTS_FIRST
        chunks = self._chunks(slot, self.limits.step_tokens - (0 if prefill_first else len(decoding) * self.times.query_tokens))
        if chunks and prefill_first:
            decoding = []
        if not chunks and not decoding:
            return False
        slot.getting_a_token = decoding
        slot.completing = [r for r, size in chunks if r.prefilled + size == r.to_prefill]
        leaves_s = self.now
        for stage in range(len(self.slots)):
            leaves_s = max(leaves_s, self.stage_free_s[stage]) + self._stage_s(stage, slot, chunks)
            self.stage_free_s[stage] = leaves_s
        for request, size in chunks:
            request.prefilled += size
        slot.ready_s = leaves_s
        return True

    def _stage_s(self, stage: int, slot: _Slot, chunks: list[tuple[_Request, int]]) -> float:
        decoding = slot.getting_a_token
        tokens = len(decoding) * self.times.query_tokens + sum(size for _, size in chunks)
        stage_s = float(self.times.tokens_s[stage, tokens] + self.times.logits_s[stage, len(decoding) + len(slot.completing)])
        if decoding:
            kv_tokens = sum(r.prompt + r.generated + r.uncounted for r in decoding)
            table = self.times.decode_s[stage, len(decoding)]
            stage_s += float(np.interp(kv_tokens / len(decoding), self.times.kv_grid, table))
        for request, size in chunks:
            pairs = size * (request.prefilled + (size + 1) / 2)
            stage_s += pairs * float(self.times.prefill_s_per_pair[stage, 0, 0])
        return max(stage_s, float(self.times.least_prompt_s[stage])) if chunks else stage_s

    def _in_cache(self, request: _Request) -> int:
        if self.limits.admission is Admission.RESERVE:
            return request.prompt + request.answer - request.shared
        if any(request in slot.decoding for slot in self.slots):
            in_flight = any(request in slot.getting_a_token and slot.ready_s is not None for slot in self.slots)
            return request.prompt + request.generated - 1 + in_flight - request.shared
        return request.to_prefill - request.shared

    def _used(self) -> int:
        return sum(self._in_cache(r) for slot in self.slots for r in slot.admitted)

    def _evict(self, slot: _Slot) -> None:
        if self.limits.admission is Admission.RESERVE:
            return
        while slot.decoding and self._used() + len(slot.decoding) > self.kv_tokens:
            victim = slot.admitted.pop()
            (slot.decoding if victim in slot.decoding else slot.prefilling).remove(victim)
            victim.prefilled = 0
            self.waiting.insert(0, victim)

    def _chunks(self, slot: _Slot, budget: int) -> list[tuple[_Request, int]]:
        chunks: list[tuple[_Request, int]] = []
        for request in slot.prefilling:
            size = min(request.to_prefill - request.prefilled, budget)
            if size > 0:
                chunks.append((request, size))
                budget -= size
        while budget > 0 and self._admissible(slot, budget):
            request = self.waiting.pop(0)
            slot.admitted.append(request)
            slot.prefilling.append(request)
            request.prefilled = request.cached
            size = min(request.to_prefill - request.cached, budget)
            chunks.append((request, size))
            budget -= size
        return chunks

    def _admissible(self, slot: _Slot, budget: int) -> bool:
        if not self.waiting or len(slot.admitted) >= self.per_slot:
            return False
        request = self.waiting[0]
        if request.arrival_s > self.now or self._used() + self._in_cache(request) > self.kv_tokens:
            return False
        return self.limits.scheduling in CUTTING or request.to_prefill - request.cached <= budget

    def _finish(self, slot: _Slot) -> None:
        slot.ready_s = None
        for request in slot.completing:
            slot.prefilling.remove(request)
            if request.generated == 0:
                request.first_s = self.now
        for request in [*slot.getting_a_token, *slot.completing]:
            request.generated += 1
            if request in slot.completing:
                slot.decoding.append(request)
            if request.generated == request.output:
                request.last_s = self.now
                slot.decoding.remove(request)
                slot.admitted.remove(request)
        slot.getting_a_token, slot.completing = [], []
