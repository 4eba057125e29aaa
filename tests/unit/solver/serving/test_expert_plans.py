"""Plans of a model with latent attention and experts: searched, checked, predicted again, and broken on purpose."""

from __future__ import annotations

import pytest

from meshwright.app.launching.exporters import export
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.search import Search
from meshwright.solver.serving import predict_serving
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts
from meshwright.solver.serving.promise import evaluation as one_layout
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat
from tests.support.serving_layouts import replicas_of
from tests.unit.app.exporters.plans import flags
from tests.unit.solver.serving.expert_plans import expert_request, planned
from tests.unit.solver.verify.changes import changed

pytestmark = pytest.mark.usefixtures("short_simulations")


@pytest.fixture(autouse=True)
def _few_batch_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_layout, "STEP_TOKENS", (1024, 4096))
    monkeypatch.setattr(one_layout, "SEQUENCES", (16, 64))


@pytest.mark.parametrize(
    "search",
    [Search(attention_dp=(4,), ep=(4,)), Search(tp=(2,), attention_dp=(2,), ep=(4,)), Search(kvp=(4,)), Search(ep=(8,))],
)
def test_plans_pass_the_checker_and_predict_themselves(search: Search) -> None:
    request = expert_request(search)
    answer = planned(request)
    replicas = replicas_of(answer)
    ranks = replicas.axes.tp * replicas.axes.kvp * replicas.axes.attention_dp
    assert answer.devices == replicas.load.replicas * ranks * replicas.axes.pp
    again = predict_serving(request, answer)
    assert again.predicted == answer.predicted
    assert replicas_of(again).stages == replicas.stages


@pytest.mark.parametrize(
    ("path", "value", "broken"),
    [
        ("axes.ep", 3, Rule.AXES),
        ("axes.ep", 2, Rule.AXES),
        ("axes.attention_dp", 2, Rule.DEVICES),
        ("axes.kvp", 2, Rule.DEVICES),
        ("axes.attention_dp", 0, Rule.AXES),
    ],
)
def test_a_broken_degree_is_found(path: str, value: int, broken: Rule) -> None:
    request = expert_request(Search(attention_dp=(4,), ep=(4,)))
    rules = {violation.rule for violation in check(changed(planned(request), path, value), request)}
    assert broken in rules


def test_weights_are_those_of_spread_experts() -> None:
    request = expert_request(Search(attention_dp=(4,), ep=(4,)))
    answer = planned(request)
    everything = 4 * replicas_of(answer).stages[0].memory.weights_bytes
    heavier = changed(answer, "stages.0.memory.weights_bytes", everything)
    assert Rule.WEIGHTS in {violation.rule for violation in check(heavier, request)}


def test_copies_of_experts_take_their_memory() -> None:
    plain, copied = (planned(expert_request(Search(attention_dp=(4,), ep=(4,)), copies=n)) for n in (0, 32))
    more = flat(copied).stages[0].memory.weights_bytes - flat(plain).stages[0].memory.weights_bytes
    assert more == pytest.approx(15 * 8 * 3 * 2048 * 1024 * WeightFormat.FP8_BLOCK.size_bytes)


def test_a_request_alone_is_not_charged_for_company() -> None:
    request = expert_request(Search(attention_dp=(8,), ep=(8,)))
    builder = EngineBuilder(request, sequence_tokens=4096, step_tokens=4096, sequences=16)
    engine = next(builder.engine(layout) for layout in layouts(request))
    assert engine.alone_times.tokens_s[0, 4096] < 0.8 * engine.times.tokens_s[0, 4096]
    assert (engine.alone_times.decode_s == engine.times.decode_s).all()


def test_vllm_gets_the_layout() -> None:
    request = expert_request(Search(tp=(2,), attention_dp=(2,), ep=(4,)), copies=4)
    words = flags(export(planned(request), request, "vllm"))
    assert words["--tensor-parallel-size"] == ("2",)
    assert words["--data-parallel-size"] == ("2",)
    assert "--enable-expert-parallel" in words
    assert words["--eplb-config"] == ('{"num_redundant_experts": 4}',)
    along = expert_request(Search(kvp=(4,)))
    words = flags(export(planned(along), along, "vllm"))
    assert (words["--tensor-parallel-size"], words["--decode-context-parallel-size"]) == (("4",), ("4",))


def test_vllm_is_not_given_plans_of_other_engines() -> None:
    request = expert_request(Search(engine=ServingEngine.SGLANG, ep=(4,), tp=(4,)))
    with pytest.raises(ExportError, match="another engine"):
        export(planned(request), request, "vllm")
