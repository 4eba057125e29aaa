"""The plans that are run and predicted: one small transformer, one global batch, 1, 2 and 4 ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.solver.problem.choices import Recompute

GLOBAL_BATCH = 8
SEQ_LEN = 128

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@dataclass(frozen=True, slots=True)
class TruthPlan:
    """One plan; micro-batches matter to pipelines only, others run their share of the batch at once."""

    name: str
    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero_stage: int = 0
    recompute: Recompute = Recompute.NONE
    microbatches: int = 1

    @property
    def ranks(self) -> int:
        """Processes that run it."""
        return self.dp * self.tp * self.pp

    @property
    def microbatch(self) -> int:
        """Sequences of one micro-batch on one replica."""
        return GLOBAL_BATCH // self.dp // self.microbatches


PLANS = (
    TruthPlan("1 rank"),
    TruthPlan("1 rank, recompute", recompute=Recompute.FULL),
    TruthPlan("DDP 2", dp=2),
    TruthPlan("DDP 2, recompute", dp=2, recompute=Recompute.FULL),
    TruthPlan("FSDP2 2", dp=2, zero_stage=3),
    TruthPlan("TP 2", tp=2),
    TruthPlan("TP 2, recompute", tp=2, recompute=Recompute.FULL),
    TruthPlan("PP 2", pp=2, microbatches=4),
    TruthPlan("PP 2, recompute", pp=2, microbatches=4, recompute=Recompute.FULL),
    TruthPlan("DDP 4", dp=4),
    TruthPlan("FSDP2 4", dp=4, zero_stage=3),
    TruthPlan("TP 4", tp=4),
    TruthPlan("TP 2 x DDP 2", dp=2, tp=2),
)
