"""The defaults of the sources of measured runs, which they do not repeat in each row: facts of the launchers, nothing
fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from meshwright.costmodels.memory.training_state import CONTEXT_BYTES
from meshwright.costmodels.model.implementation import (
    FlashAttention,
    GatedProducts,
    HostPath,
    Logits,
    ScanKernels,
    TensorOverlap,
    TrainedWeights,
    ValueStorage,
    VectorKernels,
)
from meshwright.costmodels.model.low_precision import MatmulRecipe
from meshwright.costmodels.units import GIB, DType

GB = 10**9


class GradientReduction(Enum):
    """The time at which gradients travel: under the backward pass, or after it in one piece."""

    OVERLAPPED = "overlapped"
    AFTER_BACKWARD = "after backward"
    IN_FP32_AFTER_BACKWARD = "in fp32 after backward"
    """All-reduced whatever the optimizer shards, each bucket cast to fp32."""


class MemoryRank(Enum):
    """The device whose memory a source reports."""

    FULLEST = "fullest"
    FIRST_STAGE = "first stage"
    LAST_STAGE = "last stage"
    MEAN = "mean"


class MemoryCount(Enum):
    """The count of memory: what tensors take, what their allocator holds, or what the process holds on the device."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    PROCESS = "process"


class UnstatedRecompute(Enum):
    """The meaning of rows that don't say whether they recompute."""

    NEVER = "never"
    WHERE_NEEDED = "where needed"
    """Fully, where the plan would not have fitted otherwise."""


class UnstatedSequence(Enum):
    """The layout of norms and residuals over tp, in rows that don't say."""

    REPLICATED = "replicated"
    PARALLEL = "sequence parallel"


class StateBuffers(Enum):
    """Whose buffers lie beside weights, gradients and optimizer state."""

    NONE = "none"
    DEEPSPEED_ZERO = "DeepSpeed's ZeRO"


class Attention(Enum):
    """The kernels of attention in rows that don't say: one kernel, or several."""

    FUSED = "fused"
    UNFUSED = "unfused"


class HeadGradients(Enum):
    """When weight gradients of the vocabulary head are computed."""

    IN_BACKWARD = "in backward"
    DEFERRED = "deferred"
    """While the pipeline drains (Megatron-LM's --defer-embedding-wgrad-compute)."""


class Softmax(Enum):
    """The softmax of attention that is not one kernel."""

    FUSED = "fused"
    """One kernel scales, masks and normalises (Megatron-LM's)."""
    STEP_BY_STEP = "step by step"
    """PyTorch's: cast to fp32, masked, normalised, cast back."""


class Dropout(Enum):
    """The dropout of the training, whose masks take memory."""

    NONE = "none"
    MASKED = "masked"


@dataclass(frozen=True, slots=True)
class Convention:
    """The meaning of a source's rows where they are silent; ``basis`` says how that is known."""

    basis: str
    vocab: int | None = None
    zero_stage: int = 0
    gradient_dtype: DType = DType.FP32
    fp8_recipe: MatmulRecipe = MatmulRecipe.FP8_DELAYED
    reduction: GradientReduction = GradientReduction.OVERLAPPED
    attention: Attention = Attention.FUSED
    kernels: VectorKernels = VectorKernels.FUSED
    flash: FlashAttention = FlashAttention.NATIVE
    host: HostPath = HostPath.MODULES
    dropout: Dropout = Dropout.NONE
    trained: TrainedWeights = TrainedWeights.ALL
    scan: ScanKernels = ScanKernels.FUSED
    logits: Logits = Logits.SPLIT
    tensor_overlap: TensorOverlap = TensorOverlap.NONE
    gated: GatedProducts = GatedProducts.ONE
    value: ValueStorage = ValueStorage.OWN
    mamba_vocab: int | None = None
    devices: int | None = None
    unstated_recompute: UnstatedRecompute = UnstatedRecompute.NEVER
    unstated_sequence: UnstatedSequence = UnstatedSequence.REPLICATED
    memory_rank: MemoryRank = MemoryRank.FULLEST
    memory_count: MemoryCount = MemoryCount.PROCESS
    memory_unit_bytes: int = GIB
    context_bytes: int = CONTEXT_BYTES
    state_buffers: StateBuffers = StateBuffers.NONE


DEFAULT = Convention(
    "nothing is known of the source: Megatron-LM's defaults",
    host=HostPath.MEGATRON_CORE,
    tensor_overlap=TensorOverlap.WEIGHT_GRADIENT,
)

GPT2_VOCAB = 50257
"""Vocabulary of GPT-2's tokenizer, which Megatron-LM's example scripts train with."""

_MEGATRON_FP16 = Convention(
    "Megatron-LM in fp16 keeps gradients in fp16; its GPT scripts train with dropout 0.1 and GPT-2's vocabulary",
    GPT2_VOCAB,
    gradient_dtype=DType.FP16,
    dropout=Dropout.MASKED,
)

_VTRAIN = replace(
    _MEGATRON_FP16,
    basis=f"{_MEGATRON_FP16.basis}; the rows' notes: gradients are not overlapped",
    reduction=GradientReduction.AFTER_BACKWARD,
    tensor_overlap=TensorOverlap.WEIGHT_GRADIENT,
)

CONVENTIONS: Mapping[str, Convention] = {
    "seed_ascend": Convention(
        "vocabulary unstated: 32000 for LLaMA, as FLOPs of its MFU column say to half a per cent; 256000 for Mamba, that of "
        "NVIDIA's Mamba-2 tokenizer in MindSpeed-LLM's scripts: its last pipeline stage takes as long. The rest is that of "
        "these scripts for this chip: distributed optimizer, sequence parallelism, Mamba-2 layers without a "
        "feed-forward network and without a fused scan; vector kernels fused, as they take an eighth of its LLaMA-7B's time",
        vocab=32000,
        mamba_vocab=256_000,
        scan=ScanKernels.STEP_BY_STEP,
        unstated_sequence=UnstatedSequence.PARALLEL,
        zero_stage=1,
        memory_rank=MemoryRank.MEAN,
        tensor_overlap=TensorOverlap.WEIGHT_GRADIENT,
    ),
    "vtrain_single": _VTRAIN,
    "vtrain_multi": _VTRAIN,
    "aleph_layouts": Convention(
        "its paper shards the optimizer (ZeRO-1), and tells its fused RMS norm from PyTorch's; gradients in 16 bits, since 13B "
        "on one device would not fit with fp32 ones. Its framework's code: the head gathers the logits of all tp ranks before "
        "the loss, gate and up projection each sum their input's gradient, flash attention gets slices of one projection's "
        "output, gradients are all-reduced in fp32 after the backward pass, attention without a fused kernel masks step by "
        "step; in fp32, since it ran out of memory where the fused softmax did not",
        zero_stage=1,
        logits=Logits.GATHERED,
        gated=GatedProducts.TWO,
        value=ValueStorage.SLICE,
        reduction=GradientReduction.IN_FP32_AFTER_BACKWARD,
        kernels=VectorKernels.EAGER,
        flash=FlashAttention.FLASH_1,
        gradient_dtype=DType.BF16,
    ),
    "mosaic": Convention(
        "Composer's FSDP mixed precision reduces gradients in fp32; PyTorch's modules, not compiled; its"
        " submit_benchmarks.py asks for attention in Triton",
        zero_stage=3,
        kernels=VectorKernels.EAGER,
        flash=FlashAttention.FLASH_1_TRITON,
    ),
    "mbridge_pretrain": Convention(
        "Megatron-Bridge recipes: distributed optimizer, fp32 main gradients; fp8 is current scaling, as later rows spell out",
        zero_stage=1,
        fp8_recipe=MatmulRecipe.FP8_CURRENT,
        host=HostPath.MEGATRON_CORE,
        tensor_overlap=TensorOverlap.WEIGHT_GRADIENT,
    ),
    "mbridge_sftlora": Convention(
        "Megatron-Bridge recipes: distributed optimizer, current scaling",
        zero_stage=1,
        fp8_recipe=MatmulRecipe.FP8_CURRENT,
        host=HostPath.MEGATRON_CORE,
        tensor_overlap=TensorOverlap.WEIGHT_GRADIENT,
    ),
    "nemo2407": Convention(
        "NeMo 24.07 recipes: distributed optimizer with overlap; Transformer Engine of 2024 has delayed scaling only",
        zero_stage=1,
        host=HostPath.MEGATRON_CORE,
        tensor_overlap=TensorOverlap.WEIGHT_GRADIENT,
    ),
    "automodel_lora": Convention(
        "its notes: Transformer Engine's kernels; it trains adapters, and checkpointing is in configurations, not in the table",
        zero_stage=3,
        trained=TrainedWeights.ADAPTERS,
        unstated_recompute=UnstatedRecompute.WHERE_NEEDED,
    ),
    "torchtitan": Convention(
        "FSDP2 reduces in fp32; memory is what PyTorch reserved, in GiB; not compiled unless a row says so",
        zero_stage=3,
        fp8_recipe=MatmulRecipe.FP8_CURRENT,
        kernels=VectorKernels.EAGER,
        flash=FlashAttention.FLASH_2,
        memory_count=MemoryCount.RESERVED,
    ),
    "bigscience_1b3_v100": replace(
        _MEGATRON_FP16,
        basis=f"{_MEGATRON_FP16.basis}; its slurm script: DeepSpeed's ZeRO-1; its page: 1113 MiB for a bare process, and 13 GB "
        "for plans that do not fit 16 GB, so not of the fullest stage",
        zero_stage=1,
        memory_rank=MemoryRank.FIRST_STAGE,
        context_bytes=1113 * 2**20,
        state_buffers=StateBuffers.DEEPSPEED_ZERO,
    ),
    "bigscience_v100": _MEGATRON_FP16,
    "internevo": Convention(
        "InternEvo 7B_sft.py: ZeRO-1 with overlap, bf16 gradients; its RMS norm is Apex's kernel",
        zero_stage=1,
        gradient_dtype=DType.BF16,
        kernels=VectorKernels.FUSED_NORMS,
    ),
    "korthikanti_tab5": Convention(
        "Megatron-LM of 2022: no fused attention, dropout", dropout=Dropout.MASKED, tensor_overlap=TensorOverlap.WEIGHT_GRADIENT
    ),
    "korthikanti_fig1_mem": Convention(
        "the paper's own count: tensors of the first stage in GiB, without fused attention",
        attention=Attention.UNFUSED,
        dropout=Dropout.MASKED,
        memory_rank=MemoryRank.FIRST_STAGE,
        memory_count=MemoryCount.ALLOCATED,
    ),
    "paddlenlp": Convention(
        "memory is max_memory_allocated in GiB; Llama-2-7B's configuration turns the fused RMS norm off",
        zero_stage=2,
        gradient_dtype=DType.BF16,
        kernels=VectorKernels.EAGER,
        memory_count=MemoryCount.ALLOCATED,
    ),
    "simumax_b200": Convention(
        "its notes: communication overlap is off, memory is allocated GiB",
        zero_stage=1,
        reduction=GradientReduction.AFTER_BACKWARD,
        memory_count=MemoryCount.ALLOCATED,
        host=HostPath.MEGATRON_CORE,
    ),
    "megatron_ci_dense": Convention(
        "its notes: GPT-2's tokenizer, memory allocated on the last rank in units of 1e9; overlap off unless a test is of it; "
        "cases that do not say it run on one node of 8, as all that do",
        GPT2_VOCAB,
        devices=8,
        reduction=GradientReduction.AFTER_BACKWARD,
        dropout=Dropout.MASKED,
        memory_rank=MemoryRank.LAST_STAGE,
        memory_count=MemoryCount.ALLOCATED,
        memory_unit_bytes=GB,
        host=HostPath.MEGATRON_CORE,
        tensor_overlap=TensorOverlap.WEIGHT_GRADIENT,
    ),
    "megatron_readme": _MEGATRON_FP16,
}
"""By source_id; other sources follow `DEFAULT`."""


def convention(source: str) -> Convention:
    """The convention of a source."""
    return CONVENTIONS.get(source, DEFAULT)
