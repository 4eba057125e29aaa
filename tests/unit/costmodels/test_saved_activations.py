"""In which form a LLaMA layer's tensors are kept, by the kernels that run it."""

from __future__ import annotations

from dataclasses import replace

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.memory.saved_activations import SavingRules, loss_transient_element_bytes, saved_element_bytes
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.model.implementation import AttentionFormat, LossKernels, Projections, ValueStorage, VectorKernels
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.units import DType

GRAPH = read_huggingface_config(
    {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 256,
    },
    name="llama",
)
LAYER, HEAD = (GRAPH.block(name).operators for name in GRAPH.layers[1:])


def kept(operators: tuple[Operator, ...], rules: SavingRules) -> dict[str, float]:
    return saved_element_bytes(operators, rules, kept=frozenset(name for operator in operators for name in operator.saved))


def rules(kernels: VectorKernels) -> SavingRules:
    return SavingRules(DType.BF16, kernels)


def per_hidden(kernels: VectorKernels) -> float:
    """Bytes a token and hidden element; the feed-forward width is twice the hidden size, heads and key/value heads are it."""
    widths = {"gate": 2, "up": 2, "act_out": 2}
    return sum(size * widths.get(name, 1) for name, size in kept(LAYER, rules(kernels)).items())


def test_hand_written_kernels_keep_their_inputs() -> None:
    # x, normed, rotated q and k, value with the q and k beside it, context, sum, normed: 10; gate, up and their product: 6.
    assert per_hidden(VectorKernels.FUSED) == 2.0 * (10 + 6)


def test_step_by_step_norms_keep_fp32_and_activations_their_own_output() -> None:
    eager = kept(LAYER, rules(VectorKernels.EAGER))
    assert eager["x"] == eager["attn_sum"] == 4.0 + 2.0
    assert (eager["gate"], eager["up"]) == (4.0, 2.0)
    # Each projection has its own output, so q and k before rotation are gone.
    assert "q" not in eager
    norms = kept(LAYER, rules(VectorKernels.FUSED_NORMS))
    assert (norms["x"], norms["gate"]) == (2.0, 4.0)


def test_a_value_that_is_a_slice_keeps_what_lies_beside_it() -> None:
    sliced = replace(rules(VectorKernels.EAGER), value=ValueStorage.SLICE)
    assert kept(LAYER, sliced) == kept(LAYER, rules(VectorKernels.EAGER)) | {"q": 2.0, "k": 2.0}
    unfused = tuple(op for op in LAYER if op.kind is not OperatorKind.ATTENTION)
    assert kept(unfused, sliced) == kept(unfused, rules(VectorKernels.EAGER))


def test_layer_norms_are_one_kernel_everywhere() -> None:
    graph = read_huggingface_config(
        {"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 256}, name="g"
    )
    operators = graph.block(graph.layers[1]).operators
    assert kept(operators, rules(VectorKernels.EAGER))["x"] == 2.0


def test_a_compiler_makes_norms_and_products_of_halves_again() -> None:
    compiled = kept(LAYER, rules(VectorKernels.COMPILED))
    assert compiled["attn_normed"] == compiled["mlp_normed"] == compiled["act_out"] == 0.0
    assert compiled["x"] == compiled["gate"] == compiled["up"] == compiled["context"] == 2.0


def test_the_loss_keeps_its_softmax_in_fp32() -> None:
    for loss, transient in ((LossKernels.BY_HAND, 2.0), (LossKernels.FUSED_IN_PARTS, 6.0), (LossKernels.EAGER, 8.0)):
        assert kept(HEAD, SavingRules(DType.BF16, loss=loss))["logits"] == 4.0
        assert loss_transient_element_bytes(SavingRules(DType.BF16, loss=loss)) == transient


def test_a_compiled_loss_keeps_the_logits_in_16_bits() -> None:
    compiled = SavingRules(DType.BF16, VectorKernels.COMPILED, loss=LossKernels.COMPILED)
    assert kept(HEAD, compiled)["logits"] == loss_transient_element_bytes(compiled) == 2.0


def test_low_precision_products_keep_a_small_copy_of_what_only_they_read() -> None:
    products = frozenset(operator.name for operator in LAYER if operator.weights and operator.name.endswith("proj"))
    fp8 = kept(LAYER, SavingRules(DType.BF16, VectorKernels.FUSED, products, MatmulRecipe.MXFP8))
    assert fp8["attn_normed"] == fp8["act_out"] == 1.0
    # Attention reads its output in 16 bits, the projection after it in 8.
    assert fp8["context"] == 3.0
    assert fp8["x"] == fp8["gate"] == 2.0


def test_attention_in_fp8_keeps_a_byte_of_what_it_reads_and_writes() -> None:
    products = frozenset(operator.name for operator in LAYER if operator.weights and operator.name.endswith("proj"))
    rules = SavingRules(DType.BF16, low_precision=products, recipe=MatmulRecipe.FP8_DELAYED, attention=AttentionFormat.FP8)
    saved = kept(LAYER, rules)
    assert saved["q_rot"] == saved["k_rot"] == saved["v"] == 1.0 and "q" not in saved
    # The projection behind it casts it by another scale.
    assert saved["context"] == 2.0
    given = saved_element_bytes(LAYER, rules, kept=frozenset({"q_rot"}), rerun=frozenset({"attention"}))
    assert given["q_rot"] == 2.0, "attention that runs again finds what it reads as it was written"


def test_saved_in_fp8_attention_keeps_one_copy_and_activation_functions_a_byte() -> None:
    products = frozenset(operator.name for operator in LAYER if operator.weights and operator.name.endswith("proj"))
    rules = SavingRules(DType.BF16, VectorKernels.FUSED, products, MatmulRecipe.WORKING, saved=SavedFormat.FP8)
    saved = kept(LAYER, rules)
    assert saved["context"] == 1.5
    assert saved["gate"] == saved["up"] == saved["attn_normed"] == saved["act_out"] == 1.0
    assert saved["x"] == saved["q_rot"] == saved["v"] == 2.0
    again = saved_element_bytes(LAYER, rules, kept=frozenset({"gate", "up"}), rerun=frozenset({"act"}))
    assert again["gate"] == again["up"] == 1.0, "an activation function that runs again reads what is kept of its input"


def test_joint_projections_stay_whole_unless_attention_keeps_what_other_ranks_sent() -> None:
    joint = SavingRules(DType.BF16)
    assert {name: kept(LAYER, joint)[name] for name in ("q", "k", "v", "q_rot", "k_rot")} == dict.fromkeys(
        ("q", "k", "v", "q_rot", "k_rot"), 2.0
    )
    for apart in (replace(joint, cp=2), replace(joint, projections=Projections.SEPARATE)):
        found = kept(LAYER, apart)
        assert "q" not in found and "k" not in found
        assert found["v"] == found["q_rot"] == found["k_rot"] == 2.0
    given = saved_element_bytes(
        LAYER, replace(joint, cp=2), kept=frozenset({"q_rot", "k_rot", "v"}), rerun=frozenset({"attention"})
    )
    assert given["q"] == 2.0, "attention that runs again keeps what it was given"


def test_what_runs_again_finds_its_input_as_it_was_written() -> None:
    again = saved_element_bytes(
        LAYER, rules(VectorKernels.EAGER), kept=frozenset({"x", "gate"}), rerun=frozenset({"attn_norm"})
    )
    assert again == {"x": 2.0, "gate": 4.0}


def test_a_product_that_runs_again_casts_again_what_others_keep() -> None:
    products = frozenset({"gate_up_proj"})
    fp8 = SavingRules(DType.BF16, VectorKernels.FUSED, products, MatmulRecipe.FP8_CURRENT)
    kept_names = frozenset({"mlp_normed", "attn_sum"})
    shared = tuple(
        replace(op, saved=(*op.saved, "attn_sum")) if op.name == "gate_up_proj" else op for op in _with_stream(LAYER)
    )
    again = saved_element_bytes(shared, fp8, kept=kept_names, rerun=products)
    assert again["attn_sum"] == 2.0, "the norm keeps it in 16 bits"
    assert again["mlp_normed"] == 1.0, "nobody else keeps it"


def _with_stream(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The layer with the stream an input of its first feed-forward product, so that it may be saved there."""
    stream = next(tensor for op in operators for tensor in op.outputs if tensor.name == "attn_sum")
    return tuple(replace(op, inputs=(*op.inputs, stream)) if op.name == "gate_up_proj" else op for op in operators)
