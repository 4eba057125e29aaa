"""The decoder of ``cases`` in PyTorch, as a user would write it: nothing fused by hand, attention by PyTorch's own kernel.

Norms and rotary embeddings work in fp32 and cast, queries, keys and values have a product each: the profile ``torchtitan-0.3``
of a request, or ``torchtitan-0.3-compiled`` where layers are compiled. Tokens go to experts in turn, as many to each, as to the
request's balanced experts; the router is computed, and weighs what they return.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu_truth.cases import Decoder

ROPE_BASE = 1e4
EPSILON = 1e-5


class Norm(nn.Module):
    """RMS norm, in fp32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return x, of shape (..., width), at a root mean square of 1 times the weight."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)).type_as(x) * self.weight


def rotation(tokens: int, head_dim: int, device: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position, shape (tokens, head_dim) each, fp32 (Su et al. 2021)."""
    frequencies = ROPE_BASE ** -(torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angles = torch.outer(torch.arange(tokens, device=device).float(), frequencies)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads of shape (batch, heads, tokens, head_dim) with their positions in them."""
    first, second = x.float().chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).type_as(x)


class FeedForward(nn.Module):
    """A gated network."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.gate, self.up = (nn.Linear(decoder.hidden, decoder.ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(decoder.ffn, decoder.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x, (..., hidden)."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Gated networks of which each token passes some; the rows of one expert lie together, and all are one batched product."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.count, self.each = decoder.experts, decoder.experts_per_token
        self.router = nn.Linear(decoder.hidden, decoder.experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.empty(self.count, decoder.hidden, decoder.ffn)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(self.count, decoder.ffn, decoder.hidden))

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (batch, tokens, hidden); its tokens, times experts of each, are a multiple of the experts."""
        rows = x.reshape(-1, x.shape[-1])
        scores = functional.softmax(self.router(rows).float(), dim=-1)
        chosen = (torch.arange(len(rows) * self.each, device=x.device) % self.count).view(len(rows), self.each)
        weights = scores.gather(1, chosen).type_as(x).flatten()
        order = chosen.flatten().argsort(stable=True)
        taken = rows[order // self.each].view(self.count, -1, rows.shape[-1])
        hidden = functional.silu(torch.bmm(taken, self.gate)) * torch.bmm(taken, self.up)
        given = torch.bmm(hidden, self.down).flatten(0, 1) * weights[order].unsqueeze(-1)
        return torch.zeros_like(rows).index_add(0, order // self.each, given).view_as(x)


class Layer(nn.Module):
    """Attention and a feed-forward network or experts. What lies before and after attention can be called alone."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.shape = decoder
        kv_width = decoder.kv_heads * decoder.head_dim
        self.norm, self.norm2 = Norm(decoder.hidden), Norm(decoder.hidden)
        self.q, self.o = (nn.Linear(decoder.hidden, decoder.hidden, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(decoder.hidden, kv_width, bias=False) for _ in range(2))
        self.ffn = Experts(decoder) if decoder.experts else FeedForward(decoder)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x of shape (batch, tokens, hidden), causal."""
        q, k, v = self.before(x, cos, sin)
        return self.after(x, attention(q, k, v, is_causal=True))

    def before(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (batch, heads, tokens, head_dim)."""
        y = self.norm(x)
        heads = (part.view(*x.shape[:2], -1, self.shape.head_dim).transpose(1, 2) for part in (self.q(y), self.k(y), self.v(y)))
        q, k, v = heads
        return rotated(q, cos, sin), rotated(k, cos, sin), v

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, from its input and what attention returned."""
        x = x + self.o(attended.transpose(1, 2).reshape(x.shape))
        return x + self.ffn(self.norm2(x))


def attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """PyTorch's fused attention; fewer key than query heads are shared."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1])


class Model(nn.Module):
    """Embedding, layers, norm and head."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.shape = decoder
        self.embedding = nn.Embedding(decoder.vocabulary, decoder.hidden)
        self.layers = nn.ModuleList(Layer(decoder) for _ in range(decoder.layers))
        self.norm, self.head = Norm(decoder.hidden), nn.Linear(decoder.hidden, decoder.vocabulary, bias=False)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Logits of token ids (batch, tokens)."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def made(decoder: Decoder, *, device: Any, dtype: Any) -> Model:
    """A model on a device, its weights small random numbers."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Model(decoder)
    model = model.to(dtype).to_empty(device=device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0) if parameter.dim() == 1 else parameter.normal_(std=0.02)
    return model
