"""The implementation of the operators between matrix products: the kernels that a framework runs, and so what they read, write
and keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from meshwright.costmodels.model.memory_law import GENERIC_LAW, MemoryLaw


class VectorKernels(StrEnum):
    """Kernels of norms, rotary embeddings, gated activations, dropout and residual sums."""

    EAGER = "eager"
    """Each step of a formula is a kernel of its own; norms and rotary embeddings work in fp32 and cast."""
    FUSED_NORMS = "fused-norms"
    """Norms are one kernel each (Apex, flash-attention's), the rest is eager."""
    FUSED = "fused"
    """One kernel an operator, written by hand (Transformer Engine, Megatron-LM's fused kernels)."""
    COMPILED = "compiled"
    """torch.compile fuses what lies between two matrix products."""


class FlashAttention(StrEnum):
    """The generation of fused attention kernels that a framework calls."""

    NATIVE = "native"
    """The fastest for the device, as its calibration measured (FlashAttention-2 on Ampere, 3 or cuDNN's from Hopper on)."""
    FLASH_2 = "flash-2"
    """FlashAttention-2 (Dao 2023), also inside PyTorch's scaled_dot_product_attention; no instructions of Hopper's."""
    FLASH_1 = "flash-1"
    """FlashAttention (Dao et al. 2022)."""
    FLASH_1_TRITON = "flash-1-triton"
    """FlashAttention written in Triton, which can add biases such as ALiBi."""


class AttentionFormat(StrEnum):
    """The number format of attention's products."""

    WORKING = "working"
    FP8 = "fp8"
    """In both passes, beside a recipe below 16 bits: queries, keys and values are cast before the kernel, its output behind
    it, and the casts are kept (Transformer Engine's fp8_dpa, which needs its fp8 context)."""


class GatedInputs(StrEnum):
    """The number format in which the inputs of a gated activation function are kept."""

    WORKING = "working"
    FP8 = "fp8"
    """One byte each, cast back before the backward pass (Megatron-LM's activation_func_fp8_input_store)."""


class SelectiveRecompute(StrEnum):
    """The operators that a framework's selective recomputation runs again."""

    ATTENTION_AND_NORMS = "attention-and-norms"
    """Attention cores and norms (Korthikanti et al., MLSys'23, section 5; Megatron-LM's modules core_attn and layernorm)."""
    EVERY_SECOND_PRODUCT = "every-second-product"
    """All but attention and every second matrix product of a layer (torchtitan's selective_ac_option "op")."""


class LossKernels(StrEnum):
    """The kernels of the cross entropy over the vocabulary; they decide what the loss keeps."""

    BY_HAND = "by-hand"
    """In place, split over tp (Megatron-LM's vocab_parallel_cross_entropy)."""
    FUSED_IN_PARTS = "fused-in-parts"
    """Its steps compiled one by one (Megatron-LM's --cross-entropy-loss-fusion): what ran in place is written anew."""
    EAGER = "eager"
    """PyTorch's log-softmax and its gradient, in fp32."""
    COMPILED = "compiled"
    """One compiled function: softmax is made again from the 16-bit logits (torchtitan since pull request 1033)."""


class Logits(StrEnum):
    """The logits that the loss reads where tp splits the vocabulary."""

    SPLIT = "split"
    """Each rank its own columns (Megatron-LM, torchtitan's loss parallelism)."""
    GATHERED = "gathered"
    """All columns on every rank, gathered after the head (Aleph Alpha's scaling, whose head has no parallel output)."""


class GatedProducts(StrEnum):
    """The products by which a gated feed-forward network reads its input."""

    ONE = "one"
    """Gate and up projection are one product (Megatron-LM, Transformer Engine)."""
    TWO = "two"
    """Two modules, each of which sums its own gradient of the input over tp (Aleph Alpha's scaling, ParallelSwiGLUMLP)."""


class ValueStorage(StrEnum):
    """The tensor that an attention kernel keeps of its value, where query, key and value are written by one projection."""

    OWN = "own"
    """A tensor of its own: there are three projections, or the value is copied."""
    SLICE = "slice"
    """A slice of the projection's output, all of which stays for it (Aleph Alpha's scaling; fused kernels always)."""


class ScanKernels(StrEnum):
    """The kernels of the chunked scan of a state-space mixer (Mamba-2) and of the convolution before it."""

    FUSED = "fused"
    """Hand-written kernels (mamba-ssm's in Triton)."""
    STEP_BY_STEP = "step-by-step"
    """Batched products with copies and element-wise kernels between (`costmodels.kernels.step_by_step_scan`)."""


class ScanOverRanks(StrEnum):
    """The way in which the ranks of a sequence (context parallelism) share a state-space mixer."""

    STATES = "states"
    """Each scans its own tokens; one all-gather tells all the states between them (LASP-2, Sun et al. 2025)."""
    HEADS = "heads"
    """They exchange tokens for heads and back (Megatron-LM, megatron/core/ssm/mamba_context_parallel.py)."""


class HostPath(StrEnum):
    """The host's work for each operator before its kernels are launched."""

    MODULES = "modules"
    """PyTorch modules that call their kernels (Hugging Face, torchtitan, Megatron-LM of 2022); where their kernels are
    compiled, one function a layer."""
    MEGATRON_CORE = "megatron-core"
    """Megatron Core with its hooks for gradients and communication, Transformer Engine or not."""
    CUDA_GRAPHS = "cuda-graphs"
    """Each pass of a layer is one captured graph, collectives over tp among its kernels (Megatron-LM's --cuda-graph-impl)."""


class Projections(StrEnum):
    """The projections that make queries, keys and values from the residual stream."""

    JOINT = "joint"
    """One product, of whose output all three are views (Megatron-LM's linear_qkv)."""
    SEPARATE = "separate"
    """A product each (wq, wk and wv of Meta's published Llama code)."""


class TensorOverlap(StrEnum):
    """The tensor-parallel communication that runs under computation."""

    NONE = "none"
    WEIGHT_GRADIENT = "weight-gradient"
    """The sum of a product's input gradients over tp, while its weight gradient is computed (Megatron-LM's
    LinearWithGradAccumulationAndAsyncCommunication, for all-reduce and reduce-scatter alike)."""
    USERBUFFERS = "userbuffers"
    """That too, and gathers and scatters of chunks beside the products that read or feed them (Transformer Engine's
    userbuffers, Megatron-LM's --tp-comm-overlap)."""
    SYMMETRIC_MEMORY = "symmetric-memory"
    """Gathers and scatters of chunks beside the products that read or feed them, both ways (PyTorch's asynchronous tensor
    parallelism)."""


class AttentionKernels(StrEnum):
    """The kernels of attention: one, or several with scores and their softmax in memory between them."""

    FUSED = "fused"
    """One kernel, of the generation that `FlashAttention` names."""
    UNFUSED = "unfused"
    """Several; one of them scales, masks and normalises (Megatron-LM's fused softmax)."""
    STEP_BY_STEP = "step-by-step"
    """Several; the softmax is PyTorch's: cast to fp32, masked, normalised, cast back."""


class Dropout(StrEnum):
    """The dropout of the training, whose masks take memory."""

    NONE = "none"
    MASKED = "masked"


class GradientReduction(StrEnum):
    """The time at which gradients that are summed once a step travel: under the backward pass, or after it in one piece."""

    OVERLAPPED = "overlapped"
    AFTER_BACKWARD = "after-backward"
    IN_FP32_AFTER_BACKWARD = "in-fp32-after-backward"
    """All-reduced whatever the optimizer shards, each bucket cast to fp32."""


class HeadGradients(StrEnum):
    """When weight gradients of the vocabulary head are computed."""

    IN_BACKWARD = "in-backward"
    DEFERRED = "deferred"
    """While the pipeline drains (Megatron-LM's --defer-embedding-wgrad-compute)."""


class StateBuffers(StrEnum):
    """Whose buffers lie beside weights, gradients and optimizer state."""

    NONE = "none"
    DEEPSPEED_ZERO = "deepspeed-zero"
    """DeepSpeed's ZeRO: fp32 gradients of a rank's shard, or 16-bit ones beside fp32 ones; the buckets in which gradients and
    weights travel; and a copy of the largest gradient."""

    DEEPSPEED_ZERO_1 = "deepspeed-zero-1"
    """Those of DeepSpeed under ZeRO-1 alone: launchers over Accelerate run ZeRO-2 and 3 by FSDP2, which has none."""

    @property
    def stages(self) -> tuple[int, ...]:
        """The ZeRO stages under which there are such buffers."""
        return {StateBuffers.NONE: (), StateBuffers.DEEPSPEED_ZERO: (1, 2), StateBuffers.DEEPSPEED_ZERO_1: (1,)}[self]


CONTEXT_BYTES = 512 * 2**20
"""CUDA context and loaded kernels of one process: 400 to 600 MiB, as nvidia-smi shows for a process with no tensors."""


class TrainedWeights(StrEnum):
    """The weights that a step changes."""

    ALL = "all"
    ADAPTERS = "adapters"
    """Low-rank adapters beside frozen weights (LoRA, Hu et al. 2021): products have no weight gradient, but an adapter beside
    each, or beside some, whose products are thin: they only move memory."""


class AdapterTarget(StrEnum):
    """A projection beside which there is an adapter, by the name that its module has in transformers."""

    Q = "q_proj"
    K = "k_proj"
    V = "v_proj"
    O = "o_proj"  # noqa: E741
    GATE = "gate_proj"
    UP = "up_proj"
    DOWN = "down_proj"


class FrozenWeights(StrEnum):
    """The form in which weights of layers lie in memory that no step changes."""

    WORKING = "working"
    """In 16 bits, or in fp8 in both directions, which takes as much."""
    FP8 = "fp8"
    """Once in fp8, beside adapters and a recipe below 16 bits (Transformer Engine from Blackwell on, whose matrix units read
    fp8 operands in either order)."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """The implementation of a layer by a framework."""

    kernels: VectorKernels = VectorKernels.FUSED
    attention: FlashAttention = FlashAttention.NATIVE
    attention_format: AttentionFormat = AttentionFormat.WORKING
    selective: SelectiveRecompute = SelectiveRecompute.ATTENTION_AND_NORMS
    host: HostPath = HostPath.MODULES
    trained: TrainedWeights = TrainedWeights.ALL
    adapter_targets: tuple[AdapterTarget, ...] = ()
    frozen_weights: FrozenWeights = FrozenWeights.WORKING
    scan: ScanKernels = ScanKernels.FUSED
    scan_over_ranks: ScanOverRanks = ScanOverRanks.STATES
    stated_loss: LossKernels | None = None
    logits: Logits = Logits.SPLIT
    tensor_overlap: TensorOverlap = TensorOverlap.NONE
    projections: Projections = Projections.JOINT
    gated: GatedProducts = GatedProducts.ONE
    gated_inputs: GatedInputs = GatedInputs.WORKING
    value: ValueStorage = ValueStorage.OWN
    attention_kernels: AttentionKernels = AttentionKernels.FUSED
    dropout: Dropout = Dropout.NONE
    reduction: GradientReduction = GradientReduction.OVERLAPPED
    head_gradients: HeadGradients = HeadGradients.IN_BACKWARD
    state_buffers: StateBuffers = StateBuffers.NONE
    context_bytes: int = CONTEXT_BYTES
    # No cost of a block depends on it, and implementations are hashed wherever costs of blocks are kept.
    memory: MemoryLaw = field(default=GENERIC_LAW, hash=False)

    @property
    def loss(self) -> LossKernels:
        """The loss as stated, else as the other kernels are: a compiler of layers leaves it eager."""
        if self.stated_loss is not None:
            return self.stated_loss
        return LossKernels.BY_HAND if self.kernels is VectorKernels.FUSED else LossKernels.EAGER


HAND_FUSED = Implementation()
"""The best that can be written by hand: one kernel an operator, the device's fastest attention."""
