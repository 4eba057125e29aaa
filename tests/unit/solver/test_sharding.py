"""Column, row, vocabulary and sequence parallelism come out of the named dims, with the survey's volumes."""

from __future__ import annotations

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.network.collectives import Collective, bytes_per_rank
from meshwright.solver.blocks.tp_strategies import PARTIAL, REPLICATED, Spec, Strategy, conversion, sharded, strategies
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.graph import Block, ModelGraph

TP = 4
GRAPH = model("llama-3.1-8b")
SIZES = {**GRAPH.dims, BATCH: 2, SEQ: 1024}
MEGATRON = {"qkv_proj": "heads", "rope": "heads", "attention": "heads", "o_proj": "heads"}
MEGATRON |= {"gate_up_proj": "ffn", "act": "ffn", "down_proj": "ffn"}


def forward_traffic(
    graph: ModelGraph, block: Block, chosen: dict[str, str | None], boundary: Spec
) -> list[tuple[Collective, float]]:
    """(collective, elements a rank moves) of each resharding in a block's forward pass."""
    found = []
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}
    for operator in block.operators:
        strategy = Strategy(chosen.get(operator.name))
        for tensor in operator.inputs:
            source = writer.get(tensor.name)
            spec = boundary if source is None else Strategy(chosen.get(source.name)).output_spec(source, tensor)
            collective = conversion(spec, strategy.spec(tensor))
            if collective is not None:
                found.append((collective, bytes_per_rank(collective, TP, tensor.elements(SIZES))))
    return found


def attention_half(block: Block) -> Block:
    """The operators up to the attention residual."""
    names = [operator.name for operator in block.operators]
    return Block("half", block.operators[: names.index("attn_residual") + 1], "attn_sum")


def test_tensor_parallel_attention_moves_what_survey_table_3_says() -> None:
    """4 (TP-1)/TP b s d counts what is sent and what is received; a rank sends half of it."""
    moved = forward_traffic(GRAPH, attention_half(GRAPH.block("layer")), dict(MEGATRON), REPLICATED)
    assert [collective for collective, _ in moved] == [Collective.ALL_REDUCE]
    b, s, d = SIZES[BATCH], SIZES[SEQ], SIZES["hidden"]
    assert 2 * sum(elements for _, elements in moved) == pytest.approx(4 * (TP - 1) / TP * b * s * d)


def test_sequence_parallel_attention_moves_the_same_by_gather_and_scatter() -> None:
    chosen = MEGATRON | {"attn_norm": SEQ, "attn_residual": SEQ}
    moved = forward_traffic(GRAPH, attention_half(GRAPH.block("layer")), dict(chosen), sharded(SEQ))
    assert sorted(c.value for c, _ in moved) == sorted([Collective.ALL_GATHER.value, Collective.REDUCE_SCATTER.value])
    b, s, d = SIZES[BATCH], SIZES[SEQ], SIZES["hidden"]
    assert 2 * sum(elements for _, elements in moved) == pytest.approx(4 * (TP - 1) / TP * b * s * d)


def test_launchable_strategies_are_megatrons() -> None:
    for operator in GRAPH.block("layer").operators:
        names = [strategy.name for strategy in strategies(operator, SIZES, TP, Space.LAUNCHABLE)]
        assert names == ([MEGATRON[operator.name]] if operator.name in MEGATRON else ["replicate", SEQ]), operator.name
    head = {op.name: op for op in GRAPH.block("head").operators}
    assert [s.name for s in strategies(head["lm_head"], SIZES, TP, Space.LAUNCHABLE)] == ["vocab"]


def test_the_free_space_holds_the_launchable_one() -> None:
    for block in GRAPH.blocks:
        for operator in block.operators:
            launchable = set(strategies(operator, SIZES, TP, Space.LAUNCHABLE))
            assert launchable <= set(strategies(operator, SIZES, TP, Space.FREE))


def test_key_value_heads_follow_and_are_replicated_in_groups() -> None:
    strategy = Strategy("heads")
    assert strategy.local_sizes({"heads": 32, "kv_heads": 8}, 4) == {"heads": 8, "kv_heads": 2}
    assert strategy.local_sizes({"heads": 32, "kv_heads": 8}, 16) == {"heads": 2, "kv_heads": 1}


def test_a_dim_that_does_not_divide_is_no_strategy() -> None:
    operator = GRAPH.block("layer").operator("attention")
    assert strategies(operator, {**SIZES, "heads": 30}, TP, Space.LAUNCHABLE) == ()
    assert [s.name for s in strategies(operator, {**SIZES, "heads": 30}, TP, Space.FREE)] == ["replicate"]


def test_gradients_of_a_column_split_are_partial_sums() -> None:
    block = GRAPH.block("layer")
    qkv, out = block.operator("qkv_proj"), block.operator("o_proj")
    column = Strategy("heads")
    assert column.input_gradient_spec(qkv, qkv.inputs[0]) == PARTIAL
    assert column.output_spec(out, out.outputs[0]) == PARTIAL
    assert column.input_gradient_spec(out, out.inputs[0]) == sharded("heads")


@pytest.mark.parametrize(
    ("source", "target", "collective"),
    [
        (PARTIAL, REPLICATED, Collective.ALL_REDUCE),
        (PARTIAL, sharded("seq"), Collective.REDUCE_SCATTER),
        (sharded("seq"), REPLICATED, Collective.ALL_GATHER),
        (sharded("seq"), sharded("heads"), Collective.ALL_TO_ALL),
        (sharded("seq"), sharded("seq"), None),
        (REPLICATED, sharded("seq"), None),
        (REPLICATED, REPLICATED, None),
    ],
)
def test_conversions(source: Spec, target: Spec, collective: Collective | None) -> None:
    assert conversion(source, target) is collective


def test_nobody_asks_for_partial_sums() -> None:
    with pytest.raises(ValueError, match="partial"):
        conversion(REPLICATED, PARTIAL)


@pytest.mark.parametrize(
    ("kv_heads", "tp", "names"),
    [(8, 4, ["kv_heads"]), (8, 16, ["kv_heads"]), (1, 4, ["replicate", SEQ]), (3, 4, ["replicate", SEQ])],
)
def test_what_works_on_key_value_heads_alone_stays_with_them(kv_heads: int, tp: int, names: list[str]) -> None:
    (norm,) = (operator for operator in model("qwen3-8b").block("layer").operators if operator.name == "k_norm")
    sizes = SIZES | {"kv_heads": kv_heads}
    assert [each.name for each in strategies(norm, sizes, tp, Space.LAUNCHABLE)] == names
    free = {each.name for each in strategies(norm, sizes, tp, Space.FREE)}
    assert free == {"replicate", SEQ, *names}
