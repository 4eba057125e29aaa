"""Requests per second that no schedule of an engine can exceed: a linear program over what its steps may hold.

Each step on a stage holds n decoding sequences and p prompt tokens, and takes t(n, p). However steps are formed, those of a
long run give every request its rounds and its prompt tokens, so their mean time is at least the program's

    min sum x(n, p) t(n, p)   with   sum x n >= rounds, sum x p >= prompt tokens, x >= 0.

By duality any prices u of a round and v of a prompt token with u n + v p <= t(n, p) for all steps bound it from below by
u rounds + v prompt tokens. For a given v the best u is one minimum over the steps; the best of a few v is kept.

Attention groups step together: n and p are then means over the groups, any fractions, and t a function that is below the time
of every step with these means, whatever each group holds (GroupTimes.least).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.compiling import kept_compiled
from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.step_times import GroupTimes, StepTimes, cell, convex_below

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_PRICES = 9
"""Prices of a prompt token that are tried, evenly from nothing to the cheapest token of any step."""

_ROUNDING = 1.0 - 1e-9
"""Keeps the bound valid where sums are rounded."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The work that a request asks of an engine on average.

    prompt_tokens   tokens of its prompt that are computed
    rounds          decode rounds
    kv_tokens       tokens in its cache in a round, with the fewest and most that any request has
    pairs           query-key pairs of its prompt
    least_own_kv_tokens   fewest tokens that any request has in the cache in a round beside those that all share
    """

    prompt_tokens: float
    rounds: float
    kv_tokens: float
    least_kv_tokens: float
    most_kv_tokens: float
    pairs: float
    least_own_kv_tokens: float


def demand_of(stream: RequestStream) -> Demand:
    """Means over the requests of a stream."""
    prompt = stream.prompt_tokens.astype(np.float64)
    cached = np.zeros_like(prompt) if stream.cached_tokens is None else np.minimum(stream.cached_tokens, prompt - 1.0)
    rounds = stream.output_tokens - 1.0 if stream.rounds is None else stream.rounds.astype(np.float64)
    # What rounds leave in the cache beyond a token each counts from the first one on, as in the simulator.
    start = prompt + (stream.output_tokens - 1 - rounds) // 2
    total_rounds = float(rounds.sum())
    # A sequence holds i tokens more in its i-th round.
    held = float((rounds * (start + (rounds + 1.0) / 2.0)).sum())
    return Demand(
        prompt_tokens=float((prompt - cached).mean()),
        rounds=total_rounds / len(prompt),
        kv_tokens=held / total_rounds if total_rounds else float(start.min()) + 1.0,
        least_kv_tokens=float(start.min()) + 1.0,
        most_kv_tokens=float((start + np.maximum(rounds, 1.0)).max()),
        pairs=float((prompt * (prompt + 1.0) - cached * (cached + 1.0)).mean()) / 2.0,
        least_own_kv_tokens=float((start - stream.shared).min()) + 1.0,
    )


def least_work_s(times: StepTimes | GroupTimes, demand: Demand, step_tokens: tuple[int, ...]) -> FloatArray:
    """[limit of step_tokens, n] least time that a mean request keeps the busiest stage, with up to n sequences in a batch;
    n counts from one, step limits are ascending. Of several attention groups: a request of each of them."""
    return np.asarray(np.max(_by_kind(times, demand, step_tokens), axis=0))


def mean_least_work_s(times: StepTimes | GroupTimes, demand: Demand, step_tokens: tuple[int, ...]) -> FloatArray:
    """The same of a mean stage."""
    if isinstance(times, GroupTimes):
        return least_work_s(times, demand, step_tokens)
    _, kinds = times.kinds
    return np.asarray(np.tensordot(np.bincount(kinds) / times.stages, _by_kind(times, demand, step_tokens), axes=1))


def _by_kind(times: StepTimes | GroupTimes, demand: Demand, step_tokens: tuple[int, ...]) -> FloatArray:
    """[kind of stage, limit of step_tokens, n] least time that a mean request keeps a stage."""
    together = isinstance(times, GroupTimes)
    times = times.least() if isinstance(times, GroupTimes) else times
    first, _ = times.kinds
    limits = np.array(step_tokens, dtype=np.int64)
    # Between its bends the time is linear in the tokens: the cheapest step lies on one.
    nodes = np.unique(np.concatenate([[1, times.max_sequences], times.bends, limits]))
    nodes = nodes[nodes <= min(times.max_tokens, limits[-1])]
    of_a_stage = _of_groups if together else _of_a_stage
    return np.array([of_a_stage(times, stage, demand, limits, nodes) for stage in first]) * _ROUNDING


def _of_a_stage(times: StepTimes, stage: int, demand: Demand, limits: IntArray, nodes: IntArray) -> FloatArray:
    attention_s, per_round_s = _decode_attention_s(times, stage, demand)
    sequences_s = np.asarray(times.logits_s[stage] + attention_s)
    found = _least_s(
        times.tokens_s[stage], nodes, sequences_s, limits, (demand.rounds, demand.prompt_tokens), times.query_tokens
    )
    pairs_s = demand.pairs * float(np.min(times.prefill_s_per_pair[stage]))
    return np.asarray(found + demand.rounds * per_round_s + pairs_s)


def _of_groups(times: StepTimes, stage: int, demand: Demand, limits: IntArray, nodes: IntArray) -> FloatArray:
    """As of one stage, of means over groups: sequences count by their tokens, of which a mean may have any number."""
    attention_s, per_round_s = _decode_attention_s(times, stage, demand)
    q, sequences = times.query_tokens, np.arange(times.max_sequences + 1.0)
    convex_s = convex_below(sequences, times.logits_s[stage] + attention_s)
    sequences_s = np.interp(np.arange(q * times.max_sequences + 1) / q, sequences, convex_s)
    found = _least_s(times.tokens_s[stage], nodes, sequences_s, limits, (demand.rounds * q, demand.prompt_tokens), 1)
    found = found[:, q - 1 :: q]
    pairs_s = demand.pairs * float(np.min(times.prefill_s_per_pair[stage]))
    return np.asarray(found + demand.rounds * per_round_s + pairs_s)


def _decode_attention_s(times: StepTimes, stage: int, demand: Demand) -> tuple[FloatArray, float]:
    """[n] least decode attention of n sequences beyond what each round pays for what it holds, and that payment.

    Whatever a held token is said to cost, D(n, k) >= min over k' of (D(n, k') - n k' cost) + n k cost, and the mean of k over
    all rounds is known. The cost is the slope at that mean of a batch as large as tables go.
    """
    lengths = np.unique(np.clip(times.kv_grid, demand.least_kv_tokens, demand.most_kv_tokens))
    lengths = np.unique(np.concatenate([lengths, [demand.least_kv_tokens, demand.most_kv_tokens]]))
    cells, shares = cell(times.kv_grid, lengths)
    table = times.decode_s[stage][:, cells] * (1.0 - shares) + times.decode_s[stage][:, cells + 1] * shares
    sequences = np.arange(len(table))
    j = min(int(np.searchsorted(lengths, demand.kv_tokens, side="right")), len(lengths) - 1)
    cost_s = 0.0
    if j > 0:
        cost_s = max(0.0, float(table[-1, j] - table[-1, j - 1]) / (lengths[j] - lengths[j - 1]) / sequences[-1])
    beyond = np.min(table - cost_s * sequences[:, None] * lengths, axis=1)
    return np.asarray(beyond), cost_s * demand.kv_tokens


@kept_compiled
def _least_s(tokens_s, nodes, sequences_s, limits, wanted, query_tokens):  # type: ignore[no-untyped-def]
    """[limit, n] value of the program's dual for steps of up to ``limits`` tokens and n = 1, 2, ... sequences, each of
    ``query_tokens``."""
    rounds, prompt_tokens = wanted
    most = len(sequences_s) - 1
    found = np.zeros((len(limits), most))
    cheapest = np.empty(len(nodes))
    for i in range(len(limits)):
        limit, last = limits[i], 0
        while last < len(nodes) and nodes[last] <= limit:
            last += 1
        token_s = np.inf
        for k in range(last):
            token_s = min(token_s, tokens_s[nodes[k]] / nodes[k])
        for step in range(_PRICES):
            price_s = token_s * step / (_PRICES - 1)
            beyond = np.inf
            for k in range(last - 1, -1, -1):
                beyond = min(beyond, tokens_s[nodes[k]] - price_s * nodes[k])
                cheapest[k] = beyond
            round_s, k = np.inf, 0
            for n in range(1, most + 1):
                verified = n * query_tokens
                if verified <= limit:
                    while k < last and nodes[k] < verified:
                        k += 1
                    step_s = tokens_s[verified] - price_s * verified
                    if k < last:
                        step_s = min(step_s, cheapest[k])
                    round_s = min(round_s, (step_s + price_s * verified + sequences_s[n]) / n)
                found[i, n - 1] = max(found[i, n - 1], rounds * round_s + price_s * prompt_tokens)
    return found
