"""Every way in that takes a stranger's bytes: what reads them, before any solve, and examples of what it reads."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import json
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from starlette.requests import Request

from benchmarks.fuzz_rest import seeds
from meshwright.app.base.documents import NonFinite, parse_document
from meshwright.app.base.records import read_record
from meshwright.app.edge.bodies import json_object
from meshwright.app.edge.schemas import NewKeyDocument, RotationDocument
from meshwright.app.evidence.logs.table import read_log
from meshwright.app.evidence.measuring.sample_files import read_samples
from meshwright.app.evidence.serving.rows import COLUMNS as POINT_COLUMNS
from meshwright.app.evidence.serving.rows import OPTIONAL_COLUMNS, read_measured_points
from meshwright.app.evidence.training.cells import COLUMNS as RUN_COLUMNS
from meshwright.app.evidence.training.rows import read_measured_runs
from meshwright.app.evidence.training.sources import sources_of
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.models.checkpoint import with_quantisation_file
from meshwright.app.models.gguf import config_of_header, read_header
from meshwright.app.models.iopddl import read_sharding_problem
from meshwright.app.models.traced.layers import in_layers
from meshwright.app.models.traced.model import read_traced_graph
from meshwright.app.regression.lock import read_lock
from meshwright.app.requests.calibrations import read_calibration_document
from meshwright.app.requests.examples import TRAINING_REQUEST
from meshwright.app.requests.files import FilesBeside
from meshwright.app.requests.limits import Entry, check_values
from meshwright.app.requests.options import OneLine
from meshwright.app.requests.resolve import NoFiles, read_model, resolve_request
from meshwright.app.service.explaining.explain import asked_of
from meshwright.app.service.planning import resolved_alone
from meshwright.app.service.replan_schemas import NewReplan
from meshwright.app.store.fleet import registered_cluster, registered_model
from meshwright.app.store.runs import read_run
from meshwright.app.web.checks import _new_check
from meshwright.app.web.pages import builder, runs
from meshwright.app.web.pages.routes import MAX_FORM_BYTES, form_of
from meshwright.app.web.replans import MAX_REPLAN_BODY_BYTES
from meshwright.app.web.runs import MAX_RUN_BODY_BYTES
from meshwright.app.web.schemas import RUN_EXAMPLES
from meshwright.app.web.security import MAX_KEY_BODY_BYTES
from meshwright.solver.answer.plan import AnsweredRequest
from tests.support import gguf_files
from tests.support.requests_given import tiny_graph
from tests.unit.app.validation.serving.tables import LLAMA_8B as LLAMA_POINT
from tests.unit.app.validation.tables import LLAMA_8B as LLAMA_RUN

TESTS = Path("tests")
YAML_TIMES = 2.5
"""PyYAML takes 1.0 to 1.6 s for 100 kB of short values, measured on a busy machine."""
DIGEST = "sha256:" + "0" * 64
TIME_LIMIT_S = 600
LONGEST_BYTES = 200_000
"""Long enough to show what grows with the square, and short enough to try many."""
CONFIG = json.loads((TESTS / "unit/app/importers/checkpoints/apertus-8b/config.json").read_text())


@dataclass(frozen=True, slots=True)
class WayIn:
    """A way in: what reads the bytes or raises InvalidInputError, examples, and the longest input that is tried.

    packed   from what is changed to the bytes that are read
    cpu_times   of the budget of processor: of YAML more, of which 256 KiB are read at most
    """

    name: str
    read: Callable[[bytes], object]
    examples: Callable[[], Sequence[bytes]]
    longest: int = LONGEST_BYTES
    packed: Callable[[bytes], bytes] = field(default=bytes)
    cpu_times: float = 1.0


def as_file(suffix: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return what reads bytes by a reader of files."""

    def of_bytes(text: bytes) -> object:
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(text)
            file.flush()
            return read(Path(file.name))

    return of_bytes


def _bodies(address: str) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(document).encode() for _, path, document in seeds() if path.startswith(address)]


def _files(*patterns: str) -> Callable[[], list[bytes]]:
    return lambda: [
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for pattern in patterns
        for path in sorted(Path().glob(pattern))
    ]


def _documents(*documents: object) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(document).encode() for document in documents]


def _table(columns: Sequence[str], rows: Sequence[dict[str, str]]) -> Callable[[], list[bytes]]:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return lambda: [text.getvalue().encode()]


def _calibration(text: bytes) -> object:
    document = json_object(text)
    check_values(document)
    return read_calibration_document(document)


def _replan(text: bytes) -> object:
    document = json_object(text)
    check_values(document)
    return read_record(NewReplan, document, what="re-plan")


def _config(text: bytes) -> object:
    return read_model({"config": parse_document(text, what="config", non_finite=NonFinite.AS_TEXT)}, files=NoFiles(), name="m")


def _quantised(text: bytes) -> object:
    return read_model({"config": with_quantisation_file(CONFIG, parse_document(text, what="quantisation"))}, files=NoFiles())


def _traced(text: bytes) -> object:
    document = parse_document(text, what="graph", non_finite=NonFinite.AS_TEXT)
    check_values(document, Entry.NEW)
    return in_layers(read_traced_graph(document).graph)


def _gguf(text: bytes) -> object:
    return read_model({"config": config_of_header(read_header(io.BytesIO(text)))}, files=NoFiles())


def _gguf_bytes(text: bytes) -> bytes:
    """The file of a document of values and tensors; of another document, its text."""
    try:
        document = json.loads(text)
        return gguf_files.file_of(document["values"], document["tensors"])
    except (ValueError, TypeError, KeyError, AttributeError, struct.error, OverflowError):
        return text


def _request_of(text: bytes) -> object:
    return resolve_request(parse_document(text, what="request"), files=FilesBeside(Path("examples")))


def _resolved(document: dict[str, object]) -> Any:
    return resolve_request(document, files=NoFiles())


def _explained(text: bytes) -> object:
    words = text.decode("utf-8", "replace")
    files = LaunchFiles({"run.sh": words, "config.yaml": words})
    is_training = isinstance(read_command(words, files), StatedTraining)
    load = {"batch": "64", "seq": "4k"} if is_training else {"rate": "4", "isl": "1k", "osl": "1k"}
    return asked_of(words, OneLine("", gpus="8xH100", **load), _resolved, files)


def _log(path: Path) -> object:
    # A reader looks at the request's kind alone, and at the plan where a file has results of several loads.
    return read_log(path, AnsweredRequest(cast(Any, None), _resolved(TRAINING_REQUEST)))


def _fields(text: bytes) -> dict[str, str]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": text, "more_body": False}

    return asyncio.run(form_of(Request({"type": "http", "headers": [], "method": "POST", "path": "/new"}, receive)))


def _launches() -> list[bytes]:
    recipes = parse_document((TESTS / "unit/app/explaining/recipes.yaml").read_bytes(), what="recipes")
    manifests = _files("tests/unit/app/exporters/golden/*.yaml")()
    return [SCRIPT.encode(), *manifests, *(recipe["command"].encode() for recipe in recipes[::5] if "command" in recipe)]


SCRIPT = r"""#!/bin/bash
#SBATCH --nodes=2
set -euo pipefail
TP=${TP:-2}; PP=$((TP * 2)); export NAME="qwen/Qwen3-8B"
WORDS=(--tensor-parallel-size $TP --max-model-len "${LEN:-8192}")
for i in {1..2}; do echo "$i"; done
if [ "$TP" -gt 1 ]; then WORDS+=(--enable-prefix-caching); fi
run() { "$@"; }
cat > config.txt <<EOF
a: ${NAME##*/} $(date)
EOF
run vllm serve "$NAME" "${WORDS[@]}" --port 8000 \
  --gpu-memory-utilization 0.9 2>&1 | tee log
"""

POINTS = (*POINT_COLUMNS, *OPTIONAL_COLUMNS)
OPEN_POINT = LLAMA_POINT | {"arrival": "poisson", "rate_req_s": "2", "concurrency": ""}
QUANTISATION = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head", "a.mlp"]}}
SAMPLES = b"device,kind,dtype,m,n,k,batch,time_s,software,source\nh100_sxm,gemm,bf16,4096,4096,4096,1,0.0002,a,b\n"
SHARDING = {"problem": {
    "name": "two", "nodes": {"intervals": [[0, 2], [1, 2]], "costs": [[1, 2], [3, 4]], "usages": [[5, 6], [7, 8]]},
    "edges": {"nodes": [[0, 1]], "costs": [[0, 1, 2, 3]]}, "usage_limit": 20,
}}  # fmt: skip

FORMS = (
    b"task=train&model=llama-3.1-8b&gpus=8xH100&batch=512&seq=8k",
    b"task=serve&model=qwen3-8b&gpus=3x8xH100@400Gb&rate=4&isl=1k&osl=1k",
)

WAYS_IN = (
    WayIn("POST /v1/plans", lambda text: resolved_alone(json_object(text), TIME_LIMIT_S), _bodies("/v1/plans")),
    WayIn("PUT /v1/models", lambda text: registered_model(json_object(text), "m"), _documents(
        {"config": CONFIG}, {"graph": tiny_graph()}, {"catalog": "llama-3.1-8b"})),
    WayIn("PUT /v1/clusters", lambda text: registered_cluster(json_object(text)), _bodies("/v1/clusters")),
    WayIn("POST /v1/calibrations", _calibration, _bodies("/v1/calibrations")),
    WayIn("POST /v1/replans", _replan, _bodies("/v1/replans"), MAX_REPLAN_BODY_BYTES),
    WayIn("POST /v1/checks", lambda text: _new_check(json_object(text)), _bodies("/v1/checks")),
    WayIn("POST /v1/keys", lambda text: read_record(NewKeyDocument, json_object(text), what="key"), _bodies("/v1/keys"),
          MAX_KEY_BODY_BYTES),
    WayIn("POST /v1/keys/rotation", lambda text: read_record(RotationDocument, json_object(text), what="rotation"),
          _bodies("/v1/keys/0"), MAX_KEY_BODY_BYTES),
    WayIn("POST /v1/runs", lambda text: read_run(json_object(text)), _documents(
        *({"plan": DIGEST} | example["value"] for example in RUN_EXAMPLES.values())), MAX_RUN_BODY_BYTES),
    WayIn("form of a plan", lambda text: resolved_alone(builder._document(_fields(text)), TIME_LIMIT_S), lambda: FORMS,
          MAX_FORM_BYTES),
    WayIn("form of a run", lambda text: read_run(runs._document(DIGEST, _fields(text))),
          lambda: [b"step_time_s=9.2s&peak_memory_bytes=70GiB&label=a&software=b"], MAX_FORM_BYTES),
    WayIn("config.json", _config, _files("tests/unit/app/importers/checkpoints/*/config.json")),
    WayIn("hf_quant_config.json", _quantised, _documents(QUANTISATION)),
    WayIn("GGUF by its values", _gguf, _documents({"values": gguf_files.llama(), "tensors": gguf_files.tensors()}),
          packed=_gguf_bytes),
    WayIn("GGUF by its bytes", _gguf, lambda: [gguf_files.file_of(gguf_files.llama(), gguf_files.tensors())]),
    WayIn("traced graph", _traced, _files("tests/unit/app/importers/traces/*.json.gz"), 10**6),
    WayIn("log of a run", as_file(".log", _log), _files("tests/support/logs/*")),
    WayIn("launch command", _explained, _launches, cpu_times=YAML_TIMES),
    WayIn("table of runs", as_file(".csv", read_measured_runs), _table(RUN_COLUMNS, [LLAMA_RUN] * 3)),
    WayIn("table of points", as_file(".csv", read_measured_points), _table(POINTS, [LLAMA_POINT] * 2)),
    WayIn("table of open loops", as_file(".csv", read_measured_points), _table(POINTS, [OPEN_POINT])),
    WayIn("mapping of a table", as_file(".yaml", lambda path: sources_of(path, path)),
          _files("benchmarks/measured.sources.yaml"), cpu_times=YAML_TIMES),
    WayIn("samples of kernels", as_file(".csv", read_samples), lambda: [SAMPLES]),
    WayIn("sharding problem", as_file(".json", read_sharding_problem), _documents(SHARDING)),
    WayIn("request in YAML", _request_of, _files("examples/*.yaml", "examples/ci/plans/*.yaml"), cpu_times=YAML_TIMES),
    WayIn("lock of check", as_file(".json", read_lock), _files("examples/**/plans.lock.json")),
)  # fmt: skip
