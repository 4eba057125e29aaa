"""Meshes, graphs and forced choices that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, SustainedRates
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor, Weight
from meshwright.costmodels.units import DType
from meshwright.solver.strategies.contraction import dim_context
from meshwright.solver.strategies.device_mesh import DeviceMesh, device_mesh
from meshwright.solver.strategies.graph_costs import GraphCosts, OperatorChoice, Sent, communication
from meshwright.solver.strategies.operator_graph import GraphEdge, GraphNode, OperatorGraph, Ties
from meshwright.solver.strategies.pricing import TrainingStep
from meshwright.solver.strategies.traffic import TransferPhase


def mesh_of(*sizes: int, faster: float = 1.0, sustained: SustainedRates | None = None) -> DeviceMesh:
    """A mesh of H100 nodes with axes a, b, c from outer to inner; ``faster`` multiplies every link's bandwidth, ``sustained``
    takes the place of the catalogue's rates."""
    node = node_type("dgx-h100")
    if sustained is not None:
        node = replace(node, device=replace(node.device, sustained=sustained))
    intra, inter = (replace(link, bytes_per_s=link.bytes_per_s * faster) for link in (node.intra, node.inter))
    cluster = Cluster((NodeGroup("nodes", replace(node, intra=intra, inter=inter), 64),))
    return device_mesh(cluster, dict(zip("abc", sizes, strict=False)))


def graph_of(operators: tuple[Operator, ...], sizes: Mapping[str, int]) -> OperatorGraph:
    """A graph of operators in order, joined by the names of tensors."""
    context = dim_context(operators)
    writer = {t.name: (i, k) for i, operator in enumerate(operators) for k, t in enumerate(operator.outputs)}
    edges = tuple(
        GraphEdge(*writer[t.name], i, j)
        for i, operator in enumerate(operators)
        for j, t in enumerate(operator.inputs)
        if t.name in writer
    )
    return OperatorGraph(tuple(GraphNode(0, "block", operator, context) for operator in operators), edges, dict(sizes))


Forced = Mapping[str, tuple[str, ...]]
"""For each operator what every axis does, by the rule's name or "replicate"; "+weights" after it splits the storage."""


def forced(costs: GraphCosts, wanted: Forced) -> list[OperatorChoice]:
    """The choices of these names; every operator needs one."""
    choices = []
    for index, members in enumerate(costs.folding.members):
        priced = costs.of_class(index)
        given = wanted[costs.graph.nodes[members[0]].operator.name]
        rules = tuple(name.removesuffix("+weights") for name in given)
        stored = tuple(axis for axis, name in enumerate(given) if name.endswith("+weights"))
        assignment = [priced.placed.name(a) for a in priced.assignments].index(rules)
        storage = next(i for i, s in enumerate(priced.storages) if (s.assignment, s.axes) == (assignment, stored))
        choices.append(OperatorChoice(assignment, storage))
    return choices


def sent(graph: OperatorGraph, mesh: DeviceMesh, wanted: Forced, step: TrainingStep = TrainingStep()) -> list[Sent]:  # noqa: B008
    """Return the traffic of a step in which every operator does as wanted."""
    costs = GraphCosts(graph, mesh, step, Ties.NONE)
    return list(communication(costs, forced(costs, wanted)))


def elements(parts: list[Sent], *phases: TransferPhase) -> float:
    """Elements of 16 bits that a device sends in these phases."""
    return sum(part.bytes_sent for part in parts if part.phase in phases) / DType.BF16.size_bytes


def activation(name: str, *dims: str) -> Tensor:
    return Tensor(name, (BATCH, SEQ, *dims))


def matmul(name: str, source: Tensor, *outputs: Tensor, weights: tuple[tuple[str, ...], ...] | None = None) -> Operator:
    """A product; the weight of each output contracts what the output lacks."""
    made = weights or tuple(
        (*(d for d in source.dims if all(d not in o.dims for o in outputs)), *(d for d in out.dims if d not in source.dims))
        for out in outputs
    )
    return Operator(
        name,
        OperatorKind.MATMUL,
        inputs=(source,),
        outputs=outputs,
        weights=tuple(Weight(f"w_{out.name}", dims) for out, dims in zip(outputs, made, strict=True)),
        saved=(source.name,),
    )


def elementwise(name: str, inputs: tuple[Tensor, ...], output: Tensor, flops: float = 1.0) -> Operator:
    return Operator(name, OperatorKind.ELEMENTWISE, inputs=inputs, outputs=(output,), flops_per_element=flops)


def norm(name: str, source: Tensor, target: str) -> Operator:
    return Operator(
        name,
        OperatorKind.NORM,
        inputs=(source,),
        outputs=(Tensor(target, source.dims),),
        weights=(Weight("scale", (source.dims[-1],)),),
        saved=(source.name,),
        flops_per_element=4.0,
    )


def attention_layer() -> tuple[Operator, ...]:
    """Norm, projections, attention, projection, sum: grouped-query attention as in Llama, without rotation."""
    x, normed = activation("x", "hidden"), activation("normed", "hidden")
    query, context = activation("q", "heads", "head_dim"), activation("context", "heads", "head_dim")
    key, value = (activation(name, "kv_heads", "head_dim") for name in "kv")
    out = activation("out", "hidden")
    attention = Operator(
        "attention",
        OperatorKind.ATTENTION,
        inputs=(query, key, value),
        outputs=(context,),
        saved=("q", "k", "v", "context"),
        mask=AttentionMask.CAUSAL,
    )
    return (
        norm("norm", x, "normed"),
        matmul("qkv", normed, query, key, value),
        attention,
        matmul("o", context, out),
        elementwise("add", (x, out), activation("sum", "hidden")),
    )


LLAMA = {BATCH: 16, SEQ: 4096, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336}
