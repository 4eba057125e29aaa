"""Keys and values of a token in the caches of a stage."""

from __future__ import annotations

from meshwright.costmodels.model.dims import BATCH, HEADS, HIDDEN, KV_HEADS, SEQ
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.units import DType
from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.request import ServingRequest


def kv_bytes_per_token(axes: Axes, request: ServingRequest, stage: Stage) -> float:
    """Keys and values of one token in all attention operators of the stage, on one rank."""
    workload = request.workload
    dtype = workload.kv_dtype or (DType.FP8 if workload.precision in (DType.FP8, DType.FP4) else workload.precision)
    elements = 0
    for span in stage.blocks:
        block = request.model.block(span.block)
        latent = _latent_elements(block, request)
        for operator in block.operators:
            # A sliding window bounds the cache of its layer, so such layers are left out of this lower bound.
            if operator.kind is OperatorKind.ATTENTION and operator.window is None:
                key, value = operator.inputs[1:]
                # Heads are split over tp alone, and copied where there are fewer; kvp splits the tokens.
                split = min(axes.tp, request.model.dims[key.dims[-2]])
                sizes = {**request.model.dims, BATCH: 1, SEQ: 1}
                whole = key.elements(sizes) + value.elements(sizes)
                elements += span.count * (latent or whole // split)
    return elements * dtype.size_bytes / axes.kvp


def cached_heads(request: ServingRequest) -> int:
    """Key/value heads of the cache; one where it holds latents."""
    latent = any(_latent_elements(block, request) for block in request.model.blocks)
    return 1 if latent else request.model.dims.get(KV_HEADS, request.model.dims.get(HEADS, 1))


def _latent_elements(block: Block, request: ServingRequest) -> int:
    """Elements of a token in a latent cache (DeepSeek-V2, section 2.1): the latent that one product expands to keys and values
    of every head, and the rotary key that all heads share; 0 for a block without one."""
    dims = request.model.dims
    for operator in block.operators:
        outputs = [tensor for tensor in operator.outputs if HEADS in tensor.dims]
        if operator.kind is OperatorKind.MATMUL and len(outputs) == len(operator.outputs) == 2:
            source = operator.inputs[0]
            if HEADS not in source.dims and source.dims[-1] != HIDDEN:
                joined = [o for o in block.operators if outputs[0] in o.inputs]
                shared = [t for o in joined for t in o.inputs if HEADS not in t.dims]
                return dims[source.dims[-1]] + sum(dims[t.dims[-1]] for t in shared)
    return 0
