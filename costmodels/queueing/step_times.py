"""Time of one engine step, as tables: what the simulator and the analytic model know of a layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
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


# Time of one step of a replica whose attention groups run in lockstep, as tables.


@dataclass(frozen=True, slots=True)
class Dealing:
    """The rule that picks the attention group of an arriving request: the one with the least ``waiting`` x requests that wait
    in it + ``running`` x requests that run; of equal ones the next after the group that got the request before. Both 0: in
    turn."""

    waiting: int
    running: int


IN_TURN = Dealing(0, 0)


@dataclass(frozen=True, eq=False)
class GroupTimes:
    """Seconds of a step that ``groups`` attention groups run together, each on requests of its own; no pipeline stages.

    The experts need the tokens of all, so a step takes as long as the slowest group for its own part, and then, for ``total``
    tokens of all groups with ``fullest`` of them in the fullest one, the joint part: experts, and the faster way of bringing
    tokens to them. A group without work brings no tokens. Shared experts run beside that in groups of up to ``beside_tokens``
    tokens, else before it.

    own           what a group does by itself, as of an engine of one stage; its least_prompt_s is that of whole steps
    total_grid    [k] ascending totals at which experts_s and gathered_s are known; linear between
    experts_s     [k] kernels of the routed experts; as fitted, so that more tokens may take a little less
    gathered_s    [k] everything gathered on all ranks, and results scattered
    exchanged_s   [t] tokens sent to the ranks of their experts and back, by those of the fullest group; infinite where the
                  layout can't
    shared_s      [t] shared experts
    dealing       how requests are given to groups
    joined_steps  steps for which prompts wait at most until every group has one, as long as all decode; 0: they do not
                  (TensorRT-LLM, timeout_iters of attention_dp_config with enable_balance)
    """

    own: StepTimes
    groups: int
    total_grid: FloatArray
    experts_s: FloatArray
    gathered_s: FloatArray
    exchanged_s: FloatArray
    shared_s: FloatArray
    beside_tokens: int
    dealing: Dealing
    joined_steps: int = 0

    def __post_init__(self) -> None:
        tokens = self.own.max_tokens + 1
        assert self.own.stages == 1, f"attention groups have one stage, not {self.own.stages}"
        assert len(self.total_grid) == len(self.experts_s) == len(self.gathered_s), "tables of the total differ in length"
        assert len(self.exchanged_s) == len(self.shared_s) == tokens, "tables of the fullest group differ in length"

    def routed_s(self, total: FloatArray, fullest: npt.NDArray[np.int64]) -> FloatArray:
        """Routed experts, with what brings tokens to them and back."""
        gathered_s = np.interp(total, self.total_grid, self.gathered_s)
        return np.asarray(np.interp(total, self.total_grid, self.experts_s) + np.minimum(gathered_s, self.exchanged_s[fullest]))

    def joint_s(self, total: FloatArray, fullest: npt.NDArray[np.int64]) -> FloatArray:
        """Joint part of steps."""
        routed_s, shared_s = self.routed_s(total, fullest), self.shared_s[fullest]
        beside = fullest <= self.beside_tokens
        return np.asarray(np.where(beside, np.maximum(routed_s, shared_s), routed_s + shared_s))

    def alone(self) -> StepTimes:
        """Step times of a group while no other has work, or less where company would make the experts faster: no step with
        its tokens is below."""
        tokens = np.arange(self.own.max_tokens + 1)
        least_s = np.minimum.accumulate(self.experts_s[::-1])[::-1]
        joint_s = replace(self, experts_s=least_s).joint_s(tokens.astype(np.float64), tokens)
        joint_s[0] = 0.0
        return replace(self.own, tokens_s=self.own.tokens_s + joint_s)

    def least(self) -> StepTimes:
        """Times that no step with these mean numbers of tokens and sequences of a group is below, for linear programs.

        The slowest group is no faster than the mean one, and a convex function of the mean no more than the mean of the
        function. So tokens_s has the largest convex function below the groups' own; a group without work counts as one with a
        token, as who has work is no faster. What depends on sequences has yet to be made convex. The joint part is that of the
        mean group, linear between whole numbers; where experts overtake shared ones in between, that would be above it, so the
        lower end stays.
        """
        tokens = np.arange(self.own.max_tokens + 1)
        total = tokens.astype(np.float64) * self.groups
        joint_s, routed_s = self.joint_s(total, tokens), self.routed_s(total, tokens)
        overtaken = (routed_s[1:] > self.shared_s[1:]) & (routed_s[:-1] < self.shared_s[:-1])
        overtaken &= tokens[1:] <= self.beside_tokens
        joint_s[1:][overtaken] = self.shared_s[1:][overtaken]
        joint_s[0] = 0.0
        own_s = self.own.tokens_s[0].copy()
        own_s[0] = own_s[min(1, self.own.max_tokens)]
        nodes = np.unique(np.concatenate([[0, 1, self.own.max_tokens], self.own.bends]))
        least_s = np.interp(tokens, nodes, convex_below(nodes.astype(np.float64), own_s[nodes])) + joint_s
        return replace(self.own, tokens_s=least_s[None, :])


def convex_below(at: FloatArray, values: FloatArray) -> FloatArray:
    """The largest convex function below values at ascending points: their lower hull (Andrew 1979)."""
    hull: list[int] = []
    for i in range(len(values)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (values[b] - values[a]) * (at[i] - at[a]) < (values[i] - values[a]) * (at[b] - at[a]):
                break
            hull.pop()
        hull.append(i)
    return np.asarray(np.interp(at, at[hull], values[hull]))
