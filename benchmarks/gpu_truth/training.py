"""A training step as a request counts it: 16-bit weights, gradients summed in fp32, AdamW over fp32 weights and moments."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu_truth.cases import TrainingCase
from benchmarks.gpu_truth.isolated import Tell
from benchmarks.gpu_truth.machine import Machine
from benchmarks.gpu_truth.modules import made, rotation

WARM_UP = 2
FEWEST, MOST = 5, 30


def run(tell: Tell, *, machine: Machine, case: TrainingCase, compiled: bool, measured_s: float) -> None:
    """Tell seconds of steps, timed for about ``measured_s``, five at least; and PyTorch's peaks of memory."""
    machine.begin()
    step = step_of(case, machine, compiled=compiled)
    found: dict[str, Any] = {"first_step_s": machine.timed_s(step)}
    for _ in range(WARM_UP):
        machine.timed_s(step)
    seconds: list[float] = []
    while len(seconds) < FEWEST or (len(seconds) < MOST and sum(seconds) < measured_s):
        seconds.append(machine.timed_s(step))
        found |= {"step_time_s": statistics.median(seconds), "least_s": min(seconds), "most_s": max(seconds)}
        tell(found | {"steps": len(seconds), **machine.peaks()})


def step_of(case: TrainingCase, machine: Machine, *, compiled: bool) -> Callable[[], None]:
    """A call that runs one step: forward and backward of each micro-batch, then the optimizer."""
    model = made(case.decoder, device=machine.device, dtype=machine.dtype)
    loss = mean_loss
    if compiled:
        # As torchtitan does it: each layer, and the loss, is a compiled function.
        for layer in model.layers:
            layer.compile(fullgraph=True)
        loss = torch.compile(mean_loss)
    update = optimizer(model)
    tokens = torch.randint(0, case.decoder.vocabulary, (case.global_batch, case.seq_len + 1), device=machine.device)
    microbatches = tokens.split(case.microbatch)
    cos, sin = rotation(case.seq_len, case.decoder.head_dim, machine.device)

    def step() -> None:
        for part in microbatches:
            (loss(model(part[:, :-1], cos, sin), part[:, 1:]) / len(microbatches)).backward()
        update()

    return step


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of the next token, in fp32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def optimizer(model: nn.Module) -> Callable[[], None]:
    """A call that updates the weights by the gradients summed since the last one.

    Where weights are fp32 they are their own masters, and PyTorch sums the gradients.
    """
    weights = list(model.parameters())
    if weights[0].dtype is torch.float32:
        own = torch.optim.AdamW(weights, lr=1e-5, fused=True)

        def update_own() -> None:
            own.step()
            own.zero_grad(set_to_none=True)

        return update_own
    masters = [weight.detach().float() for weight in weights]
    sums = [torch.zeros_like(master) for master in masters]
    for weight, master, gradients in zip(weights, masters, sums, strict=True):
        master.grad = gradients
        weight.register_post_accumulate_grad_hook(_adding_to(gradients))
    adamw = torch.optim.AdamW(masters, lr=1e-5, fused=True)

    def update() -> None:
        adamw.step()
        with torch.no_grad():
            torch._foreach_copy_(weights, masters)
            torch._foreach_zero_(sums)

    return update


def _adding_to(gradients: Tensor) -> Callable[[Tensor], None]:
    """A hook that adds a weight's gradient to its sum as soon as it is there, and lets it go."""

    def add(weight: Tensor) -> None:
        assert weight.grad is not None
        gradients.add_(weight.grad)
        weight.grad = None

    return add
