"""The host's part of a block: an eager framework launches kernels one by one, and small ones end before the next comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.step_by_step_scan import step_by_step_launches
from meshwright.costmodels.kernels.sustained import sustained_launch_s
from meshwright.costmodels.kernels.vector_traffic import vector_passes
from meshwright.costmodels.model.implementation import HostPath, Implementation, ScanKernels
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.model.split_dims import leaves_partial_sums, split_dim
from meshwright.solver.problem.graph import Block

CALLS_OF_OPERATOR: Mapping[HostPath, float] = {HostPath.MODULES: 4.1, HostPath.MEGATRON_CORE: 11.0}
"""Host work of an operator in one pass beside its kernels, in units of ``launch_s`` (25 us on an A100's host).

MODULES: a GPT layer of 10 operators with full recompute takes 3.0 to 3.6 ms of a micro-batch where it waits for the host
in vTrain's 1,080 single-node runs on A100 (MICRO'24). MEGATRON_CORE: a layer of 10 operators takes 6 to 7 ms of a
micro-batch in Megatron-LM's own functional tests on A100, with tp and without (golden values of its repository).
"""

CALLS_OF_COLLECTIVE = 1.5
"""Host work of launching a collective over tp, in units of ``launch_s``: PyTorch's dispatch, NCCL's queue, and the events by
which two streams wait for one another.

Layers of vTrain's runs that wait for the host take 0.3 ms longer with tp 2 or 4 than without, six all-reduces each. This and
MODULES are fitted to the runs of 12 and 20 layers (off by 5.7%); those of 16 and 24 are off by 5.6%.
"""

LAUNCH_SHARE = 0.2
"""Time of one more kernel of an operator, in units of ``launch_s``: 5 us, what a launch takes from PyTorch's own C++."""

CALLS_OF_STEP: Mapping[HostPath, float] = {HostPath.MODULES: 0.0, HostPath.MEGATRON_CORE: 600.0}
"""Host work once a step, in units of ``launch_s``: loading a batch, gradient norm, optimizer, losses and timers. The same
tests take 15 ms more than their layers on A100; vTrain's runs show none."""

RING_MODULES = 2.5
"""Host work of passing keys and values around a ring, over that of an operator.

With cp 2 the layers of Megatron-LM's tests take 14% longer, whatever tp; on the survey's Ascends (Tables 10 and 11) a layer
that waits for the host takes a quarter longer with cp, of any degree.
"""

MATMUL_KERNELS = (1, 2)
"""Kernels of a matrix product: one forward, one for each gradient."""
ATTENTION_KERNELS = (1, 3)
"""Of flash attention: backward multiplies outputs with their gradients first, and casts the query's gradient last."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds the host needs to launch one block's kernels."""

    forward_s: float
    backward_s: float

    @property
    def total_s(self) -> float:
        """Both passes together."""
        return self.forward_s + self.backward_s


def host_time(
    block: Block, device: Device, implementation: Implementation, *, cp: int = 1, collectives_of_sum: int = 0, chunks: int = 1
) -> HostTime:
    """Launch time of a block's passes; the device waits for it where its own work is shorter (DESIGN section 4, point 2).

    ``collectives_of_sum`` is how many collectives over tp add up partial sums: none without tp, an all-reduce, or with
    sequence parallelism a reduce-scatter and the gather before it. Each of ``chunks`` beyond the first is one more launch of a
    product and one of its collective.
    """
    modules = _modules(block) + _rings(block, cp)
    calls = CALLS_OF_OPERATOR[implementation.host] * modules
    counts = [launches(operator, implementation) for operator in block.operators]
    each_s = sustained_launch_s(device)
    of_sum = collectives_of_sum * (CALLS_OF_COLLECTIVE + 2 * LAUNCH_SHARE * (chunks - 1))
    forward_s, backward_s = (
        (calls + LAUNCH_SHARE * sum(count[i] for count in counts) + of_sum * sums) * each_s
        for i, sums in enumerate(_sums_over_tp(block))
    )
    return HostTime(forward_s, backward_s)


def _sums_over_tp(block: Block) -> tuple[int, int]:
    """Operators that leave partial sums over tp: of their outputs forward, of their input gradients backward."""
    outputs = sum(leaves_partial_sums(operator) for operator in block.operators)
    gradients = sum(
        operator.kind is OperatorKind.MATMUL and split_dim(operator) is not None and not leaves_partial_sums(operator)
        for operator in block.operators
    )
    return outputs, gradients


def _modules(block: Block) -> int:
    """Operators of a block, all steps of unfused attention together being one."""
    steps = sum(operator.kind is OperatorKind.NORM and not operator.weights for operator in block.operators)
    return len(block.operators) - max(0, steps - 1)


def _rings(block: Block, cp: int) -> float:
    """Host work of context parallelism in one pass of a block, in modules' worth."""
    passed_on = any(operator.kind in (OperatorKind.ATTENTION, OperatorKind.SCAN) for operator in block.operators)
    return RING_MODULES if cp > 1 and passed_on else 0.0


def step_host_s(device: Device, implementation: Implementation) -> float:
    """Host time that a step adds once."""
    return CALLS_OF_STEP[implementation.host] * sustained_launch_s(device)


def launches(operator: Operator, implementation: Implementation) -> tuple[int, int]:
    """Kernels of an operator, forward and backward."""
    if operator.kind is OperatorKind.MATMUL:
        return MATMUL_KERNELS
    if operator.kind is OperatorKind.ATTENTION:
        return ATTENTION_KERNELS
    if implementation.scan is ScanKernels.STEP_BY_STEP and (steps := step_by_step_launches(operator)):
        return steps
    passes = vector_passes(operator, implementation.kernels, implementation.loss)
    return (1, 1) if passes is None else (len(passes.forward), len(passes.backward))
