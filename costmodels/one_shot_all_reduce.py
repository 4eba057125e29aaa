"""All-reduce of small tensors in one kernel, as serving engines run it inside a node instead of a ring.

Every rank reads the other n - 1 ranks' tensors over the fabric and adds them up: time = latency + (n - 1) S / (share B).
vLLM, SGLang and TensorRT-LLM choose it where it is faster than the ring; so does this model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from costmodels.calibration import calibration_key
from costmodels.cluster import GroupTopology
from costmodels.collectives import Collective, collective_s

FloatArray = npt.NDArray[np.float64]

# TensorRT-LLM 1.3.0rc10 and rc20, custom all-reduce of 256 bytes in CUDA graphs: 2.6 to 3.8 us on H100 and H200 (2 to 8
# ranks), 4.6 to 5.2 us on B200 (measured tables of aiconfigurator-core 0.12.0).
_LATENCY_S = {"b200_sxm": 4.8e-6, "gb200": 4.8e-6}
_DEFAULT_LATENCY_S = 3.0e-6

_FABRIC_SHARE = 0.75
"""Share of the fabric's bandwidth that the reads reach; the same tables, 131 kB to 1 MB, 2 to 8 ranks."""


def serving_all_reduce_s(message_bytes: FloatArray, topology: GroupTopology) -> FloatArray:
    """Seconds of an all-reduce of ``message_bytes``: the faster of one shot and ring; between nodes always the ring."""
    ring = np.asarray(collective_s(Collective.ALL_REDUCE, message_bytes, topology), dtype=np.float64)
    if topology.spans_nodes:
        return ring
    latency_s = _LATENCY_S.get(calibration_key(topology.calibration), _DEFAULT_LATENCY_S)
    read_bytes = (topology.n - 1) * message_bytes
    return np.minimum(ring, latency_s + read_bytes / (_FABRIC_SHARE * topology.intra.bytes_per_s))
