"""``doctor``: what of this machine Meshwright needs or can use, and what to do about what is wrong."""

from __future__ import annotations

import os
import platform
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from rich.table import Table
from sqlalchemy import make_url

from meshwright.app.base.console import page_console, plain
from meshwright.app.base.errors import EXIT_GOOD, EXIT_NO, StoreError
from meshwright.app.base.settings import Settings
from meshwright.app.base.version import installed_version
from meshwright.app.cli.commands.exits import print_json
from meshwright.costmodels.errors import InvalidInputError

LAUNCHERS = (
    *("accelerate", "axolotl", "deepspeed", "llamafactory", "maxtext", "megatron-bridge", "megatron-core", "nanotron"),
    *("nemo-toolkit", "sglang", "tensorrt-llm", "torch", "torchtitan", "transformers", "trl", "vllm"),
)
"""Distributions, by their names on PyPI, of what starts plans: none is needed to make one."""

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
AMD_GPUS = Path("/sys/class/kfd/kfd/topology/nodes")


class Health(StrEnum):
    """The state of something that was looked at."""

    GOOD = "good"
    ABSENT = "absent"
    """Not there, and not needed for plans."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at: its state in words, and what to do where it is wrong."""

    what: str
    health: Health
    state: str
    remedy: str = ""


def run_doctor(settings: Settings, *, as_json: bool, compiles: bool = False) -> int:
    """Print what was found, after compiling what first plans need if asked to; exit code 1 where something is wrong."""
    compiled = [compile_loops()] if compiles else []
    found = [*findings(settings), *compiled]
    if as_json:
        print_json({"version": installed_version(), "findings": [asdict(each) for each in found]})
    else:
        page_console().print(_table(found))
    return EXIT_NO if any(each.health is Health.WRONG for each in found) else EXIT_GOOD


def findings(settings: Settings, nvidia: Path = NVIDIA_GPUS, amd: Path = AMD_GPUS) -> Iterator[Finding]:
    """Yield all that is looked at: no process is started, and nothing is written."""
    yield Finding("Meshwright", Health.GOOD, f"{installed_version()}, Python {platform.python_version()}")
    yield _database(settings)
    yield from (_folder(what, folder) for what, folder in _folders())
    yield _gpus(nvidia, amd)
    yield _launchers()


def _database(settings: Settings) -> Finding:
    from meshwright.app.store.engine import open_engine, shown_url
    from meshwright.app.store.migrate import HEAD_REVISION, current_revision, serves

    file = make_url(settings.database_url).database if settings.database_url.startswith("sqlite") else None
    if file and not Path(file).exists():
        # To open it would make it.
        return Finding("plan store", Health.GOOD, f"{file}, made by the first plan that is stored")
    try:
        engine = open_engine(settings.database_url)
        revision = current_revision(engine)
    except (StoreError, InvalidInputError) as error:
        return Finding("plan store", Health.WRONG, str(error), "start it, or set MESHWRIGHT_DATABASE_URL to one that runs")
    shown = shown_url(engine)
    if serves(engine, revision):
        return Finding("plan store", Health.GOOD, f"{shown}, schema {revision}")
    state = f"{shown} has schema {revision or 'none'}, this version {HEAD_REVISION}"
    return Finding("plan store", Health.WRONG, state, "run 'meshwright migrate'")


def _folders() -> Iterator[tuple[str, Path]]:
    from meshwright.solver.training.search import bundle_kernels

    kept = bundle_kernels.any_borders_bounds.stats.cache_path
    yield "compiled loops", Path(kept or ".")
    yield "temporary files", Path(tempfile.gettempdir())


def _folder(what: str, folder: Path) -> Finding:
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.access(nearest, os.W_OK):
        return Finding(what, Health.GOOD, str(folder))
    return Finding(what, Health.WRONG, f"{folder} can't be written", "make it writable, or set NUMBA_CACHE_DIR or TMPDIR")


def compile_loops() -> Finding:
    """Compile the loops of searches and simulations by plans that need them, for all later processes of this user.

    Those of forms that few ask for (switching layouts, unlike stages, groups of attention) are compiled by their first plan.
    """
    from meshwright.app.base.solving import compiled_s, solve_here
    from meshwright.app.requests.examples import SERVING_REQUEST, TRAINING_REQUEST
    from meshwright.app.requests.resolve import NoFiles, resolve_request

    began_s = compiled_s()
    pools = {"cluster": {"catalog": "dgx-h100", "nodes": 2}, "search": {"modes": ["disaggregated"]}}
    wide = {"search": {"space": "free", "tp": [2], "schedules": ["1f1b"]}}
    for document in (SERVING_REQUEST, SERVING_REQUEST | pools, TRAINING_REQUEST | wide):
        solve_here(resolve_request(document, files=NoFiles()))
    return Finding(
        "loops compiled now", Health.GOOD, f"{compiled_s() - began_s:.1f} s; none are where all were compiled before"
    )


def _gpus(nvidia: Path, amd: Path) -> Finding:
    names = Counter(_model(each / "information") for each in sorted(nvidia.glob("*")))
    # Processors are nodes of the driver's table, too: those without vector units are no GPUs.
    names["AMD GPU"] += sum(_has_vector_units(each / "properties") for each in sorted(amd.glob("*")))
    seen = [f"{count} x {name}" for name, count in names.items() if count]
    if seen:
        return Finding("GPUs", Health.GOOD, ", ".join(seen))
    return Finding("GPUs", Health.ABSENT, "none seen; plans need none, 'meshwright calibrate' measures those there are")


def _model(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Model:")), "NVIDIA GPU")


def _has_vector_units(file: Path) -> bool:
    words = file.read_text(encoding="utf-8", errors="replace").split() if file.is_file() else []
    counts = dict(zip(words[::2], words[1::2], strict=False))
    return counts.get("simd_count", "0") != "0"


def _launchers() -> Finding:
    there = []
    for name in LAUNCHERS:
        try:
            there.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    if there:
        return Finding("launchers", Health.GOOD, ", ".join(there))
    return Finding("launchers", Health.ABSENT, "none in this environment; exports are files and commands for where they are")


_MARKS = {Health.GOOD: ("ok", "green"), Health.ABSENT: ("-", "dim"), Health.WRONG: ("wrong", "bold red")}


def _table(found: list[Finding]) -> Table:
    table = Table.grid(padding=(0, 2))
    for each in found:
        mark, style = _MARKS[each.health]
        table.add_row(plain(mark, style=style), plain(each.what), plain(each.state))
        if each.remedy:
            table.add_row("", "", plain(f"to do: {each.remedy}"))
    return table
