"""Plans that were run in production, as our cost model predicts them, beside our own plans for the same requests.

Run from the root of the repository: python -m benchmarks.published_plans [--only TEXT]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files

from app.catalog import model
from app.importers.huggingface import read_huggingface_config
from app.validation.prediction import launchers_spans
from benchmarks.full_search import deepseek_request, request, summary, timed
from costmodels.operators import SEQ
from costmodels.pipeline import Schedule
from solver.block_problem import Criterion
from solver.graph import ModelGraph
from solver.request import PlanRequest, Recompute, Search, Space, TrainingWorkload
from solver.sharding import REPLICATED, sharded
from solver.training.costs import TrainingCosts
from solver.training.evaluate import Decision, evaluate_decision
from solver.training.pipelining import PLAIN, Pipelining
from solver.training.space import Candidate, Mesh

GPT_VOCAB = 51_200
"""Vocabulary of Megatron-LM's GPT models, padded (Narayanan et al., SC'21, section 5.1)."""


@dataclass(frozen=True, slots=True)
class Published:
    """A plan that was run in production, as its report states it, and the seconds that a step took where it says so."""

    name: str
    request: PlanRequest
    candidate: Candidate
    measured_s: float | None = None


def published() -> Iterator[Published]:
    """Plans of production runs."""
    yield from _llama()
    yield _deepseek()
    yield from _korthikanti()
    yield from _narayanan()


def _llama() -> Iterator[Published]:
    """Llama 3 report, section 3.3.2 and Table 4 (16M tokens a step): FSDP shards optimizer states and gradients, weights are
    not gathered again; embedding and head are chunks of their own, so 8 chunks a rank. Its trainer is its own, with the
    memory of hand-written kernels (8K tokens without recomputation), so both plans are costed with Megatron-LM's."""
    llama, interleaved = model("llama-3.1-405b"), Pipelining(Schedule.INTERLEAVED, 8)
    for nodes, seq_len, mesh in (
        (1024, 8192, Mesh(dp=64, tp=8, pp=16, cp=1)),
        (2048, 8192, Mesh(dp=128, tp=8, pp=16, cp=1)),
        (2048, 131072, Mesh(dp=8, tp=8, pp=16, cp=16)),
    ):
        asked = request(llama, [("dgx-h100", nodes)], 2**24 // seq_len, seq_len)
        candidate = _candidate(asked, mesh, Recompute.NONE, interleaved, zero_stage=2)
        yield Published(f"Llama-3 405B, {8 * nodes} H100, {seq_len} tokens", asked, candidate)


def _deepseek() -> Published:
    """DeepSeek-V3 report, section 3.2: 16 pp with DualPipe, 64 ep, ZeRO-1 dp, no tp; RMSNorm, MLA up-projections and SwiGLU
    of experts are recomputed (3.2.3, 3.3.3). All schedules take part here."""
    asked = replace(deepseek_request(), search=Search(space=Space.FREE, tp=(1,), cp=(1,), zero_stages=(1,)))
    mesh = Mesh(dp=128, tp=1, pp=16, cp=1, ep=64)
    candidate = _candidate(asked, mesh, Recompute.FINE_GRAINED, Pipelining(Schedule.DUALPIPE), zero_stage=1)
    return Published("DeepSeek-V3, 2048 H800", asked, candidate)


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
    text = files("app.catalog").joinpath("models", "gpt3-175b.json").read_text(encoding="utf-8")
    sizes = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": GPT_VOCAB}
    return read_huggingface_config({**json.loads(text), **sizes}, name=name)


def _candidate(asked: PlanRequest, mesh: Mesh, recompute: Recompute, choice: Pipelining, *, zero_stage: int = 0) -> Candidate:
    """Micro-batches of one sequence, and sequence parallelism beside tp."""
    assert isinstance(asked.workload, TrainingWorkload)
    boundary = sharded(SEQ) if mesh.tp > 1 else REPLICATED
    return Candidate(mesh, 1, asked.workload.global_batch // mesh.dp, zero_stage, boundary, (recompute,), choice)


def print_published(only: str) -> None:
    """The published plan as predicted, and ours for the same request."""
    print("| run | measured s | published plan, predicted s | fits | our plan s | ours | gap | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for run in published():
        if only not in run.name:
            continue
        costs = TrainingCosts(run.request)
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
        given = evaluate_decision(Decision(run.candidate, sharding, spans), tables)
        ours, cpu_s = timed(run.request)
        own = "-" if ours.predicted is None else f"{ours.predicted.step_time_s:.3f}"
        gap = "-" if ours.certificate.gap is None else f"{ours.certificate.gap:.2%}"
        fits = f"{'yes' if given.fits else 'no'} ({given.peak_bytes / 2**30:.0f} GiB)"
        measured = "" if run.measured_s is None else f"{run.measured_s:.2f}"
        theirs = f"{measured} | {given.step_time_s:.3f} | {fits}"
        print(f"| {run.name} | {theirs} | {own} | {summary(ours)} | {gap} | {cpu_s:.1f} |", flush=True)


def main() -> None:
    """The table, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    print_published(parser.parse_args().only)


if __name__ == "__main__":
    main()
