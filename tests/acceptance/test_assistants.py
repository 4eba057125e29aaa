"""Assistants ask the real server over stdin and stdout, by the client of the protocol's own SDK."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.requests_given import tiny_graph, training

pytest.importorskip("mcp", reason="the SDK is not installed: pip install -e '.[mcp]'")

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters

ROOT = Path(__file__).parents[2]
START = [
    sys.executable,
    "-P",
    "-c",
    f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from meshwright.app.cli.main import main; main()",
]
SERVED = {"model": "llama-3.1-8b", "gpus": "8xH100", "isl": 500, "osl": 100, "rate": 2, "ttft_p95": "500ms"}
TRAINED = {"model": "llama-3.1-8b", "gpus": "8xH100", "batch": 64, "seq": 4096}
TINY = training(model={"graph": tiny_graph()}, search={"tp": [1], "pp": [1], "cp": [1], "microbatch": [1]})


class Assistant:
    """Calls tools and reads resources of one server, each from the test's own thread."""

    def __init__(self, portal: BlockingPortal, client: Any):
        self._portal, self.client = portal, client

    def result(self, tool: str, **arguments: Any) -> Any:
        return self._portal.call(self.client.call_tool, tool, arguments)

    def ask(self, tool: str, **arguments: Any) -> str:
        """The text of an answer that is no error."""
        found = self.result(tool, **arguments)
        assert not found.is_error, found.content[0].text
        return str(found.content[0].text)

    def refused(self, tool: str, **arguments: Any) -> str:
        """The text of a tool error."""
        found = self.result(tool, **arguments)
        assert found.is_error
        return str(found.content[0].text)

    def read(self, uri: str) -> str:
        return str(self._portal.call(self.client.read_resource, uri).contents[0].text)

    def listed(self, what: str) -> list[Any]:
        found: list[Any] = getattr(self._portal.call(getattr(self.client, f"list_{what}")), what)
        return found


@pytest.fixture(scope="module")
def assistant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assistant]:
    """An assistant with a server of its own, whose plan store is empty and whose calls have short arguments."""
    folder = tmp_path_factory.mktemp("assistant")
    environment = {
        "MESHWRIGHT_DATABASE_URL": f"sqlite:///{folder / 'plans.db'}",
        "MESHWRIGHT_MAX_BODY_BYTES": "100000",
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
        "FORCE_COLOR": "1",
    }
    command = StdioServerParameters(
        command=START[0], args=[*START[1:], "mcp"], env={k: v for k, v in environment.items() if v}, cwd=folder
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(command)) as client:
        yield Assistant(portal, client)


def digest_in(page: str) -> str:
    return next(word for word in page.split() if word.startswith("sha256:"))


def test_tools_and_resources_are_listed(assistant: Assistant) -> None:
    tools = {tool.name: tool for tool in assistant.listed("tools")}
    assert set(tools) == {"plan", "explain", "predict", "compare", "what_if", "export", "observe", "validate"}
    assert all(tool.description and tool.input_schema["type"] == "object" for tool in tools.values())
    assert tools["predict"].annotations.read_only_hint and not tools["observe"].annotations.read_only_hint
    for resource in assistant.listed("resources"):
        assert assistant.read(resource.uri).startswith("{")
    assert len(assistant.listed("resource_templates")) == 2


def test_hostile_calls_are_refused_in_a_sentence(assistant: Assistant) -> None:
    name = "a\x1b[2J\n::error::b"
    assert "characters that can't be used" in (said := assistant.refused("plan", request=SERVED | {"model": name}))
    assert "\x1b" not in said and "\n" not in said
    assert "no such tool" in (said := assistant.refused(name))
    assert "\x1b" not in said and "\n" not in said
    assert "too long" in assistant.refused("validate", table="x" * 200_000)
    assert "no such model" in assistant.refused("plan", request=SERVED | {"model": "/etc/passwd"})
    deep: Any = 1
    for _ in range(150):
        deep = {"a": deep}
    assert "request" in assistant.refused("plan", request={"workload": deep})
    with pytest.raises(MCPError, match="no such resource"):
        assistant.read("file:///etc/passwd")
    # And the server lives.
    assert "Plan stored as" in assistant.ask("plan", request=TINY)


@pytest.mark.slow
def test_ten_tasks_are_done_by_calls_alone(assistant: Assistant) -> None:
    # 1. Which models are there, and how large?
    assert '"llama-3.1-8b"' in assistant.read("meshwright://models")
    # 2. Train one on eight devices.
    trained = assistant.ask("plan", request=TRAINED)
    assert "tokens/s (-" in trained and "Optimal" in trained and "Rests on" in trained and "\x1b" not in trained
    # 3. What launches it?
    assert "torchrun" in assistant.ask("export", plan=digest_in(trained), to="megatron-lm")
    # 4. Serve it within a latency.
    served = assistant.ask("plan", request=SERVED)
    assert "P95 TTFT" in served and "Targets at risk" in served
    # 5. What if twice the requests come?
    changed = assistant.ask("what_if", request=SERVED, change={"rate": 4})
    assert "Changed: rate to 4" in changed and changed.count("Plan stored as") == 2
    # 6. Which of two clusters is better?
    assert "Best: 8xH100" in assistant.ask("compare", request=TRAINED | {"gpus": "8xA100,8xH100"})
    # 7. Is a command that exists any good?
    command = "vllm serve Qwen/Qwen3-8B -tp 4"
    explained = assistant.ask("explain", command=command, cluster="8xH100", isl=200, osl=20, rate=4)
    assert explained.startswith("Qwen/Qwen3-8B by vllm") and "Starts and fits" in explained and "Better" in explained
    # 8. Would the plan of before hold longer sequences?
    whole = TINY | {"workload": TINY["workload"] | {"seq_len": 256}}
    tiny = digest_in(assistant.ask("plan", request=TINY))
    assert "A given plan" in assistant.ask("predict", plan=tiny, request=whole)
    # 9. It ran: keep what was measured.
    assert "Stored" in assistant.ask("observe", plan=digest_in(trained), step_time="3.1s", peak_memory="66GiB")
    # 10. What has been planned?
    assert digest_in(trained) in assistant.read("meshwright://plans")
    assert '"feasible": true' in assistant.read(f"meshwright://plans/{digest_in(trained)}")
