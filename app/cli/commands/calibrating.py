"""``calibrate``: measurements taken, imported and fitted; calibrations listed, shown and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.app.base.console import page_console
from meshwright.app.base.errors import EXIT_GOOD
from meshwright.app.base.output_files import check_one_stdout, is_stdout
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
from meshwright.app.evidence.measuring.fitted import FittedCalibration, fit_calibration, target_of
from meshwright.app.evidence.measuring.profiling import Backend
from meshwright.app.evidence.measuring.sample_files import read_samples, write_samples
from meshwright.app.store.calibrations import CalibrationStore, Kept
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
    backend: Backend
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


def _print_fit(fitted: FittedCalibration, kept: Kept | None) -> None:
    console = page_console()
    key = fitted.calibration.document["key"]
    console.print(f"{key}: {fitted.calibration.document['samples']['rows']:,} measurements")
    print_scores(console, fitted.scores)
    if print_kept(console, kept):
        console.print()


def _answer(fitted: FittedCalibration, kept: Kept | None) -> dict[str, Any]:
    scores = []
    for score in scores_of(fitted.calibration):
        target = target_of(score)
        judged = None if target is None else {**asdict(target), "holds": target.holds(score)}
        scores.append({**asdict(score), "target": judged})
    return {
        "name": fitted.calibration.name,
        "key": fitted.calibration.document["key"],
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
