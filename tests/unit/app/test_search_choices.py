"""Every choice of the ledger is limited, and every plan that is printed with a next command can take it."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.base.errors import DocumentError
from meshwright.app.requests.limits import MAX_CHOICES, check_request
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choice import SERVING, TRAINING, Launched
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.search import LEDGER
from tests.support.command_line import Cli
from tests.support.opened_choices import opened
from tests.support.requests_given import resolved
from tests.unit.solver.serving.conftest import few_batch_limits, short_simulations

__all__ = ["few_batch_limits", "short_simulations"]

LISTS = [name for name, entry in LEDGER.items() if entry.lists]
BOUNDED = [name for name, entry in LEDGER.items() if entry.choice.at_most is not None]

GROUPS = [{"name": "first", "node": "dgx-h100", "nodes": 1}, {"name": "rest", "node": "dgx-h100", "nodes": 1}]
SMALL: dict[str, dict[str, Any]] = {
    "training": {
        "schema": "meshwright.request/1",
        "model": {"catalog": "llama-3.1-8b"},
        "cluster": {"groups": GROUPS},
        "workload": {"kind": "training", "global_batch": 16, "seq_len": 4096},
        "search": {"tp": [8], "pp": [1, 2], "cp": [1], "microbatch": [1], "recompute": ["full"]},
    },
    "serving": {
        "schema": "meshwright.request/1",
        "model": {"catalog": "qwen3-8b"},
        "cluster": {"groups": GROUPS},
        "workload": {
            "kind": "serving",
            "arrivals": {"process": "poisson", "requests_per_s": 2},
            "prompt_tokens": {"fixed": 1000},
            "output_tokens": {"fixed": 100},
        },
        "slo": {"p95_ttft_ms": 2000, "p95_tpot_ms": 50},
        "objective": "devices",
        "search": {"launcher": "vllm", "tp": [1], "pp": [1]},
    },
}
OPENED = [
    (kind, name)
    for kind, forms in (("training", TRAINING), ("serving", SERVING))
    for name, entry in LEDGER.items()
    if entry.choice.forms & forms
]
FREE_ALONE = {name for name, entry in LEDGER.items() if entry.choice.launched is Launched.BY_NONE}
"""Choices that no launcher has: they are opened in the free space."""


@pytest.mark.parametrize("name", LISTS)
def test_no_list_is_longer_than_the_limit(name: str) -> None:
    request = resolved()
    values = (opened(name, group_names=["pool"])[:1]) * (MAX_CHOICES + 1)
    search = replace(request.search, **{name: values})
    with pytest.raises(DocumentError, match=rf"search\.{name}: too many values"):
        check_request(replace(request, search=search))


@pytest.mark.parametrize("name", BOUNDED)
def test_no_number_is_above_its_limit(name: str) -> None:
    request, most = resolved(), LEDGER[name].choice.at_most
    assert most is not None
    check_request(replace(request, search=replace(request.search, **{name: most})))
    with pytest.raises(DocumentError, match=rf"search\.{name}: value is too large"):
        check_request(replace(request, search=replace(request.search, **{name: most + 1})))


@pytest.mark.slow
@pytest.mark.usefixtures("short_simulations", "few_batch_limits")
@pytest.mark.parametrize(("kind", "name"), OPENED)
def test_the_next_command_of_a_plan_works(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Plans by the planner, of requests that open each choice: what ``plan`` says comes next, does."""
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", f"sqlite:///{tmp_path}/plans.db")
    monkeypatch.chdir(tmp_path)
    command = Cli(monkeypatch, capsys, tmp_path)
    request = resolved(SMALL[kind])
    value = opened(name, group_names=[group.name for group in request.cluster.groups])
    search = replace(request.search, **{name: value})
    if name in FREE_ALONE:
        search = replace(search, space=Space.FREE)
    path = command.write("request.json", request_document(replace(request, search=search)))
    code = command("plan", path, "-o", "plan.json")
    if code == 2:
        assert name in command.err or str(value) in command.err, "a request that can't be planned says why"
        return
    assert code in (0, 1), command.err
    found = re.search(r"^Next: (meshwright .*(?:\n .*)*)", command.out, re.MULTILINE)
    of_no_launcher = search.space is Space.FREE or search.engine is ServingEngine.TENSORRT_LLM
    assert found is not None or code == 1 or of_no_launcher, "launchable plans can be exported"
    if found is not None:
        _, *words = shlex.split(found[1])
        assert command(*words) == 0, command.err
