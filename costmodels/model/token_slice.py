"""Token slices: parts of a sequence that pass a causal model one after another (TeraPipe, Li et al. 2021, section 3).

The queries of a slice see the keys and values of all slices before it; backward, in reverse order, each slice adds its part to
the gradients of the keys and values before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.errors import InvalidInputError


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
