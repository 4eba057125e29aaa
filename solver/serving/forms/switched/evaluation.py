"""Does a worker that switches layouts keep the promise under a load? As for other workers: bounds first, then simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.queueing.analytic.capacity import Demand, least_work_s, mean_least_work_s
from meshwright.costmodels.queueing.analytic.percentiles import AnalyticFigures
from meshwright.costmodels.queueing.analytic.step_curves import first_token_s, token_s
from meshwright.costmodels.queueing.simulation.replica import NO_TARGETS, SimulationResult, Targets, Window
from meshwright.costmodels.queueing.simulation.switched import SwitchedResult, simulate_switched
from meshwright.solver.answer.predicted import Reason
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import SEQUENCES, STEP_TOKENS
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.forms.switched.engine import SwitchedEngine
from meshwright.solver.serving.promise.candidates import (
    P95,
    SURELY_COUNTED,
    Alone,
    AskedLoad,
    Candidate,
    CandidateKey,
    EngineKey,
    largest_batch,
)
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.workers.reasons import memory_shortfall

_EVERYTHING = Window(warm_up=0.0, cool_down=0.0)


class TwoLayouts:
    """The way of workers that switch layouts; of each the step limit is that of prompts, the sequence limit that of answers."""

    def __init__(self, asked: AskedLoad):
        self._asked = asked
        self._candidates: dict[EngineKey, list[Candidate]] = {}
        self._rate_bounds: dict[CandidateKey, float] = {}
        self._least_work_s: dict[tuple[EngineKey, int], npt.NDArray[np.float64]] = {}
        self._alone: dict[tuple[CandidateKey, int], Alone] = {}

    def candidates(self, engine: Engine) -> list[Candidate]:
        """Batch limits with room for the longest request in both layouts and on the host, most first."""
        if engine.key not in self._candidates:
            every = (Candidate(engine, step, sequences) for step in STEP_TOKENS for sequences in reversed(SEQUENCES))
            self._candidates[engine.key] = [candidate for candidate in every if self.has_room(candidate)]
        return self._candidates[engine.key]

    def has_room(self, candidate: Candidate) -> bool:
        """Return True if both layouts and the host hold the longest request, a prompt with its first token, and a step a token
        of each sequence of a slot."""
        engine = _switched(candidate.engine)
        prompts, answers = engine.prefill_phase(candidate.step_tokens), engine.decode_phase(candidate.sequences)
        per_slot = -(-candidate.sequences // engine.layout.pp)
        prompt = self._asked.traffic.longest_prompt
        held = prompts.limits.kv_tokens > prompt and answers.limits.kv_tokens >= self._asked.longest_request
        return held and engine.change.buffer_tokens >= prompt and per_slot <= engine.decode_step_tokens

    def alone(self, engine: Engine, step_tokens: int) -> Alone:
        """Times that no load makes shorter: to first token those of the prompt's 95th percentile; per token those of the
        shortest prompt, and the change of layout that every answer waits for."""
        switched, prompt = _switched(engine), int(self._asked.prompt.quantile(P95))
        step_tokens = min(step_tokens, max(STEP_TOKENS[0], prompt))
        key = (engine.key, step_tokens)
        if key not in self._alone:
            ttft_s = first_token_s(switched.prefill.times, prompt_tokens=prompt, cached_tokens=0, step_tokens=step_tokens)
            self._alone[key] = Alone(ttft_s, self._least_tpot_s(switched))
        return self._alone[key]

    def _least_tpot_s(self, engine: SwitchedEngine) -> float:
        """Return the lower bound on the 95th percentile of the time per token: of the counted requests at least 5% have so few
        tokens that the change takes as much of each."""
        stream, change = self._asked.traffic.whole, engine.change
        several = stream.output_tokens > 1
        if not several.any():
            return 0.0
        each = 1.0 / (stream.output_tokens[several] - 1)
        waited_s = change.to_decode_s + int(stream.prompt_tokens.min()) * (change.out_token_s + change.in_token_s)
        round_s = token_s(engine.decode.times, prompt_tokens=int(stream.prompt_tokens.min()), output_tokens=2)
        return round_s + waited_s * float(np.quantile(each, SURELY_COUNTED, method="lower"))

    def least_request_s(self, candidate: Candidate) -> float:
        """Return the least seconds that a mean device works for a mean request, in both layouts."""
        engine, key = _switched(candidate.engine), (candidate.engine.key, candidate.step_tokens)
        if key not in self._least_work_s:
            prompts = mean_least_work_s(engine.prefill.times, self._prompts, (candidate.step_tokens,))[0, 0]
            answers = mean_least_work_s(engine.decode.times, self._answers, (engine.decode_step_tokens,))[0]
            self._least_work_s[key] = prompts + answers
        return float(self._least_work_s[key][largest_batch(self._asked, candidate) - 1])

    def expected(self, candidate: Candidate, share: Share) -> AnalyticFigures:
        """A rough guess, for the order of the search alone: a cycle of both phases is as long as it takes for the work of what
        arrives in it and two changes of layout."""
        engine, bound = _switched(candidate.engine), self._rate_bound(candidate)
        load, change = share.each / bound, engine.change
        if load >= 1.0:
            return AnalyticFigures(load, bound, 0.0, math.inf, math.inf)
        alone = self.alone(engine, candidate.step_tokens)
        cycle_s = (change.to_decode_s + change.to_prefill_s + alone.ttft_s) / (1.0 - load)
        rounds = max(1.0, self._asked.output.mean - 1.0)
        return AnalyticFigures(load, bound, 0.0, alone.ttft_s + P95 * cycle_s, alone.tpot_s + cycle_s / 2.0 / rounds)

    def simulations_of(
        self, candidate: Candidate, share: Share, *, requests: int, targets: Targets = NO_TARGETS
    ) -> list[SimulationResult]:
        """One worker under its share of a load; under a trace every one."""
        return [run.whole for run in self.runs_of(candidate, share, requests=requests, targets=targets)]

    def runs_of(
        self, candidate: Candidate, share: Share, *, requests: int, targets: Targets = NO_TARGETS
    ) -> list[SwitchedResult]:
        """The same, with the time in each layout."""
        streams = self._asked.traffic.streams(share, requests)
        # Of several replicas none alone shows that the percentile of all is missed.
        early = targets if len(streams) == 1 else NO_TARGETS
        engine = _switched(candidate.engine)
        phases = engine.prefill_phase(candidate.step_tokens), engine.decode_phase(candidate.sequences)
        return [simulate_switched(*phases, engine.change, stream, targets=early) for stream in streams]

    def saturated_per_s(self, candidate: Candidate) -> float:
        """Requests per second of a worker all of whose requests wait from the start."""
        (stream,) = self._asked.traffic.streams(Share(1.0))
        engine = _switched(candidate.engine)
        waiting = replace(stream, arrival_s=np.zeros(len(stream)))
        phases = engine.prefill_phase(candidate.step_tokens), engine.decode_phase(candidate.sequences)
        run = simulate_switched(*phases, engine.change, waiting, window=_EVERYTHING)
        return len(stream) / run.whole.duration_s

    def _rate_bound(self, candidate: Candidate) -> float:
        if candidate.key not in self._rate_bounds:
            limits = candidate.step_tokens, candidate.sequences
            self._rate_bounds[candidate.key] = self.bounds_with(candidate)[limits]
        return self._rate_bounds[candidate.key]

    def bounds_with(self, asked: Candidate) -> dict[tuple[int, int], float]:
        """Bounds of a candidate and all others of its engine: both phases take their least work, or the time that keys and
        values take to the host and back, one after the other; and a full host changes layouts twice."""
        engine = _switched(asked.engine)
        candidates = (*self.candidates(engine), asked)
        steps = tuple(sorted({candidate.step_tokens for candidate in candidates}))
        prompts_s = least_work_s(engine.prefill.times, self._prompts, steps)[:, 0]
        answers_s = least_work_s(engine.decode.times, self._answers, (engine.decode_step_tokens,))[0]
        stream, change = self._asked.traffic.whole, engine.change
        staged = float((stream.prompt_tokens * (stream.output_tokens > 1)).mean())
        changes_s = (change.to_decode_s + change.to_prefill_s) * staged / change.buffer_tokens
        found = {}
        for candidate in candidates:
            batch = largest_batch(self._asked, candidate)
            if batch <= len(answers_s):
                prompt_s = max(float(prompts_s[steps.index(candidate.step_tokens)]), staged * change.out_token_s)
                answer_s = max(float(answers_s[batch - 1]), staged * change.in_token_s)
                found[candidate.step_tokens, candidate.sequences] = 1.0 / (prompt_s + answer_s + changes_s)
        return found

    @property
    def _prompts(self) -> Demand:
        return replace(self._asked.demand, rounds=0.0)

    @property
    def _answers(self) -> Demand:
        return replace(self._asked.demand, prompt_tokens=0.0, pairs=0.0)


def _switched(engine: Engine) -> SwitchedEngine:
    assert isinstance(engine, SwitchedEngine), "this evaluator is asked about workers that switch layouts"
    return engine


# The room that workers which switch layouts lack: memory in either layout, or on the host.


def room_shortfall(engine: SwitchedEngine, evaluator: Evaluator, *, step_tokens: int, sequences: int) -> Reason:
    """Return the room that a worker lacks most to hold its longest request: memory in either layout, or on the host."""
    prompt, longest = evaluator.traffic.longest_prompt, evaluator.longest_request
    at_once = engine.prompts_in_a_step(step_tokens)
    node = engine.layout.group.node
    need = engine.host_weights_bytes + engine.replicas_per_node * prompt * engine.host_token_bytes
    have = float(node.host_memory_bytes)
    message = (
        f"host memory of {node.name} must hold {need / 1e9:.1f} GB: the weights, and keys and values of a prompt of {prompt} "
        f"tokens for each of {engine.replicas_per_node} workers; it has {have / 1e9:.1f} GB"
    )
    reasons = [
        memory_shortfall(engine.prefill, step_tokens=step_tokens, sequences=at_once, tokens=prompt + 1),
        memory_shortfall(engine.decode, step_tokens=engine.decode_step_tokens, sequences=sequences, tokens=longest),
        Reason("host_memory", need, have, "bytes", message, remedies=("raise host_memory_bytes of the node",)),
    ]
    return max(reasons, key=lambda reason: reason.need / max(reason.have, 1.0))
