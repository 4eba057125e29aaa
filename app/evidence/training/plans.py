"""From a run's plan columns to a request and a candidate of its space."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.evidence.training.clusters import cluster_assumption, cluster_of
from meshwright.app.evidence.training.models import model_graph, named_in_catalogue
from meshwright.app.evidence.training.rows import Run
from meshwright.app.evidence.training.sources import Source
from meshwright.app.evidence.training.stated import UnstatedRecompute, UnstatedSequence, stated_over
from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE
from meshwright.costmodels.model.dims import SEQ
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.pipeline import Schedule, fills
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.tp_strategies import REPLICATED, sharded
from meshwright.solver.problem.carried_choices import USUAL_STAGE, MeshChoices, StageChoices
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.declared.recompute_layers import read_words
from meshwright.solver.problem.declared.recompute_modules import in_order
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.space.candidates import Candidate, may_pair
from meshwright.solver.training.space.implementation import as_implemented
from meshwright.solver.training.space.meshes import Mesh, experts_fit
from meshwright.solver.training.space.schedules import PLAIN, Pipelining

_RECOMPUTE = {
    "": Recompute.NONE,
    "none": Recompute.NONE,
    "full": Recompute.FULL,
    "selective": Recompute.SELECTIVE,
    "selective (op)": Recompute.SELECTIVE,
    "fine-grained": Recompute.FINE_GRAINED,
}
_CP_KEYS = {"": CpKeys.RING, "p2p": CpKeys.RING, "a2a": CpKeys.RING, "all_gather": CpKeys.GATHERED}
_SCHEDULES = ("", "1f1b", "pipedreamflush", "trainschedule", "interleaved1f1b", "interleavedpipelining")
"""1F1B by its names in letters and digits: PipeDream-Flush (Narayanan et al. 2021), DeepSpeed's TrainSchedule, and with several
chunks a rank."""


@dataclass(frozen=True, slots=True)
class UsedPlan:
    """The plan that a run used: a candidate of its request's space, whose ``stages`` may recompute some layers alone."""

    request: TrainingRequest
    candidate: Candidate
    stages: StageChoices = USUAL_STAGE


def given_plan(run: Run) -> UsedPlan:
    """The request and plan of a run; raises NotPredictedError for what it does not say or no cost model covers."""
    mesh, source = _mesh(run), run.reading
    if _schedule_name(run.schedule) not in _SCHEDULES:
        raise NotPredictedError(f"no training cost model for schedule {run.schedule}")
    mode, _, again = run.recompute.partition(" of ")
    n_layers = read_words(f"recompute {run.recompute}")
    if mode not in _RECOMPUTE or (again and n_layers is None and mode != Recompute.FINE_GRAINED):
        raise NotPredictedError(f"no training cost model for recomputation {run.recompute}")
    microbatch, count = _microbatches(run, mesh)
    cluster = cluster_of(run)
    if mesh.stage_devices * mesh.pp != cluster.n_devices:
        raise NotPredictedError(f"dp x tp x pp x cp is {mesh.stage_devices * mesh.pp}, n_gpus is {cluster.n_devices}")
    assert run.seq_len is not None and run.global_batch is not None
    precision = DType.FP16 if run.precision == "fp16" else DType.BF16
    pure = run.precision.endswith("(pure)")
    workload = TrainingWorkload(
        "training",
        global_batch=run.global_batch,
        seq_len=run.seq_len,
        precision=precision,
        gradient_dtype=precision if pure else source.gradient_dtype,
        matmul=_recipe(run.precision, source),
        dispatch=source.dispatch,
        mtp_layers=source.mtp_layers,
        implementation=stated_over(source.implementation, run.implementation),
    )
    is_parallel = (
        source.unstated_sequence is UnstatedSequence.PARALLEL if run.sequence_parallel is None else run.sequence_parallel > 0
    )
    boundary = sharded(SEQ) if is_parallel and mesh.tp > 1 and run.seq_len % mesh.tp == 0 else REPLICATED
    candidate = Candidate(
        mesh,
        microbatch,
        count,
        _zero_stage(run.zero, source),
        boundary,
        (_RECOMPUTE[mode],),
        _pipelining(run, mesh, count),
        expert_overlap=_expert_overlap(run, mesh, count),
        choices=StageChoices(recompute_modules=in_order(again) if again and n_layers is None else None),
    )
    if run.seq_len < mesh.cp:
        raise NotPredictedError(f"a sequence of {run.seq_len} over cp {mesh.cp}")
    model, workload = as_implemented(model_graph(run), workload, Search())
    parts = candidate.pipelining.n_parts(mesh.pp)
    if parts > len(model.layers):
        raise NotPredictedError(f"{parts} stages of {len(model.layers)} layers")
    request = TrainingRequest(model, cluster, workload)
    if not experts_fit(request.model, mesh):
        raise NotPredictedError(f"ep {mesh.ep} on dp x cp = {mesh.dp * mesh.cp} does not spread the model's experts evenly")
    return UsedPlan(request, candidate, StageChoices(recompute_layers=n_layers))


def assumptions(run: Run) -> tuple[str, ...]:
    """Each assumption of a run's prediction, in words."""
    source = run.reading
    never = source.unstated_recompute is UnstatedRecompute.NEVER
    named, cluster = named_in_catalogue(run), cluster_assumption(run)
    found = (
        source.basis if source.is_assumed else None,
        None if named is None else f"the model {named} of the catalogue, by its name",
        *run.assumed,
        cluster,
        None if run.recompute else "no recomputation" if never else "recomputation where it does not fit",
        "whole training state on every replica" if not run.zero and source.is_assumed and not source.zero_stage else None,
    )
    return tuple(words for words in found if words is not None)


def _schedule_name(text: str) -> str:
    """A schedule in letters and digits, without the framework in brackets behind it or the word before it."""
    plain = re.sub(r"\(.*?\)", "", text.lower())
    return re.sub("[^a-z0-9]", "", plain.removeprefix("deepspeed").removeprefix("megatron"))


def _pipelining(run: Run, mesh: Mesh, n_microbatches: int) -> Pipelining:
    chunks = run.vpp or 1
    if chunks == 1 or mesh.pp == 1:
        return PLAIN
    if not fills(Schedule.INTERLEAVED, mesh.pp, n_microbatches, chunks):
        raise NotPredictedError(f"{n_microbatches} micro-batches interleaved over {mesh.pp} stages")
    return Pipelining(Schedule.INTERLEAVED, chunks)


def _expert_overlap(run: Run, mesh: Mesh, n_microbatches: int) -> ExpertOverlap | None:
    if run.reading.expert_overlap is not ExpertOverlap.BATCH or mesh.ep == 1:
        return None
    if not may_pair(_pipelining(run, mesh, n_microbatches), pp=mesh.pp, n_microbatches=n_microbatches):
        raise NotPredictedError(f"exchanges under another of {n_microbatches} micro-batches, 1F1B over {mesh.pp} stages")
    return run.reading.expert_overlap


def _mesh(run: Run) -> Mesh:
    degrees = {"dp": run.dp, "tp": run.tp, "pp": run.pp}
    missing = [name for name, degree in degrees.items() if degree is None]
    if missing:
        raise NotPredictedError(f"the row gives no {', '.join(missing)}")
    dp, tp, pp, cp, ep = (degree or 1 for degree in (run.dp, run.tp, run.pp, run.cp, run.ep))
    # More places of experts than dp x cp has: each rank of tp then holds whole experts.
    whole_experts = tp > 1 and ep > 1 and (run.etp == 1 or ep > dp * cp)
    if run.cp_comm_type not in _CP_KEYS:
        raise NotPredictedError(f"no training cost model for context parallelism {run.cp_comm_type}")
    ulysses, keys = (cp if run.cp_comm_type == "a2a" else 1), _CP_KEYS[run.cp_comm_type]
    etp = 1 if whole_experts else None
    return Mesh(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, ulysses=ulysses, etp=etp, choices=MeshChoices(cp_keys=keys))


def _microbatches(run: Run, mesh: Mesh) -> tuple[int, int]:
    """Micro-batch size, and how many of them a step has: the last may be a smaller one."""
    missing = [name for name in ("seq_len", "global_batch") if getattr(run, name) is None]
    if missing:
        raise NotPredictedError(f"the row gives no {', '.join(missing)}")
    assert run.global_batch is not None
    per_replica, rest = divmod(run.global_batch, mesh.dp)
    if rest:
        raise NotPredictedError(f"a global batch of {run.global_batch} on {mesh.dp} replicas")
    assert run.micro_batch is not None, "rows are completed when they are read"
    microbatch = min(run.micro_batch, per_replica)
    return microbatch, -(-per_replica // microbatch)


_RECIPES = {
    "fp8-cs": MatmulRecipe.FP8_CURRENT,
    "fp8-mx": MatmulRecipe.MXFP8,
    "mxfp8": MatmulRecipe.MXFP8,
    "nvfp4": MatmulRecipe.NVFP4,
    "fp8 tensorwise": MatmulRecipe.FP8_CURRENT,
    "fp8 rowwise": MatmulRecipe.FP8_ROWWISE,
}


def _recipe(text: str, source: Source) -> MatmulRecipe:
    """Return the recipe that the row names; the source's own fp8 recipe where it says fp8 alone."""
    if text == "fp8":
        return source.fp8_recipe
    if text in _RECIPES:
        return _RECIPES[text]
    if re.search(r"fp8|fp4", text):
        raise NotPredictedError(f"no training cost model for precision {text}")
    return MatmulRecipe.WORKING


def _zero_stage(text: str, source: Source) -> int:
    """ "1", "zero1 shard=8", "fsdp3 (shard 64)", "fsdp", "dist-opt"; the source's own where nothing is stated."""
    if not text:
        return source.zero_stage
    if text.startswith("dist-opt"):
        return 1
    found = re.match(r"(zero|fsdp)? ?(\d)?", text)
    assert found is not None, "both parts may be missing"
    if found[2] is None and found[1] != "fsdp":
        raise NotPredictedError(f"zero_stage_or_fsdp is no ZeRO stage: {text}")
    stage = MAX_ZERO_STAGE if found[2] is None else int(found[2])
    if stage > MAX_ZERO_STAGE:
        raise NotPredictedError(f"zero_stage_or_fsdp is no ZeRO stage: {text}")
    return stage
