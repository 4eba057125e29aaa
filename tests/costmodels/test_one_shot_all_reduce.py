from __future__ import annotations

import numpy as np
import pytest

from costmodels.cluster import Cluster, NodeGroup, group_topology
from costmodels.collectives import Collective, collective_s
from costmodels.hardware import node_type
from costmodels.one_shot_all_reduce import serving_all_reduce_s

CLUSTER = Cluster((NodeGroup("a", node_type("dgx-h100"), 2),))


# TensorRT-LLM 1.3.0rc10 custom all-reduce on H100 SXM (aiconfigurator-core 0.12.0 tables): ranks, bytes, microseconds.
@pytest.mark.parametrize(
    ("ranks", "message_bytes", "measured_us"),
    [(2, 2**20, 6.2), (4, 2**17, 4.3), (4, 2**20, 12.9), (8, 2**14, 3.8), (8, 2**17, 6.4), (8, 2**20, 26.0), (8, 2**26, 323.5)],
)
def test_times_are_those_measured(ranks: int, message_bytes: float, measured_us: float) -> None:
    time = serving_all_reduce_s(np.array([message_bytes]), group_topology(CLUSTER, n=ranks, stride=1))
    assert time[0] * 1e6 == pytest.approx(measured_us, rel=0.2)


def test_never_slower_than_the_ring_and_only_in_a_node() -> None:
    message_bytes = np.geomspace(1e3, 1e9, 30)
    for ranks in (2, 4, 8, 16):
        topology = group_topology(CLUSTER, n=ranks, stride=1)
        ring = collective_s(Collective.ALL_REDUCE, message_bytes, topology)
        chosen = serving_all_reduce_s(message_bytes, topology)
        assert np.all(chosen <= ring)
        assert np.array_equal(chosen, ring) == (ranks == 16)
