"""A folder of small requests, its lock, and what a check of it says in every format."""

from __future__ import annotations

import copy
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from tests.integration.regression.formats import check_junit, check_sarif
from tests.support.command_line import Cli, Json

NAME = "small.plan.yaml"
LOCK = "plans.lock.json"

MODEL: Json = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}

NODE: Json = {
    "name": "two-h100",
    "device": {
        "name": "h100",
        "memory_bytes": 80 * 2**30,
        "peak_flops": {"bf16": 989e12},
        "memory_bytes_per_s": 3.35e12,
        "calibration": "h100_sxm",
        "price_per_hour": 4.0,
    },
    "devices_per_node": 2,
    "intra": {"name": "nvlink", "bytes_per_s": 450e9, "latency_s": 6e-7},
    "inter": {"name": "infiniband", "bytes_per_s": 100e9, "latency_s": 2.7e-6},
}

REQUEST: Json = {
    "schema": "meshwright.request/1",
    "model": {"huggingface": "model.json"},
    "cluster": {"groups": [{"name": "pool", "node": NODE, "nodes": 2}]},
    "workload": {"kind": "training", "global_batch": 32, "seq_len": 2048},
    "slo": {"min_tokens_per_s": 20000},
    "search": {"cp": [1], "microbatch": [1, 2]},
}

Edit = Callable[[Json], None]


@dataclass(frozen=True)
class Said:
    """The answer of a check: its exit code, and its report in every format."""

    code: int
    report: Json
    page: str
    github: str
    junit: ET.Element
    sarif: Json
    markdown: str

    def plan(self, name: str = NAME) -> Json:
        found: Json = next(plan for plan in self.report["plans"] if plan["name"] == name)
        return found

    def finding(self, rule: str, name: str = NAME, *, about: str = "") -> Json:
        """The first finding of a rule whose message begins so."""
        findings = (finding for finding in self.plan(name)["findings"] if finding["rule"] == rule)
        found: Json = next(finding for finding in findings if finding["message"].startswith(about))
        return found


class Project:
    """A folder with one request (or more) and a lock of its own."""

    def __init__(self, cli: Cli):
        self.cli, self.folder = cli, cli.folder / "plans"
        self.folder.mkdir()
        self.write(copy.deepcopy(REQUEST))
        self.write_model(MODEL)

    def write(self, request: Json, name: str = NAME) -> None:
        (self.folder / name).write_text(yaml.safe_dump(request))

    def write_model(self, model: Json) -> None:
        (self.folder / "model.json").write_text(json.dumps(model))

    def edit(self, edit: Edit) -> None:
        """Change the request as a person would."""
        request = yaml.safe_load((self.folder / NAME).read_text())
        edit(request)
        self.write(request)

    def edit_lock(self, edit: Edit) -> None:
        lock = json.loads(self.lock_text())
        edit(lock)
        (self.folder / LOCK).write_text(json.dumps(lock))

    def lock_text(self) -> str:
        return (self.folder / LOCK).read_text()

    def lock(self) -> Json:
        document: Json = json.loads(self.lock_text())
        return document

    def update(self) -> None:
        assert self.cli("check", str(self.folder), "--update") == 0, self.cli.err

    def check(self) -> Said:
        """Check the folder; all formats agree on what failed, and are well-formed."""
        files = {name: self.cli.folder / f"report.{name}" for name in ("junit", "sarif", "summary")}
        files["summary"].unlink(missing_ok=True)
        code = self.cli("check", str(self.folder), "--json", "--junit", str(files["junit"]), "--sarif", str(files["sarif"]))
        report = self.cli.json()
        assert report["exit_code"] == code
        assert self.cli("check", str(self.folder), "--github", "--summary", str(files["summary"])) == code
        lines = self.cli.out.splitlines(keepends=True)
        annotations = "".join(line for line in lines if line.startswith("::"))
        page = "".join(line for line in lines if not line.startswith("::"))
        assert max(len(line.rstrip("\n")) for line in page.splitlines()) <= 80
        junit = ET.fromstring(files["junit"].read_text())
        sarif = json.loads(files["sarif"].read_text())
        said = Said(code, report, page, annotations, junit, sarif, files["summary"].read_text())
        check_formats(said)
        return said


def check_formats(said: Said) -> None:
    """Every format is valid and tells of every finding."""
    check_junit(said.junit)
    check_sarif(said.sarif)
    findings = [(plan, finding) for plan in said.report["plans"] for finding in plan["findings"]]
    assert len(said.sarif["runs"][0]["results"]) == len(said.github.splitlines()) == len(findings)
    failed = {
        case.get("name") for case in said.junit.iter("testcase") if list(case.iter("failure")) or list(case.iter("error"))
    }
    assert failed == {plan["name"] for plan, finding in findings if finding["severity"] == "error"}
    assert bool(failed) == (said.code != 0)
    for _, finding in findings:
        whole = as_text(finding)
        assert any(result["message"]["text"] == whole for result in said.sarif["runs"][0]["results"])
        assert whole.replace("%", "%25") in said.github
        assert flat(finding["message"]) in flat(said.page)
        assert flat(finding["message"]) in flat(said.markdown.replace("\\", ""))
        if finding["severity"] == "error":
            assert finding["fix"] or finding["rule"] == "invalid"
            assert any(whole in (element.text or "") for kind in ("failure", "error") for element in said.junit.iter(kind))


def as_text(finding: Json) -> str:
    parts = [finding["message"]]
    parts += [f"{name}: {finding[name]}" for name in ("cause", "fix") if finding[name]]
    return "; ".join(parts)


def flat(text: Any) -> str:
    """Text without white space: a page breaks lines where it likes."""
    return "".join(str(text).split())
