"""Writes docs/benchmarks-pytorch.md.

    python -m benchmarks.torch_truth

Takes some three minutes of four cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.torch_truth.training import LAYOUTS, Difference, planned, trained

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks-pytorch.md"
HEAD = """# PyTorch as the judge

`python -m benchmarks.torch_truth` plans a tiny decoder of six layers on four devices under restrictions that leave one layout,
exports each plan to [PyTorch](exporters.md), and runs the exported program in fp32 on four processes of gloo, and on one with
the whole model. Both train two steps of AdamW on the same sequences. Differences are relative: of the loss of both steps, and
the largest over all parameters of the norm of a gradient and of its product with a random tensor. In the second step weights
carry the rounding of the first.

| layout | loss | gradients | gradients of the second step |
|---|---|---|---|
"""
SHOWN = {"zero_stages": "ZeRO", "shard_ranks": "within", "schedules": "schedule", "recompute": "recompute"}


def row(layout: Mapping[str, Any], found: Difference) -> str:
    """Return a layout's row of the table."""
    degrees = [f"{axis} {layout[axis][0]}" for axis in ("dp", "tp", "pp") if layout[axis][0] > 1]
    others = [f"{word} {layout[name][0]}" for name, word in SHOWN.items() if name in layout]
    return f"| {', '.join(degrees + others)} | {found.loss:.1e} | {found.gradients:.1e} | {found.later_gradients:.1e} |"


def main() -> None:
    """Write the page."""
    rows = []
    for layout in LAYOUTS:
        (found,) = trained([planned(**layout)])
        rows.append(row(layout, found))
        print(rows[-1], flush=True)
    PAGE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
