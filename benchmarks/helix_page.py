"""Writes docs/benchmarks-helix.md and its picture: Helix Parallelism reproduced (benchmarks/helix.py) beside the paper.

    python -m benchmarks.helix_page [--page docs/benchmarks-helix.md]

Without --page it prints the page.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.helix import (
    BASELINES,
    HARDWARE,
    MODELS,
    PUBLISHED,
    Gains,
    Points,
    Strategy,
    all_points,
    deepseek,
    figure_1,
    figure_3,
    frontier,
    gains,
)


def gains_table(points: dict[str, dict[Strategy, Points]]) -> str:
    """Gains of both models beside the paper's."""
    lines = [
        "| model | interactivity, here | paper | users at equal speed, here | paper | HOP-B off, here | paper |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, by_strategy in points.items():
        found, paper = gains(by_strategy), PUBLISHED[name]
        lines.append(
            f"| {name} | {found.interactivity:.2f}x | {paper[0]} | {found.batch:.1f}x (at {found.at_user:.0f} tokens/s/user) | "
            f"{paper[1]} | {found.hop_b_loss:.0%} | {paper[2]} |"
        )
    return "\n".join(lines)


def baseline_table(points: dict[str, dict[Strategy, Points]]) -> str:
    """Gains over each baseline by itself."""
    lines = ["| model | over | interactivity | users at equal speed |", "| --- | --- | --- | --- |"]
    for name, by_strategy in points.items():
        for strategy in BASELINES:
            if len(by_strategy[strategy].user):
                found = gains(by_strategy, (strategy,))
                lines.append(f"| {name} | {strategy.value} | {found.interactivity:.2f}x | {found.batch:.1f}x |")
    return "\n".join(lines)


def sensitivity_table() -> str:
    """The same gains under other overheads."""
    lines = [
        "| start of a kernel, us | collective of 2 ranks + each doubling, us | Llama-405B | DeepSeek-R1 |",
        "| --- | --- | --- | --- |",
    ]
    for start_us, (pair_us, doubling_us) in itertools.product((1.0, 1.7, 3.0), ((2.0, 0.3), (3.8, 0.6), (6.0, 1.0))):
        changed = replace(HARDWARE, start_s=start_us * 1e-6, collective_s=pair_us * 1e-6, doubling_s=doubling_us * 1e-6)
        found = [gains(all_points(shape(), changed)[0]) for shape in MODELS.values()]
        cells = [f"{g.interactivity:.2f}x, {g.batch:.1f}x, {g.hop_b_loss:.0%}" for g in found]
        lines.append(f"| {start_us} | {pair_us} + {doubling_us} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def fastest_table(points: dict[str, dict[Strategy, Points]]) -> str:
    """The fastest layout of each strategy."""
    lines = [
        "| model | strategy | tokens/s/user | TPA | KVP | groups | TPF | EP | PP | most tokens/s/device |",
        "| --- |" + " --- |" * 9,
    ]
    for name, by_strategy in points.items():
        for strategy, found in by_strategy.items():
            if len(found.user):
                i = int(np.argmax(found.user))
                at = [f"{getattr(found.layouts, axis)[i]:.0f}" for axis in ("tpa", "kvp", "groups", "tpf", "ep", "pp")]
                row = [name, strategy.value, f"{found.user[i]:.0f}", *at, f"{found.device.max():.0f}"]
                lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


COLOURS = {Strategy.TP: "#888", Strategy.EP: "#d9822b", Strategy.MEDHA: "#8a5cc2", Strategy.HELIX: "#1b7f4c"}


def picture(points: dict[str, dict[Strategy, Points]]) -> str:
    """Frontiers of both models as one SVG, tokens/s of a device (logarithmic) over tokens/s of a user."""
    width, height, margin = 420, 300, 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * width} {height + 40}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for index, (name, by_strategy) in enumerate(points.items()):
        fronts = {s: frontier([p]) for s, p in by_strategy.items() if s in COLOURS and len(p.user)}
        top = max(front[1].max() for front in fronts.values())
        right = max(front[0].max() for front in fronts.values())
        left = index * width + margin
        span, rise = width - margin - 20, height - 60

        def place(user: float, device: float, left: int = left, right: float = right, top: float = top, span: int = span,
                  rise: int = rise) -> str:  # fmt: skip
            y = 30 + rise * (1.0 - max(0.0, np.log10(device / top * 1000.0) / 3.0))
            return f"{left + span * user / right:.1f},{y:.1f}"

        parts.append(f'<text x="{left}" y="18" font-weight="bold">{name}, 1M tokens, FP4, 1 to 64 GB200</text>')
        parts.append(f'<path d="M{left},30 V{30 + rise} H{left + span}" fill="none" stroke="#333"/>')
        for tick in range(4):
            y = 30 + rise * tick / 3
            parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{top / 10**tick:.3g}</text>')
            x = left + span * tick / 3
            parts.append(f'<text x="{x:.0f}" y="{46 + rise}" text-anchor="middle">{right * tick / 3:.0f}</text>')
        parts.append(f'<text x="{left + span / 2:.0f}" y="{62 + rise}" text-anchor="middle">tokens/s of a user</text>')
        for line, (strategy, front) in enumerate(fronts.items()):
            shown = front[1] >= top / 1000.0
            path = " ".join(place(u, d) for u, d in zip(front[0][shown], front[1][shown], strict=True))
            parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[strategy]}" stroke-width="1.6"/>')
            y = 44 + rise - 16 * (len(fronts) - line) - 20
            parts.append(f'<text x="{left + 8}" y="{y}" fill="{COLOURS[strategy]}">{strategy.value}</text>')
    parts.append(f'<text x="10" y="{height + 30}">tokens/s of a device (logarithmic) over tokens/s of a user</text></svg>')
    return "\n".join(parts) + "\n"


PAGE = """# Helix Parallelism, reproduced

Generated by `python -m benchmarks.helix_page --page docs/benchmarks-helix.md`; `python -m benchmarks.helix` prints the figures
alone. Formulas are those of Bhatia et al. 2025 (appendix A, sections 2.1 to 2.3) in
`benchmarks/helix_formulas.py`; layouts on 1 to 64 GB200 in powers of two, every batch up to 256 and 120 more
up to 4,096, caches of 1,000,000 tokens, weights and caches in FP4. {evaluated:,} configurations in {seconds:.2f} s of CPU time.

**Figure 1** (reads of one layer): the cache's is flat beyond TP = 8 = K, linear in S, and falls with KVP; weights fall
less than in proportion, as KVP ranks each hold the query projection of their TPA rank.

{figure_1}

**Figure 3**: eight requests of 2 units of attention and 1.2 of communication take {lockstep:.1f} units in lockstep and
{hop_b:.1f} with HOP-B (the paper prints 25.6 and 17).

**Figures 5 to 7**: Helix over the best of tensor parallelism, attention groups with expert parallelism, and Medha (which
the paper does not define for DeepSeek-R1), each with pipelines of every depth.

{gains}

![Pareto frontiers](benchmarks-helix.svg)

## Overheads: one set for both models

| what | value | from |
| --- | --- | --- |
| FP4 products | 40% of 10 PFLOP/s | large products of the measured nvfp4 tables of GB200: 36 to 41% |
| memory | 8,000 GB/s, 90% of 186 GB | the paper's appendix A; vLLM's default share |
| NVLink | 75% of 900 GB/s | one-shot all-reduces measured on B200 |
| collective | 3.8 us for 2 ranks, 0.6 us more each doubling | TensorRT-LLM, 128 bytes: 2, 4 GB200, 8 B200; extrapolated to 64 |
| start of a kernel | 1.7 us, one after the other | fixed time of a product, B200 tables |

A layer of Llama starts 10 kernels, of DeepSeek 14 (dense) or 21 (experts). The set was written down from these sources,
not searched for. Two things changed after the first comparison: the share of FP4 products, first taken as 65% without
looking, now as measured; and partial outputs of DeepSeek-R1, first sent as 512-wide latents, are expanded to 128 numbers
a head before they are exchanged, as section 2.1.1's message of H / (KVP x TPA) says. The first run gave 1.17x, 6.8x, 14%
and 1.41x, 8.5x, 36%.

## Why a plan promises less than this page

This page has the paper's kernels: what they read, and 1.7 us for each. A plan has the kernels that were measured. For one
user with a cache of 10^6 tokens, Llama-405B on 64 GB200 (tp 8 x kvp 8, weights in FP4, the cache in FP8), `plan` says
23.0 ms a token: 43 tokens/s a user, where the frontier here ends at 185. A layer takes 43 us here and 183 us in a plan:

| part | plan, us |
| --- | --- |
| products of queries, keys and values, and of gate and up | 62 |
| attention over the cache, and exchange of partial outputs | 53 |
| sums over 64 ranks, two | 49 |
| all else | 19 |

- TensorRT-LLM's nvfp4 product of one row and 16,384 columns takes 34 us on GB200, however few its outputs are.
- Decoding attention of one sequence of 131,072 tokens with one key/value head takes 31 us on B200: 1.1 TB/s of 8.
- No all-reduce of more than 8 ranks was measured there.

Kernels that share long rows among a device's units would give most of it back. A plan does not promise them until they
are measured.

## What is reproduced and what is not

- Reproduced: figures 1 and 3; the size of both interactivity gains; HOP-B's share for Llama-405B; that Medha is slower
  than tensor parallelism at the fast end, and that Helix moves the frontier only where users are fast. At low speed
  attention groups give DeepSeek-R1 as many tokens a device as Helix, or a few per cent more.
- Llama-405B: more users at equal speed than the paper's 4x. The ratio is taken at the very end of the baseline's frontier,
  where it falls steeply.
- DeepSeek-R1: not the paper's 32x with these overheads. The baseline's frontier falls in steps near its end, so the largest
  ratio depends on the latency of a collective more than on anything else; with a latency of 0.1 us whatever the ranks the
  three figures are {free_latency}.
- DeepSeek-R1: not the paper's 1% for HOP-B. It says that the exchange is 1% of a token's time. Here large batches exchange
  16-bit partial outputs of 128 heads, and Helix with HOP-B must then be compared with other layouts of equal throughput; at
  an equal layout HOP-B saves at most {same_layout:.0%}. With next to no latency and no bandwidth to pay, turning it off
  costs {free_loss:.0%}. None of the sets of overheads below gives 1% here and 12% for Llama-405B; the paper's simulator is
  not public.

Gains over each baseline by itself:

{baselines}

Under other overheads (interactivity, users at equal speed, HOP-B off):

{sensitivity}

The fastest layout of each strategy:

{fastest}
"""


FREE_LATENCY = replace(HARDWARE, collective_s=1e-7, doubling_s=0.0)


def _in_words(found: Gains) -> str:
    return f"{found.interactivity:.2f}x, {found.batch:.0f}x and {found.hop_b_loss:.0%}"


def page() -> tuple[str, str]:
    """The page and its picture."""
    started = time.process_time()
    points, evaluated = {}, 0
    for name, shape in MODELS.items():
        points[name], count = all_points(shape())
        evaluated += count
    seconds = time.process_time() - started
    on, off = points["DeepSeek-R1"][Strategy.HELIX], points["DeepSeek-R1"][Strategy.HELIX_LOCKSTEP]
    text = PAGE.format(
        evaluated=evaluated,
        seconds=seconds,
        figure_1=figure_1(),
        lockstep=figure_3()[0],
        hop_b=figure_3()[1],
        gains=gains_table(points),
        baselines=baseline_table(points),
        sensitivity=sensitivity_table(),
        fastest=fastest_table(points),
        free_latency=_in_words(gains(all_points(deepseek(), FREE_LATENCY)[0])),
        free_loss=gains(all_points(deepseek(), replace(FREE_LATENCY, link_bytes_per_s=1e18))[0]).hop_b_loss,
        same_layout=float(np.max(1.0 - off.user / on.user)),
    )
    return text, picture(points)


def main() -> None:
    """Print the page, or write it with its picture beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="write the page here, and benchmarks-helix.svg beside it")
    arguments = parser.parse_args()
    text, svg = page()
    if arguments.page is None:
        print(text)
        return
    arguments.page.write_text(text, encoding="utf-8")
    arguments.page.with_name("benchmarks-helix.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
