"""When a training step holds what: the live range of every output, gradient, weight and buffer of a graph.

Times 0 .. n - 1 are the forward passes of the n operators, n .. 2 n - 1 their backward passes in reverse order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from meshwright.solver.strategies.operator_graph import OperatorGraph

IntArray = npt.NDArray[np.int64]


class Kind(IntEnum):
    """The kind of memory that is held."""

    STATE = 0
    """Weights, gradients and optimizer states, always."""
    FORWARD = 1
    """Gathered weights of a forward pass."""
    BACKWARD = 2
    """Gathered weights and whole gradients of a backward pass."""
    BUFFER = 3
    """Working memory of either pass."""
    OUTPUT = 4
    """An output, until its last reader has run, or if it is saved, until its first reader's backward pass."""
    GRADIENT = 5
    """The gradient of an output, from the backward pass of its last reader to that of its writer."""


@dataclass(frozen=True, eq=False)
class LiveRanges:
    """All that the nodes of a graph hold, one entry each: ``node`` holds its ``kind`` at the times start <= t < end;
    ``output`` says of which output."""

    node: IntArray
    kind: IntArray
    output: IntArray
    start: IntArray
    end: IntArray


def live_ranges(graph: OperatorGraph) -> LiveRanges:
    """The live ranges of a training step."""
    count = len(graph.nodes)
    times = 2 * count
    forward = np.arange(count)
    backward = times - 1 - forward
    zero = np.zeros(count, dtype=np.int64)
    parts = [
        (forward, Kind.STATE, zero, zero, zero + times),
        (forward, Kind.FORWARD, zero, forward, forward + 1),
        (forward, Kind.BACKWARD, zero, backward, backward + 1),
        (forward, Kind.BUFFER, zero, forward, forward + 1),
        (forward, Kind.BUFFER, zero, backward, backward + 1),
        *_outputs(graph),
    ]
    return LiveRanges(
        node=np.concatenate([node for node, *_ in parts]),
        kind=np.concatenate([np.full(len(node), int(kind)) for node, kind, *_ in parts]),
        output=np.concatenate([output for _, _, output, _, _ in parts]),
        start=np.concatenate([start for *_, start, _ in parts]),
        end=np.concatenate([end for *_, end in parts]),
    )


_RangesOfKind = tuple[IntArray, Kind, IntArray, IntArray, IntArray]


def _outputs(graph: OperatorGraph) -> list[_RangesOfKind]:
    times = 2 * len(graph.nodes)
    widths = np.array([len(place.operator.outputs) for place in graph.nodes])
    first = np.concatenate(([0], np.cumsum(widths)))
    writer = np.repeat(np.arange(len(graph.nodes)), widths)
    output = np.arange(first[-1]) - first[writer]
    last_reader = writer.copy()
    first_saver = np.full(first[-1], times)
    saved_inputs: dict[tuple[str, str], tuple[bool, ...]] = {}
    for edge in graph.edges:
        node = graph.nodes[edge.target]
        if node.of_block not in saved_inputs:
            reader = node.operator
            saved_inputs[node.of_block] = tuple(tensor.name in reader.saved for tensor in reader.inputs)
        slot = first[edge.source] + edge.output
        last_reader[slot] = max(last_reader[slot], edge.target)
        if saved_inputs[node.of_block][edge.input]:
            first_saver[slot] = min(first_saver[slot], edge.target)
    of_writer = [tensor.name in place.operator.saved for place in graph.nodes for tensor in place.operator.outputs]
    first_saver = np.where(of_writer, np.minimum(first_saver, writer), first_saver)
    end = np.where(first_saver < times, times - first_saver, last_reader + 1)
    read = last_reader > writer
    return [
        (writer, Kind.OUTPUT, output, writer, end),
        (writer[read], Kind.GRADIENT, output[read], times - 1 - last_reader[read], times - writer[read]),
    ]
