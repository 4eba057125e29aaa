"""The floor by kernels: under the time of every layer of every shape, and near it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.solver.control import never_stop
from meshwright.solver.problem.choices import Space, StageDegrees
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import compute_bound_s
from meshwright.solver.training.forms.stagewise.stage_sizes import sized_request
from meshwright.solver.training.planner import kernel_bound_s
from meshwright.solver.training.space.candidates import families

EVERY = 7
"""Of so many families one is looked at."""


def asked(name: str, *nodes: str, degrees: StageDegrees = StageDegrees.SAME, **search: object) -> TrainingRequest:
    groups = tuple(NodeGroup(f"g{place}", node_type(node), 1) for place, node in enumerate(nodes))
    return TrainingRequest(
        model=model(name),
        cluster=Cluster(groups),
        workload=TrainingWorkload("training", 16, 1024),
        search=Search(space=Space.FREE, stage_degrees=degrees, **search),  # type: ignore[arg-type]
    )


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "gpt2-xl", "nemotron-3-nano-30b-a3b"])
def test_no_layer_of_any_shape_takes_less(name: str) -> None:
    request = asked(name, "dgx-h100")
    floor_s, costs = kernel_bound_s(request, stop=never_stop), TrainingCosts(request)
    least_s = float("inf")
    for family in list(families(request))[::EVERY]:
        candidate = next(family.candidates())
        for setting in costs.settings(candidate, costs.stage_kinds(candidate)[0]):
            layers_s = costs.fastest_layers_s(setting)
            if layers_s is not None:
                ranks = setting.tp * setting.cp / setting.microbatch
                least_s = min(least_s, 16 * ranks * float(layers_s.sum()) / request.cluster.n_devices)
    assert compute_bound_s(request) < floor_s <= least_s
    # Of models with blocks of several kinds one has its kernels counted, the others their FLOPs.
    assert floor_s > (0.6 if len(costs.block_names) == 3 else 0.1) * least_s


@pytest.mark.slow
def test_devices_that_differ_have_their_own_rates() -> None:
    """Two kinds of devices together are as fast as their rates say, and stages that differ have shapes of their own."""
    h100, a100 = (kernel_bound_s(asked("llama-3.1-8b", node), stop=never_stop) for node in ("dgx-h100", "dgx-a100"))
    both = kernel_bound_s(asked("llama-3.1-8b", "dgx-h100", "dgx-a100"), stop=never_stop)
    assert both == pytest.approx(1 / (1 / h100 + 1 / a100), rel=0.02)
    unlike = asked("llama-3.1-8b", "dgx-h100", "dgx-a100", degrees=StageDegrees.ANY)
    alone = [sized_request(unlike, group, 8, pp=2) for group in unlike.cluster.groups]
    assert kernel_bound_s(unlike, stop=never_stop) <= both
    assert all(kernel_bound_s(each, stop=never_stop) > 0.0 for each in alone)


def test_what_is_stopped_or_has_shares_of_groups_is_bounded_by_flops() -> None:
    request = asked("llama-3.1-8b", "dgx-h100")
    assert kernel_bound_s(request, stop=lambda: True) == compute_bound_s(request)
    narrow = replace(request, search=replace(request.search, tp=(1,)))
    assert kernel_bound_s(narrow, stop=never_stop) >= kernel_bound_s(request, stop=never_stop)
