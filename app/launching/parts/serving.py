"""The flags of launch commands of serving engines, in the fields that all of them share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.queueing.simulation.step_forming import Scheduling
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.units import DType


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
    kvp               ranks of tp that share each cache along the sequence
    cp                groups that share prompts
    attention_groups  attention groups, where they have a flag of their own
    longest           tokens of the longest request
    dtype             working format; None too where it is left to the checkpoint
    quantization      format that weights are brought to when they are loaded, by the engine's name
    redundant_experts copies of hot experts
    model             the checkpoint, where a flag names it
    moe_tp            ranks that share each expert, of TensorRT-LLM
    config_file       the file that further flags are read of
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
    kvp: int | None = None
    cp: int | None = None
    attention_groups: int | None = None
    longest: int | None = None
    dtype: DType | None = None
    quantization: str | None = None
    redundant_experts: int | None = None
    model: str | None = None
    moe_tp: int | None = None
    config_file: str | None = None


NO_FLAGS = LaunchFlags()


@dataclass(frozen=True, slots=True)
class ServerDegrees:
    """The degrees of a server that a command starts: ``replicas`` of it, each of pp stages of tp x kvp x cp x attention_dp
    devices."""

    replicas: int
    tp: int
    pp: int
    ep: int
    attention_dp: int
    kvp: int = 1
    cp: int = 1

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tp * self.kvp * self.cp * self.attention_dp * self.pp


def degrees(flags: LaunchFlags, engine: ServingEngine, *, experts: bool) -> ServerDegrees:
    """Return the degrees of a server, of a model with experts or without; raises InvalidInputError for some that no engine
    starts with."""
    tp, pp, dp, groups, cp = flags.tp or 1, flags.pp or 1, flags.dp or 1, 1, flags.cp or 1
    kvp = flags.kvp or 1
    if engine is ServingEngine.SGLANG and (flags.attention_apart or flags.attention_groups):
        # --tp is all devices of a worker, --dp or --attn-dp-size how many groups its attention has.
        groups = flags.attention_groups or dp
        dp = dp if flags.attention_groups else 1
        if tp % groups:
            raise InvalidInputError(f"the launch command has {groups} attention groups over {tp} devices")
        tp //= groups
    elif engine is ServingEngine.VLLM and experts:
        # Data-parallel ranks of a model with experts share them.
        groups, dp = dp, 1
    elif engine is ServingEngine.TENSORRT_LLM:
        return _of_tensorrt_llm(flags)
    if tp % (kvp * cp):
        raise InvalidInputError(f"the launch command splits caches or prompts {kvp * cp} ways over {tp} devices")
    tp //= kvp * cp
    ep = {None: 1, 0: tp * kvp * cp * groups}.get(flags.ep, flags.ep)
    return ServerDegrees(replicas=dp, tp=tp, pp=pp, ep=ep or 1, attention_dp=groups, kvp=kvp, cp=cp)


def _of_tensorrt_llm(flags: LaunchFlags) -> ServerDegrees:
    """Its tp is all ranks of a stage but those that share caches; attention runs on each by itself, or on all together."""
    tp, kvp = flags.tp or 1, flags.kvp or 1
    ranks = tp * kvp
    if flags.moe_tp is not None and ranks % flags.moe_tp:
        raise InvalidInputError(f"the launch command splits experts {flags.moe_tp} ways over {ranks} devices")
    ep = flags.ep or (1 if flags.moe_tp is None else ranks // flags.moe_tp)
    groups, tp = (tp, 1) if flags.attention_apart else (1, tp)
    return ServerDegrees(replicas=1, tp=tp, pp=flags.pp or 1, ep=ep, attention_dp=groups, kvp=kvp)


LEAST_SHARE = 0.01
"""The least share of a device's memory that is written: engines start with no share of 0."""


def share_in_hundredths(share: float) -> float:
    """Return a share of a device's memory as flags have it: rounded down to a hundredth, `LEAST_SHARE` at least."""
    return max(LEAST_SHARE, math.floor(min(share, 1.0) * 100) / 100)
