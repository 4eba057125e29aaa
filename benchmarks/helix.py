"""Reproduces the figures of Helix Parallelism (Bhatia et al. 2025) with one set of overheads for both models.

    python -m benchmarks.helix

Prints its figures beside the paper's; benchmarks/helix_page.py writes the page.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from benchmarks.helix_formulas import (
    DecodeHardware,
    DecodeShape,
    Layouts,
    hop_b_s,
    kv_read_s,
    lockstep_s,
    memory_used_bytes,
    token_s,
    weight_read_s,
)
from meshwright.app.models.catalog import model
from meshwright.costmodels.hardware import device, node_type

Floats = NDArray[np.float64]

CONTEXT = 1e6
"""Tokens in every cache."""

DEGREES = (1, 2, 4, 8, 16, 32, 64)
BATCHES = np.unique(np.concatenate([np.arange(1, 257), np.round(np.geomspace(257, 4096, 120))])).astype(np.float64)

HARDWARE = DecodeHardware(
    # Dense FP4 of the GB200 page; large products of the measured nvfp4 tables of GB200 reach 36 to 41% of it (quartiles).
    flops_per_s=0.4 * device("gb200").peak_flops["fp4"],
    memory_bytes_per_s=device("gb200").memory_bytes_per_s,
    # What vLLM leaves an engine.
    memory_bytes=0.9 * device("gb200").memory_bytes,
    # Share of the fabric that one-shot all-reduces of 131 kB to 1 MB reach beyond their latency, on 2 to 8 ranks (measured
    # tables of aiconfigurator-core 0.12.0).
    link_bytes_per_s=0.75 * node_type("gb200-nvl72").intra.bytes_per_s,
    element_bytes=0.5,
    # Fixed time of a product in a CUDA graph: 1.7 us on B200 (calibrations/kernels/b200_sxm.json, launch_s of bf16).
    start_s=1.7e-6,
    # TensorRT-LLM 1.3.0rc20, all-reduce of 128 bytes: 3.8 us on 2 and 4.6 us on 4 GB200, 5.0 us on 8 B200; 0.6 us a doubling.
    collective_s=3.8e-6,
    doubling_s=0.6e-6,
)


class Strategy(StrEnum):
    """The layout of a point of the frontier."""

    TP = "tensor parallel"
    EP = "attention groups and experts"
    MEDHA = "Medha"
    HELIX = "Helix"
    HELIX_LOCKSTEP = "Helix, HOP-B off"


BASELINES = (Strategy.TP, Strategy.EP, Strategy.MEDHA)


def llama() -> DecodeShape:
    """Llama-3.1-405B. Kernels: norm, qkv, rope and append, attention, merge, o; norm, gate and up, activation, down."""
    dims = model("llama-3.1-405b").dims
    hidden, heads, size = dims["hidden"], dims["heads"], dims["head_dim"]
    return DecodeShape(
        layers=126, moe_layers=0, hidden=hidden, heads=heads, kv_heads=dims["kv_heads"], cache_elements=2 * size,
        pair_flops=4.0 * size, value_elements=size, split_elements=hidden * heads * size, kv_elements=2 * hidden * size,
        copied_elements=0.0, output_elements=hidden * heads * size, ffn=dims["ffn"], shared_ffn=0, experts=0, top_k=0,
        expert_ffn=0, attention_kernels=6, ffn_kernels=4, moe_kernels=0,
    )  # fmt: skip


def deepseek() -> DecodeShape:
    """DeepSeek-R1, expansions absorbed. Kernels of attention: norm, latents, norm, query, absorb, rope and append, attention,
    merge, expand, o; of experts: norm, router, choice, permute, gate and up, activation, down, combine; shared: three."""
    dims = model("deepseek-v3").dims
    hidden, heads, rank, rotary = dims["hidden"], dims["heads"], dims["kv_rank"], dims["qk_rope_dim"]
    return DecodeShape(
        layers=61, moe_layers=58, hidden=hidden, heads=heads, kv_heads=1, cache_elements=rank + rotary,
        pair_flops=2.0 * (2 * rank + rotary), value_elements=dims["v_head_dim"],
        split_elements=dims["q_rank"] * heads * dims["qk_head_dim"] + rank * heads * (dims["qk_nope_dim"] + dims["v_head_dim"]),
        kv_elements=0.0, copied_elements=hidden * (dims["q_rank"] + rank + rotary),
        output_elements=hidden * heads * dims["v_head_dim"], ffn=dims["ffn"], shared_ffn=dims["shared_ffn"],
        experts=dims["experts"], top_k=dims["top_k"], expert_ffn=dims["expert_ffn"], attention_kernels=10, ffn_kernels=4,
        moe_kernels=11,
    )  # fmt: skip


def degrees(shape: DecodeShape, strategy: Strategy) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(tpa, kvp, groups, tpf, ep, pp) of a strategy on 1 to 64 devices."""
    for stage, pp in itertools.product(DEGREES, repeat=2):
        if stage * pp > 64:
            continue
        for tpa, kvp, groups in itertools.product(DEGREES, repeat=3):
            if tpa * kvp * groups != stage or tpa > shape.heads:
                continue
            for tpf, ep in itertools.product(DEGREES, repeat=2):
                if _is_strategy(shape, strategy, (tpa, kvp, groups, tpf, ep)):
                    yield tpa, kvp, groups, tpf, ep, pp


def _is_strategy(shape: DecodeShape, strategy: Strategy, degrees: tuple[int, int, int, int, int]) -> bool:
    tpa, kvp, groups, tpf, ep = degrees
    stage = tpa * kvp * groups
    if ep > max(1, shape.experts) or (shape.experts == 0 and ep > 1):
        return False
    match strategy:
        case Strategy.TP:
            return kvp == 1 and groups == 1 and tpf * ep == stage
        case Strategy.EP:
            return kvp == 1 and groups > 1 and shape.experts > 0 and tpf * ep == stage
        case Strategy.MEDHA:
            # One group of TPA ranks runs the network, whatever KVP adds; not for experts or one latent head (section 3.2).
            return kvp > 1 and groups == 1 and shape.experts == 0 and tpf == tpa and ep == 1 and tpa <= shape.kv_heads
        case _:
            return kvp > 1 and groups == 1 and tpf * ep == stage and tpa <= shape.kv_heads


@dataclass(frozen=True, eq=False)
class Points:
    """Layouts that fit in memory, with tokens/s of a user and of a device."""

    strategy: Strategy
    layouts: Layouts
    user: Floats
    device: Floats

    def chosen(self, which: NDArray[np.bool_]) -> Points:
        """The entries of a mask."""
        return Points(self.strategy, self.layouts.chosen(which), self.user[which], self.device[which])


def evaluate(shape: DecodeShape, strategy: Strategy, hardware: DecodeHardware = HARDWARE) -> tuple[Points, int]:
    """Every layout of a strategy with every batch, and how many were evaluated."""
    grid = np.array(list(degrees(shape, strategy)), np.float64)
    if not len(grid):
        nothing = np.zeros(0)
        return Points(strategy, Layouts(*[nothing] * 8), nothing, nothing), 0
    rows = np.repeat(grid, len(BATCHES), axis=0)
    batch = np.tile(BATCHES, len(grid))
    hop_b = np.full(len(batch), float(strategy is Strategy.HELIX))
    layouts = Layouts(*rows.T, batch, hop_b)  # type: ignore[call-arg]  # its rows are counted by no type
    seconds = token_s(shape, hardware, layouts, context=CONTEXT)
    fits = memory_used_bytes(shape, hardware, layouts, context=CONTEXT) <= hardware.memory_bytes
    points = Points(strategy, layouts, 1.0 / seconds, layouts.sequences / seconds / layouts.devices)
    return points.chosen(fits), len(batch)


def frontier(points: Sequence[Points]) -> tuple[Floats, Floats]:
    """Pareto frontier of several strategies: tokens/s of a user, rising, and the most tokens/s of a device at it."""
    user = np.concatenate([p.user for p in points])
    per_device = np.concatenate([p.device for p in points])
    order = np.lexsort((-per_device, -user))
    best = np.maximum.accumulate(per_device[order])
    kept = np.concatenate([[True], best[1:] > best[:-1]])
    return user[order][kept][::-1], per_device[order][kept][::-1]


def best_at(front: tuple[Floats, Floats], user: Floats) -> Floats:
    """Most tokens/s of a device at which every user gets at least so much, 0 where nothing is so fast."""
    at = np.searchsorted(front[0], user, side="left")
    return np.where(at < len(front[0]), np.append(front[1], 0.0)[np.minimum(at, len(front[1]))], 0.0)


@dataclass(frozen=True, slots=True)
class Gains:
    """Helix over baselines, and what turning HOP-B off costs.

    interactivity   fastest user of Helix over fastest user of the baselines
    batch           most tokens/s of a device at equal speed of a user (equal devices: equally more users)
    at_user         tokens/s of a user at which that is
    hop_b_loss      largest share of a user's speed lost at equal tokens/s of a device
    """

    interactivity: float
    batch: float
    at_user: float
    hop_b_loss: float


def all_points(shape: DecodeShape, hardware: DecodeHardware = HARDWARE) -> tuple[dict[Strategy, Points], int]:
    """Points of every strategy of a model, and how many configurations were evaluated."""
    results = {strategy: evaluate(shape, strategy, hardware) for strategy in Strategy}
    return {strategy: points for strategy, (points, _) in results.items()}, sum(count for _, count in results.values())


def gains(points: dict[Strategy, Points], baselines: Sequence[Strategy] = BASELINES) -> Gains:
    """Gains of Helix over the best of some baselines."""
    base, helix = frontier([points[s] for s in baselines]), frontier([points[Strategy.HELIX]])
    off = frontier([points[Strategy.HELIX_LOCKSTEP]])
    speeds = np.unique(np.concatenate([base[0], helix[0]]))
    speeds = speeds[speeds <= base[0][-1]]
    ratio = best_at(helix, speeds) / best_at(base, speeds)
    best = int(np.argmax(ratio))
    levels = np.unique(np.concatenate([helix[1], off[1]]))
    levels = levels[(levels <= off[1][0]) & (levels <= helix[1][0])]
    lost = 1.0 - fastest_at(off, levels) / fastest_at(helix, levels)
    return Gains(float(helix[0][-1] / base[0][-1]), float(ratio[best]), float(speeds[best]), float(lost.max()))


def fastest_at(front: tuple[Floats, Floats], per_device: Floats) -> Floats:
    """Fastest user at which every device still gives at least so many tokens/s."""
    falling = front[1][::-1]
    at = np.searchsorted(falling, per_device, side="left")
    return front[0][::-1][np.minimum(at, len(falling) - 1)]


def figure_1() -> str:
    """Table of Figure 1: reads of a layer in microseconds at B 8, Q 128, K 8, Hsz 128, F 65536, FP4, 8000 GB/s."""
    kv = {"batch": 8, "kv_heads": 8, "head_size": 128, "element_bytes": 0.5, "memory_bytes_per_s": 8e12}
    weights = {"hidden": 16384, "query_heads": 128, "kv_heads": 8, "head_size": 128, "ffn": 65536}
    widths = np.array(DEGREES)
    rows = [
        ("KV read, S = 1M, by TP", kv_read_s(tokens=1e6, tpa=widths, kvp=1, **kv)),
        ("KV read, S = 1M, TPA = 8, by KVP", kv_read_s(tokens=1e6, tpa=8, kvp=widths, **kv)),
        (
            "weight read, by TP (TPA = TPF)",
            weight_read_s(tpa=widths, tpf=widths, element_bytes=0.5, memory_bytes_per_s=8e12, **weights),
        ),
        (
            "weight read, TPA = 8, by KVP (TPF = 8 KVP)",
            weight_read_s(tpa=8, tpf=8 * widths, element_bytes=0.5, memory_bytes_per_s=8e12, **weights),
        ),
        ("KV read, TP = 8, by S in multiples of 64k", kv_read_s(tokens=65_536 * widths, tpa=8, kvp=1, **kv)),
    ]
    head = "| read of a layer, us | " + " | ".join(map(str, DEGREES)) + " |\n|" + " --- |" * (len(DEGREES) + 1)
    return "\n".join([head, *(f"| {name} | " + " | ".join(f"{1e6 * s:.1f}" for s in row) + " |" for name, row in rows)])


def figure_3() -> tuple[float, float]:
    """Figure 3: eight requests of 2 units of attention and 1.2 of communication, in lockstep and with HOP-B."""
    return float(lockstep_s(8, 2.0, 1.2)), float(hop_b_s(8, 2.0, 1.2))


MODELS = {"Llama-405B": llama, "DeepSeek-R1": deepseek}

PUBLISHED = {"Llama-405B": ("1.13x", "4x", "12%"), "DeepSeek-R1": ("1.5x", "32x", "1%")}
"""The paper's gains: interactivity, users at equal speed, and what HOP-B off costs."""


def main() -> None:
    """Print figures 1 and 3, and the gains of both models beside the paper's."""
    print(figure_1())
    print("\nFigure 3: {:.1f} in lockstep, {:.1f} with HOP-B\n".format(*figure_3()))
    for name, shape in MODELS.items():
        began_s = time.process_time()
        points, evaluated = all_points(shape())
        found, (interactivity, users, loss) = gains(points), PUBLISHED[name]
        print(
            f"{name}: {evaluated:,} configurations in {time.process_time() - began_s:.2f} CPU s, interactivity "
            f"{found.interactivity:.2f}x ({interactivity}), users {found.batch:.1f}x ({users}), "
            f"HOP-B off {found.hop_b_loss:.0%} ({loss})"
        )


if __name__ == "__main__":
    main()
