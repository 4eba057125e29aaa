"""nanotron's file: keys that its records have, the stages that it cuts by itself, and what `explain` reads back."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import yaml

from meshwright.app.launching.exporters import Export, export
from meshwright.app.launching.launchers.nanotron import CONFIG
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ExportError, WorkloadError
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Objective, Recompute
from meshwright.solver.problem.launchers.nanotron_stages import borders, layers_of_stages
from meshwright.solver.problem.request import PlanRequest, Slo, TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.forms.uniform.device_orders import other_arrangements
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.report.device_counts import cluster_parts
from meshwright.solver.verify.training.restrictions import first_layers
from tests.unit.app.exporters.plans import cluster, training
from tests.unit.app.exporters.real.nanotron_keys import unknown

Case = tuple[Plan, PlanRequest]


def planned(name: str, *, nodes: int = 1, devices: int = 8, precision: DType = DType.BF16, **search: object) -> Case:
    """The plan that is found in the launcher's own space."""
    asked = Search(launcher=Launcher.NANOTRON, max_candidates=40, **search)  # type: ignore[arg-type]
    workload = TrainingWorkload("training", global_batch=64, seq_len=2048, precision=precision)
    request = TrainingRequest(model(name), cluster(nodes, devices), workload, search=asked)
    return plan_training(request, progress=ignore_progress, stop=never_stop), request


def read_back(found: Export) -> StatedTraining:
    stated = read_command(found.command, LaunchFiles(found.files))
    assert isinstance(stated, StatedTraining)
    return stated


CASES = {
    "plain": lambda: training(dp=8),
    "pipeline": lambda: training(dp=2, tp=2, pp=2, layers=[18, 14], zero_stage=1, sequence_parallel=True, microbatch=2),
    "recomputed": lambda: training(dp=4, tp=2, zero_stage=1, recompute=(Recompute.FULL,)),
    "planned": lambda: planned("qwen2.5-1.5b", pp=(2,)),
}


@pytest.mark.parametrize("case", CASES)
def test_its_records_have_the_keys_and_explain_reads_them_back(case: str) -> None:
    plan, request = CASES[case]()
    found = export(plan, request, "nanotron")
    document = yaml.safe_load(found.files[CONFIG])
    assert list(unknown(document)) == []
    pipelines, stated = pipeline_plan(plan), read_back(found)
    axes, stage = pipelines.axes, pipelines.stages[0]
    assert stated.launcher is Launcher.NANOTRON
    assert (stated.data_parallel, stated.tp, stated.pp, stated.world) == (axes.dp, axes.tp, axes.pp, plan.devices)
    assert (stated.microbatch, stated.accumulation) == (pipelines.microbatch.size, pipelines.microbatch.count)
    assert (stated.zero_stage, stated.recompute) == (stage.zero_stage, stage.recompute)
    assert stated.sequence_parallel == (pipelines.sequence_parallel and axes.tp > 1)
    assert {flag.standing.value for flag in stated.given} <= {"read", "harmless", "not priced"}
    if axes.pp > 1:
        ends = [sum(stated.parts[: place + 1]) + 1 for place in range(axes.pp - 1)]
        assert [min(span.first for span in each.blocks) for each in pipelines.stages] == [0, *ends]
        assert stated.schedule == pipelines.schedule
    # Its own file, given alone, says the same.
    assert read_command(found.files[CONFIG]).launcher is Launcher.NANOTRON


def test_stages_are_those_that_nanotron_cuts() -> None:
    # A layer counts 4 x 4096^2 + 3 x 4096 x 14336, the head 128256 x 4096: 2.16 layers, half of all is 17.08.
    assert borders(model("llama-3.1-8b"), 2) == (0, 19, 34)
    # The head of a small model is more than its share: the last of eight stages would begin behind it.
    assert layers_of_stages(layers=16, hidden=2048, heads_width=2048, ffn=8192, vocab=128256, pp=8) is None


def test_search_and_checker_find_the_same_stages() -> None:
    """Each by its own way: block by block, and by shares."""
    found = 0
    for layers, hidden, vocab, pp in product((1, 2, 3, 5, 8, 16, 33, 80), (64, 2048), (8, 4096, 128256), (2, 3, 4, 7, 8, 16)):
        sizes = {"layers": layers, "hidden": hidden, "heads_width": hidden, "ffn": 3 * hidden, "vocab": vocab}
        counts = layers_of_stages(**sizes, pp=pp)
        cut = first_layers(layers, layer=13 * hidden * hidden, head=vocab * hidden, pp=pp)
        assert cut == (None if counts is None else (0, *(1 + sum(counts[:stage]) for stage in range(1, pp))))
        found += cut is not None
    assert 50 < found < 200
    with pytest.raises(ExportError, match="cuts this model by itself, into stages that begin with the layers 0, 19"):
        export(*training(dp=4, pp=2, layers=[16, 16]), "nanotron")


def test_a_search_for_it_plans_its_stages() -> None:
    plan, request = planned("llama-3.1-8b", nodes=2, pp=(4,))
    firsts = tuple(min(span.first for span in stage.blocks) for stage in pipeline_plan(plan).stages)
    assert firsts == borders(request.model, 4)[:-1]  # type: ignore[index]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda: training(dp=2, zero_stage=2), "it has 0, 1"),
        (lambda: training("qwen3-8b", dp=2), "norms of heads"),
        (lambda: training(dp=2, cp=2), "no ring context parallelism"),
        (lambda: training(dp=2, precision=DType.FP32), "fp32"),
        (lambda: training(dp=8, devices_per_node=4), "nodes that are not equal, or up to 8 devices on several"),
    ],
)
def test_what_it_has_not_is_refused(broken: object, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        export(*broken(), "nanotron")  # type: ignore[operator]


def test_searches_of_what_it_has_not_are_refused() -> None:
    with pytest.raises(WorkloadError, match="nanotron has no layers of this model"):
        planned("qwen3-8b")
    with pytest.raises(WorkloadError, match="fp32"):
        planned("llama-3.2-1b", precision=DType.FP32)
    with pytest.raises(WorkloadError, match="up to 8 devices for those of one node"):
        planned("llama-3.2-1b", nodes=2, devices=4)


def test_devices_are_idle_where_the_nodes_that_are_left_suit_it() -> None:
    """Equal nodes, and one where there are up to eight devices."""
    of_six = cluster(1, 6).groups[0]
    two = Cluster((replace(of_six, name="a"), replace(of_six, name="b")))
    asked = Search(launcher=Launcher.NANOTRON, idle_groups=("a", "b"))
    request = TrainingRequest(
        model("llama-3.2-1b"), two, TrainingWorkload("training", global_batch=60, seq_len=512), search=asked
    )
    left = [(6 - each.idle.get("a", 0), 6 - each.idle.get("b", 0)) for each in other_arrangements(request)]
    assert left == [(5, 5), *((devices, 0) for devices in range(6, 0, -1))]
    elsewhere = replace(request, search=replace(asked, launcher=Launcher.DEEPSPEED))
    assert len(other_arrangements(elsewhere)) == 41


@pytest.mark.slow
def test_no_part_of_a_cluster_is_planned_that_it_takes_for_one_node() -> None:
    """Two of four nodes of four devices, which another launcher is given."""
    request = replace(planned("llama-3.2-1b", nodes=4, devices=4)[1], objective=Objective.DEVICES)
    assert isinstance(request, TrainingRequest)
    other = replace(request, search=replace(request.search, launcher=Launcher.DEEPSPEED))
    on_eight = next(part for part in cluster_parts(request.cluster) if part.n_devices == 8)
    plan = plan_training(
        replace(other, cluster=on_eight, objective=Objective.STEP_TIME), progress=ignore_progress, stop=never_stop
    )
    step_s = plan.certificate.objective
    assert step_s is not None
    slo = Slo(max_step_time_s=1.01 * step_s)
    elsewhere = plan_training(replace(other, slo=slo), progress=ignore_progress, stop=never_stop)
    assert elsewhere.devices == 8
    with pytest.raises(ExportError, match="up to 8 devices on several"):
        export(elsewhere, replace(request, slo=slo), "nanotron")
    assert plan_training(replace(request, slo=slo), progress=ignore_progress, stop=never_stop).devices > 8
