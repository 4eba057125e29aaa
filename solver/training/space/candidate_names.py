"""The names of candidates in one line."""

from __future__ import annotations

from meshwright.costmodels.memory.offload import Offload, Tier
from meshwright.costmodels.pipeline import ChunkCount
from meshwright.solver.problem.choices import Gradients, TpOverlap
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.schedules import PLAIN


def summary(candidate: Candidate) -> str:
    """One line that names a candidate."""
    mesh = candidate.mesh
    parts = [f"dp {mesh.dp}", f"tp {mesh.tp}", f"pp {mesh.pp}", f"cp {mesh.cp}", f"micro-batch {candidate.microbatch}"]
    if mesh.ulysses > 1:
        parts.insert(4, f"ulysses {mesh.ulysses}")
    if mesh.ep > 1:
        parts.append(f"ep {mesh.ep}")
    if mesh.expert_tp < mesh.tp:
        parts.append("whole experts")
    within = "" if candidate.shard_ranks is None else f" within {candidate.shard_ranks} ranks"
    parts += mesh.choices.words
    parts.append(f"ZeRO-{candidate.zero_stage}{within}")
    if candidate.optimizer is not None:
        parts.append(candidate.optimizer.value)
    if candidate.gradients is Gradients.RELEASED:
        parts.append("gradients released")
    parts += away(candidate.offload)
    if candidate.boundary.dim is not None:
        parts.append("sequence parallel")
    if candidate.tp_overlap is TpOverlap.CHUNKED:
        parts.append("chunked products")
    parts.append(candidate.choices.recompute_words((mode.value for mode in candidate.recompute), pp=mesh.pp))
    if candidate.pipelining != PLAIN:
        chunks = f" x {candidate.pipelining.chunks}" if candidate.pipelining.traits.chunk_count is ChunkCount.ANY else ""
        slices = f" x {candidate.pipelining.n_slices} slices" if candidate.pipelining.slices else ""
        parts.append(candidate.pipelining.schedule.value + chunks + slices)
    return ", ".join(parts)


def away(offload: Offload) -> list[str]:
    """Return the parts that lie in host memory or on drives, in words."""
    kinds = (
        ("optimizer", offload.optimizer, offload.optimizer_to),
        ("activations", offload.activations, Tier.HOST),
        ("weights", offload.weights, offload.weights_to),
        ("gradients", offload.gradients, Tier.HOST),
    )
    where = {Tier.HOST: "the host", Tier.NVME: "drives"}
    return [f"{share:.0%} of {name} on {where[tier]}" for name, share, tier in kinds if share]
