"""The names of dims, each declared once: what importers give tensors, and what cost models, search and checker read.

A dim that one importer alone has, as the width of a family's own projection, is declared in its file.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.errors import InvalidInputError

BATCH = "batch"
"""Sequences of a micro-batch; its size comes from the workload."""
SEQ = "seq"
"""Tokens of a sequence; its size comes from the workload."""
RESERVED_DIMS = frozenset({BATCH, SEQ})

HIDDEN = "hidden"
"""Width of the residual stream."""
POSITIONS = "positions"
"""Learned positions."""
VOCAB = "vocab"

HEADS = "heads"
"""Query heads."""
KV_HEADS = "kv_heads"
HEAD_DIM = "head_dim"

Q_RANK = "q_rank"
"""Of latent attention: the width that queries are compressed to, that of keys and values, and the parts of a head."""
KV_RANK = "kv_rank"
QK_HEAD_DIM = "qk_head_dim"
QK_NOPE_DIM = "qk_nope_dim"
QK_ROPE_DIM = "qk_rope_dim"
V_HEAD_DIM = "v_head_dim"
INDEX_HEADS = "index_heads"
"""Heads of the indexer of sparse attention."""
INDEX_DIM = "index_dim"

FFN = "ffn"
SHARED_FFN = "shared_ffn"
"""Columns of the experts that every token passes."""
EXPERT_FFN = "expert_ffn"
EXPERT_LATENT = "expert_latent"
"""Width of a token where routed experts read and write it: a projection stands before and behind them."""
EXPERTS = "experts"
TOP_K = "top_k"
"""Experts of a token."""
EXPERT_GROUPS = "expert_groups"
"""Groups that experts lie in: a size without a tensor."""
TOP_GROUPS = "top_groups"
"""Groups that a token's experts may be in: a size without a tensor."""

SSM_HEADS = "ssm_heads"
"""Of state-space mixers."""
SSM_HEAD_DIM = "ssm_head_dim"
SSM_GROUPS = "ssm_groups"
SSM_STATE = "ssm_state"
SSM_INNER = "ssm_inner"
"""Channels of Mamba-1."""
DT_RANK = "dt_rank"
CONV_KERNEL = "conv_kernel"
"""Taps of the convolution before a state-space mixer."""


# Token slices: parts of a sequence that pass a causal model one after another (TeraPipe, Li et al. 2021, section 3).
#
# The queries of a slice see the keys and values of all slices before it; backward, in reverse
# order, each slice adds its part to the gradients of the keys and values before it.


@dataclass(frozen=True, slots=True)
class TokenSlice:
    """Where a slice lies in its sequence: tokens before it, and tokens behind it."""

    earlier: int = 0
    later: int = 0


WHOLE_SEQUENCE = TokenSlice()


def slices_of(lengths: tuple[int, ...]) -> tuple[TokenSlice, ...]:
    """The slices of a sequence cut into so many tokens each, first to last."""
    return tuple(TokenSlice(sum(lengths[:i]), sum(lengths[i + 1 :])) for i in range(len(lengths)))


@dataclass(frozen=True, slots=True)
class SliceShares:
    """Parts of a micro-batch's time on a rank, by token slice: of its forward pass, and of its backward pass with what is
    recomputed. Together 1."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]

    def __post_init__(self) -> None:
        shares = (*self.forward, *self.backward)
        if len(self.forward) != len(self.backward) or min(shares, default=-1.0) < 0 or abs(sum(shares) - 1) > 1e-9:
            raise InvalidInputError("bad shares of token slices", given=self, allowed="two parts a slice, together 1")

    @property
    def longest(self) -> float:
        """The longest forward and the longest backward pass of a slice, together; at least 1 / slices."""
        return max(self.forward) + max(self.backward)
