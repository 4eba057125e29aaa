"""The picture of decisions among serving layouts: how often each rule's pick misses its target, and what the others lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.decisions_serving_rules import Decisions

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, BETWEEN, LEGEND = 300, 260, 60, 40, 50, 60, 330
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000", "#f0e442")
"""Colours that colour-blind readers tell apart (Okabe and Ito)."""

MOST_BROKEN, MOST_REGRET = 0.4, 0.3
"""Right and upper end of the axes: rules beyond them are left out."""

AIMS = (0.1, 0.06)
"""The most picks that may miss and the most throughput that the others may lose, as this project aims at."""


def decisions_svg(by_time: Mapping[str, Sequence[Decisions]]) -> str:
    """A panel for the target of each time, a point for each rule, the aims as lines."""
    panels = len(by_time)
    width = LEFT + panels * WIDTH + (panels - 1) * BETWEEN + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + BOTTOM}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{TOP + HEIGHT + BOTTOM}" fill="#ffffff"/>',
    ]
    names = [each.rule for each in next(iter(by_time.values())) if _is_shown(each)]
    for place, (name, results) in enumerate(by_time.items()):
        left = LEFT + place * (WIDTH + BETWEEN)
        parts += _axes(left, name)
        for each in filter(_is_shown, results):
            colour = COLOURS[names.index(each.rule) % len(COLOURS)] if each.rule in names else "#999999"
            x, y = left + WIDTH * each.broken / MOST_BROKEN, _y(each.regret)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
    right = LEFT + panels * WIDTH + (panels - 1) * BETWEEN + 24
    for number, rule in enumerate(names):
        y = TOP + 10 + 20 * number
        parts.append(f'<circle cx="{right}" cy="{y}" r="5" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(f'<text x="{right + 12}" y="{y + 4}">{escape(rule.split(" (")[0].split(":")[0])}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _is_shown(each: Decisions) -> bool:
    return each.broken <= MOST_BROKEN and each.regret <= MOST_REGRET and "after" not in each.rule


def _axes(left: int, name: str) -> list[str]:
    """Grid, labels and aims of a panel."""
    parts = [f'<text x="{left}" y="{TOP - 16}" font-weight="bold">target of {escape(name)}</text>']
    for share in (0.0, 0.1, 0.2, 0.3):
        parts.append(f'<path d="M{left} {_y(share):.1f}h{WIDTH}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 8}" y="{_y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for share in (0.0, 0.1, 0.2, 0.3, 0.4):
        x = left + WIDTH * share / MOST_BROKEN
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{share:.0%}</text>')
    broken, regret = AIMS
    parts.append(f'<path d="M{left} {_y(regret):.1f}h{WIDTH}" stroke="#444444" stroke-dasharray="4 3"/>')
    parts.append(
        f'<path d="M{left + WIDTH * broken / MOST_BROKEN:.1f} {TOP}v{HEIGHT}" stroke="#444444" stroke-dasharray="4 3"/>'
    )
    middle = left + WIDTH / 2
    parts.append(f'<text x="{middle}" y="{TOP + HEIGHT + 38}" text-anchor="middle">picks that miss the target</text>')
    if left == LEFT:
        label = "throughput that the others lose"
        parts.append(f'<text transform="translate(14 {TOP + HEIGHT / 2}) rotate(-90)" text-anchor="middle">{label}</text>')
    return parts


def _y(share: float) -> float:
    return TOP + HEIGHT * (1.0 - share / MOST_REGRET)
