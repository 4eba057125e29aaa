"""From a row to what ran: model, device, engine, layout and load, with what its source leaves unsaid filled in.

Conventions, each with its basis; none looks at a measured figure of the row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from meshwright.app.evidence.serving.degrees import (
    NO_LIMITS,
    EqualWorkers,
    PoolLimits,
    flags_of,
    launched,
    published_limits,
    with_whole_blocks,
    workers_of,
)
from meshwright.app.evidence.serving.figures import document_of, graph_of, named_model
from meshwright.app.evidence.serving.recipes import (
    BenchmarkLoad,
    BenchmarkSource,
    EngineName,
    held_steps,
    joined_steps,
    kv_dtype,
    scheduling,
    step_tokens,
)
from meshwright.app.evidence.serving.rows import AGGREGATED, Arrival, ServingRun
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.launching.parts.serving import NO_FLAGS, LaunchFlags
from meshwright.app.models.catalog import model, model_document, model_names
from meshwright.app.models.catalog.copies import NVFP4, Copy, copy_of
from meshwright.app.models.checkpoint import COMPUTES_IN, CheckpointFormat, checkpoint_format
from meshwright.app.requests.cluster_words import named_hardware
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.dims import EXPERT_FFN, EXPERTS
from meshwright.costmodels.model.formats import FormatWord, WeightFormat
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.queueing.simulation.replica import Admission, Scheduling
from meshwright.costmodels.serving.engine_profile import Quantised
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.costmodels.units import DType
from meshwright.solver.problem.graph import ModelGraph

# The drafts of a row: whether tokens were drafted, how many in a step, and the chance that they are kept.


class Drafts(StrEnum):
    """The drafting of tokens: none, as the row states, or left open."""

    NONE = "none"
    STATED = "stated"
    UNKNOWN = "unknown"


WITH_DRAFT_LAYERS = ("deepseek-v3", "glm-5", "qwen3.5-397b-a17b")
"""Models whose checkpoints have layers that draft (num_nextn_predict_layers, mtp_num_hidden_layers in their configs): where a
row does not say whether they ran, it is not known. Others are not drafted for unless a row says so."""

ACCEPTANCE = {
    EngineName.TENSORRT_LLM: ((0.25, 0.6), (0.5, 0.7), (0.25, 0.8)),
    EngineName.SGLANG: ((0.25, 0.35), (0.5, 0.45), (0.25, 0.55)),
    EngineName.VLLM: ((0.25, 0.5), (0.5, 0.65), (0.25, 0.8)),
}
"""Chances, each with its weight, that a drafted token is kept where a row does not state one: a prior by engine, from public
points of DeepSeek-R1 with its MTP layer, which 0.7 fits best on TensorRT-LLM (prompts in the chat template) and 0.4 to 0.5 on
SGLang (random tokens): what these points say of drafts is in sample. No point of vLLM: between the two, and wide."""

DEFAULT_TOKENS = {EngineName.TENSORRT_LLM: 3, EngineName.SGLANG: 2, EngineName.VLLM: 1}
"""Tokens that an MTP layer drafts in a step: as published scripts say (dsr1_fp8_b200_trt_mtp.sh: MTP=3; dsr1_fp8_b200_mtp.sh:
--speculative-num-steps 2), and one in vLLM's own examples."""

LARGEST_BATCH = 64
"""Sequences of an attention group up to which TensorRT-LLM's published recipes draft three tokens, and one from there on (the
names of their files, as in gen_dep8_batch256_mtp1); with attention over all ranks always three."""

_NONE = ("none", "off", "false", "0")
_UNKNOWN = ("", "ambiguous", "unknown")


def stated_drafts(said: str, model: str) -> Drafts:
    """Return what a row's cell says of drafts for a model."""
    if said.casefold() in _NONE:
        return Drafts.NONE
    if said.casefold() in _UNKNOWN:
        return Drafts.UNKNOWN if model in WITH_DRAFT_LAYERS else Drafts.NONE
    return Drafts.STATED


def drafted(
    run: ServingRun, flags: LaunchFlags, load: BenchmarkLoad, decode: EqualWorkers, graph: ModelGraph
) -> tuple[tuple[float, Speculation], ...]:
    """Return the drafts that a row may have had, each with its weight: one where it states the acceptance, else the prior's.

    Raises NotPredictedError for a method without a model of its cost.
    """
    method = run.speculation.casefold()
    if method not in (DraftMethod.MTP, DraftMethod.NGRAM):
        raise NotPredictedError(f"drafts whose cost is not known: {run.speculation}")
    tokens = run.draft_tokens or flags.draft_tokens or _tokens(load, decode, both_phases=run.mode == AGGREGATED)
    layers = len(graph.layers)
    of_model = 0.0 if method == DraftMethod.NGRAM else 1.0 / layers
    weights_bytes = graph.parameters() * load.precision.size_bytes * of_model / decode.devices
    draft = Draft(DraftMethod(method), relative_cost=of_model, memory_bytes=weights_bytes)
    chances = ACCEPTANCE[load.engine] if run.acceptance is None else ((1.0, run.acceptance),)
    return tuple((weight, Speculation(tokens, chance, draft)) for weight, chance in chances)


def _tokens(load: BenchmarkLoad, decode: EqualWorkers, *, both_phases: bool) -> int:
    """Return the tokens that a layer drafts in a step where the row does not state them."""
    if load.engine is not EngineName.TENSORRT_LLM or decode.attention_dp == 1:
        return DEFAULT_TOKENS[load.engine]
    groups = decode.count * decode.attention_dp
    # Workers of both phases draft one token with attention groups (dsr1_fp8_b200_trt_mtp.sh, DP_ATTENTION: MTP=1).
    few = not both_phases and load.clients is not None and load.clients <= LARGEST_BATCH * groups
    return DEFAULT_TOKENS[load.engine] if few else 1


MAX_LOAD = "max_load(all queued)"
"""Concurrency of throughput benchmarks: every request is queued at the start."""

MAX_LOAD_SEQUENCES = 2048
"""Sequences at once under full load: default --max_batch_size of trtllm-bench and trtllm-serve."""

MAX_LOAD_REQUESTS = 3000
"""Requests of such a run: TensorRT-LLM's perf-overview runs 1,000 to 30,000 by lengths, 3,000 for most."""

REQUESTS_PER_CLIENT = 10
"""As InferenceX runs vLLM's benchmark_serving: ten prompts a client (--num-prompts CONC * 10). Taken for all rows."""

INFERENCEX_SHORTEST = 0.8
"""InferenceX draws lengths uniform in 80% to 100% of the nominal ones (--random-range-ratio 0.8); other rows state nothing, so
their lengths are taken as fixed."""

_INFERENCEX = re.compile(r"source_file=2026-|db-dump/|gap-analysis\.csv")
"""Notes of rows taken from InferenceX's data base."""

_SHARED_BY_UNKNOWN = re.compile(r"gtl_(job|task)_id=")
"""Notes of rows that AIConfigurator's developers ran on deployments of Dynamo. Clients are those of all workers (benchmark
sglang.rule: estimated_concurrency = agg_workers * max_batch_size), whose number no column gives."""

_MEASURED = re.compile(r"measured=(\d{4}-\d{2}-\d{2})")

_MLPERF = "mlcommons/"
"""The beginning of the source of rows of MLPerf Inference."""

_AICONFIGURATOR = "aic-auto-gap-analysis"
"""Notes of rows that AIConfigurator's developers ran."""

SCHEDULING = {
    EngineName.VLLM: (Scheduling.CHUNKED_PREFILL,),
    # Without chunks by default (enable_chunked_prefill false), yet often switched on: calibration chooses.
    EngineName.TENSORRT_LLM: (Scheduling.WHOLE_PROMPTS, Scheduling.CHUNKED_PREFILL),
    # SGLang runs a prefill batch before any decode batch unless --enable-mixed-chunk is given.
    EngineName.SGLANG: (Scheduling.PREFILL_FIRST,),
}
"""Schedulings that an engine may have run with, its default first."""

ADMISSION = {
    EngineName.VLLM: Admission.PREEMPT,
    EngineName.SGLANG: Admission.PREEMPT,
    # Default capacity policy GUARANTEED_NO_EVICT.
    EngineName.TENSORRT_LLM: Admission.RESERVE,
}


def admission(engine: EngineName, drafts: Speculation | None) -> Admission:
    """Return how an engine lets requests in. Rounds that give several tokens are simulated with room that is reserved only."""
    return ADMISSION[engine] if drafts is None else Admission.RESERVE


@dataclass(frozen=True, slots=True)
class Deployment:
    """A row as the cost models take it. ``prefill`` is None where one worker does both phases; ``clients`` send a request
    as soon as their last is answered, None under full load; lengths are uniform from ``shortest`` of the nominal ones.
    ``step_tokens`` limit a step, ``held_steps`` is how many decode steps a new request is held back for on average,
    ``joined_steps`` for how many at most until every attention group has a prompt. ``source`` is who ran it, ``drafted`` are
    the drafts that it may have had, each with its weight. ``scheduling`` is how steps are formed, None where nothing says it.
    ``flags`` are those of the workers that decode, ``pools`` are the limits of the workers of each phase.
    ``stated`` says that the row leaves neither its degrees nor the number of its workers open. ``config`` is the file of a
    model that is not the catalogue's, ``stored`` the format of its quantised weights. Requests of an open loop arrive at
    ``requests_per_s``, None of a closed one, have the lengths of ``dataset`` and reach workers by ``router``; a run of so many
    ``requests`` has no others, None of one that goes on."""

    model: str
    node: str
    engine: EngineName
    precision: DType
    kv_dtype: DType
    prefill: EqualWorkers | None
    decode: EqualWorkers
    prompt_tokens: int
    output_tokens: int
    clients: int | None
    shortest: float
    step_tokens: int
    held_steps: float
    joined_steps: int
    source: BenchmarkSource
    drafts: Drafts
    drafted: tuple[tuple[float, Speculation], ...] = ()
    flags: LaunchFlags = NO_FLAGS
    pools: PoolLimits = NO_LIMITS
    scheduling: Scheduling | None = None
    stated: bool = True
    config: str = ""
    stored: CheckpointFormat | None = None
    requests_per_s: float | None = None
    dataset: str = ""
    router: Router = Router.RANDOM
    requests: int | None = None

    @property
    def most_sequences(self) -> int:
        """The most sequences at once of an attention group; SGLang's limit is that of all groups of a worker."""
        return _group_sequences(self.flags, self.engine, self.decode) or MAX_LOAD_SEQUENCES

    @property
    def hardware(self) -> tuple[str, str]:
        """Model and node type: what calibration leaves out as one, however a row spells them."""
        return self.model, self.node


def deployment(run: ServingRun, models: Path | None = None) -> Deployment:
    """Return the deployment of a row; raises NotPredictedError with what the row leaves open or the catalogue lacks.

    ``models`` is a folder of config files in which models are looked up first.
    """
    name, config = named_model(run.model, models)
    node = _node(run.gpu)
    if run.prompt_tokens is None or run.output_tokens is None:
        raise NotPredictedError("the row does not state its lengths")
    engine, word = _engine(run), _word(run)
    said = (None if word is None else word.precision) or (_narrowest(run, node) if word is None else None)
    stored = _stored(run.model, name, config, said, None if word is None else word.weights)
    precision = said or (DType.BF16 if stored is None else stored.precision)
    source = _source(run)
    drafts = stated_drafts(run.speculation, name)
    graph, flags = graph_of(name, config), flags_of(engine, run.decode_launch or run.launch)
    flags = replace(flags, sequences=run.sequences or flags.sequences, step_tokens=run.step_tokens or flags.step_tokens)
    prefill, decode = workers_of(run, degrees_multiplied=source is BenchmarkSource.INFERENCEX)
    if prefill is None:
        experts = EXPERT_FFN in graph.dims
        if run.arrival is not Arrival.CLOSED and not run.tp:
            decode = _fewest_devices(decode, graph, said, node)
        decode = launched(decode, flags, engine, n_gpus=run.n_gpus, experts=experts)
    if stored is not None and stored.weights is WeightFormat.FP8_BLOCK:
        workers = [each for each in (prefill, decode) if each is not None]
        whole = [with_whole_blocks(each, graph.dims.get(EXPERT_FFN, 0)) for each in workers]
        if whole != workers and engine is EngineName.TENSORRT_LLM and stored != stored_format(run.model, name):
            # What its published tables ran in fp8 is nvidia/Qwen3-235B-A22B-FP8, with one scale for each matrix.
            stored = replace(stored, weights=WeightFormat.FP8)
        else:
            prefill, decode = whole[0] if prefill is not None else None, whole[-1]
    load = BenchmarkLoad(
        source=source,
        engine=engine,
        model=name,
        node=node,
        precision=precision,
        tp=decode.tp,
        prompt_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens,
        clients=_clients(run),
        measured="" if (dated := _MEASURED.search(run.note)) is None else dated[1],
        release=run.engine_version,
    )
    return Deployment(
        model=name,
        node=node,
        engine=engine,
        precision=precision,
        kv_dtype=flags.kv_dtype or kv_dtype(load),
        prefill=prefill,
        decode=decode,
        prompt_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens,
        clients=load.clients,
        shortest=INFERENCEX_SHORTEST if source is BenchmarkSource.INFERENCEX else 1.0,
        step_tokens=flags.step_tokens or step_tokens(load),
        held_steps=held_steps(load) if prefill is None else 0.0,
        joined_steps=joined_steps(load) if prefill is None else 0,
        source=source,
        drafts=drafts,
        drafted=() if drafts is not Drafts.STATED else drafted(run, flags, load, decode, graph),
        flags=flags,
        pools=NO_LIMITS
        if prefill is None
        else _pool_limits(run, load, prefill, decode, flags, has_drafts=drafts is Drafts.STATED),
        scheduling=flags.scheduling or scheduling(load),
        stated=_is_stated(run, flags),
        config=config,
        stored=stored,
        requests_per_s=_rate(run),
        dataset=run.dataset if run.arrival is not Arrival.CLOSED else "",
        router=run.router,
        requests=run.requests if run.arrival is Arrival.POISSON else None,
    )


def _rate(run: ServingRun) -> float | None:
    """Requests per second of an open loop, None of another."""
    if run.arrival is not Arrival.POISSON:
        return None
    if run.requests_per_s is None:
        raise NotPredictedError("the row does not state its rate of requests")
    return run.requests_per_s


def _narrowest(run: ServingRun, node: str) -> DType | None:
    """The format of an open loop or a full queue of MLPerf that states none: the narrowest that its device multiplies, as in
    each of the 162 configurations of v5.1 that do (fp4 on Blackwell, fp8 before)."""
    if _source(run) is not BenchmarkSource.MLPERF:
        return None
    peaks = node_type(node).device.peak_flops
    return next((dtype for dtype in (DType.FP4, DType.FP8) if dtype in peaks), None)


MOST_WEIGHTS = 0.5
"""Share of a worker's memory that weights take at most, where an open loop states no degrees."""


def _fewest_devices(workers: EqualWorkers, graph: ModelGraph, said: DType | None, node: str) -> EqualWorkers:
    """Workers of an open loop that states no degrees: as many as there is room for, each of the fewest devices of which weights
    leave half for caches. MLPerf's published configurations of v4.1 and v5.1 say the same (one H200, two H100)."""
    weights_bytes = graph.parameters() * (said or DType.BF16).size_bytes
    devices, tp = workers.devices * workers.count, 1
    while tp < devices and weights_bytes > MOST_WEIGHTS * tp * node_type(node).device.memory_bytes:
        tp *= 2
    return EqualWorkers(max(1, devices // tp), tp, 1, 1, 1)


def _pool_limits(
    run: ServingRun, load: BenchmarkLoad, prefill: EqualWorkers, decode: EqualWorkers, flags: LaunchFlags, *, has_drafts: bool
) -> PoolLimits:
    """Limits of the workers of both phases: those of the row's commands, else those that its source publishes."""
    published = published_limits(load, prefill, decode, has_drafts=has_drafts)
    of_prefill = flags_of(load.engine, run.prefill_launch or run.launch)
    return PoolLimits(
        prefill_tokens=of_prefill.step_tokens or published.prefill_tokens,
        prefill_sequences=_group_sequences(of_prefill, load.engine, prefill) or published.prefill_sequences,
        decode_sequences=_group_sequences(flags, load.engine, decode) or published.decode_sequences,
    )


def _group_sequences(flags: LaunchFlags, engine: EngineName, workers: EqualWorkers) -> int | None:
    """Sequences at once of an attention group; SGLang's limit is that of all groups of a worker."""
    given = flags.sequences
    return max(1, given // workers.attention_dp) if given and engine is EngineName.SGLANG else given


def _is_stated(run: ServingRun, flags: LaunchFlags) -> bool:
    if run.mode != AGGREGATED:
        return True
    return (bool(run.tp) or flags.tp is not None) and _SHARED_BY_UNKNOWN.search(run.note) is None


def _node(gpu: str) -> str:
    """The node type of a GPU under any of its names; a remark in brackets behind the name is not part of it."""
    name = re.sub(r"\(.*", "", gpu).replace("_", " ").strip()
    try:
        return named_hardware(name)[0].name
    except InvalidInputError:
        raise NotPredictedError(f"GPU not in the catalogue: {gpu or 'not stated'}") from None


def _source(run: ServingRun) -> BenchmarkSource:
    if run.source.startswith(_MLPERF):
        return BenchmarkSource.MLPERF
    if _INFERENCEX.search(run.note):
        return BenchmarkSource.INFERENCEX
    return BenchmarkSource.AICONFIGURATOR if _AICONFIGURATOR in run.note else BenchmarkSource.OTHER


def _engine(run: ServingRun) -> EngineName:
    for engine in EngineName:
        if run.engine.startswith(engine.value):
            return engine
    raise NotPredictedError(f"engine without a profile: {run.engine or 'not stated'}")


def _word(run: ServingRun) -> FormatWord | None:
    """The word for a format that a row states; None where it leaves that to the checkpoint."""
    try:
        return FormatWord(run.precision.casefold()) if run.precision else None
    except ValueError:
        raise NotPredictedError(f"unknown precision: {run.precision}") from None


def _stored(text: str, name: str, config: str, said: DType | None, weights: WeightFormat | None) -> CheckpointFormat | None:
    """The format of the checkpoint's weights: of a config file as it says, unless the row states another."""
    try:
        own = checkpoint_format(document_of(config)) if config else stored_format(text, name)
    except InvalidInputError as error:
        raise NotPredictedError(error.problem) from None
    if own is not None and own.is_meant_by(said, weights):
        return own
    if weights is not None:
        return CheckpointFormat(COMPUTES_IN[weights], weights, Quantised.PROJECTIONS)
    return None if config or said is None else said_format(text, name, said)


def _clients(run: ServingRun) -> int | None:
    if run.concurrency == MAX_LOAD or run.arrival is not Arrival.CLOSED:
        return None
    try:
        clients = float(run.concurrency)
    except ValueError:
        clients = math.nan
    if not (clients >= 1 and clients.is_integer()):
        raise NotPredictedError("the row does not state its concurrency")
    return int(clients)


_BLOCKS = CheckpointFormat(DType.FP8, WeightFormat.FP8_BLOCK, Quantised.PROJECTIONS)
_MAKERS_FP8: Mapping[str, CheckpointFormat] = dict.fromkeys(("qwen3-235b-a22b", "glm-5", "qwen3.5-397b-a17b"), _BLOCKS)
"""The fp8 checkpoints of their own makers that a row means which says fp8 of these: their quantization_config
(Qwen/Qwen3-235B-A22B-FP8; of GLM-5-FP8 and Qwen3.5-397B-A17B-FP8 from memory). Of other models each matrix has one scale."""


@cache
def stored_format(text: str, name: str) -> CheckpointFormat | None:
    """Return the format of a checkpoint by its id, of which the catalogue has the sizes under a name; None where nothing of it
    is quantised, or the catalogue has no such model."""
    if name not in model_names():
        return None
    named = copy_of(text)
    stored = None if named is None or named.name != name else named.stored
    return _of_copy(Copy(name, name, stored))


def _of_copy(copy: Copy) -> CheckpointFormat | None:
    has_experts = EXPERTS in model(copy.name).dims
    return checkpoint_format(copy.config(model_document(copy.name), has_experts=has_experts))


@cache
def said_format(text: str, name: str, precision: DType) -> CheckpointFormat | None:
    """Return the format of the checkpoint that a row means which says a precision beside an id; None of one that is computed
    in that precision with one scale a matrix, or in 16 bits.

    The id's own format where it has that precision; a checkpoint in MXFP4 has no other.
    """
    own = stored_format(text, name)
    is_mxfp4 = own is not None and own.weights is WeightFormat.MXFP4 and precision is not DType.BF16
    if own is not None and (is_mxfp4 or own.is_meant_by(precision, None)):
        return own
    if precision is DType.FP4 and name in model_names():
        return _of_copy(Copy(name, name, NVFP4))
    return _MAKERS_FP8.get(name) if precision is DType.FP8 else None
