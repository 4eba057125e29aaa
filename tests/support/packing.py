"""Packs of documents as a loader makes them: drawn one after another, laid end to end, cut where a sequence is full."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.model.documents import DocumentLengths


def simulated_packs(lengths: DocumentLengths, seq_len: int, *, packs: int, seed: int) -> list[list[int]]:
    """Return the tokens of each piece of a document, pack by pack."""
    draw = np.random.default_rng(seed)
    shares = np.array(lengths.counts) / sum(lengths.counts)
    drawn: list[int] = []
    found: list[list[int]] = [[]]
    room = seq_len
    while True:
        if not drawn:
            drawn = draw.choice(lengths.tokens, size=10_000, p=shares).tolist()
        left = drawn.pop()
        while left:
            piece = min(left, room)
            found[-1].append(piece)
            left, room = left - piece, room - piece
            if room == 0:
                if len(found) == packs:
                    return found
                found.append([])
                room = seq_len
