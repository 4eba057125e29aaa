"""Time of one engine step, as tables: what the simulator and the analytic model know of a layout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Seconds that each pipeline stage works in one step of the engine.

    A step holds ``query_tokens`` tokens of each of ``n`` decoding sequences (one, unless drafted ones are verified) and chunks
    of prompts. Its time on a stage is the sum of

    tokens_s            [stage, t]      everything that depends on the number of tokens t alone: projections, norms,
                                        collectives, passing on to the next stage, the engine's own work
    logits_s            [stage, n]      vocabulary head for n sequences that get a token
    decode_s            [stage, n, j]   decode attention of n sequences that hold kv_grid[j] tokens each on average
    prefill_s_per_pair  [stage, i, j]   prefill attention per query-key pair, of query_grid[i] tokens that follow
                                        prefix_grid[j] tokens already in the cache
    prefill_launch_s    [stage]         fixed time of prefill attention, once in a step that has prompt tokens
    least_prompt_s      [stage]         least time of a step that has prompt tokens: the host launches its kernels one by one
    """

    tokens_s: FloatArray
    logits_s: FloatArray
    decode_s: FloatArray
    kv_grid: FloatArray
    prefill_s_per_pair: FloatArray
    query_grid: FloatArray
    prefix_grid: FloatArray
    prefill_launch_s: FloatArray
    least_prompt_s: FloatArray
    query_tokens: int = 1

    def __post_init__(self) -> None:
        stages, sequences = self.logits_s.shape
        expected = {
            "tokens_s": (self.tokens_s.shape[:1], (stages,)),
            "decode_s": (self.decode_s.shape, (stages, sequences, len(self.kv_grid))),
            "prefill_s_per_pair": (
                self.prefill_s_per_pair.shape,
                (stages, len(self.query_grid), len(self.prefix_grid)),
            ),
            "prefill_launch_s": (self.prefill_launch_s.shape, (stages,)),
            "least_prompt_s": (self.least_prompt_s.shape, (stages,)),
        }
        for name, (shape, wanted) in expected.items():
            assert shape == wanted, f"{name} has shape {shape}, not {wanted}"

    @cached_property
    def kinds(self) -> tuple[IntArray, IntArray]:
        """First stage of each kind, and the kind of each stage: stages of one kind take the same time for any step."""
        tables = (
            self.logits_s,
            self.decode_s,
            self.prefill_s_per_pair,
            self.prefill_launch_s,
            self.least_prompt_s,
            self.tokens_s,
        )
        first: list[int] = []
        kinds = []
        for stage in range(self.stages):
            alike = (kind for kind, i in enumerate(first) if all(np.array_equal(t[i], t[stage]) for t in tables))
            kind = next(alike, len(first))
            if kind == len(first):
                first.append(stage)
            kinds.append(kind)
        return np.array(first, dtype=np.int64), np.array(kinds, dtype=np.int64)

    @cached_property
    def bends(self) -> IntArray:
        """Numbers of tokens between which ``tokens_s`` is linear on every stage."""
        first, _ = self.kinds
        table = self.tokens_s[first]
        bent = np.abs(table[:, 2:] - 2.0 * table[:, 1:-1] + table[:, :-2]) > 1e-12 * table[:, -1:]
        return np.asarray(np.flatnonzero(bent.any(axis=0)) + 1, dtype=np.int64)

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return int(self.tokens_s.shape[0])

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens in a step that the tables hold."""
        return int(self.tokens_s.shape[1]) - 1

    @property
    def max_sequences(self) -> int:
        """Largest number of sequences in a step that the tables hold."""
        return int(self.logits_s.shape[1]) - 1

    def decode_step_s(self, sequences: FloatArray, kv_tokens: float) -> FloatArray:
        """[stage, i] time of a step of sequences[i] decoding sequences with kv_tokens tokens each, no prompt in it."""
        n = np.clip(np.rint(sequences).astype(np.int64), 0, self.max_sequences)
        linear = self.tokens_s[:, np.minimum(n * self.query_tokens, self.max_tokens)] + self.logits_s[:, n]
        return np.asarray(linear + self._decode_attention_s(n, kv_tokens))

    def mixed_step_s(
        self, sequences: FloatArray, kv_tokens: float, *, prompt_tokens: FloatArray, prefix_tokens: FloatArray
    ) -> FloatArray:
        """[stage, i] time of a step of sequences[i] decoding sequences and a chunk of prompt_tokens[i] tokens that follow
        prefix_tokens[i] tokens of their prompt; one more sequence gets a token."""
        n = np.clip(np.rint(sequences).astype(np.int64), 0, self.max_sequences)
        tokens = np.clip(np.rint(sequences * self.query_tokens + prompt_tokens).astype(np.int64), 0, self.max_tokens)
        linear = self.tokens_s[:, tokens] + self.logits_s[:, np.minimum(n + 1, self.max_sequences)]
        prefill = self.prefill_launch_s[:, None] + self.prefill_attention_s(prompt_tokens, prefix_tokens)
        return np.maximum(linear + self._decode_attention_s(n, kv_tokens) + prefill, self.least_prompt_s[:, None])

    def prefill_attention_s(self, query_tokens: FloatArray, prefix_tokens: FloatArray) -> FloatArray:
        """[stage, i] attention time of chunks, launch not included."""
        i, fraction_i = cell(self.query_grid, query_tokens)
        j, fraction_j = cell(self.prefix_grid, prefix_tokens)
        table = self.prefill_s_per_pair
        low = table[:, i, j] * (1 - fraction_j) + table[:, i, j + 1] * fraction_j
        high = table[:, i + 1, j] * (1 - fraction_j) + table[:, i + 1, j + 1] * fraction_j
        pairs = query_tokens * (prefix_tokens + (query_tokens + 1) / 2)
        return np.asarray((low * (1 - fraction_i) + high * fraction_i) * pairs)

    def _decode_attention_s(self, n: npt.NDArray[np.int64], kv_tokens: float) -> FloatArray:
        j, fraction = cell(self.kv_grid, np.array(kv_tokens))
        return np.asarray(self.decode_s[:, n, j] * (1 - fraction) + self.decode_s[:, n, j + 1] * fraction)


def cell(grid: FloatArray, values: FloatArray) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Cells of an ascending grid that values fall in, and where in them; values outside take the nearest end."""
    j = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    fraction = (values - grid[j]) / (grid[j + 1] - grid[j])
    return j, np.asarray(np.clip(fraction, 0.0, 1.0))
