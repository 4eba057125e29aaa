"""SGLang. It shares prompts among ranks (--enable-prefill-cp, --attn-cp-size, also with --enable-dp-attention)."""

from __future__ import annotations

from meshwright.costmodels.model.split_dims import RankGrid
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.launchers.server import Engine, PromptSharing, ServedShape, Server, ServingForm


def _runs(grid: RankGrid, shape: ServedShape) -> bool:
    """--tp-size ranks of which --dp-size attention groups (--enable-dp-attention), --ep-size dividing them."""
    return grid.kvp == 1


ENGINE = Engine(_runs, PromptSharing.WITHOUT_STATES)

LAUNCHER = Server(ServingEngine.SGLANG, frozenset({ServingForm.REPLICAS, ServingForm.POOLS}))
