"""The table of serving engines and of the launchers that start them: what each can express.

Search and checker read the same facts; what follows from them, each works out by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.server import CacheMoves, EngineFacts, PromptSharing, Server, ServingForm

ENGINES: Mapping[ServingEngine, EngineFacts] = MappingProxyType(
    {
        # Experts whole on all ranks (--enable-expert-parallel) or split over all. Decode context parallelism needs
        # tensor-parallel-size > kv heads, at most tensor-parallel-size / kv heads of it, dividing the query heads of a kv head
        # (ModelConfig.verify_with_parallel_config). It has an option of prefill context parallelism
        # (--prefill-context-parallel-size), but its model runner refuses it (vllm-project/vllm issue 47846).
        ServingEngine.VLLM: EngineFacts(spreads_over_some=False, splits_caches=True),
        # --tp-size ranks of which --dp-size attention groups (--enable-dp-attention), --ep-size dividing them. It shares
        # prompts among ranks (--enable-prefill-cp, --attn-cp-size, also with --enable-dp-attention); no decode context
        # parallelism.
        ServingEngine.SGLANG: EngineFacts(
            spreads_over_some=True, splits_caches=False, prompt_sharing=PromptSharing.WITHOUT_STATES
        ),
        # Attention data parallelism is over all ranks or none (enable_attention_dp); moe_tensor_parallel_size and
        # moe_expert_parallel_size are any two that multiply to the ranks; Helix for latent attention (cp_config, HELIX).
        # Its cp_config is of decoding (HELIX) or approximate (STAR).
        ServingEngine.TENSORRT_LLM: EngineFacts(spreads_over_some=True, splits_caches=True, groups_of_several_ranks=False),
    }
)

SERVERS: Mapping[Launcher, Server] = MappingProxyType(
    {
        # Its NixlConnector (vllm/distributed/kv_transfer).
        Launcher.VLLM: Server(
            ServingEngine.VLLM,
            frozenset({ServingForm.REPLICAS, ServingForm.POOLS, ServingForm.KINDS}),
            CacheMoves(of_tp_alone=True, to_fewer_ranks=False),
        ),
        # Mapping of ranks of CommonKVReceiver (sglang/srt/disaggregation).
        Launcher.SGLANG: Server(
            ServingEngine.SGLANG,
            frozenset({ServingForm.REPLICAS, ServingForm.POOLS}),
            CacheMoves(of_tp_alone=False, to_fewer_ranks=True),
        ),
        Launcher.TENSORRT_LLM: Server(ServingEngine.TENSORRT_LLM, frozenset({ServingForm.REPLICAS})),
    }
)
"""Launchers of serving plans, in the order of `Launcher`."""
