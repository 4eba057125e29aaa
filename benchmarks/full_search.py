"""Full searches of large models: CPU time and gap, and growth with layers and devices.

Run from the root of the repository: python -m benchmarks.full_search [--growth-plot docs/full-search-growth.svg]
With --rank-orders each search comes again with both orders of ranks open.

CPU seconds are of one core, in one process, after a small search that compiles the kernels.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.graph import BlockRun, ModelGraph
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.training.planner import plan_training

GROWTH_LAYERS = (40, 80, 160)
GROWTH_NODES = (32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Case:
    """A search to time: the CPU seconds it should stay under."""

    name: str
    request: TrainingRequest
    target_s: float


def cases() -> Iterator[Case]:
    """Searches of large models, each with the processor time that it is to stay under."""
    yield Case("Llama-3.1-405B, 16,384 H100", request(model("llama-3.1-405b"), [("dgx-h100", 2048)], 2048, 8192), 30.0)
    yield Case("DeepSeek-V3, 2,048 H800", deepseek_request(), 60.0)
    yield Case("GPT-3 175B, 1,024 A100", request(model("gpt3-175b"), [("dgx-a100", 128)], 1536, 2048), 15.0)
    mixed = [("dgx-a100", 8), ("dgx-h100", 8)]
    yield Case("Llama-3.1-70B, 64 A100 + 64 H100", request(model("llama-3.1-70b"), mixed, 256, 8192), 30.0)


def request(graph: ModelGraph, nodes: list[tuple[str, int]], batch: int, seq_len: int, **workload: object) -> TrainingRequest:
    """A request with the whole space of the default launcher open."""
    groups = tuple(NodeGroup(name, node_type(name), count) for name, count in nodes)
    fields: dict[str, object] = {"global_batch": batch, "seq_len": seq_len, **workload}
    return TrainingRequest(graph, Cluster(groups), TrainingWorkload("training", **fields))


def deepseek_request() -> TrainingRequest:
    """DeepSeek-V3 report, section 4.2: sequences of 4,096 tokens, 15,360 of them a step; section 3.3: fp8 products, saved
    activations in fp8, moments in bf16."""
    return request(
        model("deepseek-v3"),
        [("hgx-h800", 256)],
        15360,
        4096,
        matmul=MatmulRecipe.FP8_BLOCKWISE,
        saved_activations=SavedFormat.FP8,
        optimizer=Optimizer.ADAMW_BF16,
    )


def timed(asked: TrainingRequest) -> tuple[Plan, float]:
    """The plan and its CPU seconds."""
    started_s = time.process_time()
    plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
    return plan, time.process_time() - started_s


def with_both_orders(case: Case) -> Case:
    """The case with both orders of ranks open."""
    search = replace(case.request.search, rank_order=tuple(RankOrder))
    return replace(case, name=f"{case.name}, both rank orders", request=replace(case.request, search=search))


def print_searches(*, rank_orders: bool) -> None:
    """One line a case, or two."""
    print("| search | CPU s | target | gap | step s | plan |\n|---|---|---|---|---|---|")
    asked = [each for case in cases() for each in ([case, with_both_orders(case)] if rank_orders else [case])]
    for case in asked:
        plan, cpu_s = timed(case.request)
        gap = "-" if plan.certificate.gap is None else f"{plan.certificate.gap:.2%}"
        step_s = "-" if plan.predicted is None else f"{plan.predicted.step_time_s:.3f}"
        print(f"| {case.name} | {cpu_s:.1f} | {case.target_s:.0f} | {gap} | {step_s} | {summary(plan)} |", flush=True)


def summary(plan: Plan) -> str:
    """Degrees, schedule, memory choices."""
    if record_of(plan).axes is None or record_of(plan).microbatch is None:
        return "none fits"
    degrees = " ".join(f"{name}{value}" for name, value in vars_of(plan).items() if value > 1)
    chunks = len(record_of(plan).stages[0].chunk_layers)
    schedule = "" if record_of(plan).axes.pp == 1 else f", {record_of(plan).schedule}" + (f" x{chunks}" if chunks > 1 else "")
    stage = record_of(plan).stages[0]
    sizes = f"micro-batch {record_of(plan).microbatch.size}"
    order = "" if record_of(plan).rank_order is RankOrder.PP_OUTERMOST else ", dp outermost"
    return f"{degrees}{order}{schedule}, {sizes}, ZeRO-{stage.zero_stage}, recompute {stage.recompute.value}"


def vars_of(plan: Plan) -> dict[str, int]:
    """Degrees by name."""
    axes = record_of(plan).axes
    assert axes is not None
    return {"dp": axes.dp, "tp": axes.tp, "pp": axes.pp, "cp": axes.cp, "ulysses": axes.ulysses, "ep": axes.ep}


def deeper(graph: ModelGraph, layers: int) -> ModelGraph:
    """The model with another number of layers."""
    chain = tuple(BlockRun(run.block, layers) if run.repeat > 1 else run for run in graph.chain)
    return replace(graph, chain=chain)


def growth() -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """(layers, CPU s) on 1,024 H100, and (devices, CPU s) of 80 layers; Llama-3.1-70B's layer."""
    graph = model("llama-3.1-70b")
    layers = [(n, timed(request(deeper(graph, n), [("dgx-h100", 128)], 1024, 8192))[1]) for n in GROWTH_LAYERS]
    devices = [(8 * n, timed(request(graph, [("dgx-h100", n)], 1024, 8192))[1]) for n in GROWTH_NODES]
    return layers, devices


def print_growth(plot: Path | None) -> None:
    """CPU seconds and ratios of neighbours; the plot where asked for."""
    layers, devices = growth()
    for name, points in (("layers", layers), ("devices", devices)):
        print(f"\n| {name} | CPU s | over the one before |\n|---|---|---|")
        for i, (n, cpu_s) in enumerate(points):
            ratio = "" if i == 0 else f"{cpu_s / points[i - 1][1]:.2f}"
            print(f"| {n} | {cpu_s:.2f} | {ratio} |", flush=True)
    if plot is not None:
        plot.write_text(growth_svg(layers, devices), encoding="utf-8")


def growth_svg(layers: list[tuple[int, float]], devices: list[tuple[int, float]]) -> str:
    """Two panels: CPU seconds by layers and by devices."""
    panels = "".join(_panel(x, name, points) for x, name, points in ((0, "layers", layers), (360, "devices", devices)))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 260" font-family="sans-serif" font-size="12">\n'
        f'<rect width="720" height="260" fill="white"/>\n{panels}</svg>\n'
    )


def _panel(left: int, name: str, points: list[tuple[int, float]]) -> str:
    most_s, most_n = max(s for _, s in points), points[-1][0]
    placed = [(left + 50 + 280 * n / most_n, 210 - 170 * s / most_s) for n, s in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f6f8b"/>'
        f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{s:.1f} s</text>'
        f'<text x="{x:.1f}" y="228" text-anchor="middle" font-size="9">{n}</text>\n'
        for (x, y), (n, s) in zip(placed, points, strict=True)
    )
    axis = f'<path d="M{left + 50} 30 V210 H{left + 340}" fill="none" stroke="#444"/>'
    label = f'<text x="{left + 190}" y="248" text-anchor="middle">{name}</text>'
    return f'{axis}<polyline points="{line}" fill="none" stroke="#1f6f8b" stroke-width="2"/>\n{marks}{label}\n'


def main() -> None:
    """Everything, as Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--growth-plot", type=Path, default=None)
    parser.add_argument("--only", choices=["searches", "growth"], default=None)
    parser.add_argument("--rank-orders", action="store_true")
    options = parser.parse_args()
    timed(request(model("llama-3.1-8b"), [("dgx-h100", 2)], 64, 8192))
    if options.only in (None, "searches"):
        print_searches(rank_orders=options.rank_orders)
    if options.only in (None, "growth"):
        print_growth(options.growth_plot)


if __name__ == "__main__":
    main()
