"""The mechanisms that a plan needs of its launcher beside copies of the whole model: what can be set up wrongly."""

from __future__ import annotations

from meshwright.costmodels.memory.offload import NOTHING_OFFLOADED
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.problem.choices import Gradients, Recompute, TpOverlap
from meshwright.solver.training.space.candidate_names import away
from meshwright.solver.training.space.candidates import Candidate


def mechanisms(candidate: Candidate) -> tuple[str, ...]:
    """Return the mechanisms of a candidate in words, each once. A plan of plain data parallelism has none.

    Sequence parallelism is not counted beside tensor parallelism, nor the number of micro-batches of a pipeline: they come with
    them. Degrees do not count either: tensor parallelism over two ranks is set up as over eight.
    """
    mesh, pipelining = candidate.mesh, candidate.pipelining
    slices = "slices of sequences" if pipelining.slices else None
    split = (
        ("tensor parallelism", mesh.tp > 1),
        ("pipeline parallelism", mesh.pp > 1),
        ("ring context parallelism", mesh.ring > 1),
        ("exchange of heads", mesh.ulysses > 1),
        ("expert parallelism", mesh.ep > 1),
        ("whole experts on tensor ranks", mesh.expert_tp < mesh.tp),
        *((words, True) for words in mesh.choices.mechanisms),
        (f"the {pipelining.schedule.value} schedule", mesh.pp > 1 and pipelining.schedule is not Schedule.ONE_F_ONE_B),
        (slices or "", slices is not None),
    )
    state = (
        (f"ZeRO-{candidate.zero_stage}", candidate.zero_stage > 0),
        (f"groups of {candidate.shard_ranks} ranks that shard", candidate.shard_ranks is not None),
        (candidate.optimizer.value if candidate.optimizer else "", candidate.optimizer is not None),
        ("gradients released in the backward pass", candidate.gradients is Gradients.RELEASED),
        ("chunked products", candidate.tp_overlap is TpOverlap.CHUNKED),
    )
    used = [words for words, is_used in (*split, *state) if is_used]
    if candidate.offload != NOTHING_OFFLOADED:
        used += away(candidate.offload)
    modes = [mode for mode in candidate.recompute if mode is not Recompute.NONE]
    used += candidate.choices.mechanisms
    if modes and not candidate.choices.recomputes_some:
        used.append("recomputation (" + "/".join(mode.value for mode in modes) + ")")
    return tuple(used)
