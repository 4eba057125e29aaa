"""Two pools of workers on a cluster: where they lie, the links between them, and what requests see of both together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.simulation.disaggregated import (
    CacheTransfer,
    DisaggregatedResult,
    Pool,
    Prefilled,
    simulate_decode,
    simulate_prefill,
)
from meshwright.costmodels.queueing.statistics import Percentile
from meshwright.costmodels.serving.kv_transfer import WorkerPlace, kv_transfer
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import Layout, stage_width
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import MAX_UTILISATION, Candidate, Measured
from meshwright.solver.serving.promise.evaluation import REQUESTS, SCREENING_REQUESTS, Evaluator
from meshwright.solver.serving.promise.promised import Promised
from meshwright.solver.serving.promise.running import P95

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


class PoolsSimulator:
    """Simulates two pools together; what prefill workers did is kept for other decode pools, while the load is the same."""

    def __init__(self, cluster: Cluster, evaluator: Evaluator, promised: Promised):
        self._cluster, self._evaluator, self._targets = cluster, evaluator, promised.simulated
        self._prefilled: dict[PrefillKey, Prefilled] = {}
        self._load = math.nan

    def measure(self, pools: PlacedPools, load: float) -> MeasuredPools:
        """A short simulation, and a long one where the short one keeps the targets."""
        transfer = transfer_between(self._cluster, pools, prompt_tokens=self._evaluator.traffic.longest_prompt)
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
        self._evaluator.count_simulation()
        stream = self._stream(load, requests)
        seed = self._evaluator.seed
        if load != self._load:
            self._load, self._prefilled = load, {}
        key = (pools.prefill.candidate.key, pools.prefill.share.replicas, transfer, requests)
        if key not in self._prefilled:
            self._prefilled[key] = simulate_prefill(_pool(pools.prefill), transfer, stream, seed=seed)
        return simulate_decode(_pool(pools.decode), self._prefilled[key], stream, seed=seed)

    def _stream(self, load: float, requests: int) -> RequestStream:
        (stream,) = self._evaluator.traffic.streams(Share(load, 1), requests)
        return stream


def _pool(measured: Measured) -> Pool:
    engine: Engine = measured.candidate.engine
    return Pool(engine.simulated_times, measured.candidate.limits, measured.share.replicas)
