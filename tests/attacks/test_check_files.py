"""A check of a stranger's pull request reads no file outside the repository, and quotes none inside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import Cli

SECRET = "ghp_0123456789abcdefABCDEF"
TRAINED = {"kind": "training", "global_batch": 8, "seq_len": 512}
SERVED = {"kind": "serving", "arrivals": {"process": "poisson", "requests_per_s": 1}}
LENGTHS = {"prompt_tokens": {"fixed": 8}, "output_tokens": {"fixed": 8}}
TRACE = {"process": "trace", "file": "FILE"}
NAMES = (
    {"model": {"graph": "FILE"}, "workload": TRAINED},
    {"model": {"config": "FILE"}, "workload": TRAINED},
    {"model": {"catalog": "qwen2.5-0.5b"}, "workload": TRAINED, "calibrations": ["FILE"]},
    {"model": {"catalog": "qwen2.5-0.5b"}, "workload": SERVED | LENGTHS | {"prompt_tokens": {"file": "FILE"}}},
    {"model": {"catalog": "qwen2.5-0.5b"}, "workload": SERVED | LENGTHS | {"arrivals": TRACE}},
)
CONTENTS = (SECRET, json.dumps({SECRET: SECRET}), json.dumps([SECRET]), f"[core]\n  token = {SECRET}\n", f"a,{SECRET}\n1,2\n")


@pytest.fixture
def repository(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", f"sqlite:///{tmp_path}/plans.db")
    plans = tmp_path / "repository" / "plans"
    plans.mkdir(parents=True)
    (plans.parent / ".git").mkdir()
    return plans


def checked(cli: Cli, plans: Path, named: str) -> str:
    """Return what checks print of requests that name a file in every field that does."""
    printed = ""
    for number, fields in enumerate(NAMES):
        request = {"schema": "meshwright.request/1", "cluster": "8xH100", **fields}
        (plans / f"{number}.plan.yaml").write_text(json.dumps(request).replace("FILE", named))
    for options in ((), ("--json",), ("--github",)):
        assert cli("check", str(plans), "--update", *options) in (1, 2)
        printed += cli.out + cli.err
    return printed


@pytest.mark.parametrize("content", CONTENTS)
def test_no_file_is_quoted(cli: Cli, repository: Path, content: str) -> None:
    (repository / "file.json").write_text(content)
    printed = checked(cli, repository, "file.json")
    assert SECRET not in printed and SECRET[:12] not in printed
    assert "file.json" in printed and "internal error" not in printed


@pytest.mark.parametrize("named", ["OUTSIDE", "../../outside.json", "link.json", "../.git/config", "folder"])
def test_files_outside_are_not_read(cli: Cli, repository: Path, tmp_path: Path, named: str) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps({"schema": SECRET}))
    (repository / "link.json").symlink_to(outside)
    (repository.parent / ".git" / "config").write_text(SECRET)
    (repository / "folder").mkdir()
    (repository / "folder" / "config.json").symlink_to(outside)
    printed = checked(cli, repository, named.replace("OUTSIDE", str(outside)))
    assert SECRET not in printed
    assert printed.count("of its repository only") >= 3


def test_a_request_that_is_a_link_out_is_not_read(cli: Cli, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(SECRET)
    (repository / "a.plan.yaml").symlink_to(tmp_path / "outside")
    assert cli("check", str(repository), "--update") in (1, 2)
    assert SECRET not in cli.out + cli.err
    assert "of its repository only" in " ".join((cli.out + cli.err).split())
