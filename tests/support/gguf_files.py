"""Headers of GGUF files, as their writers make them."""

from __future__ import annotations

import struct
from typing import Any

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
HIDDEN, FFN, HEADS, KV, VOCAB, LAYERS = 64, 96, 4, 2, 200, 2


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def value(given: Any) -> bytes:
    if isinstance(given, str):
        return struct.pack("<I", STRING) + text(given)
    if isinstance(given, list):
        return struct.pack("<IIQ", ARRAY, STRING, len(given)) + b"".join(map(text, given))
    return struct.pack("<If", F32, given) if isinstance(given, float) else struct.pack("<II", U32, given)


def file_of(values: dict[str, Any], tensors: dict[str, tuple[int, ...]], *, kind: int = 1, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    sizes = (text(n) + struct.pack(f"<I{len(s)}QIQ", len(s), *s, kind, 0) for n, s in tensors.items())
    return head + b"".join(text(name) + value(given) for name, given in values.items()) + b"".join(sizes)


def llama(**more: Any) -> dict[str, Any]:
    sizes = {
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV,
        "rope.freq_base": 500000.0,
    }
    values = {f"llama.{name}": given for name, given in (sizes | more).items()}
    return {"general.architecture": "llama", **values, "tokenizer.ggml.tokens": ["a", "b"] * (VOCAB // 2)}


def tensors(*, experts: int = 0) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (HIDDEN, VOCAB), "output_norm.weight": (HIDDEN,)}
    narrow = HIDDEN * KV // HEADS
    for layer in range(LAYERS):
        block = {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (HIDDEN, narrow),
            "attn_v": (HIDDEN, narrow),
            "attn_output": (HIDDEN, HIDDEN),
        }
        wide = (experts,) if experts else ()
        end = "_exps" if experts else ""
        block |= {f"ffn_{name}{end}": (HIDDEN, FFN, *wide) for name in ("gate", "up", "down")}
        block |= {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,)} | ({"ffn_gate_inp": (HIDDEN, experts)} if experts else {})
        found |= {f"blk.{layer}.{name}.weight": sizes for name, sizes in block.items()}
    return found | {"output.weight": (HIDDEN, VOCAB), "rope_freqs.weight": (8,)}
