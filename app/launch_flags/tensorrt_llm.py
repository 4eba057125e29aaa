"""The flags of ``trtllm-serve`` (its --help, release 1.2)."""

from __future__ import annotations

from meshwright.app.launch_flags.flag import Flag, FlagTable, count, share
from meshwright.app.launch_flags.formats import cache
from meshwright.costmodels.queueing.simulation.scheduling import Scheduling

TENSORRT_LLM = FlagTable(
    (
        Flag(("tp-size",), "tp", count),
        Flag(("pp-size",), "pp", count),
        Flag(("ep-size",), "ep", count),
        Flag(("max-num-tokens",), "step_tokens", count),
        Flag(("max-batch-size",), "sequences", count),
        Flag(("kv-cache-dtype",), "kv_dtype", cache),
        Flag(("kv-cache-free-gpu-memory-fraction",), "memory_share", share),
        Flag(("enable-chunked-prefill",), "scheduling", means=Scheduling.CHUNKED_PREFILL),
    )
)
