"""Serving engines and the launchers that start them: the facts that are known of one, and the table of all.

Search and checker read the same facts; what follows from them, each works out by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.speculation import DraftMethod
from meshwright.solver.problem.choices import Launcher


class PromptSharing(Enum):
    """Models whose prompts the ranks of a worker may share, token by token (context parallelism of prefill)."""

    NONE = auto()
    WITHOUT_STATES = auto()
    """Beside whole caches, in models without recurrent states, which go from token to token."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The layouts that a serving engine can run; its constants are in `costmodels.serving.engine_profile`.

    spreads_over_some         whether experts may be spread over some of the ranks of a stage; else over all or none
    splits_caches             whether a cache may be split along the sequence
    groups_of_several_ranks   whether attention groups may have several ranks each, where there are several groups
    prompt_sharing            whether ranks may share the tokens of a prompt
    drafts                    methods by which it drafts tokens
    """

    spreads_over_some: bool
    splits_caches: bool
    groups_of_several_ranks: bool = True
    prompt_sharing: PromptSharing = PromptSharing.NONE
    drafts: frozenset[DraftMethod] = frozenset(DraftMethod)


class ServingForm(Enum):
    """Forms of serving plans that launchers may start, by the names of their layouts."""

    REPLICAS = "replicas"
    """Workers that do both phases, all alike."""
    POOLS = "pools"
    """Prefill workers and decode workers."""
    KINDS = "kinds"
    """Workers of several kinds, each of which does both phases."""
    SWITCHED = "switched"
    """Workers in layouts that switch between prompts and answers."""


@dataclass(frozen=True, slots=True)
class CacheMoves:
    """The servers of two pools between which a launcher moves caches.

    of_tp_alone     whether they have tensor parallelism alone: no pipelines, attention groups, split caches or shared prompts
    to_fewer_ranks  whether a decode server may have a part of the tp of a prefill server; any may have a multiple of it
    stages_alike    whether decode servers of several pipeline stages have as many as prefill servers
    """

    of_tp_alone: bool
    to_fewer_ranks: bool
    stages_alike: bool = True


@dataclass(frozen=True, slots=True)
class Server:
    """The serving plans that a launcher can start.

    engine       the engine that it starts
    forms        forms of plans that it has commands for
    cache_moves  the pools that it joins; None of a launcher that has no pools
    """

    engine: ServingEngine
    forms: frozenset[ServingForm]
    cache_moves: CacheMoves | None = None


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
        # Its cp_config is of decoding (HELIX) or approximate (STAR). Its PyTorch back end has no heads of the first EAGLE.
        ServingEngine.TENSORRT_LLM: EngineFacts(
            spreads_over_some=True,
            splits_caches=True,
            groups_of_several_ranks=False,
            drafts=frozenset(DraftMethod) - {DraftMethod.EAGLE},
        ),
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
