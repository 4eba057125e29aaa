"""Degrees need not be powers of two where the model and the batch divide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.space.meshes import meshes
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat
from tests.unit.solver.training.instances import random_request


def odd_request(devices: int, **search: tuple[int, ...]) -> TrainingRequest:
    """Attention with 12 heads and experts, a batch that 3 and 5 divide, on one roomy node."""
    plain = next(r for r in map(random_request, range(200)) if {"attn"} <= {b.name for b in r.model.blocks})
    dims = {**plain.model.dims, "hidden": 384, "heads": 12, "kv_heads": 6, "head_dim": 32, "ffn": 1920, "vocab": 3840}
    group = plain.cluster.groups[0]
    device = replace(group.node.device, memory_bytes=80 * 2**30)
    node = replace(group.node, device=device, devices_per_node=devices)
    return TrainingRequest(
        replace(plain.model, dims=dims),
        Cluster((replace(group, node=node, nodes=1),)),
        TrainingWorkload("training", global_batch=30, seq_len=360),
        search=Search(microbatch=(1,), zero_stages=(1,), **search),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("devices", "axis", "degree"),
    [(6, "tp", 3), (6, "tp", 6), (6, "cp", 3), (6, "pp", 3), (5, "dp", 5), (10, "dp", 5), (10, "dp", 10), (6, "cp", 6)],
)
def test_degrees_that_are_no_powers_of_two_are_planned(devices: int, axis: str, degree: int) -> None:
    whole = odd_request(devices)
    assert any(getattr(mesh, axis) == degree for mesh in meshes(whole))
    asked = odd_request(devices, **{axis: (degree,)})
    plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
    assert flat(plan).axes is not None and getattr(flat(plan).axes, axis) == degree
    assert check(plan, asked) == ()


def test_a_degree_that_nothing_divides_is_no_plan() -> None:
    asked = odd_request(10, tp=(5,))
    assert not plan_training(asked, stop=never_stop, progress=ignore_progress).feasible, "12 heads do not divide by 5"
