"""The course of figures over checks, a chart each, as a question that a process with limits answers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from meshwright.app.base.figures import gib, seconds, significant
from meshwright.app.pictures.charts import Axis, ChartSeries, Point, line_chart

MOST_CHARTS = 16
"""Charts of a page: twice the figures that a check has."""


def courses(asked: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Return the titles and drawings of the first figures of ``points``, oldest first, each with ``at`` and ``figures``."""
    points = asked["points"]
    names = dict.fromkeys(name for point in points for name in point["figures"])
    return {"drawings": [_course(name, points) for name in islice(names, MOST_CHARTS)]}


def _course(name: str, points: list[Mapping[str, Any]]) -> tuple[str, str]:
    """The title and the drawing of a figure over the checks, oldest left."""
    text = gib if name.endswith("_bytes") else seconds if name.endswith("_s") and "per_s" not in name else significant
    told = [(number, point["at"], point["figures"][name]) for number, point in enumerate(points, 1) if name in point["figures"]]
    drawn = tuple(Point(number, value, f"{at}: {text(value)}") for number, at, value in told)
    title = f"{name.replace('_', ' ')} over checks"
    return title, line_chart(title, Axis("check, oldest left"), Axis(name, text), [ChartSeries("", drawn)])
