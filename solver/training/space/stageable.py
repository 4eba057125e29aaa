"""The properties that a model must have for stages to hold its layers."""

from __future__ import annotations

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.dims import HIDDEN
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.problem.graph import ModelGraph

"""The dim of the residual stream, which goes from layer to layer."""


def check_stageable(model: ModelGraph) -> None:
    """Raises WorkloadError for a model that is no sequence of layers with a residual stream: a traced graph, for one."""
    for name in dict.fromkeys(model.layers):
        kinds = {operator.kind for operator in model.block(name).operators}
        if {OperatorKind.EMBEDDING, OperatorKind.LOSS} <= kinds:
            raise WorkloadError(
                "training plans need a model of layers, one block each",
                given=f"block {name!r} from the lookup to the loss",
                remedy="shard a traced graph with 'meshwright shard --model', or give a config or a model graph of layers",
            )
    if HIDDEN not in model.dims:
        raise WorkloadError(
            "training plans need the dim of the residual stream between layers",
            given=f"dims {', '.join(sorted(model.dims)) or 'none'}",
            allowed=f"a dim named {HIDDEN!r}",
            remedy="shard a traced graph with 'meshwright shard --model'",
        )
