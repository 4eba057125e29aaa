"""vLLM. It has an option of prefill context parallelism (--prefill-context-parallel-size), but its model runner refuses it
(vllm-project/vllm issue 47846)."""

from __future__ import annotations

from meshwright.costmodels.model.split_dims import RankGrid
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.launchers.server import Engine, ServedShape, Server, ServingForm, splits_caches


def _runs(grid: RankGrid, shape: ServedShape) -> bool:
    """Experts whole on all ranks (--enable-expert-parallel) or split over all; decode context parallelism needs
    tensor-parallel-size > kv heads, at most tensor-parallel-size / kv heads of it, dividing the query heads of a kv head
    (ModelConfig.verify_with_parallel_config)."""
    return grid.ep in (1, grid.ranks) and splits_caches(grid, shape)


ENGINE = Engine(_runs)

LAUNCHER = Server(ServingEngine.VLLM, frozenset({ServingForm.REPLICAS, ServingForm.POOLS, ServingForm.KINDS}))
