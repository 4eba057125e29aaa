"""Number formats by the names that serving engines give them."""

from __future__ import annotations

from meshwright.costmodels.units import DType

_CACHES = {
    **dict.fromkeys(("fp8", "fp8-e4m3", "fp8_e4m3", "fp8-e5m2", "fp8_e5m2"), DType.FP8),
    **dict.fromkeys(("bfloat16", "bf16", "float16", "fp16"), DType.BF16),
}
_WORKING = {
    **dict.fromkeys(("bfloat16", "bf16"), DType.BF16),
    **dict.fromkeys(("float16", "fp16", "half"), DType.FP16),
}


def cache(text: str) -> DType | None:
    """Return the format of a cache; None of ``auto``, which leaves it to the checkpoint. Raises KeyError for others."""
    return None if text == "auto" else _CACHES[text.casefold()]


def working(text: str) -> DType | None:
    """Return the working format; None of ``auto``, which leaves it to the checkpoint. Raises KeyError for others."""
    return None if text == "auto" else _WORKING[text.casefold()]
