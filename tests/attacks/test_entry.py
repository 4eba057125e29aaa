"""Names where they come in: new documents hold no hidden characters; what was stored before is read, and quoted."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from meshwright.app.base.errors import DocumentError
from meshwright.app.base.quoting import HIDDEN, readable
from meshwright.app.base.records import read_record
from meshwright.app.requests.digests import keyed_request, plan_text
from meshwright.app.requests.limits import Entry
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.costmodels.errors import InvalidInputError
from tests.attacks.exports import run
from tests.attacks.names import COMMAND
from tests.attacks.planned import REQUESTS, TRAINED, planned, renamed
from tests.attacks.runner import check_lines
from tests.support.command_line import Cli
from tests.support.requests_given import TINY_CONFIG, tiny_graph

Path_ = tuple[str | int, ...]

REFUSED = tuple("\n\r\t\x00\x1b\x7f\x85\x9b\u061c\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ud800\udfff")
OLD = f"x\n{COMMAND}\n\x85\u2028\u202e`{COMMAND}` ::set-output name=x::y"
"""A name that versions before took."""


def documents() -> Iterator[dict[str, Any]]:
    yield {**TRAINED, "model": {"graph": tiny_graph(), "name": "own"}}
    yield from (document for _, document in REQUESTS.values())


def texts(value: object, path: Path_ = ()) -> Iterator[Path_]:
    """Where a document has texts, keys of objects included (under "key:")."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, f"key:{key}")
            yield from texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from texts(item, (*path, index))
    elif isinstance(value, str):
        yield path


def spoiled(document: dict[str, Any], path: Path_, character: str) -> dict[str, Any]:
    """The document with a character more in the text or key at a path."""
    whole = copy.deepcopy(document)
    here: Any = whole
    *way, last = path
    for part in way:
        here = here[part]
    if isinstance(last, str) and last.startswith("key:"):
        key = last.removeprefix("key:")
        here[key + character] = here.pop(key)
    else:
        here[last] += character
    return whole


@pytest.mark.parametrize("character", REFUSED)
def test_every_text_of_a_new_request_is_checked(character: str) -> None:
    assert HIDDEN.search(character)
    for document in documents():
        for path in texts(document):
            with pytest.raises(DocumentError) as refused:
                resolve_request(spoiled(document, path, character), files=NoFiles())
            (fault,) = refused.value.fields
            assert "characters that can't be used" in fault.problem and fault.given and fault.allowed
            assert fault.remedy == "take them out"
            assert not HIDDEN.search(str(refused.value))


def test_texts_of_a_config_are_no_names() -> None:
    """A config.json of another tool may hold texts of several lines."""
    config = {
        **TINY_CONFIG,
        "rms_norm_eps": 1e-5,
        "chat_template": "line\nline",
    }
    request = resolve_request({**TRAINED, "model": {"config": config, "name": "own"}}, files=NoFiles())
    assert request.model.name == "own"


def test_files_that_a_request_names_are_checked(cli: Cli) -> None:
    graph = tiny_graph()
    graph["name"] = "a\x1b[2J"
    cli.write("graph.json", graph)
    path = cli.write("request.json", {**TRAINED, "model": {"graph": "graph.json"}})
    assert cli("plan", path) == 2
    check_lines(cli.err)
    assert "model.graph.name" in cli.err and "take them out" in cli.err


@pytest.mark.parametrize("name", ["a\nb", "a\x85b", "a\u202eb"])
def test_names_that_the_service_takes_are_checked(client: httpx.Client, name: str) -> None:
    group = {"name": name, "node": "dgx-h100", "nodes": 1}
    report = {"project": "p", "report": {"folder": name}}
    calibration = {"schema": "meshwright.calibration/1", "key": name}
    answers = [
        client.post("/v1/plans", json={**TRAINED, "cluster": {"groups": [group]}}),
        client.put("/v1/clusters/own", json={"groups": [group]}),
        client.put("/v1/models/own", json={"catalog": name}),
        client.post("/v1/replans", json={"cluster": name}),
        client.post("/v1/checks", json=report),
        client.post("/v1/calibrations", json=calibration),
        client.post("/v1/keys", json={"name": name, "scopes": ["plans:read"]}),
        client.get("/v1/plans", params={"model": name}),
    ]
    assert [answer.status_code for answer in answers] == [422] * len(answers), [answer.text for answer in answers]
    for answer in answers[:-2]:
        (error,) = answer.json()["errors"]
        assert "characters that can't be used" in error["problem"] and error["given"] and error["allowed"] and error["remedy"]


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("form", REQUESTS)
def test_a_plan_from_before_is_read_and_quoted(cli: Cli, form: str, tmp_path: Path) -> None:
    plan, request = renamed(planned(form), OLD)
    text = plan_text(plan, keyed_request(request))
    answered = read_plan_document(json.loads(text))
    assert (answered.plan.model, answered.request) == (OLD, request)
    document = json.loads(text)
    with pytest.raises(DocumentError, match="characters that can't be used"):
        resolve_request(document["request"], files=NoFiles())
    assert resolve_request(document["request"], files=NoFiles(), entry=Entry.STORED) == request
    path, launcher = cli.write("plan.json", document), REQUESTS[form][0].value
    assert cli("export", path, "--to", launcher) == 0, cli.err
    check_lines(cli.out)
    check_lines(cli.err)
    run(cli.out)
    folder = tmp_path / "out"
    assert cli("export", path, "--to", launcher, "--output", str(folder)) == 0, cli.err
    run((folder / "launch.sh").read_text(encoding="utf-8").replace("bash ", f"bash {folder}/"))


def test_a_request_that_is_locked_already_is_still_checked(cli: Cli) -> None:
    folder = cli.folder / "plans"
    folder.mkdir()
    (folder / "a.plan.yaml").write_text(yaml.safe_dump(TRAINED))
    assert cli("check", str(folder), "--update") == 0, cli.err
    old = {**TRAINED, "model": {**TRAINED["model"], "name": OLD}}
    (folder / "a.plan.yaml").write_text(yaml.safe_dump(old))
    assert cli("check", str(folder), "--json") in (0, 1), cli.err
    assert cli.json()["plans"][0]["verdict"] != "invalid"
    (folder / "b.plan.yaml").write_text(yaml.safe_dump(old))
    assert cli("check", str(folder), "--json") == 2
    assert [plan["verdict"] for plan in cli.json()["plans"] if plan["name"] == "b.plan.yaml"] == ["invalid"]


@pytest.mark.parametrize("name", ["::set-output name=x\ny.plan.yaml", "a\x1b[2J.plan.yaml", "a\udcff.plan.yaml"])
def test_files_with_such_names_are_refused(cli: Cli, name: str) -> None:
    folder = cli.folder / "plans"
    folder.mkdir()
    (folder / name).write_text(yaml.safe_dump(TRAINED))
    assert cli("check", str(folder), "--update", "--json") == 2
    (plan,) = cli.json()["plans"]
    assert (plan["name"], plan["verdict"]) == (readable(name), "invalid")
    assert re.search("give it another name", plan["findings"][0]["fix"])


def test_an_error_spells_what_a_document_has_for_a_field() -> None:
    from meshwright.app.regression.lock import Lock

    with pytest.raises(InvalidInputError) as refused:
        read_record(Lock, {"a\x1b[2J": 1, "schema": "meshwright.plans-lock/1"}, what="lock")
    assert not HIDDEN.search(str(refused.value).replace("\n", ""))
