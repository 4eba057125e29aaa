"""The overheads of a serving engine beside its kernels: host time of a step, passes over the logits, memory it leaves free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from meshwright.costmodels.memory.training_state import framework_overhead_bytes
from meshwright.costmodels.model.dims import EXPERT_FFN, EXPERTS, FFN, HEADS, SHARED_FFN, VOCAB
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.model.split_dims import is_routed
from meshwright.costmodels.queueing.step_times import IN_TURN, Dealing
from meshwright.costmodels.units import GIB, DType

CACHE_BLOCK_TOKENS = 16
"""Tokens of a cache block (vLLM, --block-size)."""


class ServingEngine(StrEnum):
    """Engines whose habits are known."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What an engine holds beside weights and caches.

    logit_bytes     bytes of each logit at the fullest moment of choosing tokens
    sampler_bytes   what choosing tokens takes besides
    returns         whether activations are given back before tokens are chosen, those of routed experts left out
    context_bytes   device context of a process that runs alone; None: as in training
    groups_bytes    communicators and buffers of all reductions, of a process that has others on fast links
    """

    logit_bytes: float
    sampler_bytes: float = 0.0
    returns: bool = False
    context_bytes: float | None = None
    groups_bytes: float = 0.0

    def overhead_bytes(self, *, communicators: int, communicator_bytes: int, fast_links: bool) -> float:
        """Return the memory of a device outside the tensor allocator."""
        if self.context_bytes is None or (communicators and not fast_links):
            return framework_overhead_bytes(communicators=communicators, communicator_bytes=communicator_bytes)
        return self.context_bytes + (self.groups_bytes if communicators else 0.0)


FAST_LINK_BYTES_PER_S = 100e9
"""One direction of a device's links in a node, from which on they are NVLink or the like."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Constants of a serving engine, each with its source below.

    engine                whose kernels run where engines have their own (routed experts)
    step_s                host time of a step that the device does not hide: scheduling, input preparation, sampled tokens
    sequence_s            what each sequence adds to it
    logits_bytes          bytes moved for each logit besides writing it: conversion to fp32, softmax, choice of a token
    memory_share          share of device memory that the engine may fill
    memory                what it holds beside weights and caches
    prompt_operator_s     host time of an operator in a step with prompt tokens, where it launches them one by one
    beside_tokens         tokens of a step up to which a shared expert runs beside the routed ones, on a stream of its own
    turnaround_s          in a closed loop, from an answer to the client's next request in the engine's queue
    outside_s             time to a first token outside of steps and queue: network, tokenizer, first answer
    dealing               how requests are given to attention groups
    """

    engine: ServingEngine
    step_s: float
    sequence_s: float
    logits_bytes: float
    memory_share: float
    memory: EngineMemory
    prompt_operator_s: float
    beside_tokens: int
    turnaround_s: float
    outside_s: float
    dealing: Dealing


ENGINE_VLLM = EngineProfile(
    engine=ServingEngine.VLLM,
    # Hidden by the device, which runs a step while the next one is scheduled (vLLM documentation, asynchronous scheduling):
    # every fold of measured points, with a model or a source left out, prefers 0 (docs/accuracy-serving.md, Constants).
    step_s=0.0,
    # Scheduler.update_from_output takes 0.142 ms at 128 sequences (vllm-project/vllm pull 46112).
    sequence_s=1.1e-6,
    # vLLM V1 sampler: read 16-bit and write fp32 (6), softmax reads and writes fp32 (8), the choice reads it (4).
    logits_bytes=18.0,
    # Default of --gpu-memory-utilization (vLLM engine arguments).
    memory_share=0.90,
    # Fitted to what vLLM 0.19 prints at its start, 59 servers of 27 models on H100 (engine_memory.csv in the tests of
    # explaining): activations within 0.1 GiB of dense models; outside the allocator 0.25 GiB, 2.1 where several processes
    # share NVLink.
    memory=EngineMemory(
        logit_bytes=14.44,
        sampler_bytes=140e6,
        returns=True,
        context_bytes=0.25 * GIB,
        groups_bytes=1.85 * GIB,
    ),
    # Steps with prompts run compiled, in pieces of CUDA graphs (vLLM documentation, piecewise CUDA graphs).
    prompt_operator_s=0.0,
    # Default of VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD.
    beside_tokens=256,
    # HTTP on one machine and a tokenizer: time enough for the next step to begin without the new request, which is what
    # matters. Measured points in a closed loop can't tell 0.5 from 2 ms; of TensorRT-LLM they are predicted worse with none.
    turnaround_s=2e-3,
    # This and those of other engines: the hundredth of a second of least mean error over measured points of workers that do
    # both phases, deployments counting alike (693 of vLLM, 211 of SGLang, 804 of TensorRT-LLM: docs/decisions-serving.md).
    outside_s=0.040,
    # Its load balancer over data-parallel ranks counts 4 for a waiting request and 1 for a running one (vllm-project/vllm pull
    # 43279), ties in turn (pull 47420).
    dealing=Dealing(waiting=4, running=1),
)

PLAIN_MEMORY = EngineMemory(logit_bytes=6.0)
"""Gathered logits in 16 bits, and their fp32 copy in the sampler: of engines that print no account of their memory."""

# Both launch the next step while the host works on the last one (TensorRT-LLM documentation, overlap scheduler, on by
# default; SGLang v0.4 announcement, zero-overhead batch scheduler).
# TensorRT-LLM uses streams inside CUDA graphs only, captured up to 128 sequences (CudaGraphConfig); SGLang up to 1024 tokens
# (DUAL_STREAM_TOKEN_THRESHOLD of its MoE models).
# TensorRT-LLM gives requests to the ranks with the fewest active ones (its attention-DP router); SGLang in turn (the default
# round_robin of --load-balance-method).
ENGINE_TENSORRT_LLM = replace(
    ENGINE_VLLM,
    engine=ServingEngine.TENSORRT_LLM,
    sequence_s=0.0,
    memory=PLAIN_MEMORY,
    beside_tokens=128,
    outside_s=0.050,
    dealing=Dealing(waiting=1, running=1),
)
ENGINE_SGLANG = replace(
    ENGINE_VLLM,
    engine=ServingEngine.SGLANG,
    sequence_s=0.0,
    memory=PLAIN_MEMORY,
    beside_tokens=1024,
    outside_s=0.240,
    dealing=IN_TURN,
)

ENGINE_PROFILES: Mapping[ServingEngine, EngineProfile] = {
    ServingEngine.VLLM: ENGINE_VLLM,
    ServingEngine.SGLANG: ENGINE_SGLANG,
    ServingEngine.TENSORRT_LLM: ENGINE_TENSORRT_LLM,
}


# Number formats of a serving engine: stored weights, everything that computes in 16 bits, and the cache.


class Quantised(StrEnum):
    """The weights that a quantised checkpoint stores narrow: all projections of its layers; feed-forward networks and experts
    alone (gpt-oss; NVIDIA's DeepSeek-R1-FP4); or these and the output projection of attention (NVIDIA's DeepSeek-R1-FP4-v2)."""

    PROJECTIONS = "projections"
    FEED_FORWARD = "feed_forward"
    FEED_FORWARD_AND_OUTPUT = "feed_forward_and_output"


@dataclass(frozen=True, slots=True)
class ServingPrecision:
    """Formats: ``weights`` of the quantised products, ``activations`` of everything else (embeddings, norms, router, vocabulary
    head, residual stream), as quantised checkpoints keep them; ``kv`` of the cache."""

    weights: WeightFormat
    activations: DType
    kv: DType
    quantised: Quantised = Quantised.PROJECTIONS

    def of(self, operator: Operator) -> WeightFormat:
        """Format of the operator's weights."""
        if operator.kind is OperatorKind.MATMUL and self._quantises(operator):
            return self.weights
        return WeightFormat(self.activations.value)

    def _quantises(self, operator: Operator) -> bool:
        # The router and the vocabulary head stay in 16 bits.
        if {VOCAB, EXPERTS} & operator.dims and not is_routed(operator):
            return False
        if self.quantised is Quantised.PROJECTIONS or {FFN, SHARED_FFN, EXPERT_FFN} & operator.dims:
            return True
        # The output of attention is the product that adds up what its heads give.
        return self.quantised is Quantised.FEED_FORWARD_AND_OUTPUT and HEADS in operator.contracted_dims
