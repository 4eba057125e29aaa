"""Shared by the tests of exports and others: STANDS_IN, PROGRAMS, NODE, run."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

STANDS_IN = '#!/bin/sh\nfor word in "$0" "$@"; do printf "%s\\n" "$word"; done >> "$ARGUMENTS"\n'
"""A launcher that only notes what it was called with, a word a line."""


PROGRAMS = ("bash", "cat", "touch")


NODE = {"NODE_RANK": "0", "MASTER_ADDR": "a", "DEVICES": "8", "FIRST_RANK": "0", "PREFILL_URL": "a", "DECODE_URL": "a"}


def run(text: str) -> list[str]:
    """Run a script where every launcher only notes its words; those words. Fails when the script made another file."""
    with tempfile.TemporaryDirectory() as place:
        folder, programs, arguments = Path(place) / "run", Path(place) / "bin", Path(place) / "arguments"
        folder.mkdir()
        programs.mkdir()
        for name in ("vllm", "python", "torchrun", "deepspeed", "accelerate", "trl", "trtllm-serve"):
            (programs / name).write_text(STANDS_IN)
            (programs / name).chmod(0o755)
        for name in PROGRAMS:
            (programs / name).symlink_to(shutil.which(name) or name)
        (folder / "launch.sh").write_text(text, encoding="utf-8")
        for check in (["/bin/sh", "-n"], ["bash", "-n"], ["/bin/sh"]):
            environment = {"PATH": str(programs), "ARGUMENTS": str(arguments), **NODE}
            done = subprocess.run([*check, "launch.sh"], cwd=folder, env=environment, capture_output=True, timeout=60)
            assert (done.returncode, done.stderr) == (0, b""), (done.stderr, text)
        assert not list(Path(place).rglob("PWNED*"))
        return arguments.read_text(encoding="utf-8").split("\n")
