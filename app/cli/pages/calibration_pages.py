"""Calibrations as pages: their errors beside the targets, their list, and what differs between two."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from meshwright.app.base.console import plain
from meshwright.app.base.figures import percent
from meshwright.app.evidence.measuring.comparison import CalibrationDiff, Change
from meshwright.app.evidence.measuring.fitted import target_of
from meshwright.app.requests.calibrations import provenance_of
from meshwright.app.store.calibrations import CalibrationSummary, KeptCalibration
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.from_runs import is_run_key, time_law
from meshwright.costmodels.calibration.networks import is_fabric_key
from meshwright.costmodels.fitting.check import Score
from meshwright.costmodels.serving.latency_law import learned_latencies

SHOWN_DIGEST = len("sha256:") + 12
LONGEST_VALUE = 40


def print_scores(console: Console, scores: Sequence[Score]) -> None:
    """Held-out errors by kind of kernel, and whether they hold their targets."""
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column("held-out error", overflow="fold", min_width=27)
    for heading in ("rows", "median", "P95", "unseen", "target"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for score in scores:
        target = target_of(score)
        unseen = "" if score.unseen is None else " / ".join(percent(value) for value in score.unseen)
        asked = "" if target is None else f"{percent(target.median)} / {percent(target.p95)}"
        verdict = plain("")
        if target is not None:
            verdict = plain("holds", style="green") if target.holds(score) else plain("missed", style="yellow")
        table.add_row(score.name, f"{score.rows:,}", percent(score.median), percent(score.p95), unseen, asked, verdict)
    console.print(table)


def print_calibration(console: Console, calibration: Calibration, row: CalibrationSummary) -> None:
    """One stored calibration."""
    document = calibration.document
    console.print(plain(f"{row.key}@{row.version}", style="bold"), plain(row.name.partition("@")[2]), sep="  ")
    console.print(
        f"stored {row.created_at:%Y-%m-%d %H:%M} UTC, {row.samples:,} measurements ({row.samples_digest[:SHOWN_DIGEST]})"
    )
    latencies = learned_latencies((calibration,))
    if latencies is not None:
        for time, latency in (("first token", latencies.ttft), ("each other token", latencies.tpot)):
            more = f"median {latency.scale:.3f} times, at most {latency.factor(0.9):.3f} times in nine of ten cases"
            console.print(f"{time}: {1e3 * latency.outside_s:.1f} ms more than simulated, with that {more}")
    elif is_run_key(row.key):
        law = time_law(calibration)
        band = f"nine of ten runs between {law.factor(0.05):.3f} and {law.factor(0.95):.3f}"
        console.print(f"steps take {law.scale:.3f} times what the cost model says ({band})")
        console.print(f"memory of {len(document['memory'])} runs")
    elif is_fabric_key(row.key):
        console.print(plain(f"the network between nodes: {document['basis']}"))
        for kind, ratio in document["alone"].items():
            console.print(f"  {kind} with all groups of a node at once: {ratio:.2f} times one alone")
    else:
        console.print(f"relative to {document['board']['source']}")
    for source, rows in provenance_of(document).items():
        console.print(plain(f"  {source}: {rows}", style="dim"))
    console.print()
    if not is_run_key(row.key):
        print_scores(console, scores_of(calibration))


def print_list(console: Console, rows: Sequence[CalibrationSummary]) -> None:
    """Stored calibrations, newest first."""
    if not rows:
        console.print("No calibration is stored: the shipped ones are used. 'meshwright calibrate fit' makes one.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("calibration", "stored (UTC)", "digest", "source"):
        table.add_column(heading, overflow="fold")
    table.add_column("measurements", justify="right")
    for row in rows:
        digest = row.name.partition("@")[2][:SHOWN_DIGEST]
        table.add_row(f"{row.key}@{row.version}", f"{row.created_at:%Y-%m-%d %H:%M}", digest, row.source, f"{row.samples:,}")
    console.print(table)


def print_diff(console: Console, diff: CalibrationDiff) -> None:
    """Print the differences in three parts."""
    if diff.is_empty:
        console.print("The two are the same.")
        return
    for title, changes in (("Measurements", diff.provenance), ("Held-out errors", diff.errors), ("Constants", diff.constants)):
        if changes:
            console.print(plain(title, style="bold"))
            for change in changes:
                console.print(plain(f"  {_line(change)}"))


def scores_of(calibration: Calibration) -> tuple[Score, ...]:
    """The scores that a calibration's document holds."""
    return tuple(
        Score(**{**entry, "unseen": None if entry["unseen"] is None else tuple(entry["unseen"])})
        for entry in calibration.document["scores"]
    )


def _line(change: Change) -> str:
    ratio = "" if change.ratio is None else f" (x {change.ratio:.3g})"
    return f"{change.where}: {_value(change.old)} -> {_value(change.new)}{ratio}"


def _value(value: float | str | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.5g}"
    return value if len(value) <= LONGEST_VALUE else f"{value[: LONGEST_VALUE - 1]}…"


def print_kept(console: Console, kept: KeptCalibration | None) -> bool:
    """Print what became of a fitted calibration, and what comes next; return True where it is stored."""
    if kept is None:
        console.print("Not stored.")
        return False
    row = kept.row
    console.print(f"{'Stored' if kept.is_new else 'Stored already'} as {row.key}@{row.version}")
    if kept.stale:
        console.print(f"It makes the plans of {kept.stale} questions stale: meshwright replan --calibration {row.key}")
    console.print(f"Next: meshwright plan request.yaml --calibration {row.key}@{row.version}")
    return True
