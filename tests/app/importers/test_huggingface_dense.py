"""Dense decoders: exact parameter counts, and the graph that others rely on."""

import pytest

from app.catalog import model
from costmodels.operators import BATCH, SEQ, Tensor
from solver.graph import Block, BlockRun, ModelGraph

# Counts of transformers 5.23.0 on the meta device.
EXACT_PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_241_732_096,
    "phi-3-mini": 3_821_079_552,
}


@pytest.mark.parametrize(("name", "expected"), EXACT_PARAMETERS.items())
def test_catalogue_model_has_exactly_the_parameters_of_transformers(
    name: str, expected: int
) -> None:
    assert model(name).parameters() == expected


def test_llama_layer_is_one_block_repeated() -> None:
    graph = model("llama-3.1-8b")
    assert graph.chain == (
        BlockRun("embedding"),
        BlockRun("layer", repeat=32),
        BlockRun("head"),
    )
    names = [operator.name for operator in graph.block("layer").operators]
    assert names == [
        "attn_norm",
        "qkv_proj",
        "rope",
        "attention",
        "o_proj",
        "attn_residual",
        "mlp_norm",
        "gate_up_proj",
        "act",
        "down_proj",
        "mlp_residual",
    ]


def test_llama_layer_saves_what_flash_attention_and_swiglu_need() -> None:
    # Korthikanti et al. 2022, section 4.1, without dropout masks: norm inputs 2 x 2sbh, projection inputs 2 x 2sbh, Q, K, V,
    # attention output, and for SwiGLU gate, up and their product. Llama-3.1-8B: k / a = 1/4, I = 3.5 h: 34 s b h bytes.
    assert saved_bytes_per_token(model("llama-3.1-8b"), "layer") == 34 * 4096


def saved_bytes_per_token(graph: ModelGraph, block: str) -> int:
    """Bytes (bf16) that one layer keeps for the backward pass for each token; a tensor saved twice is stored once."""
    sizes = {**graph.dims, BATCH: 1, SEQ: 1}
    return sum(
        2 * tensor.elements(sizes) for tensor in _saved(graph.block(block)).values()
    )


def _saved(block: Block) -> dict[str, Tensor]:
    return {
        tensor.name: tensor
        for operator in block.operators
        for tensor in (*operator.inputs, *operator.outputs)
        if tensor.name in operator.saved
    }
