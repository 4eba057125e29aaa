"""Transfers of keys and values between the workers of two pools: the slower end and the network between carry them."""

from __future__ import annotations

import pytest

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.serving.memory import WorkerPlace, kv_transfer

NODE = node_type("dgx-h100")
GROUP = NodeGroup("a", NODE, 4)
BYTES = 131072.0


def token_s(senders: int, receivers: int, *, oversubscription: float = 1.0, one_node: bool = False) -> float:
    cluster = Cluster((GROUP,), oversubscription=oversubscription)
    sender, receiver = WorkerPlace(GROUP, 0, senders), WorkerPlace(GROUP, 8, receivers)
    return kv_transfer(cluster, sender, receiver, bytes_per_token=BYTES, one_node=one_node).token_s


@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 8.0])
def test_an_oversubscribed_network_takes_as_many_times_longer(oversubscription: float) -> None:
    alone_s = BYTES / NODE.inter.bytes_per_s
    assert token_s(8, 8, oversubscription=oversubscription) == pytest.approx(alone_s * oversubscription)


def test_the_worker_with_fewer_devices_decides() -> None:
    assert token_s(2, 8) == token_s(8, 2) == pytest.approx(4 * token_s(8, 8))
    assert token_s(1, 4, one_node=True) == pytest.approx(BYTES / NODE.intra.bytes_per_s)


def test_what_is_between_nodes_does_not_slow_a_node() -> None:
    assert token_s(4, 4, oversubscription=8.0, one_node=True) == token_s(4, 4, one_node=True) < token_s(4, 4)
