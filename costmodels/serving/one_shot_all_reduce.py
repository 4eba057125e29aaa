"""All-reduce of small tensors in one kernel, as serving engines run it inside a node instead of a ring.

One shot: every rank reads the other n - 1 ranks' tensors over the fabric and adds them up, latency + (n - 1) S / (share B).
Two shots: every rank adds up its part and then reads the others' parts, latency + 2 (n - 1) / n S / (share B). Engines choose
the fastest, the ring among them; so does this model. Kernels are those of the devices' generation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.cluster.cluster import GroupTopology
from meshwright.costmodels.hardware.generations import generation_of
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.serving.engine_profile import ServingEngine

FloatArray = npt.NDArray[np.float64]


def serving_all_reduce_s(message_bytes: FloatArray, topology: GroupTopology, engine: ServingEngine) -> FloatArray:
    """Seconds of an all-reduce of ``message_bytes``: the fastest of one shot, two shots and ring; between nodes the ring."""
    ring = np.asarray(collective_s(Collective.ALL_REDUCE, message_bytes, topology), dtype=np.float64)
    if topology.spans_nodes:
        return ring
    kernels = generation_of(calibration_key(topology.calibration)).engine_all_reduce[engine.value]
    n, bytes_per_s = topology.n, topology.intra.bytes_per_s
    one_shot = kernels.one_shot_s + (n - 1) * message_bytes / (kernels.one_shot_share * bytes_per_s)
    two_shots = kernels.two_shots_s + 2.0 * (n - 1) / n * message_bytes / (kernels.two_shots_share * bytes_per_s)
    return np.minimum(ring, np.minimum(one_shot, two_shots))
