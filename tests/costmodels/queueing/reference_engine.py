"""A second simulator of continuous batching, written for clarity: one step at a time, plain lists, one stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodels.queueing.load import RequestStream
from costmodels.queueing.simulation import Admission, BatchLimits, Scheduling
from costmodels.queueing.step_times import StepTimes


@dataclass
class _Request:
    arrival_s: float
    prompt: int
    output: int
    cached: int = 0
    prefilled: int = 0
    generated: int = 0
    first_s: float = np.nan
    last_s: float = np.nan

    @property
    def to_prefill(self) -> int:
        return self.prompt + self.generated


class ReferenceEngine:
    """Runs a stream through an engine; ``first_s`` and ``last_s`` are the times of first and last tokens."""

    def __init__(self, times: StepTimes, stream: RequestStream, limits: BatchLimits):
        self.times, self.limits = times, limits
        cached = np.zeros(len(stream), dtype=int) if stream.cached_tokens is None else stream.cached_tokens
        columns = (stream.arrival_s, stream.prompt_tokens, stream.output_tokens, cached)
        self.requests = [
            _Request(float(a), int(p), int(o), min(int(c), int(p) - 1)) for a, p, o, c in zip(*columns, strict=True)
        ]
        self.waiting = list(self.requests)
        self.prefilling: list[_Request] = []
        self.decoding: list[_Request] = []
        self.admitted: list[_Request] = []
        self.now = 0.0

    def run(self) -> tuple[list[float], list[float]]:
        while self.waiting or self.prefilling or self.decoding:
            self._evict()
            decoding = list(self.decoding)
            prefill_first = self.limits.scheduling is Scheduling.PREFILL_FIRST
            chunks = self._chunks(self.limits.step_tokens - (0 if prefill_first else len(decoding)))
            if chunks and prefill_first:
                decoding = []
            if not chunks and not decoding:
                self.now = self.waiting[0].arrival_s
                continue
            self._finish(decoding, chunks)
        return [r.first_s for r in self.requests], [r.last_s for r in self.requests]

    def _in_cache(self, request: _Request) -> int:
        if self.limits.admission is Admission.RESERVE:
            return request.prompt + request.output
        if request in self.decoding:
            return request.prompt + request.generated - 1
        return request.to_prefill

    def _used(self) -> int:
        return sum(self._in_cache(r) for r in self.admitted)

    def _evict(self) -> None:
        if self.limits.admission is Admission.RESERVE:
            return
        while self.decoding and self._used() + len(self.decoding) > self.limits.kv_tokens:
            victim = self.admitted.pop()
            (self.decoding if victim in self.decoding else self.prefilling).remove(victim)
            victim.prefilled = 0
            self.waiting.insert(0, victim)

    def _chunks(self, budget: int) -> list[tuple[_Request, int]]:
        chunks: list[tuple[_Request, int]] = []
        for request in self.prefilling:
            size = min(request.to_prefill - request.prefilled, budget)
            if size > 0:
                chunks.append((request, size))
                budget -= size
        while budget > 0 and self._admissible(budget):
            request = self.waiting.pop(0)
            self.admitted.append(request)
            self.prefilling.append(request)
            request.prefilled = request.cached
            size = min(request.to_prefill - request.cached, budget)
            chunks.append((request, size))
            budget -= size
        return chunks

    def _admissible(self, budget: int) -> bool:
        if not self.waiting or len(self.admitted) >= self.limits.sequences:
            return False
        request = self.waiting[0]
        if request.arrival_s > self.now or self._used() + self._in_cache(request) > self.limits.kv_tokens:
            return False
        return self.limits.scheduling is Scheduling.CHUNKED_PREFILL or request.to_prefill - request.cached <= budget

    def _finish(self, decoding: list[_Request], chunks: list[tuple[_Request, int]]) -> None:
        tokens = len(decoding) + sum(size for _, size in chunks)
        completing = [r for r, size in chunks if r.prefilled + size == r.to_prefill]
        step_s = float(self.times.tokens_s[0, tokens] + self.times.logits_s[0, len(decoding) + len(completing)])
        if decoding:
            kv_tokens = sum(r.prompt + r.generated for r in decoding)
            step_s += float(np.interp(kv_tokens / len(decoding), self.times.kv_grid, self.times.decode_s[0, len(decoding)]))
        for request, size in chunks:
            pairs = size * (request.prefilled + (size + 1) / 2)
            step_s += pairs * float(self.times.prefill_s_per_pair[0, 0, 0])
            request.prefilled += size
        self.now += step_s
        for request in completing:
            self.prefilling.remove(request)
            if request.generated == 0:
                request.first_s = self.now
        for request in [*decoding, *completing]:
            request.generated += 1
            if request in completing:
                self.decoding.append(request)
            if request.generated == request.output:
                request.last_s = self.now
                self.decoding.remove(request)
                self.admitted.remove(request)
