"""Mixture of experts: a router, routed experts as grouped matrix operators, and a shared expert where there is one.

Expert parallelism moves tokens where ``dispatch`` and ``combine`` stand: each token goes to ``top_k`` of ``experts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from meshwright.app.models.architecture import Bias, NormKind, activation, norm, projection
from meshwright.app.models.bodies.mlp import Gate, Mlp, feed_forward
from meshwright.costmodels.model.dims import EXPERT_FFN, EXPERT_LATENT, EXPERTS, HIDDEN, SHARED_FFN, TOP_K
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight

# Softmax or sigmoid of the router's logits, and the choice of the largest: five operations a logit (survey section 5.1).
_ROUTE_FLOPS = 5.0
# A product with the routing weight and a sum for each element that comes back.
_COMBINE_FLOPS = 2.0


class SharedExpert(StrEnum):
    """Expert that every token meets: none, one whose output is added, or one whose output a learned gate scales."""

    NONE = "none"
    ADDED = "added"
    GATED = "gated"


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of width ``expert_ffn``, and a shared one of width ``shared_ffn``; ``gate`` as in Mlp.

    ``reads`` is the dim of a token that routed experts read and write: with ``expert_latent`` a projection that all experts
    share goes before the dispatch and another comes after the combination (LatentMoE of Nemotron 3).
    ``idle`` is the dim of experts that hand a token back as it is (LongCat): the router has columns for them.
    """

    function: str
    gate: Gate = Gate.GATED
    bias: Bias = Bias.NONE
    router_bias: Bias = Bias.NONE
    shared: SharedExpert = SharedExpert.NONE
    shared_bias: Bias = Bias.NONE
    reads: str = HIDDEN
    idle: str | None = None

    @property
    def tag(self) -> str:
        """Word that tells blocks with experts from blocks with a dense feed-forward network."""
        return "moe"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the sum over experts, which is the body's output."""
        steps = [*self.route(source), *self.routed(source)] if self.reads == HIDDEN else self._in_latent(source)
        if self.shared is not SharedExpert.NONE:
            steps += self._shared(source, routed=steps[-1].outputs[0])
        return tuple(steps)

    def route(self, source: Tensor) -> list[Operator]:
        """The choice of each token's experts, tensor ``routing``."""
        logits, routing = activation("router_logits", EXPERTS), activation("routing", TOP_K)
        outputs: tuple[Tensor, ...] = (logits,)
        suffixes: tuple[str, ...] = ("_router",)
        if self.idle is not None:
            outputs, suffixes = (logits, activation("idle_logits", self.idle)), ("_router", "_idle")
        router = projection("router", source=source, outputs=outputs, suffixes=suffixes, bias=self.router_bias)
        return [router, _elementwise("route", (logits,), routing, flops=_ROUTE_FLOPS, saved=(logits.name,))]

    def _in_latent(self, source: Tensor) -> list[Operator]:
        latent, out = activation("latent", EXPERT_LATENT), activation("moe_up_out", HIDDEN)
        down = projection("latent_down", source=source, outputs=(latent,), suffixes=("_latent_down",), bias=Bias.NONE)
        experts = self.routed(latent)
        combined = experts[-1].outputs[0]
        up = projection("latent_up", source=combined, outputs=(out,), suffixes=("_latent_up",), bias=Bias.NONE)
        return [*self.route(source), down, *experts, up]

    def routed(self, source: Tensor) -> list[Operator]:
        """From tokens to the sum over their experts."""
        routing = activation("routing", TOP_K)
        dispatched = activation("dispatched", TOP_K, self.reads)
        dispatch = _elementwise("dispatch", (source, routing), dispatched)
        dense = feed_forward(
            dispatched,
            prefix="experts_",
            width=(EXPERT_FFN,),
            output=activation("experts_out", TOP_K, self.reads),
            gate=self.gate,
            function=self.function,
            bias=self.bias,
        )
        combined = activation("moe_out", self.reads)
        # Routing weights are applied before the down projection in the kernels, so expert outputs need not be kept.
        inputs = (dense[-1].outputs[0], routing)
        combine = _elementwise("combine", inputs, combined, flops=_COMBINE_FLOPS, saved=(routing.name,))
        return [dispatch, *(_per_expert(operator) for operator in dense), combine]

    def _shared(self, source: Tensor, *, routed: Tensor) -> list[Operator]:
        out = activation("shared_out", HIDDEN)
        steps = list(
            feed_forward(
                source,
                prefix="shared_",
                width=(SHARED_FFN,),
                output=out,
                gate=self.gate,
                function=self.function,
                bias=self.shared_bias,
            )
        )
        if self.shared is SharedExpert.GATED:
            score = activation("shared_score")
            steps.append(_score(source, score))
            out = activation("shared_scaled", HIDDEN)
            inputs = (steps[-2].outputs[0], score)
            steps.append(_elementwise("shared_scale", inputs, out, flops=1.0, saved=tuple(tensor.name for tensor in inputs)))
        steps.append(_elementwise("shared_add", (routed, out), activation("mlp_out", HIDDEN), flops=1.0))
        return steps


def _per_expert(operator: Operator) -> Operator:
    """The operator with weights of its own for each expert; operators without weights work on the rows as they are."""
    weights = tuple(Weight(weight.name, (EXPERTS, *weight.dims)) for weight in operator.weights)
    return Operator(
        operator.name,
        operator.kind,
        inputs=operator.inputs,
        outputs=operator.outputs,
        weights=weights,
        saved=operator.saved,
        flops_per_element=operator.flops_per_element,
    )


def _score(source: Tensor, score: Tensor) -> Operator:
    """Projection of each token to one number, the gate of the shared expert."""
    return Operator(
        "shared_gate",
        OperatorKind.MATMUL,
        inputs=(source,),
        outputs=(score,),
        weights=(Weight("w_score", (HIDDEN,)),),
        saved=(source.name,),
    )


def _elementwise(
    name: str, inputs: tuple[Tensor, ...], output: Tensor, *, flops: float = 0.0, saved: tuple[str, ...] = ()
) -> Operator:
    return Operator(name, OperatorKind.ELEMENTWISE, inputs=inputs, outputs=(output,), saved=saved, flops_per_element=flops)


# Gemma 4's feed-forward network with experts: dense and routed experts side by side, each with its norms.


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
