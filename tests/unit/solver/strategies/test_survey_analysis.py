"""The survey's theoretical analysis: sections 5.1 and 5.2 per device, and the orders of its Table 8."""

from __future__ import annotations

import pytest

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, forward_flops, parameters
from meshwright.solver.blocks.tp_strategies import Strategy, strategies
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.graph import Block
from meshwright.solver.strategies.traffic import TransferPhase
from tests.unit.solver.strategies.meshes import LLAMA, activation, graph_of, matmul, mesh_of, sent

D, FFN, A, K, D_H, B, S = 512, 1024, 8, 4, 64, 4, 256
SIZES = {"hidden": D, "ffn": FFN, "heads": A, "kv_heads": K, "head_dim": D_H, "vocab": 1024}
PRODUCTS = ("qkv_proj", "o_proj", "gate_up_proj", "act", "down_proj")


def layer() -> Block:
    graph = read_huggingface_config(
        {
            "model_type": "llama",
            "hidden_size": D,
            "num_hidden_layers": 1,
            "num_attention_heads": A,
            "num_key_value_heads": K,
            "intermediate_size": FFN,
            "vocab_size": 1024,
        },
        name="llama",
    )
    return graph.block(graph.layers[1])


def on_a_device(operator: Operator, *, tp: int = 1, cp: int = 1, dp: int = 1) -> dict[str, int]:
    """Local sizes under Megatron's sharding, a share of the sequence and a share of the batch."""
    sizes = {**SIZES, BATCH: B // dp, SEQ: S // cp}
    options = strategies(operator, sizes, tp, Space.LAUNCHABLE) or (Strategy(None),)
    return options[0].local_sizes(sizes, tp)


def flops(name: str, *, tp: int = 1, cp: int = 1, dp: int = 1) -> float:
    operator = layer().operator(name)
    return forward_flops(operator, on_a_device(operator, tp=tp, cp=cp, dp=dp))


def weights(name: str, *, tp: int = 1, cp: int = 1, dp: int = 1) -> int:
    operator = layer().operator(name)
    return parameters(operator, on_a_device(operator, tp=tp, cp=cp, dp=dp))


def saved(names: tuple[str, ...], *, tp: int = 1, cp: int = 1, dp: int = 1) -> int:
    """Elements of tensors on one device, each as the operator that writes it leaves it."""
    writers = {tensor.name: (operator, tensor) for operator in layer().operators for tensor in operator.outputs}
    return sum(tensor.elements(on_a_device(operator, tp=tp, cp=cp, dp=dp)) for operator, tensor in map(writers.get, names))  # type: ignore[misc]


def test_flops_are_those_of_sections_5_1_and_5_2() -> None:
    assert flops("qkv_proj") + flops("o_proj") == 4 * B * S * D**2 + 4 * B * S * K * D_H * D
    # The survey counts all pairs; the kernel skips the half that is masked.
    assert flops("attention") == 4 * B * S * (S + 1) / 2 * D
    assert sum(flops(name) for name in ("gate_up_proj", "act", "down_proj")) == B * S * (6 * D * FFN + 5 * FFN)


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("n", [2, 4])
def test_flops_of_a_device_do_not_depend_on_how_work_is_split(name: str, n: int) -> None:
    assert flops(name, tp=n) == flops(name, cp=n) == flops(name, dp=n) == flops(name) / n


@pytest.mark.parametrize("n", [2, 4])
def test_only_tensor_parallelism_divides_weights(n: int) -> None:
    attention = weights("qkv_proj") + weights("o_proj")
    assert attention == 2 * D**2 * (1 + K / A)
    assert weights("gate_up_proj") + weights("down_proj") == 3 * D * FFN
    for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"):
        assert weights(name, tp=n) * n == weights(name, cp=n) == weights(name, dp=n) == weights(name)


@pytest.mark.parametrize("n", [2, 4])
def test_tensor_parallelism_keeps_more_activations_than_context_or_data(n: int) -> None:
    gqa, mlp = ("attn_normed", "k_rot", "v", "context"), ("mlp_normed", "gate", "up", "act_out")
    assert saved(gqa) == B * S * D * (2 + 2 * K / A)
    assert saved(gqa, tp=n) == B * S * D + (B * S * D + 2 * B * S * D * K / A) / n
    assert saved(mlp, tp=n) == B * S * D + 3 * B * S * FFN / n
    for names in (gqa, mlp):
        assert saved(names, cp=n) == saved(names, dp=n) == saved(names) / n < saved(names, tp=n)


def mamba_bytes(split: str, *, n: int = 4, **sizes: int) -> float:
    """Bytes a device sends forward in a scan and its output projection, split by heads (TPSP) or tokens (CP)."""
    x, step, b, c = (activation(*named) for named in (("x", "inner"), ("dt", "inner"), ("b", "state"), ("c", "state")))
    y = Tensor("y", x.dims)
    scan = Operator("scan", OperatorKind.SCAN, inputs=(x, b, c, step), outputs=(y,), saved=("x",))
    out = matmul("out", y, activation("z", "hidden"))
    residual = Operator("add", OperatorKind.ELEMENTWISE, inputs=(out.outputs[0],), outputs=(activation("sum", "hidden"),))
    whole = LLAMA | {"inner": 2048, "state": 16} | sizes
    by_tokens = dict.fromkeys(("scan", "out", "add"), ("seq",))
    wanted = by_tokens if split == "seq" else {"scan": ("replicate",), "out": ("inner",), "add": ("replicate",)}
    parts = sent(graph_of((scan, out, residual), whole), mesh_of(n), wanted)
    return sum(part.bytes_sent for part in parts if part.phase is TransferPhase.FORWARD)


def test_orders_of_table_8() -> None:
    tokens = LLAMA[SEQ]
    # TPSP adds up partial sums of every token: linear in the sequence. CP hands a state on: not at all.
    assert mamba_bytes("inner") > 0 and mamba_bytes("seq") > 0
    assert mamba_bytes("inner", seq=2 * tokens) == pytest.approx(2 * mamba_bytes("inner"))
    assert mamba_bytes("seq", seq=2 * tokens) == pytest.approx(mamba_bytes("seq"))
    # CP is linear in width and in state.
    assert mamba_bytes("seq", state=32) == pytest.approx(2 * mamba_bytes("seq"))
    assert mamba_bytes("seq", inner=4096) == pytest.approx(2 * mamba_bytes("seq"))
    # At training lengths, a hundred times the state and more, CP sends less.
    assert mamba_bytes("seq", seq=64 * tokens) < mamba_bytes("inner", seq=64 * tokens)
