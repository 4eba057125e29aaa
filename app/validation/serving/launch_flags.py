"""The flags of a launch command of a serving engine that say how it forms steps and fills memory.

Sources: vLLM engine arguments, SGLang server arguments, trtllm-serve --help (their documentation, releases 0.19, 0.5.9, 1.2).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.app.validation.serving.recipes import EngineName
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.costmodels.queueing.simulation.replica import Scheduling
from meshwright.costmodels.units import DType

LONGEST_COMMAND = 20_000
"""Characters of a launch command that are read."""


@dataclass(frozen=True, slots=True)
class LaunchFlags:
    """The flags of a launch command that are known; None where it does not give one.

    tp                devices that share a layer, of SGLang all of a worker
    pp                pipeline stages
    dp                replicas, or attention groups where ``attention_apart``
    ep                degree of experts; 0 where it is that of all devices of a worker
    attention_apart   attention runs on each device by itself
    step_tokens       tokens of a step
    sequences         sequences at once
    kv_dtype          format of the cache
    memory_share      share of the device that the engine may fill; of TensorRT-LLM of what is free for the cache
    scheduling        how steps are formed
    draft_tokens      tokens that are drafted in a step
    """

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    attention_apart: bool | None = None
    step_tokens: int | None = None
    sequences: int | None = None
    kv_dtype: DType | None = None
    memory_share: float | None = None
    scheduling: Scheduling | None = None
    draft_tokens: int | None = None


NO_FLAGS = LaunchFlags()


def launch_flags(engine: EngineName, command: str) -> LaunchFlags:
    """Return the known flags of a launch command; others are passed over.

    Raises NotPredictedError for a command that is not one line of a shell or a value that the engine would refuse.
    """
    if len(command) > LONGEST_COMMAND:
        raise NotPredictedError(f"the launch command is longer than {LONGEST_COMMAND:,} characters")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise NotPredictedError(f"the launch command can't be read: {error}") from None
    found: dict[str, Any] = {}
    for name, value in _options(words):
        if name in _SWITCHES[engine]:
            found |= _SWITCHES[engine][name]
        elif name in _VALUES[engine]:
            field, read = _VALUES[engine][name]
            if value is None:
                raise NotPredictedError(f"the launch flag --{name} has no value")
            found[field] = _read(name, value, read)
    return LaunchFlags(**found)


def _options(words: list[str]) -> list[tuple[str, str | None]]:
    """Flags with the word that follows each, hyphens between its words; None where no value follows."""
    options: list[tuple[str, str | None]] = []
    for place, word in enumerate(words):
        if not re.match(r"--?[A-Za-z]", word):
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        after = words[place + 1] if place + 1 < len(words) and not words[place + 1].startswith("--") else None
        options.append((name.replace("_", "-"), value if has_value else after))
    return options


def _read(name: str, value: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(value)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NotPredictedError(f"the launch flag --{name} can't have this value: {value}") from None


def _count(text: str) -> int:
    """A positive integer."""
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def _share(text: str) -> float:
    share = float(text)
    if not 0.0 < share <= 1.0:
        raise ValueError(text)
    return share


def _cache(text: str) -> DType | None:
    """The format of a cache; ``auto`` leaves it to the checkpoint."""
    return None if text == "auto" else _CACHES[text.casefold()]


def _drafted(text: str) -> int:
    """Drafted tokens in vLLM's JSON."""
    return _count(str(json.loads(text)["num_speculative_tokens"]))


_CACHES = {
    **dict.fromkeys(("fp8", "fp8-e4m3", "fp8_e4m3", "fp8-e5m2", "fp8_e5m2"), DType.FP8),
    **dict.fromkeys(("bfloat16", "bf16", "float16", "fp16"), DType.BF16),
}

_SWITCHES: Mapping[EngineName, Mapping[str, Mapping[str, Any]]] = {
    EngineName.VLLM: {
        "enable-expert-parallel": {"ep": 0},
        "enable-chunked-prefill": {"scheduling": Scheduling.CHUNKED_PREFILL},
    },
    EngineName.SGLANG: {
        "enable-dp-attention": {"attention_apart": True},
        "enable-mixed-chunk": {"scheduling": Scheduling.CHUNKED_PREFILL},
    },
    EngineName.TENSORRT_LLM: {"enable-chunked-prefill": {"scheduling": Scheduling.CHUNKED_PREFILL}},
}

_VALUES: Mapping[EngineName, Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    EngineName.VLLM: {
        **dict.fromkeys(("tensor-parallel-size", "tp"), ("tp", _count)),
        **dict.fromkeys(("pipeline-parallel-size", "pp"), ("pp", _count)),
        **dict.fromkeys(("data-parallel-size", "dp"), ("dp", _count)),
        "max-num-batched-tokens": ("step_tokens", _count),
        "max-num-seqs": ("sequences", _count),
        "kv-cache-dtype": ("kv_dtype", _cache),
        "gpu-memory-utilization": ("memory_share", _share),
        "speculative-config": ("draft_tokens", _drafted),
    },
    EngineName.SGLANG: {
        **dict.fromkeys(("tensor-parallel-size", "tp-size", "tp"), ("tp", _count)),
        **dict.fromkeys(("pipeline-parallel-size", "pp-size"), ("pp", _count)),
        **dict.fromkeys(("data-parallel-size", "dp-size", "dp"), ("dp", _count)),
        **dict.fromkeys(("expert-parallel-size", "ep-size", "ep"), ("ep", _count)),
        "chunked-prefill-size": ("step_tokens", _count),
        "max-running-requests": ("sequences", _count),
        "kv-cache-dtype": ("kv_dtype", _cache),
        "mem-fraction-static": ("memory_share", _share),
        "speculative-num-steps": ("draft_tokens", _count),
    },
    EngineName.TENSORRT_LLM: {
        "tp-size": ("tp", _count),
        "pp-size": ("pp", _count),
        "ep-size": ("ep", _count),
        "max-num-tokens": ("step_tokens", _count),
        "max-batch-size": ("sequences", _count),
        "kv-cache-dtype": ("kv_dtype", _cache),
        "kv-cache-free-gpu-memory-fraction": ("memory_share", _share),
    },
}
