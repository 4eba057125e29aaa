"""What is taken for digits is a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.base.digits import MOST_DIGITS, is_digits
from tests.support.command_line import Cli

ODD_DIGITS = ("\u00b2", "\u2460", "\u0663", "\u0bf0", "\uff13", "9" * 5000, "")
"""A superscript, one in a circle, those of other scripts, wide ones, more than int() reads, none."""


@pytest.mark.parametrize("text", ODD_DIGITS)
def test_odd_digits_are_none(text: str) -> None:
    assert not is_digits(text)


@given(st.text(st.characters(categories=["N"]), max_size=MOST_DIGITS + 2))
def test_int_reads_what_is_digits(text: str) -> None:
    assert not is_digits(text) or str(int(text)) == (text.lstrip("0") or "0")


@given(st.integers(0, 10**MOST_DIGITS - 1))
def test_each_number_is_digits(number: int) -> None:
    assert is_digits(str(number))


@pytest.mark.parametrize("text", ODD_DIGITS)
@pytest.mark.parametrize(
    "line",
    [
        ("calibrate", "show", "a@{}"),
        ("shard", "--model", "request.yaml", "--mesh", "data={}"),
        ("plan", "--gpus", "{}xH100", "llama-3.1-8b", "--batch", "8", "--seq", "512"),
        ("plan", "--gpus", "8xH100", "llama-3.1-8b", "--batch", "{}", "--seq", "512"),
        ("explain", "--gpus", "8xH100", "--isl", "100", "--osl", "10", "--rate", "1", "--", "vllm", "serve", "m", "-tp", "{}"),
        ("explain", "--gpus", "8xH100", "--", "torchrun", "--nproc_per_node", "{}", "train.py"),
        ("explain", "--gpus", "8xH100", "--", "bash", "-c", "N=$(({} + 1)); torchrun --nproc_per_node $N pretrain_gpt.py"),
    ],
)
def test_no_command_fails_by_them(cli: Cli, line: tuple[str, ...], text: str) -> None:
    assert cli(*(word.format(text) for word in line)) in (1, 2)
    assert "internal error" not in cli.err
