"""``calibrate``: measurements taken, imported and fitted; calibrations listed, shown and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from meshwright.app.base.console import page_console, plain
from meshwright.app.base.errors import EXIT_GOOD
from meshwright.app.base.output_files import check_one_stdout, is_stdout, write_output
from meshwright.app.base.quoting import shell_word
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import Output, print_json, tell
from meshwright.app.cli.pages.calibration_pages import (
    print_calibration,
    print_diff,
    print_kept,
    print_list,
    print_scores,
    scores_of,
)
from meshwright.app.evidence.measuring.fabric import FabricCalibration, fit_measurements, script_text
from meshwright.app.evidence.measuring.fitted import FittedCalibration, fit_calibration, target_of
from meshwright.app.evidence.measuring.profiling import ProfilingDevice
from meshwright.app.evidence.measuring.sample_files import read_samples, write_samples
from meshwright.app.requests.cluster_words import cluster_of_words
from meshwright.app.requests.files import read_document
from meshwright.app.store.calibrations import CalibrationStore, KeptCalibration
from meshwright.app.store.fleet import FleetNow, StoredRegistry
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError, InvalidInputError
from meshwright.costmodels.fitting.board import board_of
from meshwright.costmodels.fitting.samples import SampleError, SampleKind, Samples, joined
from meshwright.costmodels.hardware import node_type

if TYPE_CHECKING:
    from meshwright.app.store.calibrations import CalibrationSummary


@dataclass(frozen=True, slots=True)
class ProfileCommand:
    """Options of ``calibrate profile``."""

    key: str
    file: Path
    backend: ProfilingDevice
    kinds: tuple[str, ...]
    ranks: int
    threads: int
    repeat_ms: float


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The options of fitting samples: relative to which node's device, on how many cores, in how many folds; and kept or
    not."""

    node: str | None
    cores: int
    folds: int
    store: bool
    output: Output


def run_profile(command: ProfileCommand) -> int:
    """Measure and write the measurements to a file."""
    from meshwright.app.evidence.measuring.profiling import ProfileTask, profile

    unknown = sorted(set(command.kinds) - set(SampleKind))
    if unknown:
        raise SampleError("unknown kind of measurement", given=unknown, allowed=", ".join(SampleKind))
    kinds = frozenset(SampleKind(kind) for kind in command.kinds) or frozenset(SampleKind)
    task = ProfileTask(command.key, command.backend, kinds, command.ranks, command.threads, command.repeat_ms * 1e-3)
    with _progress(f"measuring {command.key}") as show:
        samples = profile(task, show)
    write_samples(command.file, samples)
    if not is_stdout(command.file):
        tell(f"{len(samples):,} measurements of {command.key} written to {command.file}")
        tell(f"Next: meshwright calibrate fit {command.file}")
    return EXIT_GOOD


def run_import(files: Sequence[Path], keys: Sequence[str], file: Path | None, options: FitOptions, settings: Settings) -> int:
    """Read measurements from files, or the tables of the installed package; write them to a file, or fit and keep them."""
    check_one_stdout(taken=options.output is Output.JSON, outputs=[file])
    samples = _read_all(files, keys) if files else _read_package(keys)
    if file is not None:
        write_samples(file, samples)
        if options.output is Output.JSON:
            print_json({"measurements": len(samples), "written": str(file)})
        elif not is_stdout(file):
            tell(f"{len(samples):,} measurements written to {file}")
        return EXIT_GOOD
    return _fit_and_keep(samples, options, settings)


def run_fit(files: Sequence[Path], keys: Sequence[str], options: FitOptions, settings: Settings) -> int:
    """Fit the measurements of files, print the held-out errors, keep the calibrations."""
    return _fit_and_keep(_read_all(files, keys), options, settings)


def run_list(key: str | None, output: Output, settings: Settings) -> int:
    """List stored calibrations."""
    rows = _store(settings).list(key)
    if output is Output.JSON:
        print_json({"calibrations": [_row_document(row) for row in rows]})
    else:
        print_list(page_console(), rows)
    return EXIT_GOOD


def run_show(reference: str, output: Output, settings: Settings) -> int:
    """Print a stored calibration: its document, or a page of its errors."""
    store = _store(settings)
    calibration = store.find(reference)
    if output is Output.JSON:
        print_json(calibration.document)
    else:
        print_calibration(page_console(), calibration, store.resolve(calibration.name))
    return EXIT_GOOD


def run_diff(old: str, new: str, output: Output, settings: Settings) -> int:
    """Print what differs between two stored calibrations."""
    from meshwright.app.evidence.measuring.comparison import compare

    store = _store(settings)
    diff = compare(store.find(old), store.find(new))
    if output is Output.JSON:
        print_json(asdict(diff))
    else:
        print_diff(page_console(), diff)
    return EXIT_GOOD


def _read_all(files: Sequence[Path], keys: Sequence[str]) -> Samples:
    samples = joined([read_samples(path) for path in files])
    if not keys:
        return samples
    known = set(samples.device.tolist())
    unknown = sorted(set(keys) - known)
    if unknown:
        raise SampleError("the files have no measurements of this device", given=unknown, allowed=", ".join(sorted(known)))
    return joined([samples.where(samples.device == key) for key in keys])


def _read_package(keys: Sequence[str]) -> Samples:
    from meshwright.app.evidence.measuring.aiconfigurator import DEVICES, import_device, installed_tables, package_version

    folder, release = installed_tables(), package_version()
    unknown = sorted(set(keys) - set(DEVICES))
    if unknown:
        raise SampleError("tables of this device are not read", given=unknown, allowed=", ".join(DEVICES))
    return joined([import_device(key, folder, release=release) for key in keys or DEVICES])


def _fit_and_keep(samples: Samples, options: FitOptions, settings: Settings) -> int:
    node = None if options.node is None else node_type(options.node)
    store = _store(settings) if options.store else None
    answers = []
    for key in sorted(set(samples.device.tolist())):
        rows = samples.where(samples.device == key)
        board = board_of(rows, key=key, node=node, cores=options.cores)
        with _progress(f"fitting {key}") as show:
            fitted = fit_calibration(rows, board, folds=options.folds, on_curve=show)
        kept = None if store is None else store.keep(fitted.calibration)
        answers.append(_answer(fitted, kept))
        if options.output is Output.PAGE:
            _print_fit(fitted, kept)
    if options.output is Output.JSON:
        print_json({"calibrations": answers})
    return EXIT_GOOD


def _print_fit(fitted: FittedCalibration, kept: KeptCalibration | None) -> None:
    console = page_console()
    key = fitted.calibration.document["key"]
    console.print(f"{key}: {fitted.calibration.document['samples']['rows']:,} measurements")
    print_scores(console, fitted.scores)
    if print_kept(console, kept):
        console.print()


def _answer(fitted: FittedCalibration, kept: KeptCalibration | None) -> dict[str, Any]:
    scores = []
    for score in scores_of(fitted.calibration):
        target = target_of(score)
        judged = None if target is None else {**asdict(target), "holds": target.holds(score)}
        scores.append({**asdict(score), "target": judged})
    return _document(fitted.calibration, kept, scores)


def _document(calibration: Calibration, kept: KeptCalibration | None, scores: list[Any]) -> dict[str, Any]:
    """A calibration that was made, and what became of it in the store."""
    return {
        "name": calibration.name,
        "key": calibration.document["key"],
        "version": None if kept is None else kept.row.version,
        "new": kept is not None and kept.is_new,
        "stale": 0 if kept is None else kept.stale,
        "scores": scores,
    }


def _row_document(row: CalibrationSummary) -> dict[str, Any]:
    return {**{name: value for name, value in asdict(row).items() if name != "id"}, "created_at": row.created_at.isoformat()}


def _store(settings: Settings) -> CalibrationStore:
    """The calibration store; unlike plans, calibrations are worth nothing without it, so its errors end the command."""
    from meshwright.app.store.engine import open_engine
    from meshwright.app.store.migrate import ensure_ready

    engine = open_engine(settings.database_url)
    ensure_ready(engine)
    return CalibrationStore(engine)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr when that is a terminal; told what is done, of how much (0: not known), and what runs."""
    from meshwright.app.cli.pages.progress_bar import progress_bar
    from meshwright.solver.control import Progress

    with progress_bar(what) as on_progress:
        yield lambda done, total, note: on_progress(Progress(done=done, total=total, best=None, bound=None, note=note))


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
    return _fit_network(command, str(command.measurements), command.cluster, settings)


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


def _fit_network(command: FabricCommand, measurements: str, name: str, settings: Settings) -> int:
    document = read_document(measurements, what="file of network measurements")
    engine = _engine(settings)
    cluster = _cluster(name, engine)
    found = fit_measurements(document, cluster, name)
    kept = CalibrationStore(engine).keep(found.calibration) if command.store else None
    if command.output is Output.JSON:
        print_json(_fabric_answer(found, kept))
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


def _print(found: FabricCalibration, kept: KeptCalibration | None) -> None:
    console, document = page_console(), found.calibration.document
    console.print(plain(f"{document['key']}: {document['basis']}"))
    print_scores(console, scores_of(found.calibration))
    for kind, ratio in document["alone"].items():
        console.print(f"{kind} with all groups of a node at once: {ratio:.2f} times one alone")
    print_kept(console, kept)


def _fabric_answer(found: FabricCalibration, kept: KeptCalibration | None) -> dict[str, Any]:
    return _document(found.calibration, kept, list(found.calibration.document["scores"]))


def _engine(settings: Settings) -> Engine:
    """The engine of the database, its schema ready; its errors end the command."""
    from meshwright.app.store.engine import open_engine
    from meshwright.app.store.migrate import ensure_ready

    engine = open_engine(settings.database_url)
    ensure_ready(engine)
    return engine
