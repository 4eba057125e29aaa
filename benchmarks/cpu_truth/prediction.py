"""The predictions for the plans on a CPU "device" whose calibration was measured here.

Nothing is fitted to the runs. Kernels were measured with as many ranks at once as the plan has, so they hold what ranks take
from one another where they share cores and memory, and collectives between kernels. One fact of the machine is stated: Gloo
runs on the cores that compute, so no communication hides under computation.
"""

from __future__ import annotations

from plans import CONFIG, GLOBAL_BATCH, SEQ_LEN, TruthPlan

from meshwright.app.evidence.measuring.fitted import fit_calibration
from meshwright.app.evidence.training.prediction import launchers_spans
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.calibration.calibration import Calibration, calibrations_in_force
from meshwright.costmodels.cluster.cluster import Cluster, Device, Link, NodeGroup, NodeType
from meshwright.costmodels.fitting.board import board_of
from meshwright.costmodels.fitting.samples import Samples
from meshwright.costmodels.kernels.compute import memory_bound_s
from meshwright.costmodels.model.implementation import Implementation, VectorKernels
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.sharding_problem import Criterion
from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.stages.longest import objective_s
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, Sharding, StageKind, StageTable, evaluate_decision
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.meshes import Mesh

MODEL = read_huggingface_config(CONFIG, name="cpu-truth")
PYTORCH = Implementation(VectorKernels.EAGER)
MEMORY_BYTES = 4 * 2**30


class Predictor:
    """Predicts plans of one number of ranks from the samples measured for it."""

    def __init__(self, samples: Samples, *, ranks: int):
        board = board_of(samples, key=f"cpu-{ranks}", node=None, cores=1)
        fitted = fit_calibration(samples, board, folds=5, on_curve=lambda done, total, name: None)
        self.scores = fitted.scores
        self._calibration: Calibration = fitted.calibration
        device = Device(f"cpu-{ranks}", MEMORY_BYTES, board.peak_flops, board.memory_bytes_per_s, self._calibration.name)
        link = Link("gloo", board.link_bytes_per_s, 0.0)
        node = NodeType("this machine", device, ranks, link, link)
        self._cluster = Cluster((NodeGroup("cpus", node, 1),))

    def step_time_s(self, plan: TruthPlan) -> float:
        """Seconds of a step of the plan."""
        with calibrations_in_force([self._calibration]):
            return self._step_time_s(plan)

    def _step_time_s(self, plan: TruthPlan) -> float:
        workload = TrainingWorkload(
            "training", global_batch=GLOBAL_BATCH, seq_len=SEQ_LEN, precision=DType.FP32, gradient_dtype=DType.FP32
        )
        costs = TrainingCosts(TrainingRequest(MODEL, self._cluster, workload), implementation=PYTORCH)
        mesh = Mesh(dp=plan.dp, tp=plan.tp, pp=plan.pp, cp=1)
        candidate = Candidate(mesh, plan.microbatch, plan.microbatches, plan.zero_stage, REPLICATED, (plan.recompute,))
        kinds = costs.stage_kinds(candidate)
        sharding = _megatron_sharding(costs, candidate, kinds)
        tables = costs.stage_tables(candidate, sharding, kinds)
        decision = Decision(candidate, sharding, launchers_spans(len(costs.model.layers), candidate))
        cost = evaluate_decision(decision, tables)
        times_s = [stage.time_s for stage in cost.stages]
        extra_s = [
            _step_end_s(costs, decision, kind, table, position)
            for position, (kind, table) in enumerate(zip(kinds, tables, strict=True))
        ]
        return objective_s(times_s, extra_s, candidate.n_microbatches)


def _megatron_sharding(costs: TrainingCosts, candidate: Candidate, kinds: tuple[StageKind, ...]) -> Sharding:
    """The sharding that ``model.Layer`` runs: heads, feed-forward columns and the vocabulary split."""
    setting = costs.settings(candidate, kinds[0])[0]

    def seconds(sharding: Sharding) -> float:
        named = zip(costs.block_names, sharding, strict=True)
        return sum(float(costs.block_cost(name, setting, choice)[Criterion.TIME_S]) for name, choice in named)

    return min(costs.shardings(candidate, kinds), key=seconds)


def _step_end_s(costs: TrainingCosts, decision: Decision, kind: StageKind, table: StageTable, position: int) -> float:
    """Return the seconds that a step adds once to a stage: all of its gradients' and weights' communication, and the
    optimizer."""
    candidate, span = decision.candidate, decision.spans[position]
    setting = costs.settings(candidate, kind)[0]
    optimizer_s = float(table.parts.optimizer_s[span.first : span.last + 1].sum())
    group = kind.topology.state
    if group.n == 1:
        return optimizer_s
    communication_s = copied_bytes = 0.0
    for layer in range(span.first, span.last + 1):
        block = costs.layer_block[layer]
        parameters = float(costs.block_cost(costs.block_names[block], setting, decision.sharding[block])[Criterion.PARAMETERS])
        gradients = parameters * costs.workload.gradient_dtype.size_bytes
        if candidate.zero_stage == 0:
            communication_s += float(collective_s(Collective.ALL_REDUCE, gradients, group))
        else:
            # A layer's weights are gathered for each pass, those of the model's ends once: FSDP2 keeps the root's until the
            # backward pass. What the tables count of it as not hidden is taken off again.
            gathers = 2 if costs.recomputable[block] else 1
            gather_s = float(collective_s(Collective.ALL_GATHER, gradients, group))
            communication_s += gathers * gather_s + float(collective_s(Collective.REDUCE_SCATTER, gradients, group))
            # Copied: shards into the buffer that is gathered, weights out of it, gradients into the one that is reduced.
            copied_bytes += 2 * gradients * (gathers * (1 + 1 / group.n) + 1)
    # More than a cache holds is copied between two uses of any of it.
    communication_s += float(memory_bound_s(setting.device, copied_bytes)) if copied_bytes else 0.0
    exposed_s = float(table.parts.dp_comm_s[span.first : span.last + 1].sum())
    return optimizer_s + communication_s - exposed_s
