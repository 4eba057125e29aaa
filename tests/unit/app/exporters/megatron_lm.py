"""Shared by the tests of megatron lm and others: LAUNCHER_FLAGS, question, expected_parameters."""

from __future__ import annotations

from meshwright.app.launching.exporters import export
from meshwright.app.models.catalog import model
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest
from tests.support.flat_plans import flat
from tests.unit.app.exporters.plans import flags

LAUNCHER_FLAGS = {"--standalone", "--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port"}


def question(plan: Plan, request: PlanRequest) -> dict[str, object]:
    """The arguments of one plan, for the first rank of each stage."""
    given = flags(export(plan, request, "megatron-lm"))
    return {
        "flags": {name[2:]: values for name, values in given.items() if name not in LAUNCHER_FLAGS},
        "world": plan.devices,
        "ranks": [stage.devices[0].first for stage in flat(plan).stages],
    }


def expected_parameters(plan: Plan) -> list[int]:
    """Parameters of each stage's ranks: matrices divided by tp, vectors of the residual stream whole, a tied head copied."""
    graph = model(plan.model)
    assert flat(plan).axes is not None
    tp, counts = flat(plan).axes.tp, []
    for stage in flat(plan).stages:
        total = 0
        for span in stage.blocks:
            for operator in graph.block(span.block).operators:
                for weight in operator.weights:
                    if weight.tied_to is not None and len(flat(plan).stages) == 1:
                        continue
                    split = {"heads", "kv_heads", "ffn", "vocab"} & set(weight.dims)
                    total += span.count * weight.elements(graph.dims) // (tp if split else 1)
        counts.append(total)
    return counts
