"""The machine at hand as PyTorch sees it: name, precision, memory, clock and peaks of memory."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from typing import Any

import torch

CPU, CUDA = "cpu", "cuda"
CPU_THREADS = 1
"""Of kernels and of steps on a CPU: what others do on its other cores then changes a time least."""
TENSOR_CORES_BF16 = (8, 0)
"""Compute capability from which products run in bf16 (NVIDIA CUDA C++ Programming Guide, Ampere)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One device under PyTorch. ``backend`` is "cpu" or "cuda"."""

    backend: str

    @property
    def device(self) -> Any:
        """The device that tensors lie on."""
        return torch.device(self.backend)

    @property
    def precision(self) -> str:
        """Format of weights and activations: what the device has matrix units for, fp32 on a CPU."""
        if self.backend == CPU:
            return "fp32"
        return "bf16" if torch.cuda.get_device_capability() >= TENSOR_CORES_BF16 else "fp16"

    @property
    def dtype(self) -> Any:
        """That format in PyTorch."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]

    def begin(self) -> None:
        """Make this process ready to run on it."""
        if self.backend == CPU:
            torch.set_num_threads(CPU_THREADS)

    def described(self) -> dict[str, Any]:
        """Name, memory, compute units and software; raises RuntimeError without the device."""
        if self.backend == CUDA and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA device; --device cpu --quick tries the benchmark without one")
        shared = {"precision": self.precision, "torch": torch.__version__, "python": platform.python_version()}
        if self.backend == CPU:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            return {"name": platform.machine(), "memory_bytes": memory, "cores": CPU_THREADS, **shared}
        figures = torch.cuda.get_device_properties(0)
        return {
            "name": figures.name, "memory_bytes": figures.total_memory, "cores": figures.multi_processor_count,
            "cuda": torch.version.cuda, **shared,
        }  # fmt: skip

    def timed_s(self, run: Any) -> float:
        """Seconds of a call, with the device's work before it done and its own work waited for."""
        self.wait()
        began_s = time.perf_counter()
        run()
        self.wait()
        return time.perf_counter() - began_s

    def wait(self) -> None:
        """Wait for the device's work."""
        if self.backend == CUDA:
            torch.cuda.synchronize()

    def peaks(self) -> dict[str, int]:
        """Highest bytes that PyTorch allocated and reserved in this process, and what else of the device is taken now.

        Nothing on a CPU, where PyTorch does not count them.
        """
        if self.backend == CPU:
            return {}
        free, total = torch.cuda.mem_get_info()
        return {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "beside_bytes": total - free - torch.cuda.memory_reserved(),
        }
