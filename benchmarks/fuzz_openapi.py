"""Drive a service through its whole OpenAPI document with schemathesis: ``python -m benchmarks.fuzz_openapi [EXAMPLES]``.

Starts ``meshwright serve`` on a loopback address, with a key of every scope, no workers and a database of its own. Every
operation is tried with its examples, with values at and beyond the limits of its schema, with EXAMPLES random requests, and
in chains where one answer's identifiers are the next request's. Fails on any 5xx and on any answer that the document does
not describe.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.service_process import running_process

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "use_after_free",
    "ensure_resource_availability",
    "ignored_auth",
)
"""All but those that take every refusal of a document that fits its schema for a fault: a cluster of this form may still have a
link to no group."""
ENDLESS = "/events$"
"""Streams end with their job, and without workers no job ends."""
SEED = "20260101"


def schemathesis(url: str, key: str, examples: int) -> list[str]:
    """The command that drives a service."""
    return [
        str(Path(sys.executable).with_name("st")),
        "run",
        f"{url}/openapi.json",
        "--header",
        f"Authorization: Bearer {key}",
        "--checks",
        ",".join(CHECKS),
        "--exclude-path-regex",
        ENDLESS,
        "--max-examples",
        str(examples),
        "--seed",
        SEED,
        "--generation-deterministic",
        "--no-color",
        # Questions are answered while the caller waits (app.service.child).
        "--request-timeout",
        "60",
    ]


def main(examples: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {"MESHWRIGHT_AUTH": "required", "MESHWRIGHT_MAX_FAILED_AUTHS_PER_S": "100000"}
        with running_process(folder, "--workers", "0", **environment) as service:
            command = schemathesis(service.url, service.make_key("admin"), examples)
            return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
