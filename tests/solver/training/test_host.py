"""Small blocks wait for the host, large ones do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.catalog import model
from app.validation.conventions import Dropout
from app.validation.unfused_attention import without_fused_attention
from costmodels.cluster import Cluster, NodeGroup
from costmodels.compute import launch_s
from costmodels.hardware import node_type
from costmodels.implementation import HostPath, Implementation, VectorKernels
from solver.control import ignore_progress, never_stop
from solver.request import PlanRequest, Search, TrainingWorkload
from solver.training import plan_training
from solver.training.host import LAUNCH_SHARE, host_time, launches, step_host_s

MODULES = Implementation()
MEGATRON_CORE = Implementation(host=HostPath.MEGATRON_CORE)


def test_a_gpt_layer_takes_three_milliseconds_of_launching_with_full_recompute() -> None:
    device = node_type("dgx-a100").device
    block = model("gpt3-175b").block("layer")
    host = host_time(block, device, MODULES)
    assert 3.0e-3 < host.forward_s + host.total_s < 3.7e-3


def test_megatron_core_takes_six_milliseconds_a_layer_and_more_between_steps() -> None:
    device = node_type("dgx-a100").device
    block = model("gpt3-175b").block("layer")
    assert 5.5e-3 < host_time(block, device, MEGATRON_CORE).total_s < 7e-3
    assert 10e-3 < step_host_s(device, MEGATRON_CORE) < 20e-3
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
    assert waits[1] - waits[0] == pytest.approx(LAUNCH_SHARE * more * launch_s(device))


def test_the_steps_of_unfused_attention_are_one_module() -> None:
    graph = model("gpt3-175b")
    unfused = without_fused_attention(graph, seq_len=2048, dropout=Dropout.NONE).block("layer")
    device = node_type("dgx-a100").device
    fused_s, unfused_s = (host_time(b, device, MEGATRON_CORE).total_s for b in (graph.block("layer"), unfused))
    assert abs(unfused_s - fused_s) < 0.1 * fused_s


def test_short_sequences_wait_for_the_host_and_long_ones_do_not() -> None:
    request = PlanRequest(
        model("llama-3.1-8b"),
        Cluster((NodeGroup("pool", node_type("dgx-h100"), 1),)),
        TrainingWorkload("training", global_batch=8, seq_len=128),
        search=Search(microbatch=(1,), tp=(1,), pp=(1,), cp=(1,)),
    )
    graph, device = request.model, node_type("dgx-h100").device
    launching_s = sum(host_time(graph.block(name), device, MEGATRON_CORE).total_s for name in graph.layers)
    short = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert short.breakdown is not None
    assert abs(short.breakdown.compute_s - launching_s) < 0.1 * launching_s
    long = plan_training(
        replace(request, workload=TrainingWorkload("training", 8, 8192)), stop=never_stop, progress=ignore_progress
    )
    assert long.breakdown is not None
    assert long.breakdown.compute_s > 3 * launching_s


def test_a_ring_adds_host_work_and_its_length_does_not() -> None:
    device, block = node_type("dgx-a100").device, model("llama-3.1-8b").block("layer")
    alone, two, eight = (host_time(block, device, MEGATRON_CORE, cp=cp).total_s for cp in (1, 2, 8))
    assert 1.1 * alone < two == eight < 1.3 * alone
    head = model("llama-3.1-8b").block("head")
    assert host_time(head, device, MEGATRON_CORE, cp=2) == host_time(head, device, MEGATRON_CORE)
