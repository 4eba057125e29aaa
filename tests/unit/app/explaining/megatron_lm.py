"""Shared by the tests of megatron lm and others: LLAMA."""

from __future__ import annotations

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 8192 --swiglu --normalization RMSNorm --disable-bias-linear "
    "--untie-embeddings-and-output-weights --vocab-size 128256 --bf16 --attention-dropout 0 --hidden-dropout 0 "
)
