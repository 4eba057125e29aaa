"""Products cut into chunks: hand-computed cases, and the laws of every cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, group_topology
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.implementation import TensorOverlap
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.overlap import (
    CHUNKERS,
    MEASURED_INTERFERENCE,
    Chunking,
    Interference,
    Stream,
    added_s,
    adding_up_s,
    chunking,
    travelling_chunk_s,
)

NODE = node_type("dgx-h100")
TOPOLOGY = group_topology(Cluster((NodeGroup("a", NODE, 1),)), n=8, stride=1)
UNHINDERED = Interference()


def added(whole: float, chunk: float, communication: float, cut: Chunking, slowed: Interference = UNHINDERED) -> float:
    return added_s(whole, chunk, communication, cut, Stream.INTRA_NODE, slowed)


@pytest.mark.parametrize(
    ("communication", "cut", "expected"),
    [
        # Four chunks of 2 s, all of which travel: the last one's second shows, the tail.
        (1.0, Chunking(4, 4), 1.0),
        # They travel for 3 s each: the first product, then 12 s on the way, 14 in all.
        (3.0, Chunking(4, 4), 6.0),
        # One stays on its rank: what travels in 1 s is hidden whole, of 3 x 3 s behind 2 s of product 3 s show.
        (1.0, Chunking(4, 3), 0.0),
        (3.0, Chunking(4, 3), 3.0),
    ],
)
def test_by_hand(communication: float, cut: Chunking, expected: float) -> None:
    assert added(8.0, 2.0, communication, cut) == pytest.approx(expected)


def test_computation_beside_chunks_that_travel_is_slowed() -> None:
    # Three of four chunks of 2 s run beside 1 s of communication each, in which 1 / 1.189 s of them is done.
    expected = 3 * (1.0 - 1.0 / 1.189) + 1.0
    assert added(8.0, 2.0, 1.0, Chunking(4, 4), MEASURED_INTERFERENCE) == pytest.approx(expected)


def test_small_products_lose() -> None:
    # Four chunks of 3 s where the whole takes 8.
    assert added(8.0, 3.0, 1.0, Chunking(4, 4)) == pytest.approx(4.0 + 1.0)


TIMES = st.floats(1e-6, 1e-2)
CUTS = st.tuples(st.integers(2, 64), st.booleans()).map(lambda drawn: Chunking(drawn[0], drawn[0] - drawn[1]))


@given(TIMES, TIMES)
def test_one_chunk_is_no_overlap(whole: float, communication: float) -> None:
    assert added(whole, whole, communication, Chunking(1, 1), MEASURED_INTERFERENCE) == pytest.approx(communication)


@given(TIMES, TIMES, TIMES, CUTS)
def test_never_shorter_than_either_side(whole: float, chunk: float, communication: float, cut: Chunking) -> None:
    together = whole + added(whole, chunk, communication, cut, MEASURED_INTERFERENCE)
    assert together >= max(whole, cut.travelling * communication) * (1 - 1e-12)


@given(TIMES, st.floats(1.0, 2.0), TIMES, CUTS)
def test_never_longer_than_all_chunks_one_after_another(whole: float, loss: float, communication: float, cut: Chunking) -> None:
    chunk = loss * whole / cut.chunks
    together = whole + added(whole, chunk, communication, cut, UNHINDERED)
    assert together <= (cut.chunks * chunk + cut.travelling * communication) * (1 + 1e-12)


@pytest.mark.parametrize("kind", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER])
@pytest.mark.parametrize("overlap", CHUNKERS)
@pytest.mark.parametrize("size", [1e4, 1e6, 1e8])
def test_chunks_take_no_less_than_the_collective(kind: Collective, overlap: TensorOverlap, size: float) -> None:
    cut = chunking(kind, 8, CHUNKERS[overlap])
    whole_s = float(collective_s(kind, size, TOPOLOGY))
    assert cut.travelling * travelling_chunk_s(kind, size, TOPOLOGY, cut, whole_s=whole_s) >= whole_s * (1 - 1e-12)


def test_each_framework_cuts_its_own_way() -> None:
    by_engine, by_torch = (CHUNKERS[name] for name in (TensorOverlap.USERBUFFERS, TensorOverlap.SYMMETRIC_MEMORY))
    for chunker in (by_engine, by_torch):
        assert chunking(Collective.ALL_GATHER, 8, chunker) == Chunking(8, 7)
    assert chunking(Collective.REDUCE_SCATTER, 8, by_engine) == Chunking(4, 4)
    assert chunking(Collective.REDUCE_SCATTER, 8, by_torch) == Chunking(8, 7)
    assert (by_engine.buffer_bytes(1e6, 8), by_torch.buffer_bytes(1e6, 8)) == (12e6, 0.25e6)


def test_what_no_collective_adds_up_is_added_up_by_a_kernel() -> None:
    sent, pipelined = Chunking(8, 7), Chunking(4, 4)
    assert adding_up_s(Collective.REDUCE_SCATTER, 1e8, NODE.device, pipelined) == 0.0
    assert adding_up_s(Collective.ALL_GATHER, 1e8, NODE.device, sent) == 0.0
    assert adding_up_s(Collective.REDUCE_SCATTER, 1e8, NODE.device, sent) > 1.125e8 / NODE.device.memory_bytes_per_s
