"""The prediction of the simulator for clients in a closed loop on prefill and decode pools.

Pools are simulated one after the other, so when a client sends its next request is not known beforehand: a run with guessed
arrivals says when each request is answered, which gives the arrivals of the next run. What happens before the n-th answer of
any client is right after n runs, so as many runs as a client has requests make the loop exact.
"""

from __future__ import annotations

import numpy as np

from meshwright.app.validation.serving.degrees import Workers
from meshwright.app.validation.serving.deployment import MAX_LOAD_SEQUENCES, REQUESTS_PER_CLIENT, Deployment, admission
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.queueing.group_times import GroupTimes
from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.simulation.disaggregated import (
    CacheTransfer,
    Pool,
    Routing,
    simulate_decode,
    simulate_prefill,
)
from meshwright.costmodels.queueing.simulation.engine_state import FloatArray
from meshwright.costmodels.queueing.simulation.replica import BatchLimits, Scheduling, SimulationResult, Window
from meshwright.costmodels.queueing.step_times import StepTimes
from meshwright.costmodels.serving.kv_transfer import WorkerPlace, kv_transfer
from meshwright.solver.serving.engines.engine import Engine


def run_pools(
    deployed: Deployment,
    lengths: RequestStream,
    *,
    engines: tuple[Engine, Engine],
    times: tuple[StepTimes | GroupTimes, StepTimes | GroupTimes],
    step_tokens: tuple[int, int],
) -> SimulationResult:
    """The closed loop of the row's clients; ``lengths`` has the tokens of each of their requests. Engines, times and token
    limits are those of prefill and of decode workers."""
    assert deployed.prefill is not None
    if deployed.clients is None:
        raise NotPredictedError("prefill and decode pools under full load")
    limits = (deployed.pools.prefill_sequences, deployed.pools.decode_sequences)
    parts = zip(engines, times, (deployed.prefill, deployed.decode), step_tokens, limits, strict=True)
    pools = tuple(
        _pool(deployed, engine, table, workers, step_tokens=tokens, most_sequences=most)
        for engine, table, workers, tokens, most in parts
    )
    transfer = _transfer(deployed, engines, step_tokens=step_tokens[1])
    # Request k of each client stands in row k.
    arrival_s = np.zeros((REQUESTS_PER_CLIENT, deployed.clients))
    for _ in range(REQUESTS_PER_CLIENT):
        result, last_s = _run(pools, transfer, lengths, arrival_s)
        arrival_s[1:] = last_s[:-1]
    return result


def _run(
    pools: tuple[Pool, ...], transfer: CacheTransfer, lengths: RequestStream, arrival_s: FloatArray
) -> tuple[SimulationResult, FloatArray]:
    """A run under given arrivals, and when each of those requests was answered."""
    order = np.argsort(arrival_s, axis=None, kind="stable")
    rounds = None if lengths.rounds is None else lengths.rounds[order]
    stream = RequestStream(arrival_s.ravel()[order], lengths.prompt_tokens[order], lengths.output_tokens[order], rounds=rounds)
    prefilled = simulate_prefill(pools[0], transfer, stream, seed=0)
    result = simulate_decode(pools[1], prefilled, stream, seed=0, window=Window(warm_up=0.0, cool_down=0.0)).whole
    last_s = np.empty(arrival_s.size)
    last_s[order] = result.requests.last_s
    return result, last_s.reshape(arrival_s.shape)


def _pool(
    deployed: Deployment,
    engine: Engine,
    times: StepTimes | GroupTimes,
    workers: Workers,
    *,
    step_tokens: int,
    most_sequences: int | None,
) -> Pool:
    # Without tables of groups apart each counts as a worker.
    alike = workers.count if isinstance(times, GroupTimes) else workers.count * workers.attention_dp
    # Prompts of unequal lengths end out of turn: any worker may get more than its share.
    sequences = min(deployed.clients or 1, most_sequences or MAX_LOAD_SEQUENCES, MAX_LOAD_SEQUENCES)
    kv_tokens = engine.kv_tokens(step_tokens=step_tokens, sequences=sequences)
    if kv_tokens < deployed.prompt_tokens + deployed.output_tokens:
        raise NotPredictedError("the model says that weights and one request do not fit in memory")
    # Phases do not disturb one another, so how a step mixes them does not matter; chunks let long prompts in.
    sequences = min(sequences, step_tokens // engine.query_tokens)
    lets_in = admission(deployed.engine, engine.speculation)
    limits = BatchLimits(sequences, step_tokens, kv_tokens, Scheduling.CHUNKED_PREFILL, lets_in)
    # Default of Dynamo's frontend (--router-mode round-robin), before all pools of public tables.
    return Pool(times, limits, alike, Routing.IN_TURN)


def _transfer(deployed: Deployment, engines: tuple[Engine, Engine], *, step_tokens: int) -> CacheTransfer:
    """Between servers: the rows' workers fill nodes of their own."""
    sender, receiver = (engine.layout for engine in engines)
    node = node_type(deployed.node)
    group = NodeGroup("node", node, 2)
    tokens = deployed.prompt_tokens
    ranks = receiver.grid.ranks // receiver.schedulers
    kept = sum(stage.cache.bytes_of(tokens, sequences=1, step_tokens=step_tokens) for stage in engines[1].needs)
    return kv_transfer(
        Cluster((group,)),
        WorkerPlace(group, 0, sender.devices // sender.schedulers),
        WorkerPlace(group, node.devices_per_node, receiver.devices // receiver.schedulers),
        bytes_per_token=ranks * kept / tokens,
        one_node=False,
    )
