"""The meaning of a row's words where no mapping names its source: rules by frameworks, chips, formats and years.

They are rules as a mapping has them, of words that any table may hold; none is of one source. They are looked at in this order,
and of two that state the same the later counts: what a framework is called says more than the year of its run.
"""

from __future__ import annotations

from typing import Any

from meshwright.app.evidence.training.stated import MemoryCount, MemoryRank, RowRule, UnstatedSequence
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import (
    AttentionFormat,
    AttentionKernels,
    GatedInputs,
    HostPath,
    TensorOverlap,
    TrainedWeights,
    VectorKernels,
)
from meshwright.costmodels.units import DType
from meshwright.solver.problem.implementation import StatedImplementation


def _profile(name: str) -> StatedImplementation:
    return StatedImplementation(profile=name)


def _by_name(pattern: str, basis: str, **stated: Any) -> RowRule:
    """The rule of rows that hold a name, not as a part of a longer word."""
    return RowRule(basis, named=rf"(?<![a-z.])({pattern})(?![a-z])", **stated)


def _by_choice(pattern: str, basis: str, **implementation: Any) -> RowRule:
    """The rule of rows that name a choice, and not as one that was left out."""
    left_in = rf"(?<!no )(?<!not )(?<!non-)(?<!without )({pattern})(?!\s?[=:]\s?(false|0|off|no))"
    return _by_name(left_in, basis, implementation=StatedImplementation(**implementation))


def _by_flag(pattern: str, basis: str, **implementation: Any) -> RowRule:
    """The rule of rows that hold a flag of a launcher, switched on."""
    return RowRule(basis, named=rf"{pattern} ?= ?(true|1)", implementation=StatedImplementation(**implementation))


_OF_2022 = _profile("megatron-lm-2022")
_UNTIL_2022 = r"\b20(1\d|2[0-2])\b|arxiv[: ]?(1\d|2[0-2])\d\d\."
_UNGATED = {"arch": "^dense-gelu"}

_BY_GENERATION = (
    RowRule(
        "gradients in fp16 beside fp16: Megatron-LM and DeepSpeed add them up in fp32 beside bf16 only",
        where={"precision": "^fp16"},
        gradient_dtype=DType.FP16,
    ),
    RowRule(
        "where unsaid, ZeRO-1 and sequence parallelism on chips from Hopper on, as in NeMo's and Megatron-Bridge's recipes",
        where={"gpu": r"[HB]\d00|H20|B30|GB\d00|MI3"},
        zero_stage=1,
        unstated_sequence=UnstatedSequence.PARALLEL,
    ),
    RowRule(
        "ungated GPT without a fused attention kernel: Megatron-LM of 2022, before FlashAttention (Dao et al. 2022)",
        where={**_UNGATED, "flash_attention": "^0"},
        implementation=_OF_2022,
    ),
    RowRule(
        "ungated GPT of 2022 or before: Megatron-LM of 2022 without a fused attention kernel",
        where={**_UNGATED, "flash_attention": "^$", "source": _UNTIL_2022},
        implementation=StatedImplementation(profile="megatron-lm-2022", attention_kernels=AttentionKernels.UNFUSED),
    ),
    RowRule(
        "gradients sharded by ZeRO-2 beside pipelines travel once a step, as with ZeRO-1: DeepSpeed refuses ZeRO-2 there, and "
        "Megatron's distributed optimizer, which reports call either, sends them so",
        where={"pp": r"^([2-9]|\d{2})", "zero_stage_or_fsdp": "^(zero)?[- ]?2"},
        instead={"zero_stage_or_fsdp": "1"},
    ),
)

_BY_MODEL = (
    RowRule(
        "the 32,000 tokens of LLaMA and Llama 2",
        where={"model": r"llama(?![ _-]*[34](?!\d*b))", "vocab": "^$"},
        columns={"vocab": 32_000},
    ),
    RowRule(
        "the 128,256 tokens of Llama 3", where={"model": r"llama[ _-]*3(?!\d*b)", "vocab": "^$"}, columns={"vocab": 128_256}
    ),
)

_BY_CHIP = (
    RowRule(
        "MindSpeed-LLM's scripts on Ascend: a distributed optimizer and sequence parallelism",
        where={"gpu": "ascend"},
        implementation=_profile("mindspeed-2"),
        zero_stage=1,
        unstated_sequence=UnstatedSequence.PARALLEL,
    ),
    RowRule(
        "the 256,000 tokens of NVIDIA's Mamba-2, as MindSpeed-LLM's scripts have them",
        where={"gpu": "ascend", "arch": "^mamba", "vocab": "^$"},
        columns={"vocab": 256_000},
    ),
)

_BY_FRAMEWORK = (
    RowRule(
        "FSDP without the name of a framework: PyTorch's, around modules as torchtitan's",
        where={"zero_stage_or_fsdp": "fsdp"},
        implementation=_profile("torchtitan-0.3"),
    ),
    _by_name("hugging ?face|hf[- _]trainer|trl", "Hugging Face's Trainer", implementation=_profile("hf-trainer")),
    _by_name("deepspeed", "DeepSpeed", implementation=_profile("deepspeed-0.19")),
    _by_name(
        "deepspeed",
        "ungated GPT under DeepSpeed without a fused attention kernel: Megatron-DeepSpeed",
        where={**_UNGATED, "flash_attention": "^0"},
        implementation=_profile("megatron-deepspeed-2022"),
    ),
    _by_name("megatron[- _]?deepspeed", "Megatron-DeepSpeed", implementation=_profile("megatron-deepspeed-2022")),
    _by_name("megatron[- _]?core|mcore", "Megatron Core", implementation=_profile("megatron-core-0.20")),
    _by_name(
        "nemo|megatron[- _]?bridge",
        "NeMo and Megatron-Bridge: a distributed optimizer, gradients in bf16, sequence parallelism, experts whole",
        implementation=_profile("megatron-core-0.20"),
        zero_stage=1,
        gradient_dtype=DType.BF16,
        unstated_sequence=UnstatedSequence.PARALLEL,
        columns={"etp": 1},
    ),
    _by_name(
        "mlcommons|mlperf",
        "MLPerf Training on NVIDIA's and AMD's code: a distributed optimizer, gradients in bf16",
        implementation=_profile("megatron-core-0.20"),
        zero_stage=1,
        gradient_dtype=DType.BF16,
    ),
    _by_name("megatron[- _]?bridge", "fp8 of Megatron-Bridge is current scaling", fp8_recipe=MatmulRecipe.FP8_CURRENT),
    _by_name("automodel", "NeMo Automodel: Transformer Engine's kernels", implementation=_profile("hand-fused"), zero_stage=3),
    _by_name("mosaicml|llm[- _]?foundry", "Composer", implementation=_profile("composer"), zero_stage=3),
    _by_name("intern(evo|lm)", "InternEvo", implementation=_profile("internevo"), zero_stage=1, gradient_dtype=DType.BF16),
    _by_name("paddle(nlp)?", "PaddleNLP", implementation=_profile("paddlenlp"), gradient_dtype=DType.BF16),
    _by_name("maxtext", "MaxText", implementation=_profile("maxtext")),
    _by_name(
        "aleph[- _]?alpha|aa-scaling",
        "Aleph Alpha's scaling: ZeRO-1, gradients in bf16",
        implementation=_profile("aleph-alpha-scaling"),
        zero_stage=1,
        gradient_dtype=DType.BF16,
    ),
    _by_name(
        "torchtitan",
        "torchtitan: FSDP2; it prints what PyTorch's allocator reserved",
        implementation=_profile("torchtitan-0.3"),
        zero_stage=3,
        fp8_recipe=MatmulRecipe.FP8_CURRENT,
        memory_count=MemoryCount.RESERVED,
    ),
)

_BY_CHOICE = (
    _by_choice(r"(torch\.)?compile", "compiled layers", kernels=VectorKernels.COMPILED),
    _by_choice("async(hronous)?[- _]?tp", "asynchronous tensor parallelism", tensor_overlap=TensorOverlap.SYMMETRIC_MEMORY),
    _by_choice("q?lora", "adapters", trained=TrainedWeights.ADAPTERS),
    _by_flag("tp[-_]comm[-_]overlap", "the flag tp_comm_overlap", tensor_overlap=TensorOverlap.USERBUFFERS),
    _by_flag("cuda[-_]graphs?", "the flag cuda_graph", host=HostPath.CUDA_GRAPHS),
    _by_flag(
        "fp8[-_](dpa|dot[-_]product[-_]attention)",
        "the flag fp8_dpa (fp8_dot_product_attention)",
        attention_format=AttentionFormat.FP8,
    ),
    _by_flag(
        "(fp8[-_]act(ivation)?|activation[-_]func[-_]fp8[-_]input[-_]store)",
        "the flag fp8_act (activation_func_fp8_input_store)",
        gated_inputs=GatedInputs.FP8,
    ),
    RowRule("the flag fp4", where={"precision": "fp8|bf16"}, named=r"\bfp4 ?= ?(true|1)", instead={"precision": "nvfp4"}),
)

_GIVEN = r"mem\w{0,40}\W[^;]{0,80}?\b"
"""What stands before the rank whose memory is given: the word memory, in the same part of a sentence."""

_BY_MEMORY = (
    RowRule(
        "memory that is allocated", named=r"allocated (mem|gi?b)|mem(ory)?[-_ ]allocated", memory_count=MemoryCount.ALLOCATED
    ),
    RowRule("reserved memory", named=r"reserved (mem|gi?b)|mem(ory)?[-_ ]reserved", memory_count=MemoryCount.RESERVED),
    RowRule("memory as nvidia-smi shows it", named="nvidia-smi", memory_count=MemoryCount.PROCESS),
    RowRule("the mean memory of all devices", named="(average|mean) mem", memory_rank=MemoryRank.MEAN),
    RowRule("memory of the last stage", named=rf"{_GIVEN}last\W{{1,3}}(rank|stage)", memory_rank=MemoryRank.LAST_STAGE),
    RowRule("memory of the first stage", named=rf"{_GIVEN}(first\W(rank|stage)|rank 0\b)", memory_rank=MemoryRank.FIRST_STAGE),
    RowRule("memory in units of 1e9 bytes", named=r"\b1e9 bytes", memory_unit_bytes=1_000_000_000),
)

UNSAID = (*_BY_GENERATION, *_BY_MODEL, *_BY_CHIP, *_BY_FRAMEWORK, *_BY_CHOICE, *_BY_MEMORY)
"""Every rule, in the order in which they are looked at."""
