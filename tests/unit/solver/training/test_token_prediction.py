"""Modules beside the head that each predict one more token: their operators, and the plans of models that train with them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.adapter import Adapter
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import OperatorKind, forward_flops
from meshwright.costmodels.model.operators import parameters as of_operator
from meshwright.solver.blocks.recompute import low_precision_products
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.graph import Block, ModelGraph
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.token_prediction import mtp_layers_of, with_token_prediction, without_token_prediction
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.space.implementation import as_implemented
from meshwright.solver.verify.check import check
from tests.unit.solver.training.enumerated import enumerated, is_the_best
from tests.unit.solver.verify.changes import at, changed

DECODERS = ("llama-3.1-8b", "gpt2-xl", "mixtral-8x7b", "deepseek-v3", "nemotron-3-super-120b-a12b")


def parameters(graph: ModelGraph) -> int:
    return sum(
        run.repeat * sum(of_operator(operator, graph.dims) for operator in graph.block(run.block).operators)
        for run in graph.chain
    )


def products(graph: ModelGraph, block: Block) -> float:
    """FLOPs of the matrix products of a block for one token."""
    sizes = {**graph.dims, BATCH: 1, SEQ: 1}
    return sum(forward_flops(op, sizes) for op in block.operators if op.kind is OperatorKind.MATMUL)


def small(layers: int, launcher: Launcher = Launcher.MEGATRON_LM) -> TrainingRequest:
    """Four layers of Llama-3.1-8B on 8 H100, with so many modules."""
    plain = model("llama-3.1-8b")
    chain = tuple(replace(run, repeat=min(run.repeat, 4)) for run in plain.chain)
    workload = TrainingWorkload("training", global_batch=16, seq_len=2048, mtp_layers=layers)
    search = Search(launcher=launcher)
    graph, workload = as_implemented(replace(plain, chain=chain), workload, search)
    return TrainingRequest(graph, Cluster((NodeGroup("a", node_type("dgx-h100"), 1),)), workload, search=search)


def restricted(layers: int) -> TrainingRequest:
    """The same on two stages, each rank with all state of its own."""
    search = Search(launcher=Launcher.MEGATRON_LM, pp=(2,), tp=(1,), cp=(1,), zero_stages=(0,), recompute=(Recompute.NONE,))
    return replace(small(layers), search=search)


@pytest.mark.parametrize("name", DECODERS)
def test_module_is_taken_off_again(name: str) -> None:
    plain = model(name)
    told = with_token_prediction(plain, 2)
    assert mtp_layers_of(told) == 2 and mtp_layers_of(plain) == 0
    assert without_token_prediction(told) == plain and with_token_prediction(told, 2) == told


def test_module_of_deepseek_v3_has_the_parameters_of_its_release() -> None:
    """671B of the main model, and 14B of its module, of which 1.85B are the table and the head that it shares."""
    plain = model("deepseek-v3")
    added = parameters(with_token_prediction(plain, 1)) - parameters(plain)
    shared = 2 * plain.dims["vocab"] * plain.dims["hidden"]
    assert (added + shared) / 1e9 == pytest.approx(14, rel=0.05)


@pytest.mark.parametrize("layers", [1, 3])
def test_each_module_multiplies_as_one_layer_one_head_and_the_joining_product_do(layers: int) -> None:
    plain = model("llama-3.1-8b")
    told = with_token_prediction(plain, layers)
    head, layer = (products(plain, plain.block(plain.layers[-n])) for n in (1, 2))
    joining = 2 * 2 * plain.dims["hidden"] ** 2
    assert products(told, told.block("head")) == pytest.approx(head + layers * (head + layer + joining))


def test_products_of_a_module_are_cast_as_those_of_layers_are_and_no_scores_of_words() -> None:
    plain, told = (with_token_prediction(model("deepseek-v3"), layers).block("head") for layers in (0, 1))
    cast = low_precision_products(told)
    assert not low_precision_products(plain)
    assert {"mtp1_o_proj", "mtp1_joined_in"} <= cast
    assert not any("lm_head" in name or "router" in name for name in cast)


def test_hybrids_attend_in_their_module() -> None:
    """Nemotron 3's modules are of attention and of experts, though its last layer of all has experts alone."""
    told = with_token_prediction(model("nemotron-3-super-120b-a12b"), 1)
    kinds = [operator.kind for operator in told.block("head").operators]
    assert kinds.count(OperatorKind.ATTENTION) == 1 and any("experts" in op.name for op in told.block("head").operators)


def test_graphs_of_users_with_several_losses_or_such_names_are_read() -> None:
    """Two losses are no module, and neither is an operator that only ends as one of a module does."""
    plain = small(0)
    head = plain.model.block("head")
    loss = head.operators[-1]
    second = replace(loss, name="second_loss", outputs=(replace(loss.outputs[0], name="second"),))
    joined = replace(loss, name="own_joined_in", kind=OperatorKind.NORM, outputs=(replace(loss.inputs[0], name="other"),))
    blocks = tuple(replace(b, operators=(*b.operators, second, joined)) if b == head else b for b in plain.model.blocks)
    graph = replace(plain.model, blocks=blocks)
    assert mtp_layers_of(graph) == 0 and without_token_prediction(graph) is graph
    assert not low_precision_products(graph.block("head"))
    request = replace(plain, model=graph, search=Search(launcher=Launcher.NEMO))
    assert not check(plan_training(request, stop=never_stop, progress=ignore_progress), request)


@pytest.mark.parametrize("name", ["t5-11b", "bert-large"])
def test_models_that_are_no_decoders_are_refused(name: str) -> None:
    with pytest.raises(WorkloadError, match="mtp_layers are known of decoders") as caught:
        with_token_prediction(model(name), 1)
    assert caught.value.remedy == "leave mtp_layers out"


def test_too_many_and_adapters_are_refused() -> None:
    with pytest.raises(WorkloadError, match="too many layers predict"):
        with_token_prediction(model("llama-3.1-8b"), 17)
    with pytest.raises(WorkloadError, match="adapters train no layers"):
        TrainingWorkload("training", global_batch=8, seq_len=128, adapter=Adapter(rank=8), mtp_layers=1)


FEW = Search(launcher=Launcher.MEGATRON_LM, tp=(1, 2), pp=(2,), cp=(1,), microbatch=(1,), zero_stages=(1,))


def test_best_plan_is_that_of_enumeration() -> None:
    request = replace(small(2), search=FEW)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert is_the_best(plan, enumerated(request))
    assert not check(plan, request)


def test_free_space_begins_with_the_plan_of_launchers() -> None:
    """All shardings of a head with modules are more than a test may try."""
    launched, free = (replace(small(1), search=replace(FEW, space=space)) for space in (Space.LAUNCHABLE, Space.FREE))
    asked = itertools.count()
    plan = plan_training(free, stop=lambda: next(asked) > 400, progress=ignore_progress)
    narrow = plan_training(launched, stop=never_stop, progress=ignore_progress)
    assert not check(plan, free)
    assert plan.predicted is not None and narrow.predicted is not None
    assert plan.predicted.step_time_s <= narrow.predicted.step_time_s


@pytest.mark.parametrize("field", ["weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes"])
def test_checker_asks_for_the_memory_of_modules(field: str) -> None:
    """The last stage may not claim what it would have without its module."""
    plain, told = (plan_training(restricted(layers), stop=never_stop, progress=ignore_progress) for layers in (0, 1))
    path = f"stages.1.memory.{field}"
    assert at(plain, path) < 0.95 * at(told, path)
    assert check(changed(told, path, at(plain, path)), restricted(1))


@pytest.mark.parametrize("launcher", [Launcher.TORCHTITAN, Launcher.NEMO, Launcher.ACCELERATE, Launcher.DEEPSPEED])
def test_launchers_without_modules_refuse_them(launcher: Launcher) -> None:
    with pytest.raises(WorkloadError, match="trains no layers that predict more tokens") as caught:
        plan_training(small(1, launcher), stop=never_stop, progress=ignore_progress)
    assert caught.value.allowed == "megatron-bridge, megatron-lm"


def test_checker_refuses_modules_of_launchers_without_them() -> None:
    request = restricted(1)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    elsewhere = replace(request, search=Search(launcher=Launcher.NEMO))
    assert any("predict more tokens" in str(violation) for violation in check(plan, elsewhere))
