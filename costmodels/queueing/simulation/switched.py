"""Simulation of a worker that switches layouts between prompts and answers (Seesaw, Su et al. 2025, arXiv 2503.06433).

The same devices compute prompts in one layout and answers in another, one of which has its weights on them at a time. Keys and
values of prompts wait in host memory ("tiered KV cache buffering"), so that layouts change as seldom as can be
("transition-minimizing scheduling"). The rule here:

1. Prompts are computed first come first served, in chunks, as long as one waits and host memory has room for it. A prompt's
   end gives its first token; then its keys and values go to the host, one request after another, while others are computed.
2. Once nothing is under way, the layout changes, if the host holds any request.
3. Requests come back in the same order, one after another while others decode, each when the devices have room for its prompt
   and its whole answer: nobody is evicted. Once all are answered the layout changes back.

Prompts that arrive meanwhile wait. All this is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.simulation.engine_state import new_lists, new_requests, new_slots, new_stages
from meshwright.costmodels.queueing.simulation.missed_targets import Promise
from meshwright.costmodels.queueing.simulation.replica import (
    MIDDLE,
    NO_TARGETS,
    BatchLimits,
    SimulationResult,
    Targets,
    Window,
    may_miss,
    pooled,
    result_of,
    tables_of,
)
from meshwright.costmodels.queueing.simulation.step_forming import KNOWN, PEAK
from meshwright.costmodels.queueing.simulation.switched_loop import (
    DECODE_S,
    DECODING_S,
    PHASES,
    PREFILL_S,
    STEPS,
    SWITCHED_COUNTERS,
    SWITCHING_S,
    TOTALS,
    Half,
    PhaseLimits,
    Staged,
    Switching,
    run,
)
from meshwright.costmodels.queueing.step_times import StepTimes


@dataclass(frozen=True, eq=False)
class PhaseEngine:
    """One of the two layouts: its step times and batch limits. Of these count sequences at once, tokens in a step (of prompts
    alone) and in the devices' cache."""

    times: StepTimes
    limits: BatchLimits


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """The cost of a change of layout, and the host memory for it.

    to_decode_s, to_prefill_s   until the weights of the other layout are on the devices
    out_token_s, in_token_s     keys and values of a token on the way to the host, and back
    buffer_tokens               tokens of prompts whose keys and values host memory holds
    """

    to_decode_s: float
    to_prefill_s: float
    out_token_s: float
    in_token_s: float
    buffer_tokens: int


@dataclass(frozen=True, eq=False)
class SwitchedResult:
    """The times that requests saw, and how long the worker spent in each layout, the wait for prompts included, and between
    them. ``phases`` of answers were begun and ended. The batch of ``whole`` is that of the decode layout, while it is on."""

    whole: SimulationResult
    phases: int
    prefill_s: float
    decode_s: float
    switching_s: float


def simulate_switched(
    prefill: PhaseEngine,
    decode: PhaseEngine,
    change: LayoutChange,
    stream: RequestStream,
    *,
    targets: Targets = NO_TARGETS,
    window: Window = MIDDLE,
) -> SwitchedResult:
    """Requests of the stream through one worker, arriving as the stream says.

    Raises WorkloadError when a request could never run: longer than the devices' cache or the room in host memory; and for
    prompts in a prefix cache and decode rounds of several tokens, which are not simulated.
    """
    _require_runnable(prefill, decode, change, stream)
    requests = new_requests(stream.arrival_s, stream.prompt_tokens, stream.output_tokens, None)
    admitted_s = np.full(len(stream), np.inf)
    first, end = window.measured(len(stream))
    counted_tpot = int(np.count_nonzero(stream.output_tokens[first:end] > 1))
    counters, totals = np.zeros(SWITCHED_COUNTERS, dtype=np.int64), np.zeros(TOTALS)
    counters[KNOWN] = len(requests)
    missed, duration_s, busy_s, worked_s = run(
        _half(prefill, max_output=1),
        _half(decode, max_output=int(stream.output_tokens.max())),
        Switching(change.out_token_s, change.in_token_s, change.to_decode_s, change.to_prefill_s, change.buffer_tokens),
        Promise(first, end, targets.ttft_s, targets.tpot_s, may_miss(end - first), may_miss(counted_tpot)),
        requests,
        admitted_s,
        Staged(np.zeros(len(requests), dtype=np.int64), np.zeros(len(requests))),
        counters,
        totals,
    )
    peak, steps, phases = (int(counters[counter]) for counter in (PEAK, STEPS, PHASES))
    waited_s = np.minimum(admitted_s, duration_s) - np.minimum(stream.arrival_s, duration_s)
    outcome = (missed, duration_s, busy_s, worked_s, float(waited_s.sum()), peak, steps, 0)
    decode_s = float(totals[DECODE_S])
    return SwitchedResult(
        whole=replace(
            result_of(requests, outcome, first, end),
            mean_batch=float(totals[DECODING_S]) / decode_s if decode_s > 0.0 else 0.0,
        ),
        phases=int(phases),
        prefill_s=float(totals[PREFILL_S]),
        decode_s=decode_s,
        switching_s=float(totals[SWITCHING_S]),
    )


def pooled_switched(results: Sequence[SwitchedResult]) -> SwitchedResult:
    """Workers that ran side by side as one result; seconds and phases are summed."""
    return SwitchedResult(
        whole=pooled([result.whole for result in results]),
        phases=sum(result.phases for result in results),
        prefill_s=sum(result.prefill_s for result in results),
        decode_s=sum(result.decode_s for result in results),
        switching_s=sum(result.switching_s for result in results),
    )


def _half(engine: PhaseEngine, *, max_output: int) -> Half:
    times, limits = engine.times, engine.limits
    per_slot = -(-limits.sequences // times.stages)
    return Half(
        tables_of(times),
        PhaseLimits(per_slot, limits.step_tokens, limits.kv_tokens),
        new_slots(times.stages),
        new_lists(times.stages, sequences=per_slot, max_output=max_output),
        new_stages(times.stages, len(times.kinds[0])),
    )


def _require_runnable(prefill: PhaseEngine, decode: PhaseEngine, change: LayoutChange, stream: RequestStream) -> None:
    longest_prompt = int(stream.prompt_tokens.max())
    longest = int((stream.prompt_tokens + stream.output_tokens).max())
    for place, needed, room in (
        ("the prefill layout's cache", longest_prompt, prefill.limits.kv_tokens),
        ("the decode layout's cache", longest, decode.limits.kv_tokens),
        ("the buffer in host memory", longest_prompt, change.buffer_tokens),
    ):
        if needed > room:
            raise WorkloadError(f"{place} can't hold the longest request", given=needed, allowed=f"at most {room} tokens")
    if stream.cached_tokens is not None or stream.shared_tokens or stream.rounds is not None:
        raise WorkloadError("prefix caches and drafted tokens are not simulated with layouts that switch")
    for name, engine in (("prefill", prefill), ("decode", decode)):
        per_slot = -(-engine.limits.sequences // engine.times.stages)
        if engine.limits.sequences < 1 or per_slot > engine.times.max_sequences:
            raise WorkloadError(
                f"impossible limit of sequences at once in the {name} layout",
                given=engine.limits.sequences,
                allowed=f"1 to {engine.times.stages * engine.times.max_sequences}",
            )
    if prefill.limits.step_tokens > prefill.times.max_tokens:
        raise WorkloadError(
            "step times are not known for so many tokens",
            given=prefill.limits.step_tokens,
            allowed=f"at most {prefill.times.max_tokens}",
        )
