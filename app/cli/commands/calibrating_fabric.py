"""``calibrate fabric``: the script that measures a network between nodes, and its measurements as a calibration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from meshwright.app.base.console import page_console, plain
from meshwright.app.base.errors import EXIT_GOOD
from meshwright.app.base.output_files import check_one_stdout, is_stdout, write_output
from meshwright.app.base.quoting import shell_word
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import Output, print_json, tell
from meshwright.app.cli.pages.calibration_pages import print_kept, print_scores, scores_of
from meshwright.app.evidence.measuring.fabric import FabricCalibration, fit_measurements, script_text
from meshwright.app.requests.cluster_words import cluster_of_words
from meshwright.app.requests.files import read_document
from meshwright.app.store.calibrations import CalibrationStore, Kept
from meshwright.app.store.fleet import FleetNow, StoredRegistry
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError, InvalidInputError


@dataclass(frozen=True, slots=True)
class FabricCommand:
    """Options of ``calibrate fabric``: a file for the script, or the file of its measurements and the cluster they are of."""

    script: Path | None
    measurements: Path | None
    cluster: str | None
    store: bool
    output: Output


def run_fabric(command: FabricCommand, settings: Settings) -> int:
    """Write the script, or fit measurements, print the held-out errors and keep the calibration."""
    if (command.script is None) == (command.measurements is None):
        raise InvalidInputError(
            "this needs either a file for the script or measurements",
            given="both" if command.script else "neither",
            allowed="-o FILE to write the script, --import FILE to fit what it measured",
        )
    if command.script is not None:
        return _write_script(command.script, command.output)
    if command.cluster is None:
        raise InvalidInputError(
            "which cluster was measured?",
            given="no --cluster",
            allowed="a registered cluster, or one in words: '4x8xH100@400Gb'",
        )
    return _fit_and_keep(command, str(command.measurements), command.cluster, settings)


def _write_script(file: Path, output: Output) -> int:
    check_one_stdout(taken=output is Output.JSON, outputs=[file])
    write_output(file, script_text(), what="script")
    if output is Output.JSON:
        print_json({"written": str(file)})
    elif not is_stdout(file):
        tell(f"The script is written to {file}; it needs PyTorch alone. On each of N nodes of D devices:")
        tell(
            f"  torchrun --nnodes N --nproc-per-node D --node-rank R --master-addr HOST {shell_word(file.name)} -o fabric.json"
        )
        tell("Next: meshwright calibrate fabric --import fabric.json --cluster NAME")
    return EXIT_GOOD


def _fit_and_keep(command: FabricCommand, measurements: str, name: str, settings: Settings) -> int:
    document = read_document(measurements, what="file of network measurements")
    engine = _engine(settings)
    cluster = _cluster(name, engine)
    found = fit_measurements(document, cluster, name)
    kept = CalibrationStore(engine).keep(found.calibration) if command.store else None
    if command.output is Output.JSON:
        print_json(_answer(found, kept))
    else:
        _print(found, kept)
    return EXIT_GOOD


def _cluster(name: str, engine: Engine) -> Cluster:
    """The cluster that is registered under a name, else the one that the words say."""
    from meshwright.app.store.tables import DEFAULT_TENANT

    try:
        return StoredRegistry(FleetNow(engine, DEFAULT_TENANT)).cluster(name)
    except ClusterError:
        pass
    try:
        return cluster_of_words(name)
    except ClusterError as error:
        raise ClusterError(
            "no cluster is registered under this name, and the words name none",
            given=name,
            allowed=error.allowed,
            remedy="register it: PUT /v1/clusters/NAME, or say it in words",
        ) from None


def _print(found: FabricCalibration, kept: Kept | None) -> None:
    console, document = page_console(), found.calibration.document
    console.print(plain(f"{document['key']}: {document['basis']}"))
    print_scores(console, scores_of(found.calibration))
    for kind, ratio in document["alone"].items():
        console.print(f"{kind} with all groups of a node at once: {ratio:.2f} times one alone")
    print_kept(console, kept)


def _answer(found: FabricCalibration, kept: Kept | None) -> dict[str, Any]:
    return {
        "name": found.calibration.name,
        "key": found.calibration.document["key"],
        "version": None if kept is None else kept.row.version,
        "new": kept is not None and kept.is_new,
        "stale": 0 if kept is None else kept.stale,
        "scores": list(found.calibration.document["scores"]),
    }


def _engine(settings: Settings) -> Engine:
    """The engine of the database, its schema ready; its errors end the command."""
    from meshwright.app.store.engine import open_engine
    from meshwright.app.store.migrate import ensure_ready

    engine = open_engine(settings.database_url)
    ensure_ready(engine)
    return engine
