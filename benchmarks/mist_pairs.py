"""Mist's inter-stage objective, solved exactly for every pair of micro-batch count and stage count of one instance.

Run from the root of the repository: python -m benchmarks.mist_pairs
32 layers on 16 devices in 1 to 16 stages, micro-batch counts that divide a batch of 64; each stage chooses among ten settings
that trade time for memory, as recomputation, ZeRO and offloading do. The objective is Mist's (EuroSys'25).
"""

from __future__ import annotations

import time

import numpy as np

from meshwright.solver.stages import partition_layers

LAYERS, DEVICES, SETTINGS = 32, 16, 10
MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)
MEMORY = 48.0


def main() -> None:
    """Prints the pairs, how many fit, and the CPU seconds of all together after one call that compiles."""
    solve(2, 2)
    started_s = time.process_time()
    found = [solve(stages, m) for stages in range(1, DEVICES + 1) for m in MICROBATCHES]
    cpu_s = time.process_time() - started_s
    fitting = sum(objective_s is not None for objective_s in found)
    print(f"{len(found)} pairs, {fitting} fit, {cpu_s:.2f} CPU s together, {1e3 * cpu_s / len(found):.2f} ms each")


def solve(stages: int, n_microbatches: int) -> float | None:
    """The least step time, in units of a layer's micro-batch on one device; None where nothing fits."""
    rng = np.random.default_rng(stages)
    devices = DEVICES / stages
    layer_s = rng.uniform(0.9, 1.1, LAYERS) / devices * (1 + 0.05 * np.log2(devices))
    # Settings: up to 1.4 times the time for down to a fifth of the activations.
    slower = np.linspace(1.0, 1.4, SETTINGS)[:, None]
    kept = np.linspace(1.0, 0.2, SETTINGS)[:, None]
    found = partition_layers(
        time_s=slower * layer_s,
        static_bytes=np.full(LAYERS, 10.0 / devices),
        activation_bytes=kept * np.full(LAYERS, 4.0 / devices),
        transient_bytes=np.full((SETTINGS, LAYERS), 0.5),
        extra_s=np.full(LAYERS, 0.3 / devices),
        boundary_s=0.02,
        capacity_bytes=np.full(stages, MEMORY),
        in_flight=np.minimum(n_microbatches, stages - np.arange(stages)),
        n_microbatches=n_microbatches,
    )
    return None if found is None else found.objective_s


if __name__ == "__main__":
    main()
