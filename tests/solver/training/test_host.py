"""Small blocks wait for the host, large ones do not."""

from __future__ import annotations

from dataclasses import replace

from app.catalog import model
from costmodels.cluster import Cluster, NodeGroup
from costmodels.compute import launch_s
from costmodels.hardware import node_type
from solver.control import ignore_progress, never_stop
from solver.request import PlanRequest, Search, TrainingWorkload
from solver.training import plan_training
from solver.training.host import host_time


def test_a_gpt_layer_takes_three_milliseconds_of_launching_with_full_recompute() -> None:
    device = node_type("dgx-a100").device
    block = model("gpt3-175b").block("layer")
    host = host_time(block, device)
    assert 2.7e-3 < host.forward_s + host.total_s < 3.4e-3
    assert host.total_s == 9 * len(block.operators) * launch_s(device)


def test_short_sequences_wait_for_the_host_and_long_ones_do_not() -> None:
    request = PlanRequest(
        model("llama-3.1-8b"),
        Cluster((NodeGroup("pool", node_type("dgx-h100"), 1),)),
        TrainingWorkload("training", global_batch=8, seq_len=128),
        search=Search(microbatch=(1,), tp=(1,), pp=(1,), cp=(1,)),
    )
    graph, device = request.model, node_type("dgx-h100").device
    launching_s = sum(host_time(graph.block(name), device).total_s for name in graph.layers)
    short = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert short.breakdown is not None
    assert abs(short.breakdown.compute_s - launching_s) < 0.1 * launching_s
    long = plan_training(
        replace(request, workload=TrainingWorkload("training", 8, 8192)), stop=never_stop, progress=ignore_progress
    )
    assert long.breakdown is not None
    assert long.breakdown.compute_s > 4 * launching_s
