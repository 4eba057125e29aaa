"""The page that ``meshwright simulate`` prints: percentiles, and queue and utilisation over time as a small picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshwright.app.base.console import plain
from meshwright.app.base.figures import counted, percent, seconds, significant
from meshwright.costmodels.queueing.simulation.replica import LoadTimeline
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.serving.workers.simulation import PROBABILITIES, Distribution, RateSimulation, ServingSimulation

_LEVELS = " ▁▂▃▄▅▆▇█"


def print_simulation(console: Console, simulated: ServingSimulation, plan: Plan, request: PlanRequest) -> None:
    """Print the page of a simulated plan."""
    console.print(_headline(simulated, request))
    console.print(
        plain(
            f"{significant(simulated.requests_per_s)} requests/s, {significant(simulated.output_tokens_per_s)} output tokens/s "
            f"on {counted(plan.devices, 'device')}; {simulated.counted:,} of {counted(simulated.requests, 'request')} counted"
        )
    )
    _print_figures(console, simulated)
    if simulated.rates:
        console.print(plain("Each rate of the schedule by itself", style="bold"))
        console.print(_rates(simulated.rates))
        console.print(plain(_saved(simulated.rates), style="dim"))
    for kind in simulated.kinds:
        taken = f"{kind.name}, {percent(kind.share)} of arrivals, {significant(kind.simulated.requests_per_s)} requests/s"
        console.print()
        console.print(plain(taken, style="bold"))
        _print_figures(console, kind.simulated)


def _print_figures(console: Console, simulated: ServingSimulation) -> None:
    console.print(_percentiles(simulated))
    if simulated.timeline is not None:
        for line in _over_time(simulated.timeline):
            console.print(line)
    console.print(
        plain(
            f"Busy {percent(simulated.busy)} of the time, {significant(simulated.mean_batch)} requests decoding on average, "
            f"at most {simulated.peak_running:,} running, {counted(simulated.evictions, 'eviction')}",
            style="dim",
        )
    )


def _rates(rates: Iterable[RateSimulation]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("requests/s", "lasts", "P95 TTFT", "P95 TPOT", "replicas", "misses"):
        table.add_column(column, justify="left" if column == "misses" else "right")
    for rate in rates:
        table.add_row(
            significant(rate.requests_per_s),
            seconds(rate.seconds),
            "-" if rate.ttft_s is None else seconds(rate.ttft_s),
            "-" if rate.tpot_s is None else seconds(rate.tpot_s),
            "-" if rate.replicas is None else f"{rate.replicas:,}",
            ", ".join(name.replace("_", " ").upper() for name in rate.missed),
        )
    return table


def _saved(rates: Sequence[RateSimulation]) -> str:
    """The devices that fewer replicas at each rate save of the most that any needs."""
    counts = [rate.replicas for rate in rates]
    needed = [(rate.seconds, count) for rate, count in zip(rates, counts, strict=True) if count is not None]
    most = max((count for _, count in needed), default=0)
    if len(needed) < len(rates) or most == 0:
        return "P95 are with all workers of the plan"
    share = sum(lasting_s * count for lasting_s, count in needed) / (most * sum(lasting_s for lasting_s, _ in needed))
    return f"P95 are with all replicas; the fewest that keep the targets would run {percent(share)} of the replicas' hours"


def _headline(simulated: ServingSimulation, request: PlanRequest) -> Text:
    slo = request.slo
    if slo.p95_ttft_ms is None and slo.p95_tpot_ms is None:
        return plain("Simulated: the request sets no targets", style="bold")
    if not simulated.missed:
        return plain("Keeps its targets", style="bold green")
    targets = {"p95_ttft": slo.p95_ttft_ms, "p95_tpot": slo.p95_tpot_ms}
    missed = ", ".join(f"{name.replace('_', ' ').upper()} of {targets[name]:g} ms" for name in simulated.missed)
    return plain(f"Misses {missed}", style="bold red")


def _percentiles(simulated: ServingSimulation) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    for column in ("mean", *(f"P{probability:.0%}".removesuffix("%") for probability in PROBABILITIES)):
        table.add_column(column, justify="right")
    table.add_column("P95 interval", justify="right", no_wrap=True)
    rows = (("TTFT", simulated.ttft), ("TPOT", simulated.tpot), ("end to end", simulated.end_to_end))
    for name, found in rows:
        if found is not None:
            table.add_row(name, *_cells(found))
    return table


def _cells(found: Distribution) -> tuple[str, ...]:
    p95 = found.p95
    return (
        seconds(found.mean_s),
        *(seconds(percentile.value) for percentile in found.percentiles),
        f"{seconds(max(0.0, p95.low))} - {seconds(p95.high)}",
    )


def _over_time(line: LoadTimeline) -> list[Text]:
    rows = [("waiting", line.waiting, max(line.waiting)), ("decoding", line.decoding, max(line.decoding))]
    pictures = [_picture(name, values, top, f"to {significant(float(top))}") for name, values, top in rows]
    end = seconds(line.end_s)
    scale = plain(f"{'':>9} 0 s" + end.rjust(len(line.busy) - 3), style="dim")
    return [plain("Over time, one replica", style="bold"), *pictures, _picture("busy", line.busy, 1.0, "to 100%"), scale]


def _picture(name: str, values: Iterable[float], top: float, scale: str) -> Text:
    """One character an interval; its height is the value's share of ``top``."""
    steps = [round(float(value) / top * (len(_LEVELS) - 1)) if top > 0 else 0 for value in values]
    return (
        plain(f"{name:>9} ") + plain("".join(_LEVELS[step] for step in steps), style="cyan") + plain(f" {scale}", style="dim")
    )
