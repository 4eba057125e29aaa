from __future__ import annotations

import numpy as np
import pytest

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, group_topology
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.operators import serving_all_reduce_s

CLUSTER = Cluster((NodeGroup("a", node_type("dgx-h100"), 2),))


# All-reduces of TensorRT-LLM 1.3.0rc20 and SGLang 0.5.10 on H100 SXM (aiconfigurator-core 0.12.0 tables): ranks, bytes,
# microseconds.
@pytest.mark.parametrize(
    ("engine", "ranks", "message_bytes", "measured_us"),
    [
        (ServingEngine.TENSORRT_LLM, 2, 2**20, 9.4),
        (ServingEngine.TENSORRT_LLM, 4, 2**16, 4.3),
        (ServingEngine.TENSORRT_LLM, 4, 2**18, 7.9),
        (ServingEngine.TENSORRT_LLM, 8, 2**13, 3.6),
        (ServingEngine.TENSORRT_LLM, 8, 2**17, 10.2),
        (ServingEngine.SGLANG, 8, 2**13, 13.3),
        (ServingEngine.SGLANG, 8, 2**20, 24.4),
    ],
)
def test_times_are_those_measured(engine: ServingEngine, ranks: int, message_bytes: float, measured_us: float) -> None:
    time = serving_all_reduce_s(np.array([message_bytes]), group_topology(CLUSTER, n=ranks, stride=1), engine)
    assert time[0] * 1e6 == pytest.approx(measured_us, rel=0.2)


def test_never_slower_than_the_ring_and_only_in_a_node() -> None:
    message_bytes = np.geomspace(1e3, 1e9, 30)
    for ranks in (2, 4, 8, 16):
        topology = group_topology(CLUSTER, n=ranks, stride=1)
        ring = collective_s(Collective.ALL_REDUCE, message_bytes, topology)
        chosen = serving_all_reduce_s(message_bytes, topology, ServingEngine.TENSORRT_LLM)
        assert np.all(chosen <= ring)
        assert np.array_equal(chosen, ring) == (ranks == 16)
