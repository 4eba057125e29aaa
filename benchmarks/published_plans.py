"""Plans that were run in production, as our cost model predicts them, beside our own plans for the same requests.

Run from the root of the repository: python -m benchmarks.published_plans [--only TEXT]
With --memory it prints instead what the plans of Llama-3 need under each reading of how Meta's trainer keeps tensors.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files

from benchmarks.full_search import deepseek_request, request, summary, timed
from meshwright.app.evidence.training.prediction import launchers_spans
from meshwright.app.models.catalog import model
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.model.dims import SEQ
from meshwright.costmodels.model.implementation import HAND_FUSED, Implementation, Projections
from meshwright.costmodels.network.token_dispatch import DispatchFormat, TokenDispatch
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.plan import Plan
from meshwright.solver.blocks.recompute import boundary_bytes
from meshwright.solver.blocks.sharding_problem import Criterion
from meshwright.solver.blocks.tp_strategies import REPLICATED, sharded
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, evaluate_decision, least_step_flops
from meshwright.solver.training.report.plan_report import feasible_plan
from meshwright.solver.training.search.best_first import search
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.schedules import PLAIN, Pipelining

GPT_VOCAB = 51_200
"""Vocabulary of Megatron-LM's GPT models, padded (Narayanan et al., SC'21, section 5.1)."""


META_KERNELS = replace(HAND_FUSED, projections=Projections.SEPARATE)
"""Meta's trainer is its own: 8,192 tokens without recomputation say that its kernels are written by hand, and its published
model code (wq, wk and wv) projects queries, keys and values apart."""


@dataclass(frozen=True, slots=True)
class Published:
    """A plan that was run in production, as its report states it, and the seconds that a step took where it says so.

    ``implementation`` is that of its trainer where no launcher of ours runs it so; our plan is then costed with it, too.
    """

    name: str
    request: TrainingRequest
    candidate: Candidate
    measured_s: float | None = None
    implementation: Implementation | None = None


def published() -> Iterator[Published]:
    """Plans of production runs."""
    yield from _llama()
    yield _deepseek()
    yield from _korthikanti()
    yield from _narayanan()


def _llama() -> Iterator[Published]:
    """Llama 3 report, section 3.3.2 and Table 4 (16M tokens a step): FSDP shards optimizer states and gradients, weights are
    not gathered again; embedding and head are chunks of their own, so 8 chunks a rank. Of our launchers torchtitan has
    ZeRO-2 beside a pipeline, so the plan is in its space. Seconds follow from its FLOP/s a device and the model's FLOPs."""
    llama, interleaved = model("llama-3.1-405b"), Pipelining(Schedule.INTERLEAVED, 8)
    for nodes, seq_len, mesh, flops_per_s in (
        (1024, 8192, Mesh(dp=64, tp=8, pp=16, cp=1), 430e12),
        (2048, 8192, Mesh(dp=128, tp=8, pp=16, cp=1), 400e12),
        (2048, 131072, Mesh(dp=8, tp=8, pp=16, cp=16), 380e12),
    ):
        asked = request(llama, [("dgx-h100", nodes)], 2**24 // seq_len, seq_len)
        asked = replace(asked, search=Search(launcher=Launcher.TORCHTITAN))
        candidate = _candidate(asked, mesh, Recompute.NONE, interleaved, zero_stage=2)
        name = f"Llama-3 405B, {8 * nodes} H100, {seq_len} tokens"
        measured_s = least_step_flops(asked) / (8 * nodes * flops_per_s)
        yield Published(name, asked, candidate, measured_s, META_KERNELS)


def _deepseek() -> Published:
    """DeepSeek-V3 report, section 3.2: 16 pp with DualPipe, 64 ep, ZeRO-1 dp, no tp; RMSNorm, MLA up-projections and SwiGLU
    of experts are recomputed (3.2.3, 3.3.3); tokens go once to each node (3.2.2). 180,000 hours of a device for 10^12 tokens
    (section 1) are 19.91 s for a step's. All schedules take part here."""
    asked = deepseek_request()
    workload = replace(asked.workload, dispatch=TokenDispatch.ONCE_A_NODE, dispatch_format=DispatchFormat.FP8)
    asked = replace(asked, workload=workload, search=Search(space=Space.FREE, tp=(1,), cp=(1,), zero_stages=(1,)))
    mesh = Mesh(dp=128, tp=1, pp=16, cp=1, ep=64)
    candidate = _candidate(asked, mesh, Recompute.FINE_GRAINED, Pipelining(Schedule.DUALPIPE), zero_stage=1)
    return Published("DeepSeek-V3, 2048 H800", asked, candidate, 19.91)


def _korthikanti() -> Iterator[Published]:
    """Korthikanti et al., MLSys'23, Tables 3 and 5: selective recompute and sequence parallelism, one replica."""
    for name, layers, hidden, heads, pp, chunks, nodes, batch, measured_s in (
        ("GPT-3 175B", 96, 12288, 96, 8, 3, 8, 64, 13.75),
        ("MT-NLG 530B", 105, 20480, 128, 35, 3, 35, 280, 37.83),
        ("GPT 1T", 128, 25600, 160, 64, 1, 64, 512, 71.49),
    ):
        asked = request(gpt(name, layers, hidden, heads), [("dgx-a100", nodes)], batch, 2048)
        choice = Pipelining(Schedule.INTERLEAVED, chunks) if chunks > 1 else PLAIN
        candidate = _candidate(asked, Mesh(dp=1, tp=8, pp=pp, cp=1), Recompute.SELECTIVE, choice)
        yield Published(f"{name}, {8 * nodes} A100", asked, candidate, measured_s)


def _narayanan() -> Iterator[Published]:
    """Narayanan et al., SC'21, Table 1: whole layers recomputed, replicated states; seconds follow from its FLOP/s by its
    equation 3. It has no sequence parallelism. Virtual stages are not stated: those of Korthikanti et al. where given."""
    for name, layers, hidden, heads, mesh, chunks, nodes, batch, measured_s in (
        ("GPT 145.6B", 80, 12288, 96, Mesh(dp=24, tp=8, pp=8, cp=1), 1, 192, 2304, 24.82),
        ("GPT 310.1B", 96, 16384, 128, Mesh(dp=15, tp=8, pp=16, cp=1), 1, 240, 2160, 37.61),
        ("GPT 529.6B", 105, 20480, 128, Mesh(dp=9, tp=8, pp=35, cp=1), 3, 315, 2520, 54.08),
        ("GPT 1008B", 128, 25600, 160, Mesh(dp=6, tp=8, pp=64, cp=1), 1, 384, 3072, 102.63),
    ):
        asked = request(gpt(name, layers, hidden, heads), [("dgx-a100", nodes)], batch, 2048)
        choice = Pipelining(Schedule.INTERLEAVED, chunks) if chunks > 1 else PLAIN
        candidate = replace(_candidate(asked, mesh, Recompute.FULL, choice), boundary=REPLICATED)
        yield Published(f"{name}, {8 * nodes} A100", asked, candidate, measured_s)


def gpt(name: str, layers: int, hidden: int, heads: int) -> ModelGraph:
    """A GPT of these sizes, with the fields of the catalogue's GPT-3."""
    text = files("meshwright.app.models.catalog").joinpath("models", "gpt3-175b.json").read_text(encoding="utf-8")
    sizes = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": GPT_VOCAB}
    return read_huggingface_config({**json.loads(text), **sizes}, name=name)


def _candidate(
    asked: TrainingRequest, mesh: Mesh, recompute: Recompute, choice: Pipelining, *, zero_stage: int = 0
) -> Candidate:
    """Micro-batches of one sequence, and sequence parallelism beside tp."""
    boundary = sharded(SEQ) if mesh.tp > 1 else REPLICATED
    return Candidate(mesh, 1, asked.workload.global_batch // mesh.dp, zero_stage, boundary, (recompute,), choice)


def print_published(only: str) -> None:
    """The published plan as predicted, and ours for the same request."""
    print("| run | measured s | published plan, predicted s | fits | our plan s | ours | gap | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for run in published():
        if only not in run.name:
            continue
        given, _ = predicted(run, run.implementation)
        ours, cpu_s = timed(run.request) if run.implementation is None else timed_with(run.request, run.implementation)
        own = "-" if ours.predicted is None else f"{ours.predicted.step_time_s:.3f}"
        gap = "-" if ours.certificate.gap is None else f"{ours.certificate.gap:.2%}"
        fits = f"{'yes' if given.fits else 'no'} ({given.peak_bytes / 2**30:.0f} GiB)"
        measured = "" if run.measured_s is None else f"{run.measured_s:.2f}"
        theirs = f"{measured} | {given.step_time_s:.3f} | {fits}"
        print(f"| {run.name} | {theirs} | {own} | {summary(ours)} | {gap} | {cpu_s:.1f} |", flush=True)


def predicted(run: Published, implementation: Implementation | None) -> tuple[DecisionCost, float]:
    """Cost of the published plan, of each block the fastest sharding, and bytes of the tensor that enters a stage."""
    costs = TrainingCosts(run.request, implementation=implementation)
    kinds = costs.stage_kinds(run.candidate)
    setting = costs.settings(run.candidate, kinds[0])[0]
    sharding = min(
        costs.shardings(run.candidate, kinds),
        key=lambda s: sum(
            float(costs.block_cost(name, setting, choice)[Criterion.TIME_S])
            for name, choice in zip(costs.block_names, s, strict=True)
        ),
    )
    tables = costs.stage_tables(run.candidate, sharding, kinds)
    spans = launchers_spans(len(run.request.model.layers), run.candidate)
    cost = evaluate_decision(Decision(run.candidate, sharding, spans), tables)
    return cost, boundary_bytes(run.request.model, setting)


def timed_with(asked: TrainingRequest, implementation: Implementation) -> tuple[Plan, float]:
    """The best plan with an implementation that is not the launcher's, and CPU seconds."""
    started_s = time.process_time()
    costs = TrainingCosts(asked, implementation=implementation)
    found = feasible_plan(asked, costs, search(asked, costs, stop=never_stop, progress=ignore_progress))
    return found, time.process_time() - started_s


def print_memory() -> None:
    """GiB on the fullest device of each plan of Llama-3 under each reading of how tensors are kept."""
    print("| what is kept | " + " | ".join(run.name for run in _llama()) + " |\n|---|---|---|---|")
    readings: dict[str, list[float]] = {}
    for run in _llama():
        modules, joint, apart = (predicted(run, way) for way in (None, HAND_FUSED, META_KERNELS))
        cost, entry_bytes = apart
        peak = {"PyTorch modules": modules[0].peak_bytes, "hand-written kernels, joint projections": joint[0].peak_bytes}
        peak["separate projections"] = cost.peak_bytes
        # Each part that a rank holds has one layer, so each held micro-batch of a part has one tensor that entered it.
        chunks = run.candidate.pipelining.chunks
        freed = [stage.law.allocator * chunks * stage.in_flight * entry_bytes for stage in cost.stages]
        inputs = zip(cost.stages, freed, strict=True)
        peak["and inputs of stages freed"] = max(stage.device_bytes - less for stage, less in inputs)
        peak["or no allocator's share"] = max(stage.need_bytes + stage.overhead_bytes for stage in cost.stages)
        for reading, value in peak.items():
            readings.setdefault(reading, []).append(value / GIB)
    for reading, values in readings.items():
        print(f"| {reading} | " + " | ".join(f"{value:.1f}" for value in values) + " |")


def main() -> None:
    """The table, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--memory", action="store_true", help="readings of the memory of Llama-3's plans instead")
    options = parser.parse_args()
    print_memory() if options.memory else print_published(options.only)


if __name__ == "__main__":
    main()
