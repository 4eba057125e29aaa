"""Gemma 4's feed-forward network with experts: dense and routed experts side by side, each with its norms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.app.importers.bodies.experts import Experts
from meshwright.app.importers.bodies.mlp import Mlp
from meshwright.app.importers.parts import NormKind, norm
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor


@dataclass(frozen=True, slots=True)
class DenseBesideExperts:
    """Norms of its own: of the input for the dense network, the router and the experts, of both outputs and of their sum.

    The router's norm has a scale of its own; a scale of each expert's weight counts as the router's bias does.
    """

    dense: Mlp
    experts: Experts

    @property
    def tag(self) -> str:
        """Word that tells blocks with experts from blocks with a dense feed-forward network."""
        return "moe"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the stream to the normed sum, which is the body's output."""
        steps = [norm("mlp_norm", NormKind.RMS, source=source, target="mlp_normed")]
        steps += self.dense.operators(steps[-1].outputs[0], dims)
        steps.append(norm("dense_post_norm", NormKind.RMS, source=steps[-1].outputs[0], target="dense_normed"))
        dense = steps[-1].outputs[0]
        steps.append(norm("router_norm", NormKind.RMS, source=source, target="router_in"))
        steps += self.experts.route(steps[-1].outputs[0])
        steps.append(norm("experts_norm", NormKind.RMS, source=source, target="experts_in"))
        steps += self.experts.routed(steps[-1].outputs[0])
        steps.append(norm("experts_post_norm", NormKind.RMS, source=steps[-1].outputs[0], target="experts_normed"))
        both = (dense, steps[-1].outputs[0])
        summed = Tensor("feed_forward_sum", source.dims)
        steps.append(Operator("join", OperatorKind.ELEMENTWISE, inputs=both, outputs=(summed,), flops_per_element=1.0))
        steps.append(norm("mlp_post_norm", NormKind.RMS, source=summed, target="mlp_post_normed"))
        return tuple(steps)
