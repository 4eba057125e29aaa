"""A serving loop: prompts of all clients in one step, then their answers token by token over a cache of keys and values.

On a GPU each decode step is a CUDA graph, as engines run it, so that the host does not decide. Compiled, what lies before
attention and what lies after it are one function each.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_truth.cases import Decoder, ServingPoint
from benchmarks.gpu_truth.isolated import Tell
from benchmarks.gpu_truth.machine import CUDA, Machine
from benchmarks.gpu_truth.modules import Layer, Model, attention, made, rotation

FEWEST, MOST = 3, 20
GRAPH_WARM_UP = 2
"""Runs on a side stream before a capture (PyTorch documentation, CUDA semantics, "CUDA Graphs")."""


def run(
    tell: Tell, *, machine: Machine, decoder: Decoder, points: Sequence[ServingPoint], compiled: bool, measured_s: float
) -> None:
    """Tell of each point the time to the first token, the time per further token, and PyTorch's peaks of memory."""
    machine.begin()
    found: dict[str, Any] = {}
    with torch.inference_mode():
        model = made(decoder, device=machine.device, dtype=machine.dtype)
        for point in points:
            if machine.backend == CUDA:
                torch.cuda.reset_peak_memory_stats()
            loop = Loop(model, machine, point, compiled=compiled)
            rounds: list[tuple[float, float]] = []
            while len(rounds) < FEWEST or (len(rounds) < MOST and sum(map(sum, rounds)) < measured_s):
                rounds.append((machine.timed_s(loop.prompts), machine.timed_s(loop.answers)))
                ttft_s, answers_s = zip(*rounds, strict=True)
                tpot_s = [seconds / (point.output_tokens - 1) for seconds in answers_s]
                times = {"ttft_s": statistics.median(ttft_s), "tpot_s": statistics.median(tpot_s), "rounds": len(rounds)}
                found[point.name] = times | machine.peaks()
                tell(found)
            del loop


class Loop:
    """The clients of a point: their prompts, their cache and the tokens that they were last given."""

    def __init__(self, model: Model, machine: Machine, point: ServingPoint, *, compiled: bool):
        self._model, self._point = model, point
        # A function for each shape: a step of prompts and a decode step are different kernels.
        self._before, self._after = (torch.compile(part, dynamic=False) if compiled else part for part in (_before, _after))
        decoder, whole = model.shape, point.prompt_tokens + point.output_tokens
        self._cos, self._sin = rotation(whole, decoder.head_dim, machine.device)
        sizes = (decoder.layers, point.clients, decoder.kv_heads, whole, decoder.head_dim)
        self._keys, self._values = (torch.zeros(sizes, device=machine.device, dtype=machine.dtype) for _ in range(2))
        tokens = (point.clients, point.prompt_tokens)
        self._prompts = torch.randint(0, decoder.vocabulary, tokens, device=machine.device)
        self._last = torch.zeros((point.clients, 1), device=machine.device, dtype=torch.long)
        # Graphs that run one after another share their memory.
        self._pool = torch.cuda.graph_pool_handle() if machine.backend == CUDA else None
        self.prompts()
        further = range(point.prompt_tokens, whole - 1)
        self._steps = [self._ready(machine, position) for position in further]

    def prompts(self) -> None:
        """All prompts at once, and the first token of each answer."""
        self._last.copy_(self._next(self._prompts, 0))

    def answers(self) -> None:
        """All further tokens."""
        for step in self._steps:
            step()

    def _ready(self, machine: Machine, position: int) -> Callable[[], Any]:
        """A call for the step that writes one position of the cache."""

        def step() -> None:
            self._last.copy_(self._next(self._last, position))

        step()
        if machine.backend != CUDA:
            return step
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(GRAPH_WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        return graph.replay

    def _next(self, tokens: Tensor, first: int) -> Tensor:
        """The likeliest token after ``tokens``, which stand from position ``first`` on: shape (clients, 1)."""
        last = first + tokens.shape[1]
        cos, sin = self._cos[first:last], self._sin[first:last]
        x = self._model.embedding(tokens)
        for number, layer in enumerate(self._model.layers):
            q, k, v = self._before(layer, x, cos, sin)  # type: ignore[call-arg]  # no method: a compiled function
            keys, values = self._keys[number], self._values[number]
            keys[:, :, first:last] = k
            values[:, :, first:last] = v
            attended = attention(q, keys[:, :, :last], values[:, :, :last], is_causal=first == 0)
            x = self._after(layer, x, attended)  # type: ignore[call-arg]
        return self._model.head(self._model.norm(x[:, -1:])).argmax(-1)


def _before(layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return layer.before(x, cos, sin)


def _after(layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
    return layer.after(x, attended)
