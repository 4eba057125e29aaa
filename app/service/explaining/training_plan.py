"""The plan that a training command stands for, and the rules of its launcher that it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.app.base.figures import gib
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.evidence.training.prediction import CostedRun, fastest_sharding, launchers_spans, with_some_layers
from meshwright.app.launching.parts.stated import Loaders, StatedTraining
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE
from meshwright.costmodels.model.adapter import BaseFormat
from meshwright.costmodels.model.dims import EXPERTS, HEADS, KV_HEADS, SEQ
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.plan import Plan
from meshwright.solver.blocks.recompute import modules_of
from meshwright.solver.blocks.tp_strategies import REPLICATED, sharded
from meshwright.solver.problem.carried_choices import USUAL_STAGE, MeshChoices, StageChoices
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.declared.recompute_modules import USUAL_MODULES, words_of_modules
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.launchers.decoders import is_layer
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, StageSpan, evaluate_decision
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.schedules import PLAIN, Pipelining


def broken_rules(request: TrainingRequest, stated: StatedTraining) -> tuple[str, ...]:
    """Return why a launcher refuses a command on the devices of a request; empty where it does not."""
    return (*stated.problems, *_of_devices(request, stated), *_of_model(request, stated), *_of_hosts(request, stated))


def _of_devices(request: TrainingRequest, stated: StatedTraining) -> Iterator[str]:
    world = world_of(request, stated)
    ranks = stated.tp * stated.pp * stated.cp
    if world > request.cluster.n_devices:
        yield f"the command starts {world} ranks, and there are {request.cluster.n_devices} devices"
    if world % ranks:
        yield f"{world} ranks do not divide by tp {stated.tp} x pp {stated.pp} x cp {stated.cp}"
        return
    replicas = world // ranks
    if stated.data_parallel not in (None, replicas):
        yield f"the command says {stated.data_parallel} replicas, and {world} ranks are {replicas} of {ranks}"
    size = microbatch_of(request, stated)
    if request.workload.global_batch % (replicas * size):
        yield f"a global batch of {request.workload.global_batch} does not divide by {replicas} replicas x micro-batch {size}"
    if stated.ep > 1 and world % (stated.ep * (stated.etp or stated.tp) * stated.pp):
        yield f"{world} ranks do not divide by etp {stated.etp or stated.tp} x ep {stated.ep} x pp {stated.pp}"
    copies = stated.optimizer_copies or 1
    if stated.shard_ranks is not None and replicas * stated.cp % stated.shard_ranks:
        yield f"{replicas * stated.cp} ranks of data do not divide by shards over {stated.shard_ranks}"
    if replicas * stated.cp % copies:
        yield f"{copies} copies of the optimizer over {replicas * stated.cp} ranks of data do not divide"


def _of_model(request: TrainingRequest, stated: StatedTraining) -> Iterator[str]:
    dims, facts = request.model.dims, TRAINERS[stated.launcher]
    heads, kv_heads = dims.get(HEADS, 1), dims.get(KV_HEADS, dims.get(HEADS, 1))
    if heads % stated.tp:
        yield f"{heads} attention heads do not divide by tp {stated.tp}"
    elif kv_heads % stated.tp and not (facts.replicates_kv_heads and stated.tp % kv_heads == 0):
        yield f"{kv_heads} key/value heads do not divide by tp {stated.tp}"
    experts = dims.get(EXPERTS, 0)
    if stated.ep > 1 and (experts == 0 or experts % stated.ep):
        yield f"{experts} experts do not divide by ep {stated.ep}"
    if experts and stated.tp > 1 and facts.experts_ask_for_sp and not stated.sequence_parallel:
        yield f"experts beside tp {stated.tp} need sequence parallelism"
    if stated.sequence_parallel and request.workload.seq_len % stated.tp:
        yield f"sequences of {request.workload.seq_len} tokens do not divide by tp {stated.tp}"
    adapter = request.workload.adapter
    if adapter is not None and adapter.base_format is BaseFormat.INT8 and stated.zero_stage == MAX_ZERO_STAGE:
        yield "weights in int8 are no shards: of packed weights those of four bits go with ZeRO-3 and FSDP"
    if stated.zero_stage > facts.max_zero_with_pipeline and stated.pp > 1:
        yield f"ZeRO-{stated.zero_stage} does not go with a pipeline"
    layers = sum(1 for name in request.model.layers if is_layer(request.model.block(name)))
    if stated.parts and sum(stated.parts) != layers:
        yield f"the stages hold {sum(stated.parts)} layers, the model has {layers}"
    elif not stated.parts and layers % (stated.pp * stated.chunks):
        yield f"{layers} layers do not divide by {stated.pp * stated.chunks} stages or virtual stages"


def _of_hosts(request: TrainingRequest, stated: StatedTraining) -> Iterator[str]:
    """What its ranks read into host memory before anything is on a device, in the working format or the 16 bits that
    checkpoints have."""
    if stated.loaders is Loaders.NONE:
        return
    node = min((group.node for group in request.cluster.groups), key=lambda each: each.host_memory_bytes)
    ranks = 1 if stated.loaders is Loaders.FIRST else min(world_of(request, stated), node.devices_per_node)
    loaded_bytes = request.model.parameters() * request.workload.precision.size_bytes
    if ranks * loaded_bytes > node.host_memory_bytes:
        once = ": fsdp_cpu_ram_efficient_loading, ZeRO-3 or fewer ranks a node read it once" if ranks > 1 else ""
        yield (
            f"out of host memory at the start: {stated.loaders.value} reads the {gib(loaded_bytes)} of weights, "
            f"{gib(ranks * loaded_bytes)} on a node that has {gib(node.host_memory_bytes)}{once}"
        )


def world_of(request: TrainingRequest, stated: StatedTraining) -> int:
    """Return the ranks of a command: as many as it starts, else one a device."""
    return stated.world or request.cluster.n_devices


def training_plan(request: TrainingRequest, stated: StatedTraining) -> Plan:
    """Return the plan of a command that breaks no rule; raises InvalidInputError for one that no cost model covers."""
    replicas = world_of(request, stated) // (stated.tp * stated.pp * stated.cp)
    size = microbatch_of(request, stated)
    boundary = sharded(SEQ) if stated.sequence_parallel else REPLICATED
    ranks = replicas * stated.cp
    mesh = Mesh(dp=replicas, tp=stated.tp, pp=stated.pp, cp=stated.cp, ep=stated.ep, ulysses=stated.ulysses, etp=stated.etp)
    candidate = Candidate(
        replace(mesh, choices=MeshChoices.of(stated.mesh, mesh)),
        size,
        request.workload.global_batch // (replicas * size),
        stated.zero_stage if mesh.has_copies else 0,
        boundary,
        (stated.recompute,),
        _pipelining(stated),
        shard_ranks=_shard_ranks(stated, ranks),
        offload=stated.offload,
        tp_overlap=stated.tp_overlap,
        expert_overlap=stated.expert_overlap,
        choices=StageChoices(recompute_modules=_modules(request.model, stated)),
    )
    try:
        costs = TrainingCosts(request)
        stages = stated.stages if stated.recompute is Recompute.FULL else USUAL_STAGE
        candidate, kept_from = with_some_layers(candidate, stages, costs)
        kinds = costs.stage_kinds(candidate)
        sharding = fastest_sharding(costs, candidate, kinds)
        spans = _spans(stated, candidate) if stated.parts else launchers_spans(len(request.model.layers), candidate)
        spans = tuple(replace(span, recompute=stated.recompute, kept_from=kept_from(span)) for span in spans)
    except NotPredictedError as error:
        raise InvalidInputError(f"no cost model covers this command: {error}") from None
    tables = costs.stage_tables(candidate, sharding, kinds)
    decision = Decision(candidate, sharding, spans)
    return CostedRun(request, costs, decision, evaluate_decision(decision, tables)).plan()


def _modules(model: ModelGraph, stated: StatedTraining) -> str | None:
    """The modules that run again, of those that the model has, in words; None for the usual ones, and in other modes."""
    if stated.recompute is not Recompute.FINE_GRAINED:
        return None
    has = modules_of(model)
    named = [module for module in stated.stages.modules if module in has]
    usual = [module for module in USUAL_MODULES if module in has]
    return None if named == usual else words_of_modules(named)


def _shard_ranks(stated: StatedTraining, ranks: int) -> int | None:
    """Ranks that state is sharded over, of so many that hold the same layers; None for all of them."""
    if stated.shard_ranks is not None:
        return None if stated.shard_ranks == ranks else stated.shard_ranks
    copies = stated.optimizer_copies or 1
    return None if copies == 1 else ranks // copies


def microbatch_of(request: TrainingRequest, stated: StatedTraining) -> int:
    """Return the sequences of a micro-batch: as many as the command says, else what the batch leaves of each."""
    if stated.microbatch is not None:
        return stated.microbatch
    replicas = world_of(request, stated) // (stated.tp * stated.pp * stated.cp)
    return max(1, request.workload.global_batch // (replicas * (stated.accumulation or 1)))


def _pipelining(stated: StatedTraining) -> Pipelining:
    if stated.pp == 1 or stated.schedule is None:
        return PLAIN
    return Pipelining(Schedule(stated.schedule), stated.chunks)


def _spans(stated: StatedTraining, candidate: Candidate) -> tuple[StageSpan, ...]:
    """Layers of each part: the embedding with the first, the head with the last."""
    spans, first = [], 0
    for position, count in enumerate(stated.parts):
        last = first + count - 1 + (position == 0) + (position == len(stated.parts) - 1)
        spans.append(StageSpan(first, last, candidate.recompute[0]))
        first = last + 1
    return tuple(spans)
