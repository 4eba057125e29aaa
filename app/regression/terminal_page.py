"""The page that ``meshwright check`` prints: a table of plans, then each finding with its cause and its fix."""

from __future__ import annotations

from typing import TextIO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshwright.app.base.console import PageConsole, plain
from meshwright.app.base.errors import EXIT_NO
from meshwright.app.base.figures import counted, gib, seconds, significant
from meshwright.app.regression.report import CheckReport, Finding, FindingRule, PlanCheck, Severity, Verdict

VERDICT_STYLES = {
    Verdict.SAME: "green",
    Verdict.BETTER: "green",
    Verdict.CHANGED: "cyan",
    Verdict.WARNED: "yellow",
}
SEVERITY_STYLES = {Severity.NOTE: "green", Severity.WARNING: "yellow", Severity.ERROR: "red"}
SPEEDS = (("ttft_p95_s", "P95 TTFT"), ("tokens_per_s", "tokens/s"))
"""Figures that stand for a plan's speed; the first that it has."""
SHOWN_INPUTS = 4
ACCEPTED_SILENTLY = frozenset({FindingRule.NEW, FindingRule.MISSING})
"""Findings of which an updated lock leaves nothing to say: the table has their verdict."""


def print_check(report: CheckReport, *, width: int | None, to: TextIO) -> None:
    """Print the page on a stream."""
    console = PageConsole(file=to, width=width)
    console.print(_table(report))
    for plan in report.plans:
        for findings in plan.grouped_findings:
            if not (report.updated and findings[0].rule in ACCEPTED_SILENTLY):
                console.print()
                _print_findings(console, plan, findings, with_fix=not report.updated)
        if plan.verdict is Verdict.CHANGED and plan.changed_inputs:
            console.print()
            console.print(plain(f"{plan.name}: changed, not worse", style="cyan"))
            console.print(Padding(plain(_inputs_line(plan), style="dim"), (0, 0, 0, 2), expand=False))
    for line in meshwright_lines(report):
        console.print(plain(f"Changed in Meshwright: {line}", style="yellow"))
    console.print()
    console.print(_ending(report))


def figure_columns(plan: PlanCheck) -> tuple[str, str, str]:
    """Speed, memory left and devices: as they are now, with what they were where that differs as shown."""
    return (
        _figure(plan, *_speed(plan)),
        _figure(plan, "memory_headroom_bytes", ""),
        _figure(plan, "devices", ""),
    )


def meshwright_lines(report: CheckReport) -> list[str]:
    """Changes of versions and calibrations, each with the number of plans that it touches."""
    return [f"{change} ({counted(plans, 'plan')})" for change, plans in report.meshwright_changes.items()]


def _table(report: CheckReport) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("plan", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for name in ("speed", "memory left", "devices"):
        table.add_column(name, justify="right", overflow="fold")
    for plan in report.plans:
        style = VERDICT_STYLES.get(plan.verdict, "bold red")
        table.add_row(
            plain(plan.name.removesuffix(".plan.yaml")),
            plain(plan.verdict.value, style=style),
            *(plain(cell) for cell in figure_columns(plan)),
        )
    return table


def _print_findings(console: Console, plan: PlanCheck, findings: tuple[Finding, ...], *, with_fix: bool) -> None:
    """Findings of one cause, then the cause and the fix."""
    for finding in findings:
        console.print(plain(f"{plan.name}: ", style="bold") + plain(finding.message, style=SEVERITY_STYLES[finding.severity]))
    for label, text in (("cause", findings[0].cause), ("fix", findings[0].fix if with_fix else "")):
        if text:
            console.print(Padding(plain(f"{label}: ", style="bold") + plain(text), (0, 0, 0, 2), expand=False))


def _inputs_line(plan: PlanCheck) -> str:
    shown = "; ".join(str(change) for change in plan.changed_inputs[:SHOWN_INPUTS])
    more = len(plan.changed_inputs) - SHOWN_INPUTS
    return f"{shown} and {more} more" if more > 0 else shown


def _ending(report: CheckReport) -> Text:
    if report.updated:
        return plain(f"Lock written: {report.summary}", style="bold green")
    if report.passed:
        return plain(f"Passed: {report.summary}", style="bold green")
    accept = f". If every change is meant: {report.accept}" if report.exit_code == EXIT_NO else ""
    return plain(f"Failed: {report.summary}{accept}", style="bold red")


def _speed(plan: PlanCheck) -> tuple[str, str]:
    known = {**(plan.was or {}), **(plan.now or {})}
    return next(((name, words) for name, words in SPEEDS if name in known), SPEEDS[-1])


def _figure(plan: PlanCheck, name: str, words: str) -> str:
    was, now = (None if side is None or name not in side else _shown(name, side[name]) for side in (plan.was, plan.now))
    if now is None:
        return "-" if was is None else f"{was} -> none"
    value = now if was is None or was == now else f"{was} -> {now}"
    return f"{value} {words}".strip()


def _shown(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return gib(value)
    if name.endswith("_s") and not name.endswith("per_s"):
        return seconds(value)
    return f"{value:g}" if name == "devices" else significant(value)
