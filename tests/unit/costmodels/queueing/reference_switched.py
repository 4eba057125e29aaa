"""A second simulator of a worker that switches layouts, written for clarity: plain lists, one event at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.simulation.switched import LayoutChange, PhaseEngine
from meshwright.costmodels.queueing.step_times import StepTimes


@dataclass
class _Request:
    arrival_s: float
    prompt: int
    answer: int
    done: int = 0
    given: int = 0
    in_host_s: float = np.inf
    first_s: float = np.nan
    last_s: float = np.nan


@dataclass
class _Batch:
    """A batch that goes through the pipeline as one: its requests, those whose caches have come since, and the chunks under
    way."""

    members: list[_Request] = field(default_factory=list)
    joining: list[_Request] = field(default_factory=list)
    chunks: list[tuple[_Request, int]] = field(default_factory=list)
    ready_s: float | None = None


class ReferenceSwitched:
    """Runs a stream through both phases in turn; ``run`` gives the times of first and last tokens."""

    def __init__(self, prefill: PhaseEngine, decode: PhaseEngine, change: LayoutChange, stream: RequestStream):
        self.prefill, self.decode, self.change = prefill, decode, change
        columns = (stream.arrival_s, stream.prompt_tokens, stream.output_tokens)
        self.requests = [_Request(float(a), int(p), int(o)) for a, p, o in zip(*columns, strict=True)]
        self.waiting = list(self.requests)
        self.host: list[_Request] = []
        self.now = self.link_free_s = 0.0
        self.phases = 0

    def run(self) -> tuple[list[float], list[float]]:
        while any(np.isnan(request.last_s) for request in self.requests):
            self._prompts()
            if self.host:
                self.now += self.change.to_decode_s
                self._answers()
                self.now += self.change.to_prefill_s
                self.phases += 1
        return [r.first_s for r in self.requests], [r.last_s for r in self.requests]

    def _prompts(self) -> None:
        batches, free_s, turn = [_Batch() for _ in range(self.prefill.times.stages)], [0.0] * self.prefill.times.stages, 0
        on_device: list[_Request] = []
        while True:
            for batch in batches:
                if batch.ready_s is not None and batch.ready_s <= self.now:
                    self._end_of_chunks(batch)
            on_device = [r for r in on_device if r.in_host_s > self.now]
            started = False
            if free_s[0] <= self.now:
                for k in range(len(batches)):
                    number = (turn + k) % len(batches)
                    batch = batches[number]
                    if batch.ready_s is None and self._take_chunks(batch, on_device):
                        batch.ready_s = _through(self.prefill.times, free_s, self.now, self._chunk_times(batch))
                        turn, started = number + 1, True
                        break
            if started:
                continue
            events = [b.ready_s for b in batches if b.ready_s is not None]
            events += [r.in_host_s for r in on_device if r.in_host_s < np.inf]
            if events and any(b.ready_s is None for b in batches) and free_s[0] > self.now:
                events.append(free_s[0])
            if events or not self.host:
                events += [r.arrival_s for r in self.waiting[:1] if r.arrival_s > self.now]
            if not events:
                return
            self.now = min(events)

    def _take_chunks(self, batch: _Batch, on_device: list[_Request]) -> bool:
        left = self.prefill.limits.step_tokens
        batch.chunks = []
        for request in batch.members:
            size = min(request.prompt - request.done, left)
            if size:
                batch.chunks.append((request, size))
                left -= size
        per_slot = -(-self.prefill.limits.sequences // self.prefill.times.stages)
        while left and self.waiting and self.waiting[0].arrival_s <= self.now and len(batch.members) < per_slot:
            request = self.waiting[0]
            promised = [*self.host, *(r for r in on_device if r not in self.host)]
            buffered = sum(r.prompt for r in (*promised, request) if r.answer > 1)
            held = sum(r.prompt for r in (*on_device, request))
            if buffered > self.change.buffer_tokens or held > self.prefill.limits.kv_tokens:
                break
            self.waiting.pop(0)
            batch.members.append(request)
            on_device.append(request)
            size = min(request.prompt, left)
            batch.chunks.append((request, size))
            left -= size
        return bool(batch.chunks)

    def _chunk_times(self, batch: _Batch) -> list[float]:
        times = self.prefill.times
        ending = sum(r.done + size == r.prompt for r, size in batch.chunks)
        tokens = sum(size for _, size in batch.chunks)
        found = []
        for stage in range(times.stages):
            pairs = sum(size * (r.done + (size + 1) / 2) for r, size in batch.chunks)
            stage_s = times.tokens_s[stage, tokens] + times.logits_s[stage, ending]
            stage_s += pairs * times.prefill_s_per_pair[stage, 0, 0]
            found.append(max(float(stage_s), float(times.least_prompt_s[stage])))
        return found

    def _end_of_chunks(self, batch: _Batch) -> None:
        assert batch.ready_s is not None
        for request, size in batch.chunks:
            request.done += size
            if request.done == request.prompt:
                request.first_s = batch.ready_s
                batch.members.remove(request)
                if request.answer == 1:
                    request.last_s = request.in_host_s = batch.ready_s
                else:
                    self.link_free_s = max(self.link_free_s, batch.ready_s) + request.prompt * self.change.out_token_s
                    request.in_host_s = self.link_free_s
                    self.host.append(request)
        batch.ready_s = None

    def _answers(self) -> None:
        times = self.decode.times
        per_slot = -(-self.decode.limits.sequences // times.stages)
        batches, free_s, turn = [_Batch() for _ in range(times.stages)], [0.0] * times.stages, 0
        coming: tuple[_Request, _Batch, float] | None = None
        while True:
            for batch in batches:
                if batch.ready_s is not None and batch.ready_s <= self.now:
                    for request in batch.members:
                        request.given += 1
                        if request.given == request.answer - 1:
                            request.last_s = batch.ready_s
                    batch.members = [r for r in batch.members if np.isnan(r.last_s)]
                    batch.ready_s = None
            if coming is not None and coming[2] <= self.now:
                coming[1].joining.append(coming[0])
                coming = None
            if coming is None and self.host:
                sizes = [len(b.members) + len(b.joining) for b in batches]
                batch = batches[sizes.index(min(sizes))]
                held = sum(r.prompt + r.answer for b in batches for r in (*b.members, *b.joining))
                wanted = self.host[0].prompt + self.host[0].answer
                if min(sizes) < per_slot and held + wanted <= self.decode.limits.kv_tokens:
                    request = self.host.pop(0)
                    coming = request, batch, self.now + request.prompt * self.change.in_token_s
                    if coming[2] <= self.now:
                        continue
            started = False
            if free_s[0] <= self.now:
                for k in range(len(batches)):
                    number = (turn + k) % len(batches)
                    batch = batches[number]
                    if batch.ready_s is None and (batch.members or batch.joining):
                        batch.members, batch.joining = batch.members + batch.joining, []
                        batch.ready_s = _through(times, free_s, self.now, self._round_times(batch))
                        turn, started = number + 1, True
                        break
            if started:
                continue
            events = [b.ready_s for b in batches if b.ready_s is not None] + ([] if coming is None else [coming[2]])
            if any(b.ready_s is None and (b.members or b.joining) for b in batches) and free_s[0] > self.now:
                events.append(free_s[0])
            if not events:
                return
            self.now = min(events)

    def _round_times(self, batch: _Batch) -> list[float]:
        times, count = self.decode.times, len(batch.members)
        held = sum(r.prompt + r.given + 1 for r in batch.members) / count
        return [
            float(times.tokens_s[stage, count] + times.logits_s[stage, count])
            + float(np.interp(held, times.kv_grid, times.decode_s[stage, count]))
            for stage in range(times.stages)
        ]


def _through(times: StepTimes, free_s: list[float], now: float, stage_s: list[float]) -> float:
    """Let a step pass every stage; returns when it leaves the last."""
    leaves_s = now
    for stage in range(times.stages):
        leaves_s = max(leaves_s, free_s[stage]) + stage_s[stage]
        free_s[stage] = leaves_s
    return leaves_s
