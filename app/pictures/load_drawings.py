"""Drawings of a serving plan under load: percentiles over the load, distributions of times, queue and work over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshwright.app.base.figures import gib, percent, seconds, significant
from meshwright.app.pictures.charts import Axis, ChartSeries, Limit, Point, line_chart
from meshwright.app.pictures.rank_map import MOST_DEVICES, devices_drawing
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.switching import Switch

_NAMES = {"ttft": "P95 time to first token", "tpot": "P95 time per output token"}
_WHOLE = {"ttft": "time to first token", "tpot": "time per output token", "end_to_end": "time of a whole request"}

MOST_OVER = 2.5
"""A course is drawn up to so many times the larger of its target and its value at the plan's own load: beyond, the queue grows
without end, and nothing else could be read."""


def load_drawings(course: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield titles and drawings of percentiles over the load."""
    for name, title in _NAMES.items():
        told = [(point["load"], point[f"{name}_p95_s"]) for point in course["course"]]
        known = [(load, value) for load, value in told if value is not None]
        if known:
            yield f"{title} over the load", _course(course, name, title, known)


def _course(course: Mapping[str, Any], name: str, title: str, told: Sequence[tuple[float, float]]) -> str:
    own, unit, target = course["own"], course["unit"], course["targets_s"][name]
    at_own = min(told, key=lambda each: abs(each[0] - own))[1]
    most = MOST_OVER * max(at_own, target or 0.0)
    shown = [each for each in told if each[1] <= most]
    points = tuple(Point(load, value, f"{significant(load)} {unit}: {seconds(value)}") for load, value in shown)
    here = Point(own, at_own, f"the plan's own load, {significant(own)} {unit}: {seconds(at_own)}")
    over = "" if len(shown) == len(told) else f"; from {significant(told[len(shown)][0])} {unit} on the queue grows"
    limits = [] if target is None else [Limit(target, f"target {seconds(target)}")]
    series = [ChartSeries("simulated", points), ChartSeries("the plan's own load", (here,), is_apart=True)]
    return line_chart(f"{title} over the load{over}", Axis(f"{unit}{over}"), Axis(title, seconds), series, limits)


def distribution_drawings(course: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield titles and drawings of how long requests take at the plan's own load: the share of them that takes no longer."""
    percentiles = course["percentiles"]
    for name, title in _WHOLE.items():
        spread = course["spread_s"][name]
        if not spread:
            continue
        points = tuple(
            Point(value, at / 100, f"{at}% of requests: {seconds(value)} or less" if at % 10 == 0 or at in (95, 99) else "")
            for at, value in zip(percentiles, spread, strict=True)
        )
        axes = Axis(title, seconds), Axis("share of requests that takes no longer", percent)
        yield f"Distribution: {title}", line_chart(f"Distribution of the {title}", *axes, [ChartSeries("", points)])


def over_time_drawings(simulation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield titles and drawings of requests that wait and decode on one worker over time, and of how busy it is."""
    parts = simulation.get("kinds") or [{"name": "", **simulation}]
    for part in parts:
        line, of_kind = part["timeline"], f", {part['name']}" if part["name"] else ""
        if line is None:
            continue
        ends = [(index + 1) * line["interval_s"] for index in range(len(line["busy"]))]
        both = [ChartSeries(name, _points(ends, line[name])) for name in ("waiting", "decoding")]
        time = Axis("time", seconds)
        yield f"Requests over time{of_kind}", line_chart("Requests that wait and that decode", time, Axis("requests"), both)
        busy = ChartSeries("", _points(ends, line["busy"]))
        yield f"Work over time{of_kind}", line_chart("Share of time that works", time, Axis("busy", percent), [busy])


def _points(ends: Sequence[float], values: Sequence[float]) -> tuple[Point, ...]:
    return tuple(Point(end, value) for end, value in zip(ends, values, strict=True))


# The bytes that each device receives when a training run changes its plan, over the nodes of the new plan's cluster.

_LEVELS = 4
"""Shades, the least first."""


def exchange_drawing(switch: Switch, cluster: Cluster) -> str:
    """Return the devices shaded by what they receive; nothing of clusters too large to draw, whose stages tell."""
    if cluster.n_devices > MOST_DEVICES:
        return ""
    received, kept, sent = switch.total.received, switch.total.kept, switch.total.sent
    most = max(float(received.max()), 1.0)

    def look(device: int) -> tuple[str, str]:
        share = float(received[device]) / most
        level = 0 if share <= 0 else min(_LEVELS, 1 + int(share * (_LEVELS - 1)))
        said = f"keeps {gib(float(kept[device]))}, receives {gib(float(received[device]))}, sends {gib(float(sent[device]))}"
        return f"s{level}", said

    names = [("s0", "receives nothing"), ("s1", "little"), (f"s{_LEVELS}", f"most: {gib(most)}")]
    return devices_drawing("What each device receives", cluster, look, names)
