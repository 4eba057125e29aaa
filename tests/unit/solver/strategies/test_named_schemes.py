"""Every named scheme of parallelism is a point of the space: forcing it gives the volume its source states.

The survey's Table 3 counts what a device sends and what it receives: twice what it sends.
"""

from __future__ import annotations

import itertools

import pytest

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight
from meshwright.costmodels.network.collectives import Collective
from meshwright.costmodels.units import DType
from meshwright.solver.strategies.contraction import GATHERED_KEYS
from meshwright.solver.strategies.pricing import TrainingStep
from meshwright.solver.strategies.traffic import StateSplit, TransferPhase
from tests.unit.solver.strategies.meshes import (
    LLAMA,
    Forced,
    activation,
    attention_layer,
    elements,
    elementwise,
    graph_of,
    matmul,
    mesh_of,
    sent,
)

ALL = (TransferPhase.FORWARD, TransferPhase.BACKWARD, TransferPhase.STEP)
B, S, H = LLAMA[BATCH], LLAMA[SEQ], LLAMA["hidden"]
A, K, D_H = LLAMA["heads"], LLAMA["kv_heads"], LLAMA["head_dim"]


def attention_volume(n: int, wanted: Forced, *phases: TransferPhase) -> float:
    """Elements that a device sends and receives in an attention layer on one axis of n ranks."""
    return 2 * elements(sent(graph_of(attention_layer(), LLAMA), mesh_of(n), wanted), *phases)


def on_one_axis(norm: str, qkv: str, attention: str, o: str, add: str) -> Forced:
    return {"norm": (norm,), "qkv": (qkv,), "attention": (attention,), "o": (o,), "add": (add,)}


@pytest.mark.parametrize("n", [2, 4, 8])
def test_tensor_parallelism_moves_what_the_survey_says(n: int) -> None:
    wanted = on_one_axis("replicate", "heads", "heads", "heads", "replicate")
    assert attention_volume(n, wanted, TransferPhase.FORWARD) == pytest.approx(4 * (n - 1) / n * B * S * H)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_tensor_and_sequence_parallelism_moves_as_much(n: int) -> None:
    wanted = on_one_axis("seq", "heads", "heads", "heads", "seq")
    assert attention_volume(n, wanted, TransferPhase.FORWARD) == pytest.approx(4 * (n - 1) / n * B * S * H)


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("attention", ["seq", GATHERED_KEYS])
def test_context_parallelism_moves_keys_and_values(n: int, attention: str) -> None:
    wanted = on_one_axis("seq", "seq", attention, "seq", "seq")
    assert attention_volume(n, wanted, TransferPhase.FORWARD) == pytest.approx(4 * (n - 1) / n * B * S * K * D_H)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_ulysses_exchanges_heads_for_tokens_four_times(n: int) -> None:
    wanted = on_one_axis("seq", "seq", "heads", "seq", "seq")
    parts = sent(graph_of(attention_layer(), LLAMA), mesh_of(n), wanted)
    forward = [part for part in parts if part.phase is TransferPhase.FORWARD]
    assert [part.collective for part in forward] == [Collective.ALL_TO_ALL] * 4
    assert 2 * elements(forward, TransferPhase.FORWARD) == pytest.approx(4 * (n - 1) / n**2 * B * S * D_H * (A + K))


@pytest.mark.parametrize("n", [2, 8])
def test_data_parallelism_is_silent_until_gradients_are_added_up(n: int) -> None:
    wanted = on_one_axis("batch", "batch", "batch", "batch", "batch")
    step = TrainingStep(gradient_dtype=DType.BF16, states=StateSplit.COPIED)
    parts = sent(graph_of(attention_layer(), LLAMA), mesh_of(n), wanted, step)
    assert elements(parts, TransferPhase.FORWARD, TransferPhase.BACKWARD) == 0
    parameters = H * (A + 2 * K) * D_H + A * D_H * H + H
    assert elements(parts, TransferPhase.STEP) == pytest.approx(2 * (n - 1) / n * parameters)


@pytest.mark.parametrize("n", [2, 8])
def test_fully_sharded_weights_move_half_as_much_again(n: int) -> None:
    """ZeRO, Rajbhandari et al. 2020, section 7: stages 1 and 2 move 2 psi as plain data parallelism does, stage 3 3 psi."""
    parameters = H * (A + 2 * K) * D_H + A * D_H * H + H
    step = TrainingStep(gradient_dtype=DType.BF16)
    graph, mesh = graph_of(attention_layer(), LLAMA), mesh_of(n)
    optimizer_only = on_one_axis("batch", "batch", "batch", "batch", "batch")
    assert elements(sent(graph, mesh, optimizer_only, step), *ALL) == pytest.approx(2 * (n - 1) / n * parameters)
    stored = {name: ("batch+weights",) if name in ("norm", "qkv", "o") else ("batch",) for name in optimizer_only}
    assert elements(sent(graph, mesh, stored, step), *ALL) == pytest.approx(3 * (n - 1) / n * parameters)


@pytest.mark.parametrize(("heads", "ring"), [(2, 4), (4, 2)])
def test_attention_in_two_dimensions_moves_by_heads_and_by_ring(heads: int, ring: int) -> None:
    """LoongTrain (Gu et al. 2024), section 3: a ring over each group of ranks that share heads, 2 b s k d_h / heads
    elements around it, and an exchange of heads within a group."""
    names = ("norm", "qkv", "attention", "o", "add")
    wanted = {name: ("seq", "heads" if name == "attention" else "seq") for name in names}
    parts = sent(graph_of(attention_layer(), LLAMA), mesh_of(ring, heads), wanted)
    around = [part for part in parts if part.collective is Collective.SEND_RECV]
    assert {part.axes for part in around} == {("a",)}
    assert elements(around, TransferPhase.FORWARD) == pytest.approx((ring - 1) * 2 * B * (S / ring) * (K / heads) * D_H)
    exchanged = [part for part in parts if part.collective is Collective.ALL_TO_ALL]
    rank_tokens = B * S / (ring * heads)
    assert elements(exchanged, TransferPhase.FORWARD) == pytest.approx((heads - 1) / heads * rank_tokens * 2 * D_H * (A + K))


def test_a_ring_over_two_axes_is_a_ring_in_rings() -> None:
    names = ("norm", "qkv", "attention", "o", "add")
    parts = sent(graph_of(attention_layer(), LLAMA), mesh_of(2, 4), dict.fromkeys(names, ("seq", "seq")))
    forward = {part.axes: part.bytes_sent for part in parts if part.phase is TransferPhase.FORWARD}
    chunk = 2 * B * (S / 8) * K * D_H * DType.BF16.size_bytes
    assert forward == {("a",): pytest.approx(1 * chunk), ("b",): pytest.approx(2 * 3 * chunk)}


def routed_layer() -> tuple[Operator, ...]:
    """Dispatch, grouped products, combine: each token goes to ``top_k`` experts."""
    x, routing = activation("x", "hidden"), activation("routing", "top_k")
    dispatched, up = activation("dispatched", "top_k", "hidden"), activation("up", "top_k", "ffn")
    act, out = activation("act", "top_k", "ffn"), activation("expert_out", "top_k", "hidden")
    return (
        elementwise("route", (activation("logits", "experts"),), routing),
        elementwise("dispatch", (x, routing), dispatched),
        matmul("expert_up", dispatched, up, weights=(("experts", "hidden", "ffn"),)),
        elementwise("expert_act", (up,), act),
        matmul("expert_down", act, out, weights=(("experts", "ffn", "hidden"),)),
        elementwise("combine", (out, routing), activation("y", "hidden")),
    )


@pytest.mark.parametrize("n", [2, 8])
def test_expert_parallelism_sends_rows_to_experts_and_back(n: int) -> None:
    """GShard (Lepikhin et al. 2021), section 3.2: an all-to-all to the experts and one back; in backward two again."""
    sizes = LLAMA | {"experts": 16, "top_k": 4}
    wanted: Forced = {
        "route": ("batch",),
        "dispatch": ("batch",),
        "expert_up": ("experts",),
        "expert_act": ("experts",),
        "expert_down": ("experts",),
        "combine": ("batch",),
    }
    parts = sent(graph_of(routed_layer(), sizes), mesh_of(n), wanted)
    rows = B * S * 4 / n
    for phase in (TransferPhase.FORWARD, TransferPhase.BACKWARD):
        assert [part.collective for part in parts if part.phase is phase] == [Collective.ALL_TO_ALL] * 2
        assert elements(parts, phase) == pytest.approx(2 * (n - 1) / n * rows * H)
    assert elements(parts, TransferPhase.STEP) == 0


def products(width: str = "ffn") -> tuple[Operator, ...]:
    """The four products of a transformer layer without attention between: h -> 3h, 3h -> h, h -> 4h, 4h -> h."""
    tensors = [activation(f"t{i}", dim) for i, dim in enumerate(("h0", "h3", "h1", "h4", "h2"))]
    return tuple(matmul(f"product{i}", tensors[i], tensors[i + 1]) for i in range(4))


SQUARE = {BATCH: 64, SEQ: 512, "h0": 1024, "h3": 3072, "h1": 1024, "h4": 4096, "h2": 1024}


def test_two_dimensional_tensor_parallelism_is_summa() -> None:
    """Optimus (Xu et al. 2021), Table 1 without its recomputation: of a product (m, k) x (k, n) on q x q ranks, forward
    (q - 1) / q^2 (m k + k n), with a ring in place of a tree; backward twice that. Weights and activations lie on both
    axes; the next product takes its input as this one writes it."""
    q = 4
    wanted = {f"product{i}": ("batch+weights", dim) for i, dim in enumerate(("h3", "h1", "h4", "h2"))}
    step = TrainingStep(gradient_dtype=DType.BF16)
    parts = sent(graph_of(products(), SQUARE), mesh_of(q, q), wanted, step)
    tokens, sizes = 64 * 512, [1024, 3072, 1024, 4096, 1024]
    weights = sum(k * n for k, n in itertools.pairwise(sizes))
    # The first product's input comes from outside the graph.
    inputs = sum(tokens * k for k in sizes[1:-1])
    assert elements(parts, TransferPhase.FORWARD) == pytest.approx((q - 1) / q**2 * (inputs + weights))
    assert elements(parts, TransferPhase.BACKWARD) == pytest.approx((q - 1) / q**2 * 2 * (inputs + weights))
    assert elements(parts, TransferPhase.STEP) == 0


def test_tesseract_adds_a_depth_that_shares_activations() -> None:
    """2.5D, Wang et al. 2022, section 3: activations on d q x q ranks, weights on q x q and copied d times; their gradients
    are all-reduced over the depth."""
    depth, q = 2, 4
    wanted = {f"product{i}": ("batch", "batch+weights", dim) for i, dim in enumerate(("h3", "h1", "h4", "h2"))}
    step = TrainingStep(gradient_dtype=DType.BF16, states=StateSplit.COPIED)
    parts = sent(graph_of(products(), SQUARE), mesh_of(depth, q, q), wanted, step)
    tokens, sizes = 64 * 512, [1024, 3072, 1024, 4096, 1024]
    weights = sum(k * n for k, n in itertools.pairwise(sizes))
    inputs = sum(tokens * k for k in sizes[1:-1])
    assert elements(parts, TransferPhase.FORWARD) == pytest.approx((q - 1) / q**2 * (inputs / depth + weights))
    assert elements(parts, TransferPhase.STEP) == pytest.approx(2 * (depth - 1) / depth * weights / q**2)


def test_three_dimensional_tensor_parallelism_splits_all_three_dims() -> None:
    """3D, Bian et al. 2021, section 3: of a product (m, k) x (k, n) on p^3 ranks each operand lies on all three axes; its
    copies are gathered over one axis, the output reduce-scattered: (p - 1) / p^3 (m k + k n + m n) forward. Directions of
    input and output change places from one product to the next."""
    p = 2
    x, mid, y = activation("x", "h0"), activation("mid", "h3"), activation("y", "h1")
    first, second = matmul("first", x, mid), matmul("second", mid, y)
    wanted: Forced = {"first": ("batch+weights", "h3", "h0"), "second": ("batch+weights", "h3", "h1")}
    step = TrainingStep(gradient_dtype=DType.BF16)
    graph = graph_of((first, second), SQUARE)
    parts = sent(graph, mesh_of(p, p, p), wanted, step)
    tokens, k, n, out = 64 * 512, 1024, 3072, 1024
    gathered = [part for part in parts if part.phase is TransferPhase.FORWARD and part.purpose == "weights"]
    assert elements(gathered, TransferPhase.FORWARD) == pytest.approx((p - 1) / p**3 * (k * n + n * out))
    between = [part for part in parts if part.phase is TransferPhase.FORWARD and part.purpose == "resharding"]
    # The reduce-scatter of (tokens, n) leaves it on all three axes, and the next product gathers it on the third.
    assert {part.collective for part in between} <= {Collective.REDUCE_SCATTER, Collective.ALL_GATHER, Collective.ALL_REDUCE}
    assert elements(between, TransferPhase.FORWARD) == pytest.approx(2 * (p - 1) / p**3 * tokens * n)


def test_columns_then_rows_need_one_all_reduce() -> None:
    """Megatron-LM, Shoeybi et al. 2019, section 3: an MLP with columns and then rows split all-reduces its output."""
    x, up, out = activation("x", "hidden"), activation("up", "ffn"), activation("y", "hidden")
    operators = (
        elementwise("before", (activation("raw", "hidden"),), x),
        matmul("columns", x, up),
        matmul("rows", up, out),
        elementwise("after", (out,), activation("z", "hidden")),
    )
    wanted: Forced = {"before": ("replicate",), "columns": ("ffn",), "rows": ("ffn",), "after": ("replicate",)}
    parts = sent(graph_of(operators, LLAMA), mesh_of(8), wanted)
    shapes = [(part.phase, part.collective) for part in parts]
    assert shapes == [(TransferPhase.BACKWARD, Collective.ALL_REDUCE), (TransferPhase.FORWARD, Collective.ALL_REDUCE)]


@pytest.mark.parametrize("n", [2, 8])
def test_a_convolution_over_split_tokens_sends_its_margin(n: int) -> None:
    x = activation("x", "inner")
    conv = Operator(
        "conv",
        OperatorKind.CONVOLUTION,
        inputs=(x,),
        outputs=(activation("y", "inner"),),
        weights=(Weight("kernel", ("inner", "taps")),),
        saved=("x",),
    )
    sizes = LLAMA | {"inner": 2048, "taps": 4}
    parts = sent(graph_of((conv,), sizes), mesh_of(n), {"conv": ("seq",)})
    assert elements(parts, TransferPhase.FORWARD) == B * (4 - 1) * 2048
    assert elements(parts, TransferPhase.BACKWARD) == B * (4 - 1) * 2048


def test_a_scan_over_split_tokens_passes_its_state_on() -> None:
    x, step = activation("x", "inner"), activation("dt", "inner")
    b, c = activation("b", "state"), activation("c", "state")
    scan = Operator("scan", OperatorKind.SCAN, inputs=(x, b, c, step), outputs=(Tensor("y", x.dims),), saved=("x",))
    sizes = LLAMA | {"inner": 2048, "state": 16}
    parts = sent(graph_of((scan,), sizes), mesh_of(4), {"scan": ("seq",)})
    forward = [part for part in parts if part.phase is TransferPhase.FORWARD]
    assert sum(part.bytes_sent for part in forward) == B * 2048 * 16 * DType.FP32.size_bytes
    # Each of the other ranks waits for all before it.
    costs_of_one = sent(graph_of((scan,), sizes), mesh_of(2), {"scan": ("seq",)})
    one_hop = sum(part.seconds for part in costs_of_one if part.phase is TransferPhase.FORWARD)
    assert sum(part.seconds for part in forward) == pytest.approx(3 * one_hop, rel=0.05)


def test_a_vocabulary_that_is_split_adds_up_three_numbers_a_token() -> None:
    logits = activation("logits", "vocab")
    loss = Operator(
        "loss", OperatorKind.LOSS, inputs=(logits,), outputs=(activation("loss"),), saved=("logits",), flops_per_element=5.0
    )
    parts = sent(graph_of((loss,), LLAMA | {"vocab": 128256}), mesh_of(8), {"loss": ("vocab",)})
    assert sum(part.bytes_sent for part in parts) == pytest.approx(2 * 7 / 8 * 3 * B * S * DType.FP32.size_bytes)
    assert {part.phase for part in parts} == {TransferPhase.FORWARD}
