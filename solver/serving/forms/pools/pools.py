"""Two pools of workers on a cluster: where they lie, the links between them, and what requests see of both together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.results import Percentile
from meshwright.costmodels.queueing.simulation.disaggregated import (
    CacheTransfer,
    DisaggregatedResult,
    Pool,
    Prefilled,
    simulate_decode,
    simulate_prefill,
)
from meshwright.costmodels.queueing.simulation.replica import NO_TARGETS
from meshwright.costmodels.serving.memory import WorkerPlace, kv_transfer
from meshwright.solver.control import Stop, never_stop
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.launchers.servers import CacheMoves
from meshwright.solver.problem.launchers.table import SERVERS
from meshwright.solver.problem.request import ServingRequest, ServingWorkload
from meshwright.solver.problem.serving_load import FixedLength, TraceArrivals
from meshwright.solver.problem.token_counts import token_count
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import ORDINARY_SEQUENCES, Layout, stage_width
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import MAX_UTILISATION, P95, Candidate, Measured
from meshwright.solver.serving.promise.certificates import energy_per_token_j
from meshwright.solver.serving.promise.evaluation import REQUESTS, SCREENING_REQUESTS, Evaluator
from meshwright.solver.serving.promise.promised import Promised, promised_of
from meshwright.solver.serving.promise.question import (
    Refused,
    expected_strain,
    measurements,
    ordering_candidate,
    usable_candidates,
)
from meshwright.solver.serving.workers.cheapest import Roomiest
from meshwright.solver.serving.workers.goodput import RATE_GRID, SUSTAINED_STEPS, expected_rate, step_below

PrefillKey = tuple[object, int, CacheTransfer, int]


@dataclass(frozen=True, eq=False)
class PlacedPools:
    """Workers of each phase as measured by themselves, the first rank of each pool, and what both take for an output token."""

    prefill: Measured
    decode: Measured
    prefill_first: int
    decode_first: int
    energy_per_token_j: float

    @property
    def devices(self) -> int:
        """Devices of both pools."""
        return sum(m.share.replicas * m.candidate.engine.layout.devices for m in (self.prefill, self.decode))

    @property
    def name(self) -> str:
        """Words for people: "2 x tp 4 prefill + 3 x tp 2 decode"."""
        parts = (("prefill", self.prefill), ("decode", self.decode))
        return " + ".join(f"{m.share.replicas} x {m.candidate.engine.layout.name} {name}" for name, m in parts)


@dataclass(frozen=True, eq=False)
class MeasuredPools:
    """Two pools, simulated together."""

    placed: PlacedPools
    load: float
    keeps: bool
    ttft: Percentile
    tpot: Percentile
    mean_batch: float
    transfer: CacheTransfer
    mean_transfer_s: float


def placed(prefill: Layout, prefill_workers: int, decode: Layout, decode_workers: int) -> tuple[int, int] | None:
    """First ranks of both pools, or None where they do not fit.

    In one node group the pool with the wider stages comes first, so that the other starts where its stages still fill parts
    of nodes.
    """
    sizes = [prefill_workers * prefill.devices, decode_workers * decode.devices]
    if prefill.group.name != decode.group.name:
        fits = sizes[0] <= prefill.group.n_devices and sizes[1] <= decode.group.n_devices
        return (prefill.first_rank, decode.first_rank) if fits else None
    group = prefill.group
    prefill_leads = stage_width(prefill) >= stage_width(decode)
    lead, follow = (sizes[0], decode) if prefill_leads else (sizes[1], prefill)
    start = -(-lead // stage_width(follow)) * stage_width(follow)
    if start + (sizes[1] if prefill_leads else sizes[0]) > group.n_devices:
        return None
    first, second = group_first(prefill), group_first(prefill) + start
    return (first, second) if prefill_leads else (second, first)


def cache_moves(request: ServingRequest) -> CacheMoves | None:
    """Return the pools that the named launcher joins; None where a request names none, or any that an engine may run."""
    server = SERVERS.get(request.search.launcher)
    return None if server is None or request.search.space is not Space.LAUNCHABLE else server.cache_moves


def may_join(layout: Layout, moves: CacheMoves | None) -> bool:
    """Return True if workers of a layout may be one of two pools."""
    return moves is None or not moves.of_tp_alone or (layout.pp == 1 and layout.grid.ranks == layout.grid.tp)


def joined(prefill: Layout, decode: Layout, moves: CacheMoves | None) -> bool:
    """Return True if caches move from workers of one layout to those of the other."""
    if moves is None:
        return True
    if not (may_join(prefill, moves) and may_join(decode, moves)):
        return False
    if moves.stages_alike and decode.pp not in (1, prefill.pp):
        return False
    p, d = prefill.grid.tp, decode.grid.tp
    return d % p == 0 or (moves.to_fewer_ranks and p % d == 0)


def group_first(layout: Layout) -> int:
    """First rank of a layout's node group."""
    return layout.first_rank


def transfer_between(cluster: Cluster, pools: PlacedPools, *, prompt_tokens: int) -> CacheTransfer:
    """Return the transfer of keys and values from a prefill to a decode worker. It counts all that the ranks of a decode
    attention group receive."""
    sender, receiver = pools.prefill.candidate.engine, pools.decode.candidate.engine
    per_token = cache_bytes_per_token(pools.decode.candidate, prompt_tokens=prompt_tokens)
    group = sender.layout.group
    one_node = group.name == receiver.layout.group.name and _within_a_node(pools, group.node.devices_per_node)
    return kv_transfer(
        cluster,
        # Ranks that share prompts all hold the whole keys and values, which one group of them sends.
        WorkerPlace(group, pools.prefill_first, sender.layout.devices // sender.layout.grid.token_groups),
        WorkerPlace(receiver.layout.group, pools.decode_first, receiver.layout.devices // receiver.layout.schedulers),
        bytes_per_token=per_token,
        one_node=one_node,
    )


def cache_bytes_per_token(candidate: Candidate, *, prompt_tokens: int) -> float:
    """Bytes that a prompt's token takes in the caches of all ranks of an attention group, windows and states included."""
    engine, step_tokens = candidate.engine, candidate.step_tokens
    ranks = engine.layout.grid.ranks // engine.layout.schedulers
    kept = sum(stage.cache.bytes_of(prompt_tokens, sequences=1, step_tokens=step_tokens) for stage in engine.needs)
    return ranks * kept / prompt_tokens


def _within_a_node(pools: PlacedPools, per_node: int) -> bool:
    first = min(pools.prefill_first, pools.decode_first)
    ends = [
        start + m.share.replicas * m.candidate.engine.layout.devices
        for start, m in ((pools.prefill_first, pools.prefill), (pools.decode_first, pools.decode))
    ]
    return max(ends) - first <= per_node - first % per_node


_KEPT_LOADS = 2
"""Loads of which prefill workers are kept: that which is asked for, and that of slower steps."""


class PoolsSimulator:
    """Simulates two pools together; what prefill workers did is kept for other decode pools, while the load is the same."""

    def __init__(self, cluster: Cluster, evaluator: Evaluator, promised: Promised):
        self._cluster, self._evaluator, self._promised = cluster, evaluator, promised
        self._targets = promised.simulated
        self._prefilled: dict[float, dict[PrefillKey, Prefilled]] = {}

    def measure(self, pools: PlacedPools, load: float) -> MeasuredPools:
        """A short simulation, and a long one where the short one keeps the targets; of a trace, whose beginning proves nothing
        of all, the long one."""
        transfer = transfer_between(self._cluster, pools, prompt_tokens=self._evaluator.traffic.longest_prompt)
        if self._evaluator.traffic.is_traced:
            return self._judged(pools, load, transfer, REQUESTS)
        short = self._judged(pools, load, transfer, SCREENING_REQUESTS)
        return self._judged(pools, load, transfer, REQUESTS) if short.keeps else short

    def run(self, pools: PlacedPools, load: float) -> DisaggregatedResult:
        """The long simulation itself."""
        transfer = transfer_between(self._cluster, pools, prompt_tokens=self._evaluator.traffic.longest_prompt)
        return self._run(pools, load, transfer, REQUESTS)

    def _judged(self, pools: PlacedPools, load: float, transfer: CacheTransfer, requests: int) -> MeasuredPools:
        result, targets = self._run(pools, load, transfer, requests), self._targets
        ttft, tpot = result.whole.ttft(P95), result.whole.tpot(P95)
        within = ttft.high <= targets.ttft_s and tpot.high <= targets.tpot_s
        if requests < REQUESTS:
            # As for replicas, the short run only has to keep the percentiles themselves.
            within = ttft.value <= targets.ttft_s and tpot.value <= targets.tpot_s
        elif within and (slowed := self._promised.slowed) is not None and targets != NO_TARGETS:
            slower = self._run(pools, load * slowed.slowdown, transfer, requests).whole
            ttft, tpot = self._promised.with_slowed(ttft, tpot, slower=(slower.ttft(P95), slower.tpot(P95)))
            within = ttft.high <= targets.ttft_s and tpot.high <= targets.tpot_s
        busy = max(pools.prefill.utilisation, pools.decode.utilisation)
        return MeasuredPools(
            placed=pools,
            load=load,
            keeps=within and busy <= MAX_UTILISATION,
            ttft=ttft,
            tpot=tpot,
            mean_batch=result.whole.mean_batch,
            transfer=transfer,
            mean_transfer_s=float(result.transfer_wait_s.mean()),
        )

    def _run(self, pools: PlacedPools, load: float, transfer: CacheTransfer, requests: int) -> DisaggregatedResult:
        self._evaluator.count_simulation(self._evaluator.least_steps(pools.prefill.candidate.step_tokens, requests))
        stream = self._stream(load, requests)
        seed = self._evaluator.seed
        if load not in self._prefilled and len(self._prefilled) == _KEPT_LOADS:
            del self._prefilled[next(iter(self._prefilled))]
        done = self._prefilled.setdefault(load, {})
        key = (pools.prefill.candidate.key, pools.prefill.share.replicas, transfer, requests)
        if key not in done:
            done[key] = simulate_prefill(_pool(pools.prefill), transfer, stream, seed=seed)
        return simulate_decode(_pool(pools.decode), done[key], stream, seed=seed)

    def _stream(self, load: float, requests: int) -> RequestStream:
        (stream,) = self._evaluator.traffic.streams(Share(load, 1), requests)
        return stream


def _pool(measured: Measured) -> Pool:
    engine: Engine = measured.candidate.engine
    return Pool(engine.simulated_times, measured.candidate.limits, measured.share.replicas)


# One phase of disaggregated serving by itself: which workers keep its part of the promise, and how many it takes.
#
# A prefill worker answers each prompt with one token; a decode worker is an engine whose prefix
# cache holds all of every prompt but its last token. Both are engines under workloads of their own,
# so what refuses and measures engines holds for them too.


class PhaseKind(StrEnum):
    """Computing prompts, or tokens after the first."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass
class PhaseWorkers:
    """Workers of one phase under the whole load; remembers what it has found. Requests have ``output_tokens`` on average.

    Each engine runs with the batch limits that, with so many workers, leave most room to the phase's targets.
    """

    kind: PhaseKind
    evaluator: Evaluator
    engines: list[Engine]
    load: float
    output_tokens: float
    refused: list[Refused] = field(default_factory=list)
    _usable: dict[object, list[Candidate]] = field(default_factory=dict)
    _workers_at_least: dict[object, int] = field(default_factory=dict)
    _choices: dict[tuple[object, int, float], Measured | None] = field(default_factory=dict)

    def usable(self, engine: Engine) -> list[Candidate]:
        """Batch limits of an engine whose request alone meets the targets; empty where there are none."""
        if engine.key not in self._usable:
            found = usable_candidates(self.evaluator, engine)
            if isinstance(found, Refused):
                self.refused.append(found)
                found = []
            self._usable[engine.key] = _limits_of(self.kind, found)
        return self._usable[engine.key]

    def choice(self, engine: Engine, workers: int, load: float | None = None) -> Measured | None:
        """The roomiest batch limits that keep the phase's targets with so many workers; None where none do."""
        load = self.load if load is None else load
        key = (engine.key, workers, load)
        if key not in self._choices:
            roomiest, usable = Roomiest(self.evaluator), self.usable(engine)
            if usable:
                roomiest.look_at(usable, Share(load, workers))
            self._choices[key] = roomiest.best
        return self._choices[key]

    def keeps_any(self, engine: Engine, load: float, workers: int = 1) -> bool:
        """Return True if so many workers keep the phase's targets under a load, whatever their batch limits."""
        return any(measured.keeps for measured in measurements(self.evaluator, self.usable(engine), Share(load, workers)))

    def expected_rate(self, engine: Engine) -> float:
        """Requests per second at which the analytic model thinks that one worker keeps the phase's targets, to a tenth; 0 where
        it does so at none that is worth a look."""
        return expected_rate(self.evaluator, self.usable(engine))

    def sustains(self, chosen: Measured, load: float, *, steps: int = SUSTAINED_STEPS) -> bool:
        """Return True if workers with their batch limits keep the phase's targets under a load and at so many lower rates of
        the grid: those of all workers, and those of one."""
        workers = chosen.share.replicas
        whole, each = step_below(load), step_below(load / workers)
        shares = [Share(RATE_GRID ** (whole - down), workers) for down in range(steps + 1)]
        shares += [Share(RATE_GRID ** (each - down)) for down in range(steps + 1)]
        return all(self.evaluator.measure(chosen.candidate, share).keeps for share in shares)

    def least_workers(self, engine: Engine, most: int) -> int | None:
        """Fewest workers of an engine that keep the phase's targets, at most ``most``; None where they do not."""
        if not self.usable(engine) or most < 1:
            return None
        low, high = self.workers_at_least(engine), most
        if low > high or not self.keeps_any(engine, self.load, high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.keeps_any(engine, self.load, middle) else (middle + 1, high)
        return low

    def workers_at_least(self, engine: Engine) -> int:
        """Workers below which the load outruns the phase, by a bound that holds for every schedule."""
        if engine.key not in self._workers_at_least:
            bound = max(self.evaluator.rate_bound(candidate) for candidate in self.usable(engine))
            self._workers_at_least[engine.key] = max(1, math.ceil(self.load / bound * (1.0 - 1e-12)))
        return self._workers_at_least[engine.key]

    def expected_workers(self, engine: Engine) -> int | None:
        """Workers that the analytic model thinks are enough; None where it thinks none are."""
        candidates = self.usable(engine)
        if not candidates:
            return None
        low, high = self.workers_at_least(engine), engine.layout.most_replicas
        candidate = ordering_candidate(candidates)

        def strained(workers: int) -> bool:
            return expected_strain(self.evaluator, candidate, Share(self.load, workers)) > 1.0

        if low > high or strained(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if strained(middle) else (low, middle)
        return low

    def strain(self, measured: Measured) -> float:
        """The larger ratio of a percentile's upper limit to its target."""
        return self.evaluator.strain(ttft=measured.ttft, tpot=measured.tpot)

    def energy_per_token_j(self, measured: Measured) -> float:
        """Joules of the phase for an output token of the request."""
        return energy_per_token_j(measured, self.evaluator, output_tokens=self.output_tokens)


def phase(kind: PhaseKind, request: ServingRequest, engines: list[Engine], *, load: float, stop: Stop) -> PhaseWorkers:
    """A phase of a request under the whole load."""
    evaluator = phase_evaluator(kind, request, stop=stop)
    return PhaseWorkers(kind, evaluator, engines, load, mean_output_tokens(request))


def mean_output_tokens(request: ServingRequest) -> float:
    """Output tokens of a mean request."""
    workload = request.workload
    if isinstance(workload.arrivals, TraceArrivals):
        return fmean(workload.arrivals.output_tokens)
    assert workload.output_tokens is not None
    return token_count(workload.output_tokens).mean


def phase_evaluator(kind: PhaseKind, request: ServingRequest, *, stop: Stop = never_stop) -> Evaluator:
    """Return the evaluator that simulates workers of one phase by themselves."""
    workload, promised = request.workload, promised_of(request, pools=True)
    if kind is PhaseKind.PREFILL:
        return Evaluator(_one_token_answers(workload), promised.of_prompts(), request.search.seed, stop)
    return Evaluator(replace(workload.without_prefix_cache(), prefix_hit_ratio=1.0), promised, request.search.seed, stop)


def _one_token_answers(workload: ServingWorkload) -> ServingWorkload:
    """The workload of prefill workers: the same prompts, each answered with its first token."""
    arrivals = workload.arrivals
    if isinstance(arrivals, TraceArrivals):
        return replace(workload, arrivals=replace(arrivals, output_tokens=(1,) * len(arrivals.output_tokens)))
    return replace(workload, output_tokens=FixedLength(1))


def _limits_of(kind: PhaseKind, candidates: list[Candidate]) -> list[Candidate]:
    """Limits that differ in what the phase does: of prefill the tokens of a step, with as many sequences as there is room
    for, up to the ordinary limit; of decode the sequences, with the smallest step that holds a token of each, whatever the
    limit."""
    if not candidates:
        return []
    if kind is PhaseKind.DECODE:
        widest = max(candidates, key=lambda candidate: (candidate.sequences, -candidate.step_tokens))
        return [candidate for candidate in candidates if candidate.step_tokens == widest.step_tokens]
    ordinary = [candidate for candidate in candidates if candidate.sequences <= ORDINARY_SEQUENCES]
    return list({each.step_tokens: each for each in sorted(ordinary, key=lambda each: each.sequences)}.values())
