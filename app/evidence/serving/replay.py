"""The prediction of the simulator for a row: the closed loop of its clients on its deployment, and a plain roofline beside
it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from meshwright.app.evidence.serving.degrees import EqualWorkers
from meshwright.app.evidence.serving.deployment import (
    ADMISSION,
    MAX_LOAD_REQUESTS,
    MAX_LOAD_SEQUENCES,
    REQUESTS_PER_CLIENT,
    SCHEDULING,
    Deployment,
    admission,
)
from meshwright.app.evidence.serving.figures import Figures, expected_figures, figures_of, graph_of
from meshwright.app.evidence.serving.recipes import DEFAULT_STEP_TOKENS, EngineName
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.models.checkpoint import CheckpointFormat
from meshwright.app.requests.workloads import loaded_formats
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.dims import BATCH, EXPERTS, SEQ
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.model.split_dims import RankGrid, divides
from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.queueing.simulation.disaggregated import (
    CacheTransfer,
    Pool,
    simulate_decode,
    simulate_prefill,
)
from meshwright.costmodels.queueing.simulation.engine_state import FloatArray
from meshwright.costmodels.queueing.simulation.replica import (
    Admission,
    BatchLimits,
    Scheduling,
    SimulationResult,
    Window,
    simulate_closed_loop,
)
from meshwright.costmodels.queueing.step_times import GroupTimes, StepTimes
from meshwright.costmodels.serving.attention import latent_cache
from meshwright.costmodels.serving.engine_profile import (
    ENGINE_SGLANG,
    ENGINE_TENSORRT_LLM,
    ENGINE_VLLM,
    EngineProfile,
    Quantised,
)
from meshwright.costmodels.serving.memory import WorkerPlace, kv_transfer
from meshwright.costmodels.serving.speculation import Speculation, drawn_rounds
from meshwright.costmodels.units import DType
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import WEIGHT_FORMATS, ServingRequest, ServingWorkload
from meshwright.solver.problem.serving_load import FixedLength, PoissonArrivals
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import Layout, is_layer

FREE_MEMORY_SHARE = 0.8
"""Share of free memory that TensorRT-LLM's cache takes (free_gpu_memory_fraction): 0.75 to 0.85 in InferenceX's scripts, 0.8 in
AIConfigurator's template."""

PROFILES = {
    EngineName.VLLM: ENGINE_VLLM,
    EngineName.TENSORRT_LLM: ENGINE_TENSORRT_LLM,
    EngineName.SGLANG: ENGINE_SGLANG,
}

_EVERYTHING = Window(warm_up=0.0, cool_down=0.0)
_SEED = 0


@dataclass(frozen=True, slots=True)
class EngineConstants:
    """The constants of an engine that are calibrated on measured points.

    step_s         host time of a step that the device does not hide
    operator_s     host time of an operator in a step with prompts, which CUDA graphs do not hold
    request_s      time to first token spent outside of steps and queue: network, tokenizer, first answer
    scheduling     how steps are formed
    """

    step_s: float
    operator_s: float
    request_s: float
    scheduling: Scheduling


def default_constants(engine: EngineName) -> EngineConstants:
    """The engine as ``plan`` and ``simulate`` have it: its profile."""
    profile = PROFILES[engine]
    return EngineConstants(profile.step_s, profile.prompt_operator_s, profile.outside_s, SCHEDULING[engine][0])


def replay(deployed: Deployment, constants: EngineConstants) -> Figures:
    """The figures of the clients' closed loop, the mean over the drafts that it may have had; raises NotPredictedError where
    the models have no answer."""
    if not deployed.drafted:
        return _replayed(deployed, constants, None)
    return expected_figures([(weight, _replayed(deployed, constants, each)) for weight, each in deployed.drafted])


def _replayed(deployed: Deployment, constants: EngineConstants, drafts: Speculation | None) -> Figures:
    try:
        if deployed.prefill is not None:
            return _pooled(deployed, constants, drafts)
        result, alike = _aggregated(deployed, constants, drafts)
    except InvalidInputError as error:
        given = "" if error.given is None else f" ({error.given})"
        raise NotPredictedError(f"{error.problem}{given}") from error
    # Answers of one token have no step after their first.
    step_s = float(np.mean(result.tpot_s)) if result.tpot_s.size else 0.0
    outside_s = constants.request_s + deployed.held_steps * step_s
    tokens = float(result.requests.output_tokens.sum())
    return figures_of(result, outside_s=outside_s, output_tokens_per_s=alike * tokens / result.duration_s)


def _aggregated(deployed: Deployment, constants: EngineConstants, drafts: Speculation | None) -> tuple[SimulationResult, int]:
    """Clients are shared evenly by replicas, and those of one dealt out to its attention groups; one replica is simulated, of
    a pipeline one group. Also how many it stands for."""
    workers = deployed.decode
    groups = workers.count * workers.attention_dp
    sequences = MAX_LOAD_SEQUENCES if deployed.clients is None else max(1, -(-deployed.clients // groups))
    longest = deployed.prompt_tokens + deployed.output_tokens
    step_tokens = deployed.step_tokens
    # Without chunks the limit must hold the longest prompt, and where requests are evicted their output.
    whole = deployed.prompt_tokens if ADMISSION[deployed.engine] is Admission.RESERVE else longest
    scheduling = deployed.scheduling or constants.scheduling
    if scheduling is not Scheduling.CHUNKED_PREFILL and whole + sequences > step_tokens:
        step_tokens = -(-(longest + sequences) // DEFAULT_STEP_TOKENS) * DEFAULT_STEP_TOKENS
    engine = simulated_engine(replace(deployed, step_tokens=step_tokens), drafts)
    held = min(sequences, deployed.most_sequences)
    kv_tokens = kv_tokens_of(engine, deployed, step_tokens=step_tokens, sequences=held)
    if kv_tokens < longest:
        raise NotPredictedError("the model says that weights and one request do not fit in memory")
    profile = PROFILES[deployed.engine]
    times = with_host_time(engine, constants, profile)
    clients, count, alike = sequences, MAX_LOAD_REQUESTS, groups
    if isinstance(times, GroupTimes):
        times, alike = replace(times, joined_steps=deployed.joined_steps), workers.count
        clients, count = sequences * workers.attention_dp, MAX_LOAD_REQUESTS * workers.attention_dp
        if deployed.clients is not None:
            clients = max(1, -(-deployed.clients // workers.count))
            # Any group may get more than its share.
            sequences = min(clients, MAX_LOAD_SEQUENCES)
    if deployed.clients is not None:
        count = clients * REQUESTS_PER_CLIENT
    sequences = min(sequences, step_tokens // engine.query_tokens, deployed.most_sequences)
    limits = BatchLimits(sequences, step_tokens, kv_tokens, scheduling, admission(deployed.engine, drafts))
    stream = _stream(deployed, count, drafts)
    run = simulate_closed_loop(times, stream, limits, concurrency=clients, delay_s=profile.turnaround_s, window=_EVERYTHING)
    return run, alike


def kv_tokens_of(engine: Engine, deployed: Deployment, *, step_tokens: int, sequences: int) -> int:
    """Tokens of the cache of an attention group. TensorRT-LLM's is a share of what is left once weights are loaded, the others'
    what is left of a share of the device."""
    given = deployed.flags.memory_share
    if deployed.engine is EngineName.TENSORRT_LLM:
        memory_bytes = engine.layout.group.node.device.memory_bytes
        filled = max(engine.fixed_bytes(stage, step_tokens=step_tokens, sequences=sequences) for stage in engine.needs)
        free_bytes = max(0.0, memory_bytes - filled)
        engine = replace(engine, memory_share=1.0 - (1.0 - (given or FREE_MEMORY_SHARE)) * free_bytes / memory_bytes)
    elif given is not None:
        engine = replace(engine, memory_share=given)
    return engine.kv_tokens(step_tokens=step_tokens, sequences=sequences)


def _pooled(deployed: Deployment, constants: EngineConstants, drafts: Speculation | None) -> Figures:
    """Figures of prefill and decode pools."""
    assert deployed.prefill is not None
    formats = (deployed.precision, deployed.stored, deployed.kv_dtype)
    prompts = deployed.pools.prefill_tokens or DEFAULT_STEP_TOKENS
    server = _Server(deployed.model, deployed.config, deployed.node, deployed.prefill, deployed.engine, *formats, prompts)
    # Counts do not matter to one worker's times: workers alike share them.
    prefill = _engine(replace(server, workers=replace(deployed.prefill, count=1)))
    answers = replace(server, step_tokens=DEFAULT_STEP_TOKENS, drafts=drafts)
    decode = _engine(replace(answers, workers=replace(deployed.decode, count=1)))
    profile = PROFILES[deployed.engine]
    result = run_pools(
        deployed,
        _stream(deployed, (deployed.clients or 1) * REQUESTS_PER_CLIENT, drafts),
        engines=(prefill, decode),
        # A decode worker takes a request with its keys and values: no prompt is computed, and its steps stay in CUDA graphs.
        times=(
            with_host_time(prefill, constants, profile),
            with_host_time(decode, replace(constants, operator_s=0.0), profile),
        ),
        step_tokens=(prompts, DEFAULT_STEP_TOKENS),
    )
    tokens = float(result.requests.output_tokens.sum())
    return figures_of(result, outside_s=constants.request_s, output_tokens_per_s=tokens / result.duration_s)


def simulated_engine(deployed: Deployment, drafts: Speculation | None = None) -> Engine:
    """Return the engine of a deployment's workers that decode."""
    formats = (deployed.precision, deployed.stored, deployed.kv_dtype)
    server = _Server(
        deployed.model, deployed.config, deployed.node, deployed.decode, deployed.engine, *formats, deployed.step_tokens, drafts
    )
    return _engine(server)


def with_host_time(engine: Engine, constants: EngineConstants, profile: EngineProfile) -> StepTimes | GroupTimes:
    """An engine's step times with these times of the host instead of its profile's; that of a step falls on the first stage."""
    times = engine.simulated_times
    own = times.own if isinstance(times, GroupTimes) else times
    tokens_s = own.tokens_s.copy()
    tokens_s[0] += constants.step_s - profile.step_s
    least_prompt_s = constants.operator_s * np.array(engine.operators, dtype=np.float64)
    own = replace(own, tokens_s=tokens_s, least_prompt_s=least_prompt_s)
    return replace(times, own=own) if isinstance(times, GroupTimes) else own


def _stream(deployed: Deployment, count: int, drafts: Speculation | None) -> RequestStream:
    uniform = np.random.Generator(np.random.PCG64(_SEED)).uniform(deployed.shortest, 1.0, (2, count))
    nominal = (deployed.prompt_tokens, deployed.output_tokens)
    prompts, outputs = (np.maximum(1, np.rint(share * n)).astype(np.int64) for share, n in zip(uniform, nominal, strict=True))
    rounds = None if drafts is None else drawn_rounds(outputs - 1, drafts, seed=_SEED)
    return RequestStream(np.zeros(count), prompts, outputs, rounds=rounds)


@dataclass(frozen=True, slots=True)
class _Server:
    """The properties of a server that the tables of an engine depend on."""

    model: str
    config: str
    node: str
    workers: EqualWorkers
    engine: EngineName
    precision: DType
    stored: CheckpointFormat | None
    kv_dtype: DType
    step_tokens: int
    drafts: Speculation | None = None


@cache
def _engine(server: _Server) -> Engine:
    workers = server.workers
    node = node_type(server.node)
    cluster = Cluster((NodeGroup("node", node, -(-workers.devices // node.devices_per_node)),))
    arrivals = PoissonArrivals(process="poisson", requests_per_s=1.0)
    grid = RankGrid(tp=workers.tp, attention_dp=workers.attention_dp, ep=workers.ep)
    graph = _with_redundant_experts(graph_of(server.model, server.config), grid)
    if grid.ranks % grid.ep or not divides(graph.dims, grid):
        raise NotPredictedError(f"the layout does not divide the model ({grid})")
    if grid.attention_dp > 1 and EXPERTS not in graph.dims:
        raise NotPredictedError("attention groups of a model without experts")
    layers = sum(is_layer(graph, name) for name in graph.layers)
    if workers.pp > layers:
        raise NotPredictedError(f"{workers.pp} stages of {layers} layers")
    stored = server.stored
    if stored is None and server.precision not in (DType.BF16, DType.FP16):
        # One scale for each matrix.
        if server.precision not in WEIGHT_FORMATS:
            raise NotPredictedError(f"no engine computes in {server.precision}, and the checkpoint's own format is not known")
        stored = CheckpointFormat(server.precision, WEIGHT_FORMATS[server.precision][0], Quantised.PROJECTIONS)
    formats = loaded_formats(stored, (node.device,))
    if server.precision is DType.FP16:
        # Another 16-bit format than a checkpoint's own is loaded as such.
        formats["precision"] = DType.FP16
    workload = ServingWorkload(
        kind="serving",
        arrivals=arrivals,
        prompt_tokens=FixedLength(1),
        output_tokens=FixedLength(1),
        kv_dtype=server.kv_dtype,
        speculation=server.drafts,
        **formats,
    )
    builder = EngineBuilder(
        ServingRequest(graph, cluster, workload),
        sequence_tokens=2 * DEFAULT_STEP_TOKENS,
        step_tokens=server.step_tokens,
        sequences=MAX_LOAD_SEQUENCES,
        profile=PROFILES[server.engine],
    )
    return builder.engine(Layout(cluster.groups[0], 0, grid, workers.pp))


def _with_redundant_experts(graph: ModelGraph, grid: RankGrid) -> ModelGraph:
    """The model with so many copies of experts that its ranks hold equally many; each token goes to as many as before.

    SGLang's --ep-num-redundant-experts, TensorRT-LLM's moe_load_balancer: 288 for 256 on 48 ranks.
    """
    experts = graph.dims.get(EXPERTS, 0)
    if experts % grid.ep == 0:
        return graph
    return replace(graph, dims={**graph.dims, EXPERTS: -(-experts // grid.ep) * grid.ep})


def roofline(deployed: Deployment) -> Figures:
    """A plain roofline: prefill at peak FLOP/s, decode at full memory bandwidth, one prompt at a time, no queue.

    Raises NotPredictedError where the device has no peak for the precision.
    """
    graph, device = graph_of(deployed.model, deployed.config), node_type(deployed.node).device
    workers = deployed.decode
    try:
        peak = device.peak(deployed.precision)
    except InvalidInputError as error:
        raise NotPredictedError(error.problem) from error
    clients = -(-(deployed.clients or MAX_LOAD_SEQUENCES) // workers.count)
    weights = graph.parameters() * deployed.precision.size_bytes
    kv_token = sum(_cached_elements(graph, name) for name in graph.layers) * deployed.kv_dtype.size_bytes
    prefill_s = 2.0 * graph.parameters() * deployed.prompt_tokens / (workers.devices * peak)
    moved = weights + clients * kv_token * (deployed.prompt_tokens + deployed.output_tokens / 2)
    tpot_s = moved / (workers.devices * device.memory_bytes_per_s)
    busy_s = prefill_s + tpot_s * deployed.output_tokens / clients
    return Figures(prefill_s * 1e3, prefill_s * 1e3, tpot_s * 1e3, workers.count * deployed.output_tokens / busy_s)


def _cached_elements(graph: ModelGraph, block: str) -> int:
    """Elements that a layer caches of a token: keys and values, or the latent they come out of."""
    operators, sizes = graph.block(block).operators, {**graph.dims, BATCH: 1, SEQ: 1}
    attention = [operator for operator in operators if operator.kind is OperatorKind.ATTENTION]
    latent = latent_cache(operators, graph.dims)
    if latent is not None:
        return latent.elements * len(attention)
    return sum(tensor.elements(sizes) for operator in attention for tensor in operator.inputs[1:])


# The prediction of the simulator for clients in a closed loop on prefill and decode pools.
#
# Pools are simulated one after the other, so when a client sends its next request is not known beforehand: a run with guessed
# arrivals says when each request is answered, which gives the arrivals of the next run. What happens before the n-th answer of
# any client is right after n runs, so as many runs as a client has requests make the loop exact.


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
    workers: EqualWorkers,
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
    return Pool(times, limits, alike, Router.ROUND_ROBIN)


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
