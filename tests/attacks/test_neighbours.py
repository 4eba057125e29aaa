"""What lies beside a service: names that have come to mean this machine, and files of the folder it is started in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from meshwright.app.edge.loopback import is_called_by_loopback
from tests.attacks.served import Served, served

OWN = ("127.0.0.1", "127.0.0.1:8000", "127.1.2.3", "localhost", "LOCALHOST:8000", "[::1]", "[::1]:8000")
OTHERS = (
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "10.0.0.1",
    "0.0.0.0",
    "",
    "[::1].evil.example",
    "127.0.0.1@evil.example",
    "evil.example:80@localhost",
)


@pytest.mark.parametrize("host", OWN)
def test_a_name_of_this_machine_is_one(host: str) -> None:
    assert is_called_by_loopback(host)


@pytest.mark.parametrize("host", [*OTHERS, None])
def test_a_name_that_others_have_is_none(host: str | None) -> None:
    assert not is_called_by_loopback(host)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("open")
    with served(f"sqlite:///{folder / 'plans.db'}", folder) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/plans"), ("POST", "/v1/keys"), ("GET", "/"), ("POST", "/v1/plans"), ("POST", "/new")],
)
def test_an_open_service_hears_nobody_who_calls_it_by_another_name(service: Served, method: str, path: str) -> None:
    other = {"host": f"evil.example:{service.port}", "content-type": "application/json"}
    refused = httpx.request(method, f"{service.url}{path}", headers=other, content=b'{"name":"mine","scopes":["admin"]}')
    assert refused.status_code == 403, refused.text
    assert "a name of this machine" in refused.text
    by_name = httpx.request(method, f"{service.url}{path}", headers=other | {"host": f"localhost:{service.port}"})
    assert by_name.status_code != 403


BAIT = ("logging", "json", "signal", "multiprocessing", "numpy", "sqlalchemy", "dbos", "typer", "sitecustomize", "pulp")
"""Modules that every command loads, or that Python looks for by itself."""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder of modules that leave a mark when they are loaded, and of a package with our name."""
    folder = tmp_path / "hostile"
    mark = f"open({str(tmp_path / 'marks')!r}, 'a').write(__name__ + '\\n')\n"
    (folder / "meshwright").mkdir(parents=True)
    (folder / "meshwright" / "__init__.py").write_text(mark)
    for name in BAIT:
        (folder / f"{name}.py").write_text(mark + "raise ImportError('a file of the current folder was loaded')\n")
    return folder


SCRIPT = Path(sys.executable).with_name("meshwright")
needs_script = pytest.mark.skipif(not SCRIPT.exists(), reason="meshwright is not installed as a command here")

COMMANDS = {
    "plan": ["plan", "Qwen/Qwen3-8B", "--gpus", "8xH100", "--serve", "--rate", "2"],
    "hardware": ["hardware", "list"],
    "schema": ["schema"],
    "migrate": ["migrate"],
    "keys": ["keys", "create", "ci", "--scope", "plans:read"],
    "explain": ["explain", "--gpus", "8xH100", "--", "vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2"],
    "calibrate": ["calibrate", "profile", "--help"],
    "check": ["check", "."],
}


@needs_script
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_loads_what_lies_in_the_current_folder(command: str, hostile: Path, tmp_path: Path) -> None:
    environment = os.environ | {"MESHWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path / 'plans.db'}"}
    whole = [SCRIPT, *COMMANDS[command]]
    done = subprocess.run(whole, cwd=hostile, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1, 2), done.stderr
    assert not (tmp_path / "marks").exists(), (tmp_path / "marks").read_text()


@needs_script
@pytest.mark.slow
def test_a_service_and_its_worker_load_nothing_of_the_current_folder(hostile: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    request = {
        "schema": "meshwright.request/1",
        "model": {"catalog": "qwen3-8b"},
        "cluster": {"catalog": "dgx-h100", "nodes": 1},
        "workload": {"kind": "training", "global_batch": 64, "seq_len": 4096},
        "search": {"tp": [1], "pp": [1]},
    }
    with served(url, tmp_path, workers=1, command=[str(SCRIPT)], cwd=hostile) as service:
        made = httpx.post(f"{service.url}/v1/plans", json=request, headers={"prefer": "wait=60"}, timeout=120)
        for _ in range(3):
            if made.status_code == 200:
                break
            made = httpx.post(f"{service.url}/v1/plans", json=request, headers={"prefer": "wait=60"}, timeout=120)
        assert made.status_code == 200, made.text
        asked = {"command": "vllm serve Qwen/Qwen3-8B -tp 2", "cluster": "8xH100", "isl": 1000, "osl": 100, "rate": 2}
        assert httpx.post(f"{service.url}/v1/explain", json=asked, timeout=120).status_code == 200
    assert not (tmp_path / "marks").exists(), (tmp_path / "marks").read_text()
