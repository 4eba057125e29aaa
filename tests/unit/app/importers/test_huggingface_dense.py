"""Dense decoders: exact parameter counts, and the graph that others rely on."""

import json
from pathlib import Path

import pytest

from meshwright.app.models.catalog import NOTES_FIELD, model, model_names
from meshwright.app.models.catalog.huggingface_ids import LISTED
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import Tensor, forward_flops
from meshwright.solver.problem.graph import Block, BlockRun, ModelGraph

CATALOG = Path(__file__).parents[4] / "app" / "models" / "catalog" / "models"

# Counts of transformers 5.23.0 on the meta device, or those that the checkpoints' cards state (Llama 4's less the vision tower,
# 0.9 billion); GPT-3 and the survey's are its layers at their sizes.
EXACT_PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_241_732_096,
    "phi-3-mini": 3_821_079_552,
    "gemma-2-9b": 9_241_705_984,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "deepseek-v3": 671_026_404_352,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "llama-4-maverick": 400_711_848_960,
    "llama-4-scout": 107_769_861_120,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v2": 235_741_434_880,
    "glm-5": 743_911_199_232,
    "minimax-m2.5": 228_689_748_992,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "kimi-k2": 1_026_408_209_408,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
    "nemotron-3-super-120b-a12b": 120_668_687_360,
    "seed-llama-1b": 1_087_440_896,
    "seed-llama-7b": 6_738_415_616,
    "deepseek-v3.2": 671_877_929_216,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "glm-4.5": 352_797_814_784,
    "glm-4.5-air": 106_852_245_504,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "phi-4": 14_659_507_200,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-4b": 4_022_468_096,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "deepseek-v4-flash": 284_332_230_231,
    "deepseek-v4-pro": 1_572_997_179_491,
    "gemma-4-26b-a4b": 25_233_141_760,
    "gemma-4-31b": 30_697_345_280,
    "glm-5.2": 743_377_000_704,
    "mimo-v2-flash": 308_778_768_832,
    "minimax-m3": 426_174_565_632,
    "nemotron-3-ultra-550b-a55b": 549_308_968_960,
    "nemotron-h-56b": 56_324_350_464,
    "qwen3.5-122b-a10b": 122_111_526_912,
    "llama-2-7b": 6_738_415_616,
}


@pytest.mark.parametrize("name", model_names())
def test_catalogue_model_has_exactly_the_parameters_of_transformers(name: str) -> None:
    assert model(name).parameters() == (EXACT_PARAMETERS | dict(LISTED.parameters))[name]


def test_llama_layer_is_one_block_repeated() -> None:
    graph = model("llama-3.1-8b")
    assert graph.chain == (BlockRun("embedding"), BlockRun("layer", repeat=32), BlockRun("head"))
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


def test_gpt2_block_names_and_tied_head() -> None:
    graph = model("gpt2-xl")
    assert graph.chain == (BlockRun("embedding"), BlockRun("layer", repeat=48), BlockRun("head"))
    embed = graph.block("embedding").operator("embed")
    assert [weight.name for weight in embed.weights] == ["weight", "positions"]
    assert graph.tied_weights() == (("head", "lm_head", graph.block("head").operator("lm_head").weights[0]),)
    assert graph.tied_weights()[0][2].tied_to == "embedding/embed/weight"
    assert "rope" not in {operator.name for operator in graph.block("layer").operators}


def test_gemma2_alternates_windowed_and_full_layers() -> None:
    graph = model("gemma-2-9b")
    assert graph.layers[1:5] == ("layer_sliding", "layer_full", "layer_sliding", "layer_full")
    assert graph.block("layer_sliding").operator("attention").window == 4096
    assert graph.block("layer_full").operator("attention").window is None
    assert {"attn_post_norm", "mlp_post_norm"} <= {operator.name for operator in graph.block("layer_full").operators}


def test_qwen3_normalises_queries_and_keys_of_each_head() -> None:
    layer = model("qwen3-8b").block("layer")
    assert layer.operator("q_norm").weights[0].dims == ("head_dim",)
    assert [tensor.name for tensor in layer.operator("attention").inputs] == ["q_rot", "k_rot", "v"]


def test_parallel_attention_and_mlp_read_the_same_normed_input() -> None:
    layer = read_huggingface_config({"model_type": "falcon"}, name="falcon").block("layer")
    assert layer.operator("qkv_proj").inputs == layer.operator("up_proj").inputs
    assert layer.output == "mlp_sum"
    assert [tensor.name for tensor in layer.operator("mlp_residual").inputs] == ["attn_sum", "mlp_out"]


def test_parallel_branches_with_two_norms_both_read_the_input() -> None:
    parallel = read_huggingface_config({"model_type": "gpt_neox"}, name="neox").block("layer")
    assert [tensor.name for tensor in parallel.operator("mlp_norm").inputs] == ["x"]
    document = {"model_type": "gpt_neox", "use_parallel_residual": False}
    sequential = read_huggingface_config(document, name="neox").block("layer")
    assert [tensor.name for tensor in sequential.operator("mlp_norm").inputs] == ["attn_sum"]


def test_swiglu_flops_follow_the_survey() -> None:
    # Survey section 5.2: b s (6 d I + 5 I), up, gate and down projection and SwiGLU.
    graph = model("seed-llama-7b")
    sizes = {**graph.dims, BATCH: 2, SEQ: 128}
    layer = graph.block("layer")
    flops = sum(forward_flops(layer.operator(name), sizes) for name in ("gate_up_proj", "act", "down_proj"))
    assert flops == 2 * 128 * (6 * 4096 * 11008 + 5 * 11008)


def test_gqa_projection_flops_follow_the_survey() -> None:
    # Survey section 5.1: Q, K, V projections 2 b s d^2 + 4 b s k d_h d, output projection 2 b s d^2.
    graph = model("seed-llama-1b")
    sizes = {**graph.dims, BATCH: 2, SEQ: 128}
    layer = graph.block("layer")
    flops = sum(forward_flops(layer.operator(name), sizes) for name in ("qkv_proj", "o_proj"))
    assert flops == 2 * 128 * (4 * 2048**2 + 4 * 4 * 64 * 2048)


# Korthikanti et al. 2022, section 4.1: a layer keeps s b h (34 + 5 a s / h) bytes; flash attention removes 5 a s^2 b,
# and without dropout its masks go (s b h in attention, s b h after the feed-forward network): 32 s b h with an MLP of 4h.
SAVED_BYTES_PER_TOKEN_AND_HIDDEN = {
    "gpt2-xl": 32.0,
    "gpt3-175b": 32.0,
    # Norm inputs 4, projection inputs 4, Q and attention output 4, K and V 4 k / a = 1, gate, up, product 6 I / h = 21.
    "llama-3.1-8b": 34.0,
    "seed-llama-7b": 4 + 4 + 4 + 4 + 6 * 11008 / 4096,
    # As llama-3.1-8b with I = 3 h, and queries and keys before their norms: 2 + 2 k / a = 2.5.
    "qwen3-8b": 4 + 4 + 4 + 1 + 6 * 3 + 2.5,
}


@pytest.mark.parametrize(("name", "expected"), SAVED_BYTES_PER_TOKEN_AND_HIDDEN.items())
def test_layer_keeps_the_known_bytes_for_the_backward_pass(name: str, expected: float) -> None:
    graph = model(name)
    assert saved_bytes_per_token(graph, "layer") == expected * graph.dims["hidden"]


def saved_bytes_per_token(graph: ModelGraph, block: str) -> int:
    """Bytes (bf16) that one layer keeps for the backward pass for each token; a tensor saved twice is stored once."""
    sizes = {**graph.dims, BATCH: 1, SEQ: 1}
    return sum(2 * tensor.elements(sizes) for tensor in _saved(graph.block(block)).values())


def _saved(block: Block) -> dict[str, Tensor]:
    return {
        tensor.name: tensor
        for operator in block.operators
        for tensor in (*operator.inputs, *operator.outputs)
        if tensor.name in operator.saved
    }


@pytest.mark.parametrize("name", ["gpt3-175b", "seed-llama-1b", "seed-llama-7b"])
def test_catalogue_files_that_assume_something_say_so(name: str) -> None:
    document = json.loads((CATALOG / f"{name}.json").read_text(encoding="utf-8"))
    assert "Table" in document[NOTES_FIELD]
    assert document["vocab_size"] == model(name).dims["vocab"]
