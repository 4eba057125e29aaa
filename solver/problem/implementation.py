"""The implementation that a request states: a framework's profile by name, and the fields in which the user's run differs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.model.implementation import (
    AttentionKernels,
    Dropout,
    FlashAttention,
    GatedProducts,
    GradientReduction,
    HeadGradients,
    HostPath,
    Implementation,
    Logits,
    LossKernels,
    Projections,
    ScanKernels,
    ScanOverRanks,
    SelectiveRecompute,
    StateBuffers,
    TensorOverlap,
    TrainedWeights,
    ValueStorage,
    VectorKernels,
)
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.costmodels.units import STRICT_RECORD, Name, NonNegativeInt


@dataclass(frozen=True, slots=True)
class StatedImplementation:
    """The way in which the user's framework runs the training.

    A field that is left out is as the profile has it; without a profile, as the launcher of the search runs it.

    profile             name of a framework's profile
    kernels             kernels of norms, rotary embeddings, gated activations, dropout and residual sums
    stated_loss         kernels of the cross entropy
    attention_kernels   whether attention is one kernel
    attention           generation of that kernel
    dropout             whether dropout keeps masks
    selective           what selective recomputation runs again
    host                the host's work for each operator
    trained             whether all weights are trained, or adapters beside them
    scan                kernels of state-space mixers
    scan_over_ranks     how ranks of a sequence share such a mixer
    logits              the logits that the loss reads
    tensor_overlap      communication over tp that runs under computation
    projections         whether queries, keys and values are one product
    gated               products by which a gated feed-forward network reads its input
    value               what attention keeps of its value
    reduction           when gradients travel that are summed once a step
    head_gradients      when weight gradients of the head are computed
    state_buffers       buffers beside the training state
    context_bytes       what a process takes on its device without any tensors
    memory              memory of a run over what is counted of it: medians and spread
    """

    __pydantic_config__ = STRICT_RECORD

    profile: Name | None = None
    kernels: VectorKernels | None = None
    stated_loss: LossKernels | None = None
    attention_kernels: AttentionKernels | None = None
    attention: FlashAttention | None = None
    dropout: Dropout | None = None
    selective: SelectiveRecompute | None = None
    host: HostPath | None = None
    trained: TrainedWeights | None = None
    scan: ScanKernels | None = None
    scan_over_ranks: ScanOverRanks | None = None
    logits: Logits | None = None
    tensor_overlap: TensorOverlap | None = None
    projections: Projections | None = None
    gated: GatedProducts | None = None
    value: ValueStorage | None = None
    reduction: GradientReduction | None = None
    head_gradients: HeadGradients | None = None
    state_buffers: StateBuffers | None = None
    context_bytes: NonNegativeInt | None = None
    memory: MemoryLaw | None = None

    def over(self, launchers: Implementation) -> Implementation:
        """The implementation with all fields decided, ``launchers`` being that of the search's launcher.

        Raises WorkloadError for an unknown profile. A profile is looked up only where it decides something, so that a
        request with every field stated can be read when its profile is gone.
        """
        stated = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}
        if self.profile is None or len(stated) == len(_FIELDS):
            return replace(launchers, **stated)
        return replace(implementation_profile(self.profile).implementation, **stated)

    def decided(self, launchers: Implementation) -> StatedImplementation:
        """The same with every field stated: a request keeps its meaning when a profile changes."""
        whole = self.over(launchers)
        decided = {name: getattr(whole, name) for name in _FIELDS} | {"stated_loss": whole.loss}
        return StatedImplementation(profile=self.profile, **decided)


_FIELDS = tuple(field.name for field in fields(Implementation))
