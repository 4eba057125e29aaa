"""All-reduce of small tensors in one kernel, as serving engines run it inside a node instead of a ring.

One shot: every rank reads the other n - 1 ranks' tensors over the fabric and adds them up, latency + (n - 1) S / (share B).
Two shots: every rank adds up its part and then reads the others' parts, latency + 2 (n - 1) / n S / (share B). Engines choose
the fastest, the ring among them; so does this model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.cluster.cluster import GroupTopology
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.serving.engine_profile import ServingEngine

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AllReduceKernels:
    """An engine's kernels: latencies, and the shares of the fabric's bandwidth that their reads reach."""

    one_shot_s: float
    one_shot_share: float
    two_shots_s: float
    two_shots_share: float


# Fitted to the measured tables of aiconfigurator-core 0.12.0, 1 kB to 16 MB, 2 to 8 ranks: TensorRT-LLM 1.3.0rc10 and rc20,
# vLLM 0.14 to 0.24, SGLang 0.5.9 and 0.5.10; median error 4 to 8%. vLLM's and SGLang's hold what launching kernels takes.
_HOPPER = {
    ServingEngine.TENSORRT_LLM: AllReduceKernels(2.9e-6, 0.31, 2.1e-5, 0.35),
    ServingEngine.VLLM: AllReduceKernels(1.25e-5, 0.33, 1.8e-5, 0.35),
    ServingEngine.SGLANG: AllReduceKernels(1.22e-5, 0.32, 1.4e-5, 0.32),
}
_BLACKWELL = {
    ServingEngine.TENSORRT_LLM: AllReduceKernels(5.0e-6, 0.33, 2.4e-5, 0.28),
    ServingEngine.VLLM: AllReduceKernels(1.36e-5, 0.12, 2.4e-5, 0.30),
    ServingEngine.SGLANG: AllReduceKernels(1.31e-5, 0.10, 2.9e-5, 0.24),
}
_KERNELS = {"b200_sxm": _BLACKWELL, "b300_sxm": _BLACKWELL, "gb200": _BLACKWELL, "gb300": _BLACKWELL}
"""By calibration of the group; others as on Hopper."""


def serving_all_reduce_s(message_bytes: FloatArray, topology: GroupTopology, engine: ServingEngine) -> FloatArray:
    """Seconds of an all-reduce of ``message_bytes``: the fastest of one shot, two shots and ring; between nodes the ring."""
    ring = np.asarray(collective_s(Collective.ALL_REDUCE, message_bytes, topology), dtype=np.float64)
    if topology.spans_nodes:
        return ring
    kernels = _KERNELS.get(calibration_key(topology.calibration), _HOPPER)[engine]
    n, bytes_per_s = topology.n, topology.intra.bytes_per_s
    one_shot = kernels.one_shot_s + (n - 1) * message_bytes / (kernels.one_shot_share * bytes_per_s)
    two_shots = kernels.two_shots_s + 2.0 * (n - 1) / n * message_bytes / (kernels.two_shots_share * bytes_per_s)
    return np.minimum(ring, np.minimum(one_shot, two_shots))
