"""The training steps and serving points: what is run, and what is asked of Meshwright. Both read the sizes here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import meshwright


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder as Llama is built, or as Mixtral is where it has experts; fields as of ``meshwright.transformer``."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    experts: int = 0
    experts_per_token: int = 2

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    def model(self, name: str) -> Any:
        """The model as a request has it."""
        experts = {"experts": self.experts, "experts_per_token": self.experts_per_token} if self.experts else {}
        return meshwright.transformer(
            name, layers=self.layers, hidden=self.hidden, heads=self.heads, kv_heads=self.kv_heads, ffn=self.ffn,
            vocabulary=self.vocabulary, **experts,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """A training step on one device, in micro-batches whose gradients are summed."""

    name: str
    decoder: Decoder
    global_batch: int
    microbatch: int
    seq_len: int


@dataclass(frozen=True, slots=True)
class ServingPoint:
    """So many clients in a closed loop: their prompts are computed in one step, their answers side by side."""

    clients: int
    prompt_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        """The point as rows are named by."""
        return f"{self.clients} x {self.prompt_tokens} in, {self.output_tokens} out"

    def cache_elements(self, decoder: Decoder) -> int:
        """Elements of the keys and values of all clients' prompts and answers."""
        tokens = self.clients * (self.prompt_tokens + self.output_tokens)
        return 2 * decoder.layers * decoder.kv_heads * decoder.head_dim * tokens


@dataclass(frozen=True, slots=True)
class Cases:
    """The steps and points of one run. ``served`` is the model of all points."""

    training: tuple[TrainingCase, ...]
    served: Decoder
    serving: tuple[ServingPoint, ...]


_LLAMA = Decoder(layers=8, hidden=2048, heads=16, kv_heads=8, ffn=5632, vocabulary=32000)
FULL = Cases(
    training=(
        TrainingCase("small-llama", _LLAMA, global_batch=8, microbatch=4, seq_len=2048),
        TrainingCase("moe", replace(_LLAMA, layers=4, ffn=2816, experts=8), global_batch=8, microbatch=4, seq_len=2048),
        TrainingCase("long-sequence", replace(_LLAMA, layers=4), global_batch=2, microbatch=1, seq_len=16384),
    ),
    served=Decoder(layers=16, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=32000),
    serving=(ServingPoint(1, 2048, 32), ServingPoint(8, 1024, 32), ServingPoint(32, 512, 32)),
)
"""For a GPU: no model takes more than 24 GB, and kernels are large enough to keep an H200 busy."""

_SMALL = Decoder(layers=4, hidden=512, heads=8, kv_heads=4, ffn=1536, vocabulary=4096)
SMALL = Cases(
    training=(
        TrainingCase("small-llama", _SMALL, global_batch=4, microbatch=2, seq_len=256),
        TrainingCase("moe", replace(_SMALL, layers=2, ffn=512, experts=4), global_batch=4, microbatch=2, seq_len=256),
        TrainingCase("long-sequence", replace(_SMALL, layers=2), global_batch=1, microbatch=1, seq_len=2048),
    ),
    served=_SMALL,
    serving=(ServingPoint(1, 512, 16), ServingPoint(4, 128, 16)),
)
"""For a CPU: a step takes seconds."""

_TINY = Decoder(layers=2, hidden=128, heads=2, kv_heads=1, ffn=256, vocabulary=512)
TINY = Cases(
    training=(
        TrainingCase("small-llama", _TINY, global_batch=4, microbatch=2, seq_len=64),
        TrainingCase("moe", replace(_TINY, ffn=128, experts=4), global_batch=4, microbatch=2, seq_len=64),
        TrainingCase("long-sequence", _TINY, global_batch=1, microbatch=1, seq_len=512),
    ),
    served=_TINY,
    serving=(ServingPoint(1, 64, 4), ServingPoint(2, 32, 4)),
)
"""For a trial of the benchmark itself: it says nothing of a machine."""
