"""The transformer of ``plans.CONFIG`` in PyTorch: plain modules, tensor parallel by hand over a process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from plans import CONFIG
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

HIDDEN, FFN, HEADS = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["num_attention_heads"]
HEAD_DIM, VOCAB, LAYERS = HIDDEN // HEADS, CONFIG["vocab_size"], CONFIG["num_hidden_layers"]


class _Enter(torch.autograd.Function):
    """Into a column-parallel product: nothing forward, the gradients of all ranks added up backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        context.group = group
        return x

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


class _Leave(torch.autograd.Function):
    """Out of a row-parallel product: partial sums added up forward, nothing backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of heads (Su et al. 2021)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Layer(nn.Module):
    """One layer; with a group, heads and feed-forward columns are split over it."""

    def __init__(self, group: Any, degree: int):
        super().__init__()
        self.group, self.heads = group, HEADS // degree
        width, ffn = HIDDEN // degree, FFN // degree
        self.norm, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.q, self.k, self.v = (nn.Linear(HIDDEN, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, HIDDEN, bias=False)
        self.gate, self.up = (nn.Linear(HIDDEN, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (batch, tokens, hidden)."""
        x = x + self._leave(self._attention(self._enter(self.norm(x))))
        y = self._enter(self.norm2(x))
        return x + self._leave(self.down(functional.silu(self.gate(y)) * self.up(y)))

    def _attention(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (part(x).view(batch, tokens, self.heads, HEAD_DIM).transpose(1, 2) for part in (self.q, self.k, self.v))
        cos, sin = _rotation(tokens)
        y = functional.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, self.heads * HEAD_DIM))

    def _enter(self, x: Tensor) -> Tensor:
        return x if self.group is None else _Enter.apply(x, self.group)

    def _leave(self, x: Tensor) -> Tensor:
        return x if self.group is None else _Leave.apply(x, self.group)


_rotations: dict[int, tuple[Tensor, Tensor]] = {}


def _rotation(tokens: int) -> tuple[Tensor, Tensor]:
    if tokens not in _rotations:
        angles = torch.outer(torch.arange(tokens).float(), 1e4 ** -(torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
        both = torch.cat((angles, angles), dim=-1)
        _rotations[tokens] = (both.cos(), both.sin())
    return _rotations[tokens]


class Transformer(nn.Module):
    """Layers first .. last (exclusive), with the embedding before the first and the head after the last.

    With a group, each rank holds its rows of the vocabulary, and logits are its columns.
    """

    def __init__(self, *, recompute: bool, group: Any = None, degree: int = 1, first: int = 0, last: int = LAYERS):
        super().__init__()
        torch.manual_seed(0)
        self.recompute, self.group = recompute, group
        self.first_row = 0 if group is None else dist.get_rank(group) * (VOCAB // degree)
        self.embedding = nn.Embedding(VOCAB // degree, HIDDEN) if first == 0 else None
        self.layers = nn.ModuleList(Layer(group, degree) for _ in range(last - first))
        self.norm = nn.RMSNorm(HIDDEN) if last == LAYERS else None
        self.head = nn.Linear(HIDDEN, VOCAB // degree, bias=False) if last == LAYERS else None

    def forward(self, x: Tensor) -> Tensor:
        """Token ids or activations in, activations or logits out."""
        if self.embedding is not None:
            x = self._embedded(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        if self.head is not None and self.norm is not None:
            x = self.norm(x)
            x = self.head(x if self.group is None else _Enter.apply(x, self.group))
        return x

    def _embedded(self, tokens: Tensor) -> Tensor:
        assert self.embedding is not None
        if self.group is None:
            return self.embedding(tokens)
        here, mine = _rows_here(tokens, self.first_row, self.embedding.num_embeddings)
        return _Leave.apply(self.embedding(here) * mine.unsqueeze(-1), self.group)


def _rows_here(tokens: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """Tokens as rows of this rank's part of the vocabulary, and which of them are in it."""
    mine = (tokens >= first) & (tokens < first + rows)
    return torch.where(mine, tokens - first, 0), mine


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the next token."""
    return functional.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def split_loss_of(logits: Tensor, targets: Tensor, *, group: Any, first_row: int) -> Tensor:
    """The same of logits whose columns are split over a group (Megatron-LM's vocabulary-parallel cross-entropy)."""
    largest = logits.detach().amax(dim=-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - largest.unsqueeze(-1)
    here, mine = _rows_here(targets, first_row, logits.shape[-1])
    wanted = shifted.gather(-1, here.unsqueeze(-1)).squeeze(-1) * mine
    total, target = _Leave.apply(torch.stack((shifted.exp().sum(dim=-1), wanted)), group)
    return (total.log() - target).mean()
