"""The rules by which engines form steps."""

from __future__ import annotations

from enum import StrEnum


class Scheduling(StrEnum):
    """The rule by which the engine forms a step.

    chunked_prefill   decode first: a token of every decoding sequence, and prompts in chunks in what is left
    whole_prompts     decode first too, but only prompts that fit whole in what is left (TensorRT-LLM without chunked context)
    prefill_first     whole prompts as long as any wait, else a token of every decoding sequence
    chunks_first      the same with prompts in chunks (SGLang without --enable-mixed-chunk)
    """

    CHUNKED_PREFILL = "chunked_prefill"
    WHOLE_PROMPTS = "whole_prompts"
    PREFILL_FIRST = "prefill_first"
    CHUNKS_FIRST = "chunks_first"

    @property
    def prompts_apart(self) -> bool:
        """True if no step holds both prompts and decoding sequences."""
        return self in (Scheduling.PREFILL_FIRST, Scheduling.CHUNKS_FIRST)

    @property
    def cuts_prompts(self) -> bool:
        """True if prompts come in chunks."""
        return self in (Scheduling.CHUNKED_PREFILL, Scheduling.CHUNKS_FIRST)
