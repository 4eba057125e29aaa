"""Requests as replicas see them: streams of an arrival process, of a trace, or of clients in a closed loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.costmodels.queueing.load import Load, RequestStream, TokenCount, cached_tokens, in_turn, request_stream
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.queueing.simulation.dealing import MOST_TOGETHER
from meshwright.costmodels.serving.speculation import drawn_rounds
from meshwright.solver.problem.request import ServingWorkload
from meshwright.solver.problem.serving_load import ClosedArrivals, GammaArrivals, TraceArrivals
from meshwright.solver.problem.token_counts import token_count

_UNIT_RATE = 1.0

_ROUNDS_SEED = 1
"""Added to the seed for rounds, whose draws are none of those that lengths come from."""

_HITS_SEED = 2
"""The same for hits of the prefix cache."""

_TURNS_SEED = 3
"""The same for gaps between requests that are dealt out in turn."""

_REQUESTS_PER_CLIENT = 10
"""Requests of each client of a closed loop, at least: as public benchmarks run."""


@dataclass(frozen=True, slots=True)
class Share:
    """One of ``replicas`` that share a load evenly: requests per second of all of them, or clients of a closed loop."""

    load: float
    replicas: int = 1

    @property
    def each(self) -> float:
        """Load of one replica."""
        return self.load / self.replicas


@dataclass
class Traffic:
    """Requests of a workload under a seed.

    ``load`` is what is asked for: requests per second or, in a closed loop, clients. ``requests`` are those of a simulation,
    ``whole`` is that stream at one request per second; a trace has its own. ``output_rounds`` are a request's first token and
    its decode rounds, which are its tokens where none are drafted.
    """

    workload: ServingWorkload
    seed: int
    requests: int
    _unit: dict[tuple[int, int], RequestStream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arrivals = self.workload.arrivals
        if isinstance(arrivals, TraceArrivals):
            self.prompt = TokenCount.empirical(arrivals.prompt_tokens)
            self.output = TokenCount.empirical(arrivals.output_tokens)
        else:
            assert self.workload.prompt_tokens is not None and self.workload.output_tokens is not None
            self.prompt = token_count(self.workload.prompt_tokens)
            self.output = token_count(self.workload.output_tokens)
        self.load = float(arrivals.concurrency) if isinstance(arrivals, ClosedArrivals) else arrivals.requests_per_s
        unit = self.whole = self._unit_stream(1, self.requests)
        self.longest_request = unit.cache_tokens
        self.longest_prompt = int(unit.prompt_tokens.max())
        self._cached_share, self._shared_tokens = self.workload.prefix_hit_ratio, 0.0
        if self.workload.hits_by_request and unit.cached_tokens is not None:
            self._cached_share = float(unit.cached_tokens.sum() / unit.prompt_tokens.sum())
            self._shared_tokens = float(unit.shared.mean())
        self.output_rounds, self.rounds_per_token = self.output, 1.0
        if unit.rounds is not None:
            self.output_rounds = TokenCount.empirical(1 + unit.rounds)
            self.rounds_per_token = float(unit.rounds.sum()) / max(1.0, float(unit.output_tokens.sum() - len(unit)))

    @property
    def is_closed(self) -> bool:
        """True if clients wait for answers, so that a load can't outrun an engine."""
        return isinstance(self.workload.arrivals, ClosedArrivals)

    @property
    def is_traced(self) -> bool:
        """True if requests are those of a recorded trace, which has a first and a last."""
        return isinstance(self.workload.arrivals, TraceArrivals)

    @property
    def one_run(self) -> int | None:
        """Requests of each client of a run that counts from its opening burst to its end; None of any other load."""
        arrivals = self.workload.arrivals
        return arrivals.requests_per_client if isinstance(arrivals, ClosedArrivals) else None

    def key(self, share: Share) -> tuple[float, int]:
        """Return the key that tells the streams of one replica apart: for Poisson arrivals and clients the load of each is
        enough."""
        alike = not self._differ_by_replicas and not isinstance(self.workload.arrivals, TraceArrivals)
        return (share.each, 1) if alike else (share.load, share.replicas)

    @property
    def _differ_by_replicas(self) -> bool:
        """True if arrivals at one replica depend on how many others there are, beside their rate."""
        return isinstance(self.workload.arrivals, GammaArrivals) or self.workload.router is not Router.RANDOM

    def side_by_side(self, share: Share) -> int:
        """Replicas that are simulated together, since a router looks at all before it deals a request."""
        if self.workload.router is not Router.LEAST_LOADED:
            return 1
        return share.replicas if isinstance(self.workload.arrivals, TraceArrivals) else min(share.replicas, MOST_TOGETHER)

    def clients(self, share: Share) -> int:
        """Clients of the fullest replica of a closed loop."""
        return math.ceil(share.each - 1e-9)

    def load_of(self, share: Share) -> Load:
        """The load of one replica as the analytic model takes it; in a closed loop of one request per second."""
        arrivals = self.workload.arrivals
        cv = arrivals.cv if isinstance(arrivals, GammaArrivals) else 1.0
        rate = _UNIT_RATE if self.is_closed else share.each
        load = Load(rate, self.prompt, self.output, cv, self._cached_share, self._shared_tokens)
        if self.workload.router is not Router.RANDOM:
            # Requests that go to the least loaded come at one replica about as evenly as in turn.
            return in_turn(load, share.replicas)
        # Of a renewal process split at random over n replicas, each sees squared variation 1 + (cv^2 - 1) / n.
        return replace(load, cv=math.sqrt(1.0 + (cv * cv - 1.0) / share.replicas))

    def streams(self, share: Share, requests: int | None = None, *, at_least: int = 0) -> tuple[RequestStream, ...]:
        """Requests of one replica, as all replicas are alike; of a trace those of every replica, dealt out in turn; of replicas
        that are simulated ``side_by_side`` those of all together.

        ``requests`` bounds their number of a replica, for a short simulation; ``at_least`` asks for more than a simulation has
        otherwise, of which a trace has none.
        """
        arrivals = self.workload.arrivals
        available = self.requests
        while at_least > available:
            available *= 2
        if isinstance(arrivals, TraceArrivals):
            # A trace has its own number of requests, and stays whole but in a short simulation.
            part = None if requests is None or requests >= self.requests else requests
            whole = self._unit_stream(1, self.requests)[:part].faster(share.load / arrivals.requests_per_s)
            if self.side_by_side(share) > 1:
                return (whole,)
            return tuple(whole[k :: share.replicas] for k in range(min(share.replicas, len(whole))))
        if self.is_closed:
            # Clients start together: each must come back often enough to fall out of step.
            enough = (self.one_run or _REQUESTS_PER_CLIENT) * self.clients(share)
            return (self._unit_stream(1, available)[: max(enough, requests or self.requests)],)
        together = self.side_by_side(share)
        if together > 1:
            asked = together * max(requests or self.requests, at_least)
            return (self._unit_stream(1, asked).faster(together * share.each),)
        split = share.replicas if self._differ_by_replicas else 1
        return (self._unit_stream(split, available)[:requests].faster(share.each),)

    def _unit_stream(self, split: int, requests: int) -> RequestStream:
        """So many requests at one per second; a trace at its own rate, as long as it is."""
        key = (split, requests)
        if key not in self._unit:
            arrivals = self.workload.arrivals
            if isinstance(arrivals, TraceArrivals):
                prompts = np.array(arrivals.prompt_tokens, dtype=np.int64)
                self._unit[key] = RequestStream(
                    arrival_s=np.array(arrivals.times_s) - arrivals.times_s[0],
                    prompt_tokens=prompts,
                    output_tokens=np.array(arrivals.output_tokens, dtype=np.int64),
                    cached_tokens=cached_tokens(prompts, self.workload.prefix_hit_ratio),
                    is_finite=True,
                )
            else:
                cv = arrivals.cv if isinstance(arrivals, GammaArrivals) else 1.0
                load = Load(_UNIT_RATE, self.prompt, self.output, cv, self.workload.prefix_hit_ratio)
                of_a_client = self.one_run or _REQUESTS_PER_CLIENT
                enough = max(requests, int(of_a_client * self.load)) if self.is_closed else requests
                if split > 1 and self.workload.router is Router.ROUND_ROBIN:
                    # The same requests at other times: in turn the number of replicas changes nothing but the gaps.
                    dealt = request_stream(in_turn(load, split), requests=enough, seed=self.seed + _TURNS_SEED)
                    self._unit[key] = replace(self._unit_stream(1, requests), arrival_s=dealt.arrival_s)
                    return self._unit[key]
                self._unit[key] = request_stream(load, requests=enough, seed=self.seed, split=split)
            self._unit[key] = self._with_rounds(self._with_hits(self._unit[key]))
        return self._unit[key]

    def _with_hits(self, stream: RequestStream) -> RequestStream:
        """Return the stream with the hits of each request in the prefix cache, as recorded or drawn, where requests differ in
        them."""
        if not self.workload.hits_by_request:
            return stream
        found, cache, arrivals = np.zeros(len(stream), dtype=np.int64), self.workload.prefix_cache, self.workload.arrivals
        if isinstance(arrivals, TraceArrivals) and arrivals.cached_tokens:
            found = np.array(arrivals.cached_tokens, dtype=np.int64)
        if cache is not None and cache.hit_tokens is not None:
            hits, lengths = np.random.Generator(np.random.PCG64(self.seed + _HITS_SEED)).random((2, len(stream)))
            drawn = token_count(cache.hit_tokens).sample(np.maximum(lengths, np.finfo(np.float64).tiny))
            found = np.where(hits < cache.hit_ratio, drawn, 0)
        system = 0 if cache is None else cache.system_tokens
        cached = np.minimum(np.maximum(found, system), stream.prompt_tokens - 1)
        return replace(stream, cached_tokens=cached, shared_tokens=system)

    def _with_rounds(self, stream: RequestStream) -> RequestStream:
        """The decode rounds of every request drawn, where rounds give several tokens."""
        speculation = self.workload.speculation
        if speculation is None:
            return stream
        rounds = drawn_rounds(stream.output_tokens - 1, speculation, seed=self.seed + _ROUNDS_SEED)
        return replace(stream, rounds=rounds)
