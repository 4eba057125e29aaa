"""Memory of a serving replica: weights, KV cache and workspace of one block on one of tp ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodels.inference import ServingPrecision
from costmodels.operators import BATCH, SEQ, Operator, OperatorKind
from costmodels.tensor_parallel import VOCAB, local_sizes
from costmodels.units import DType


@dataclass(frozen=True, slots=True)
class BlockMemory:
    """Bytes of one copy of a block on one rank.

    tied_bytes          weights whose owner is another block, by the owner ("block/operator/weight")
    kv_bytes_per_token  keys and values of one token
    token_bytes         activations of one token of a step at the fullest moment
    logits_bytes        logits of one sequence that gets a token
    """

    weights_bytes: float
    tied_bytes: Mapping[str, float]
    kv_bytes_per_token: float
    token_bytes: float
    logits_bytes: float


def block_memory(
    operators: Sequence[Operator], dims: Mapping[str, int], *, tp: int, precision: ServingPrecision
) -> BlockMemory:
    """Memory of a block split over tp ranks.

    Keys and values of every token are kept, also of layers with a sliding window (an engine may keep fewer).
    """
    weights, kv, token, logits = 0.0, 0.0, 0.0, 0.0
    tied: dict[str, float] = {}
    # The residual stream stays while an operator works on its branch.
    residual = operators[0].inputs[0]
    for operator in operators:
        local = local_sizes(operator, {**dims, BATCH: 1, SEQ: 1}, tp)
        for weight in operator.weights:
            size = weight.elements(local) * precision.of(operator).size_bytes
            if weight.tied_to is None:
                weights += size
            else:
                tied[weight.tied_to] = size
        if operator.kind is OperatorKind.ATTENTION:
            kv += sum(tensor.elements(local) for tensor in operator.inputs[1:]) * precision.kv.size_bytes
        if VOCAB in operator.dims and operator.kind is not OperatorKind.EMBEDDING:
            # Gathered logits in 16 bits, and their fp32 copy in the sampler.
            logits = max(logits, dims[VOCAB] * (precision.activations.size_bytes + DType.FP32.size_bytes))
        else:
            live = sum(tensor.elements(local) for tensor in (*operator.inputs, *operator.outputs))
            token = max(token, (live + residual.elements({**dims, BATCH: 1, SEQ: 1})) * precision.activations.size_bytes)
    return BlockMemory(weights, tied, kv, token, logits)


def kv_tokens_that_fit(free_bytes: float, kv_bytes_per_token: float, *, block_tokens: int = 16) -> int:
    """Tokens that the cache holds, in whole blocks of 16 (vLLM, --block-size); unlimited (2^62) when layers keep none."""
    if kv_bytes_per_token == 0.0:
        return 2**62
    return max(0, int(free_bytes / (kv_bytes_per_token * block_tokens))) * block_tokens
