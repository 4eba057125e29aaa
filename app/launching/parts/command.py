"""Writing command lines: one flag with its values a line. Words stay as they are until the command is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshwright.app.base.quoting import shell_word
from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import LayerSpan, Stage
from meshwright.solver.problem.request import PlanRequest

PORT = 29500
"""torchrun's own default of --master-port."""


@dataclass(frozen=True, slots=True)
class ShellVariable:
    """A value that the shell of each node fills in."""

    name: str


Words = tuple[str | ShellVariable, ...]
"""Words of a command, not quoted yet."""


def flag(name: str, *values: object) -> Words:
    """``--name value ...`` as words; one value that begins like a flag is joined to its own, ``--name=-value``."""
    words = tuple(value if isinstance(value, ShellVariable) else str(value) for value in values)
    if len(words) == 1 and isinstance(words[0], str) and words[0].startswith("-"):
        return (f"--{name}={words[0]}",)
    return (f"--{name}", *words)


def command_text(*, environment: Iterable[tuple[str, str | ShellVariable]] = (), parts: Sequence[Words]) -> str:
    """The command, one part a line, continued by backslashes; every word and value is quoted here and nowhere else."""
    lines = [f"{name}={_quoted(value)}" for name, value in environment]
    lines += [" ".join(map(_quoted, part)) for part in parts]
    return " \\\n    ".join(lines)


def torchrun(request: PlanRequest, n_devices: int) -> list[Words]:
    """torchrun over the first ``n_devices`` ranks of the cluster: the same command on every node, node rank aside.

    Ranks are numbered node by node, as plans number them, so a node's rank must be its place in the cluster.
    """
    per_node = devices_per_node(request, n_devices)
    if len(per_node) == 1:
        return [("torchrun", "--standalone", *flag("nproc-per-node", n_devices))]
    equal = len(set(per_node)) == 1
    return [
        (
            "torchrun",
            *flag("nnodes", len(per_node)),
            *flag("nproc-per-node", per_node[0] if equal else ShellVariable("DEVICES")),
        ),
        (*flag("node-rank", ShellVariable("NODE_RANK")), *flag("master-addr", ShellVariable("MASTER_ADDR"))),
        flag("master-port", PORT),
    ]


def node_assumptions(request: PlanRequest, n_devices: int) -> tuple[str, ...]:
    """Return the assumptions of ``torchrun`` about the nodes."""
    per_node = devices_per_node(request, n_devices)
    if len(per_node) == 1:
        return ()
    names = ", ".join(f"{group.name} ({group.nodes * len(_hosts(group.node))})" for group in request.cluster.groups)
    said = [
        f"NODE_RANK is the node's place in the cluster, 0 to {len(per_node) - 1}, through the groups in order: {names}; "
        "MASTER_ADDR is the address of node 0"
    ]
    if len(set(per_node)) > 1:
        counts = ", ".join(str(count) for count in per_node)
        said.append(f"DEVICES is the number of devices that the node takes part with: {counts} for nodes 0, 1, ...")
    return tuple(said)


def devices_per_node(request: PlanRequest, n_devices: int) -> tuple[int, ...]:
    """Devices that each node takes part with, first to last; of a rack, each of its hosts is a node of the launcher."""
    counts: list[int] = []
    left = n_devices
    for group in request.cluster.groups:
        for devices in _hosts(group.node) * group.nodes:
            if left <= 0:
                return tuple(counts)
            counts.append(min(left, devices))
            left -= counts[-1]
    return tuple(counts)


def _hosts(node: NodeType) -> tuple[int, ...]:
    """Devices of each host of a node; the last has what is left where a part of a rack is no whole number of hosts."""
    full, rest = divmod(node.devices_per_node, node.host_devices)
    return (node.host_devices,) * full + ((rest,) if rest else ())


def _quoted(word: str | ShellVariable) -> str:
    return f'"${word.name}"' if isinstance(word, ShellVariable) else shell_word(word)


# The parts that a plan cuts the model in, in order of the model: one a stage, or one a model chunk (virtual stage).

ModelPart = tuple[LayerSpan, ...]


def model_parts(plan: PipelinePlan) -> tuple[ModelPart, ...]:
    """All parts, the start of the model first; ranks that hold the same part count once."""
    parts = {part[0].first: part for stage in plan.stages for part in _chunks(stage)}
    return tuple(parts[first] for first in sorted(parts))


def parts_of_ranks(plan: PipelinePlan) -> tuple[tuple[int, ...], ...]:
    """The parts, by their places in the model, that each pipeline rank holds; in the order in which it lists them."""
    places = {part[0].first: place for place, part in enumerate(model_parts(plan))}
    return tuple(tuple(places[chunk[0].first] for chunk in _chunks(stage)) for stage in plan.stages)


def chunks_a_rank(plan: PipelinePlan) -> int:
    """Model chunks on each pipeline rank."""
    return max(1, len(plan.stages[0].chunk_layers))


def _chunks(stage: Stage) -> list[ModelPart]:
    """A stage's spans, cut where a chunk ends."""
    sizes = stage.chunk_layers or (sum(span.count for span in stage.blocks),)
    found, waiting = [], list(stage.blocks)
    for size in sizes:
        chunk: list[LayerSpan] = []
        while size:
            span = waiting.pop(0)
            taken = min(size, span.count)
            chunk.append(LayerSpan(span.block, span.first, taken))
            if taken < span.count:
                waiting.insert(0, LayerSpan(span.block, span.first + taken, span.count - taken))
            size -= taken
        found.append(tuple(chunk))
    return found
