"""Questions over REST that are answered at once: launch commands, given plans, launches of stored plans."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from meshwright.app.base.errors import RateLimitedError
from meshwright.app.base.settings import Auth, Settings
from meshwright.app.base.solving import OnBeat, ignore_beat, solve_here
from meshwright.app.service.asking import EXPLANATION_EXAMPLES
from meshwright.app.service.child import Answering, Children
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress
from meshwright.solver.problem.request import PlanRequest
from tests.integration.rest import problem
from tests.support.requests_given import serving, training
from tests.support.service import running_service

NARROW = {"launcher": "megatron-lm", "tp": [4], "pp": [1], "cp": [1], "recompute": ["full"]}
SERVER: dict[str, Any] = EXPLANATION_EXAMPLES["server"]["value"]


class Solving:
    """A solver in this process."""

    def __call__(self, request: PlanRequest, on_beat: OnBeat = ignore_beat) -> Plan:
        return solve_here(request, ignore_progress)

    def close(self) -> None:
        """There is nothing to end."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    settings = Settings(f"sqlite:///{tmp_path_factory.mktemp('asking') / 'plans.db'}", auth=Auth.OFF)
    with running_service(settings, Solving()) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPLANATION_EXAMPLES)
def test_the_examples_are_explained(name: str, client: httpx.Client) -> None:
    answer = client.post("/v1/explain", json=EXPLANATION_EXAMPLES[name]["value"], timeout=280)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert (document["schema"], document["verdict"], document["searched"]) == ("meshwright.explanation/1", "runs", False)
    assert document["plan"]["predicted"] is not None
    assert document["request"]["schema"] == "meshwright.request/1"


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"command": "make coffee"}, "no launch command that is known"),
        ({"command": "vllm serve /etc/passwd"}, "the catalogue has no such model"),
        ({"command": "vllm serve no/such"}, "the catalogue has no such model"),
        ({"cluster": None}, "the devices are missing"),
        ({"cluster": "8xH10O"}, "H10O"),
        ({"rate": -1}, "--rate"),
        ({"strange": 1}, "strange"),
        ({"measured": "fast"}, "not understood"),
        ({"measured": "9s"}, "none of serving"),
        ({"command": "x" * 200_001}, "too long"),
        ({"files": {str(i): "" for i in range(21)}}, "too many files"),
        ({"command": "deepspeed train.py --deepspeed_config /etc/passwd"}, "was not given"),
    ],
)
def test_faulty_questions_are_told(changes: dict[str, Any], told: str, client: httpx.Client) -> None:
    answer = client.post("/v1/explain", json={**SERVER, **changes}, timeout=280)
    assert told in str(problem(answer, 422, "invalid-request")), answer.text


def test_a_measured_speed_has_its_causes(client: httpx.Client) -> None:
    answer = client.post("/v1/explain", json={**SERVER, "measured": "tpot 30ms"}, timeout=280)
    assert answer.status_code == 200, answer.text
    told = answer.json()["measured"]
    assert not told["as_predicted"] and told["causes"][0]["check"]


def test_a_model_may_come_with_its_config(client: httpx.Client) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8,
        "intermediate_size": 1024, "vocab_size": 1000,
    }  # fmt: skip
    answer = client.post("/v1/explain", json={**SERVER, "command": "vllm serve mine", "config": config}, timeout=280)
    assert answer.status_code == 200, answer.text


@pytest.mark.slow
def test_a_plan_is_predicted_simulated_and_launched(client: httpx.Client) -> None:
    request = serving(objective="devices")
    made = client.post("/v1/explain", json={**SERVER, "command": "vllm serve llama-3.1-8b -tp 4"}, timeout=280).json()["plan"]
    predicted = client.post("/v1/predictions", json={"request": request, "plan": made}, timeout=280)
    assert predicted.status_code == 200, predicted.text
    assert predicted.json()["predicted"] is not None and predicted.json()["request"]["workload"]["kind"] == "serving"
    simulated = client.post("/v1/simulations", json={"request": request, "plan": made}, timeout=280)
    assert simulated.status_code == 200, simulated.text
    assert simulated.json()["schema"] == "meshwright.simulation/1"
    faulty = client.post("/v1/predictions", json={"request": training(), "plan": made}, timeout=280)
    assert faulty.status_code == 422
    assert "plan" in str(problem(client.post("/v1/simulations", json={"request": request}), 422, "invalid-request"))


@pytest.mark.slow
def test_a_stored_plan_is_launched(client: httpx.Client) -> None:
    stored = client.post("/v1/plans", json=training(search=NARROW), headers={"prefer": "wait=60"}, timeout=280)
    assert stored.status_code in (200, 201), stored.text
    where = f"/v1/plans/{stored.json()['digest']}/launch"
    answer = client.get(where, params={"launcher": "megatron-lm", "scheduler": "slurm"}, timeout=280)
    assert answer.status_code == 200, answer.text
    assert "pretrain_gpt.py" in answer.json()["command"] and answer.json()["job"]["file"] == "job.sbatch"
    assert client.get(where, params={"launcher": "vllm"}, timeout=280).status_code == 422
    assert client.get(where, params={"launcher": "make"}).status_code == 422
    assert client.get(f"/v1/plans/sha256:{'0' * 64}/launch", params={"launcher": "vllm"}).status_code == 404


def sleeping(document: Mapping[str, Any]) -> Mapping[str, Any]:
    while True:
        document = dict(document)


def test_a_question_that_takes_too_long_is_ended() -> None:
    with pytest.raises(InvalidInputError, match="more than it may"):
        Children(memory_bytes=GIB, limit_s=0.5).answer_now(sleeping, {})


def test_one_tenants_questions_leave_anothers_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five questions of a tenant one is answered at a time, and no thread waits; another tenant's comes between."""
    begun, going = list[str](), threading.Event()

    def answered(
        self: Children, answering: Answering, document: Mapping[str, Any], nobody_waits: threading.Event
    ) -> Mapping[str, Any]:
        begun.append(document["tenant"])
        if document["tenant"] == "many":
            assert going.wait(60)
        return document

    monkeypatch.setattr(Children, "answer_now", answered)

    async def ask() -> list[object]:
        children = Children(memory_bytes=GIB, wait_s=0.2)
        many = [asyncio.create_task(children.answer("many", dict, {"tenant": "many"})) for _ in range(5)]
        await asyncio.sleep(0)
        one = await children.answer("one", dict, {"tenant": "one"})
        await asyncio.wait(many, timeout=0.5, return_when=asyncio.ALL_COMPLETED)
        going.set()
        return [one, *await asyncio.gather(*many, return_exceptions=True)]

    one, *others = asyncio.run(ask())
    assert one == {"tenant": "one"}
    assert begun == ["many", "one"]
    assert sum(isinstance(each, RateLimitedError) for each in others) == 4
