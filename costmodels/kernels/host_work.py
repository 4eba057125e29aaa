"""The host's work of launching kernels, counted in launches: by modules, compiled layers, Megatron Core and CUDA graphs.

A launch is one kernel without arguments worth naming, launched from eager PyTorch. Its seconds are of the class of host, and
stand in the device's calibration (`costmodels.kernels.compute.launch_s`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.costmodels.model.implementation import HostPath, Implementation, VectorKernels


@dataclass(frozen=True, slots=True)
class HostWork:
    """Launches' worth of the host's work.

    operator     an operator in one pass, beside its kernels: Python, dispatch, autograd and hooks
    kernel       each kernel
    collective   each collective over tp: PyTorch's dispatch, NCCL's queue, and the events by which streams wait for one another
    ring         passing keys and values around a ring, in one pass of a block
    block        a block in one pass, whatever is in it
    step         a step, beside its blocks: loading a batch, gradient norm, optimizer, losses and timers
    """

    operator: float = 0.0
    kernel: float = 0.0
    collective: float = 0.0
    ring: float = 0.0
    block: float = 0.0
    step: float = 0.0


_RING = 51.0
"""On the survey's Ascends (Tables 10 and 11) a layer that waits for the host takes a quarter longer with cp, of any degree."""

_MEGATRON_RING = 75.0
"""With cp 2 the layers of Megatron-LM's tests take 14% longer, whatever tp."""

_MODULE = 20.5
"""A GPT layer of 10 operators with full recompute takes 3.0 to 3.6 ms of a micro-batch where it waits for the host in vTrain's
1,080 single-node runs on A100 (MICRO'24)."""

_MEGATRON_MODULE = 53.0
"""A layer of 10 operators takes 6 to 7 ms of a micro-batch in Megatron-LM's own functional tests on A100, with tp and without
(golden values of its repository). This, `_MEGATRON_RING` and `_MEGATRON_STEP` are fitted to these tests on A100 and H100,
SimuMax's 70B layers on B200 and NeMo's runs on H100, each source counting alike (docs/cost-models.md has those left out)."""

_COLLECTIVE = 7.5
"""Layers of vTrain's runs that wait for the host take 0.3 ms longer with tp 2 or 4 than without, six all-reduces each. This and
`_MODULE` are fitted to the runs of 12 and 20 layers (off by 5.7%); those of 16 and 24 are off by 5.6%."""

_MEGATRON_STEP = 4700.0
"""Megatron-LM's tests take 23 ms more than their layers on A100; vTrain's runs show none."""

_COMPILED_BLOCK = 30.0
"""Guards, the wrapper's autograd function and its views. A Llama layer of 16 columns, whose kernels take no time, takes 252 us
forward and 389 us backward eager, 179 and 209 us compiled (PyTorch 2.13 on a CPU where a launch takes 4.1 us): 44 and 51
launches compiled, of which some 15 and 20 are kernels."""

_GRAPHED_BLOCK = 10.0
"""An autograd function, the copy of its input to the graph's place, and one launch: 6.5 launches forward without the graph's
own (PyTorch 2.13, on the same CPU)."""

_WORK: Mapping[HostPath, HostWork] = {
    HostPath.MODULES: HostWork(operator=_MODULE, kernel=1.0, collective=_COLLECTIVE, ring=_RING),
    HostPath.MEGATRON_CORE: HostWork(
        operator=_MEGATRON_MODULE, kernel=1.0, collective=_COLLECTIVE, ring=_MEGATRON_RING, step=_MEGATRON_STEP
    ),
    # What lies between graphs stays: the same optimizer, losses and timers.
    HostPath.CUDA_GRAPHS: HostWork(block=_GRAPHED_BLOCK, step=_MEGATRON_STEP),
}
# Context parallelism splits a compiled layer at its attention.
_COMPILED = HostWork(kernel=1.0, collective=_COLLECTIVE, ring=_RING, block=_COMPILED_BLOCK)


def host_work(implementation: Implementation) -> HostWork:
    """The host's work under an implementation: modules whose kernels are compiled run as one function a block."""
    if implementation.host is HostPath.MODULES and implementation.kernels is VectorKernels.COMPILED:
        return _COMPILED
    return _WORK[implementation.host]
