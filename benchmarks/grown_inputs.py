"""Inputs grown from an example: parts repeated, nested, numbered and made long, as structure or as text."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

from benchmarks.fuzz_rest import places

PIECES = (
    "{1..99999}", "{a,b}{c,d}", "$((1+", "$((2**62))", "${x:-", "${x[@]}", "$(", "<<E\n", "\\\n", "for i in {1..9}; do ", "*a ",
    "&a [", "- ", "? ", "!!int ", "| ", ",", ";", "\t", "\r\n", "\n", " ", '"', "'", "=", ":", "0", "a", "-", "%20", "&a=b",
    "[", "{", "(", "\\u0000", "é", "\u2028", "1e9", "iteration", "x=$x$x;",
)  # fmt: skip
"""Pieces of the languages that are read, each of which begins, ends or expands something."""
CHAINS = (
    'a{n}="$a{m}$a{m}"\n', "a{n}: &a{n} [*a{m}, *a{m}]\n", "a{n}: {{b: {m}}}\n", "export a{n}=${{a{m}}}x\n",
    "f{n}() {{ f{m}; f{m}; }}\n", "--a{n} {m} ", "a{n}={m}&", "- {n}\n", "{n},",
)  # fmt: skip
"""Lines of which each may name the one before it."""
PAIRS = (
    ("(", ")"), ("[", "]"), ("{", "}"), ("$((", "))"), ("${a:-", "}"), ("$(", ")"), ('"', '"'), ("`", "`"), ('{"a":', "}"),
    ("- ", ""),
)  # fmt: skip
NUMBERS = (0, -1, 7, 1000, 65_535, 1_000_000, 2**31, 2**40, 10**15, 1e-9, 1e17)
SPANS = (re.compile(r"[^\n]*\n"), re.compile(r"\S+\s?"), re.compile(r"[^,;]*[,;]"), re.compile(r"."))
"""Parts of a text: lines, words, cells, characters."""
NUMBER = re.compile(r"\d+")


def grown(text: bytes, chance: random.Random, others: list[bytes], longest: int) -> bytes:
    """Return the input changed in one place, most often to a longer one; at most ``longest`` bytes."""
    size = int(longest ** chance.uniform(0.3, 1.0))
    document = _document(text) if chance.random() < 0.7 else None
    if isinstance(document, dict | list):
        made = json.dumps(_document_grown(document, chance, size), ensure_ascii=False).encode("utf-8", "replace")
    elif b"\0" in text:
        made = _bytes_grown(text, chance, size)
    else:
        made = _text_grown(text.decode("utf-8", "replace"), chance, others, size).encode("utf-8", "replace")
    return made[:longest]


def _document(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _document_grown(document: Any, chance: random.Random, size: int) -> Any:
    found = places(document)
    if not found:
        return document
    holder, key = chance.choice(found)
    value = holder[key]
    times = max(2, size // (len(json.dumps(value)) + 8))
    match chance.randrange(6):
        case 0 if isinstance(holder, list):
            holder[key:key] = [value] * times
        case 0 | 1 if isinstance(holder, dict):
            holder |= {f"{key}{n}": value for n in range(times)}
        case 2:
            for _ in range(chance.choice((2, 20, 60, 500))):
                value = {key: value} if isinstance(key, str) else [value]
            holder[key] = value
        case 3:
            holder[key] = chance.choice(PIECES) * size
        case 4 if isinstance(holder, dict):
            holder[chance.choice(PIECES) * size] = holder.pop(key)
        case 5 if isinstance(value, list) and value:
            holder[key] = value * max(2, times)
        case _:
            other, name = chance.choice(found)
            holder[key] = chance.choice((*NUMBERS, int("9" * min(size, 4000)), copy.deepcopy(other[name])))
    return document


def _bytes_grown(text: bytes, chance: random.Random, size: int) -> bytes:
    at = chance.randrange(len(text))
    match chance.randrange(3):
        case 0:
            width = chance.choice((4, 8))
            number = chance.choice((0, 1, 8, 9, 255, 10_000, 2**20, 2**22, 2**31))
            return text[:at] + number.to_bytes(width, "little") + text[at + width :]
        case 1:
            part = text[at : at + chance.randint(1, 64)]
            return text[:at] + part * (size // len(part)) + text[at:]
        case _:
            return text[:at]


def _text_grown(text: str, chance: random.Random, others: list[bytes], size: int) -> str:
    at = chance.randrange(len(text) + 1)
    if chance.random() < 0.5:
        at = text.find("\n", at) + 1
    found = chance.choice(SPANS).search(text, at)
    span = found[0] if found and found[0] else chance.choice(PIECES)
    match chance.randrange(7):
        case 0:
            put = span * (size // len(span))
        case 1:
            piece = chance.choice(PIECES)
            put = piece * (size // len(piece))
        case 2:
            chain = chance.choice(CHAINS)
            put = "".join(chain.format(n=n, m=n - 1) for n in range(min(size // len(chain), chance.choice((30, 10**6)))))
        case 3:
            opening, closing = chance.choice(PAIRS)
            times = min(size // (len(opening) + len(closing)), chance.choice((10, 60, 10**6)))
            put = opening * times + span + closing * times
        case 4:
            # Copies that differ by a number, in the place of their first word's end.
            head, _, tail = span.partition(" ")
            put = "".join(f"{head}{n} {tail}" for n in range(size // (len(span) + 6)))
        case 5:
            number = NUMBER.search(text, at)
            digits = chance.choice((*map(str, NUMBERS), "9" * size))
            return text if number is None else text[: number.start()] + digits + text[number.end() :]
        case _:
            put = chance.choice(others).decode("utf-8", "replace")
    return text[:at] + put + text[at:]
