"""Small blocks wait for the host, large ones do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.kernels.compute import launch_s, sustained_launch_s
from meshwright.costmodels.kernels.host_work import HostWork, host_work
from meshwright.costmodels.model.implementation import Dropout, HostPath, Implementation, VectorKernels
from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.implementation import without_fused_attention
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.host import host_time, launches, step_host_s
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.meshes import Mesh
from tests.support.flat_plans import flat

MODULES = Implementation()
MEGATRON_CORE = Implementation(host=HostPath.MEGATRON_CORE)
EAGER, COMPILED = Implementation(VectorKernels.EAGER), Implementation(VectorKernels.COMPILED)
GRAPHS = Implementation(host=HostPath.CUDA_GRAPHS)


def test_a_gpt_layer_takes_three_milliseconds_of_launching_with_full_recompute() -> None:
    device = node_type("dgx-a100").device
    block = model("gpt3-175b").block("layer")
    host = host_time(block, device, MODULES)
    assert 3.0e-3 < host.forward_s + host.total_s < 3.7e-3


def test_megatron_core_takes_five_milliseconds_a_layer_and_more_between_steps() -> None:
    device = node_type("dgx-a100").device
    block = model("gpt3-175b").block("layer")
    assert 5.3e-3 < host_time(block, device, MEGATRON_CORE).total_s < 7e-3
    assert 20e-3 < step_host_s(device, MEGATRON_CORE) < 25e-3
    assert step_host_s(device, MODULES) == 0


def test_eager_kernels_are_launched_one_by_one() -> None:
    block = model("llama-3.1-8b").block("layer")
    norm = block.operator("attn_norm")
    fused, eager = (launches(norm, Implementation(kernels)) for kernels in (VectorKernels.FUSED, VectorKernels.EAGER))
    assert fused == (1, 1)
    assert eager == (8, 15)
    device = node_type("dgx-a100").device
    waits = [
        host_time(block, device, Implementation(kernels)).total_s for kernels in (VectorKernels.FUSED, VectorKernels.EAGER)
    ]
    more = sum(
        sum(launches(op, Implementation(VectorKernels.EAGER))) - sum(launches(op, Implementation(VectorKernels.FUSED)))
        for op in block.operators
    )
    assert waits[1] - waits[0] == pytest.approx(more * launch_s(device))


def test_a_compiled_layer_takes_the_host_less_than_an_eager_one_and_a_graph_least() -> None:
    device, block = node_type("dgx-h100").device, model("llama-3.1-8b").block("layer")
    graph, compiled, eager, megatron = (
        host_time(block, device, each, collectives_of_sum=2) for each in (GRAPHS, COMPILED, EAGER, MEGATRON_CORE)
    )
    for passed in ("forward_s", "backward_s"):
        times = [getattr(host, passed) for host in (graph, compiled, eager, megatron)]
        assert times == sorted(times) and len(set(times)) == 4
    kernels = [sum(launches(operator, COMPILED)[i] for operator in block.operators) for i in (0, 1)]
    assert compiled.forward_s == pytest.approx((30 + kernels[0] + 2 * 2 * 7.5) * launch_s(device))
    assert graph.total_s == pytest.approx(20 * launch_s(device))


@pytest.mark.parametrize("path", HostPath)
def test_each_path_of_the_host_costs_something(path: HostPath) -> None:
    device, block = node_type("dgx-h100").device, model("llama-3.1-8b").block("layer")
    how = Implementation(host=path)
    assert host_work(how) != HostWork()
    assert host_time(block, device, how).forward_s > 0 < host_time(block, device, how).backward_s


def test_the_steps_of_unfused_attention_are_one_module() -> None:
    graph = model("gpt3-175b")
    unfused = without_fused_attention(graph, seq_len=2048, dropout=Dropout.NONE).block("layer")
    device = node_type("dgx-a100").device
    fused_s, unfused_s = (host_time(b, device, MEGATRON_CORE).total_s for b in (graph.block("layer"), unfused))
    assert abs(unfused_s - fused_s) < 0.1 * fused_s


def test_short_sequences_wait_for_the_host_and_long_ones_do_not() -> None:
    request = TrainingRequest(
        model("llama-3.1-8b"),
        Cluster((NodeGroup("pool", node_type("dgx-h100"), 1),)),
        TrainingWorkload("training", global_batch=8, seq_len=128),
        search=Search(microbatch=(1,), tp=(1,), pp=(1,), cp=(1,)),
    )
    graph, device = request.model, node_type("dgx-h100").device
    launching_s = sum(host_time(graph.block(name), device, MEGATRON_CORE).total_s for name in graph.layers)
    short = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert flat(short).breakdown is not None
    assert abs(flat(short).breakdown.compute_s - launching_s) < 0.1 * launching_s
    long = plan_training(
        replace(request, workload=TrainingWorkload("training", 8, 8192)), stop=never_stop, progress=ignore_progress
    )
    assert flat(long).breakdown is not None
    assert flat(long).breakdown.compute_s > 3 * launching_s


def test_a_ring_adds_host_work_and_its_length_does_not() -> None:
    device, block = node_type("dgx-a100").device, model("llama-3.1-8b").block("layer")
    alone, two, eight = (host_time(block, device, MEGATRON_CORE, cp=cp).total_s for cp in (1, 2, 8))
    assert 1.05 * alone < two == eight < 1.3 * alone
    head = model("llama-3.1-8b").block("head")
    assert host_time(head, device, MEGATRON_CORE, cp=2) == host_time(head, device, MEGATRON_CORE)


def test_launching_collectives_of_tensor_parallelism_takes_the_host() -> None:
    device, graph = node_type("dgx-a100").device, model("llama-3.1-8b")
    layer = graph.block("layer")
    alone, summed, sequence = (host_time(layer, device, MODULES, collectives_of_sum=n) for n in (0, 1, 2))
    # Attention and the feed-forward network each leave partial sums once in either pass.
    each_s = host_work(MODULES).collective * launch_s(device)
    assert summed.forward_s - alone.forward_s == pytest.approx(2 * each_s)
    assert summed.backward_s - alone.backward_s == pytest.approx(2 * each_s)
    assert sequence.total_s - alone.total_s == pytest.approx(8 * each_s)
    embedding = graph.block("embedding")
    looked_up = host_time(embedding, device, MODULES, collectives_of_sum=1)
    assert looked_up.forward_s > host_time(embedding, device, MODULES).forward_s
    assert looked_up.backward_s == host_time(embedding, device, MODULES).backward_s


def test_a_layer_that_waits_for_the_host_takes_longer_split_than_whole() -> None:
    cluster = Cluster((NodeGroup("pool", node_type("dgx-a100"), 1),))
    request = TrainingRequest(model("llama-3.1-8b"), cluster, TrainingWorkload("training", global_batch=8, seq_len=64))
    costs = TrainingCosts(request, implementation=MODULES)

    def layer_s(tp: int) -> float:
        candidate = Candidate(Mesh(dp=8 // tp, tp=tp, pp=1, cp=1), 1, tp, 0, REPLICATED, (Recompute.NONE,))
        fastest = costs.fastest_layers_s(costs.settings(candidate, costs.stage_kinds(candidate)[0])[0])
        assert fastest is not None
        return float(fastest[1])

    each_s = host_work(MODULES).collective * sustained_launch_s(cluster.groups[0].node.device)
    assert layer_s(8) - layer_s(1) == pytest.approx(4 * each_s)
