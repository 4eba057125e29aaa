"""The host's part of a block: an eager framework launches kernels one by one, and small ones end before the next comes."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.host_work import host_work
from meshwright.costmodels.kernels.step_by_step_scan import step_by_step_launches
from meshwright.costmodels.kernels.sustained import sustained_launch_s
from meshwright.costmodels.kernels.vector_traffic import vector_passes
from meshwright.costmodels.model.implementation import Implementation, ScanKernels
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.model.split_dims import leaves_partial_sums, split_dim
from meshwright.solver.problem.graph import Block

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
    work = host_work(implementation)
    of_block = work.block + work.operator * _modules(block) + work.ring * _has_ring(block, cp)
    counts = [launches(operator, implementation) for operator in block.operators]
    of_sum = collectives_of_sum * (work.collective + 2 * work.kernel * (chunks - 1))
    each_s = sustained_launch_s(device)
    forward_s, backward_s = (
        (of_block + work.kernel * sum(count[i] for count in counts) + of_sum * sums) * each_s
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


def _has_ring(block: Block, cp: int) -> bool:
    """True where context parallelism passes keys and values, or states, around a ring."""
    return cp > 1 and any(operator.kind in (OperatorKind.ATTENTION, OperatorKind.SCAN) for operator in block.operators)


def step_host_s(device: Device, implementation: Implementation) -> float:
    """Host time that a step adds once."""
    return host_work(implementation).step * sustained_launch_s(device)


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
