"""Devices and nodes that a user describes: each request of them is planned or refused, none ends otherwise."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.app.base.errors import DocumentError
from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.units import DType
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from tests.support.requests_given import serving, tiny_graph, training

SIZES = st.sampled_from((1e-3, 1.0, 1e6, 1e9, 7e10, 3e11, 1e12, 1e15, 1e18))
CALIBRATIONS = st.sampled_from(("nearest", "h100_sxm", "l4", "ascend_910b", "own~a100_sxm", "nobody", "x@y"))

ANY_PEAKS = st.dictionaries(st.sampled_from([dtype.value for dtype in DType]), SIZES, max_size=4)
PEAKS = ANY_PEAKS | st.builds(lambda peaks, peak: peaks | {"bf16": peak}, ANY_PEAKS, SIZES)

DEVICES = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("t4", "TPU v5p", "~", "x@y")),
        "memory_bytes": st.sampled_from((1, 2**24, 2**30, 2**34, 2**36, 2**45)),
        "peak_flops": PEAKS,
        "memory_bytes_per_s": SIZES,
    },
    optional={
        "calibration": CALIBRATIONS,
        "host_bytes_per_s": SIZES,
        "power_w": st.sampled_from((0.5, 70.0, 400.0, 1e6)),
        "idle_power_w": st.sampled_from((0.0, 0.25, 15.0, 80.0)),
        "price_per_hour": st.sampled_from((None, 0.0, 1.5)),
        "communicator_bytes": st.sampled_from((1, 2**20, 2**27, 2**31)),
    },
)
LINKS = st.fixed_dictionaries({"name": st.just("link"), "bytes_per_s": SIZES, "latency_s": st.sampled_from((0.0, 1e-6, 1.0))})
NODES = st.fixed_dictionaries(
    {
        "name": st.just("node"),
        "device": DEVICES,
        "devices_per_node": st.integers(1, 4),
        "intra": LINKS,
        "inter": LINKS,
    },
    optional={"host_memory_bytes": st.integers(1, 2**42)},
)
OBJECTIVES = st.sampled_from(("throughput", "step_time", "devices", "energy"))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(node=NODES, count=st.integers(1, 2), objective=OBJECTIVES)
def test_training_on_any_described_device_is_planned_or_refused(node: dict[str, Any], count: int, objective: str) -> None:
    groups = [{"name": "own", "node": node, "nodes": count}]
    workload = {"kind": "training", "seq_len": 128, "global_batch": 4}
    document = training(
        model={"graph": tiny_graph()},
        cluster={"groups": groups},
        workload=workload,
        objective=objective,
        # Devices are described here, not searches: each choice less is a fraction of the work, most of it on what helps.
        search={"pp": [1, 2], "zero": [0, 3], "schedules": ["1f1b"], "recompute": ["none", "full"]},
    )
    _planned_or_refused(document)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(node=NODES)
def test_serving_on_any_described_device_is_planned_or_refused(node: dict[str, Any]) -> None:
    document = serving(model={"graph": tiny_graph()}, cluster={"groups": [{"name": "own", "node": node, "nodes": 1}]})
    _planned_or_refused(document)


def _planned_or_refused(document: dict[str, Any]) -> None:
    try:
        request = resolve_request(document, files=NoFiles())
    except DocumentError:
        return
    assert resolve_request(request_document(request), files=NoFiles()) == request
    try:
        plan = solve(request, stop=never_stop, progress=ignore_progress)
    except ClusterError:
        return
    assert plan.feasible or plan.reason is not None
