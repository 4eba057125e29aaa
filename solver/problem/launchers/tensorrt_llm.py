"""TensorRT-LLM. Its cp_config is of decoding (HELIX) or approximate
(STAR)."""

from __future__ import annotations

from meshwright.costmodels.model.split_dims import RankGrid
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.launchers.server import Engine, ServedShape, Server, ServingForm, splits_caches


def _runs(grid: RankGrid, shape: ServedShape) -> bool:
    """Attention data parallelism is over all ranks or none (enable_attention_dp); moe_tensor_parallel_size and
    moe_expert_parallel_size are any two that multiply to the ranks; Helix for latent attention (cp_config, HELIX)."""
    return (grid.attention_dp == 1 or grid.dense_tp == 1) and (grid.kvp == 1 or splits_caches(grid, shape))


ENGINE = Engine(_runs)

LAUNCHER = Server(ServingEngine.TENSORRT_LLM, frozenset({ServingForm.REPLICAS}))
