"""Lists of names in errors."""

from __future__ import annotations

import pytest

from meshwright.app.requests.model_words import model_of_words
from meshwright.costmodels.errors import NAMES_SHOWN, InvalidInputError, names_like


def test_few_names_are_all_said_in_their_order():
    assert names_like("c", ("b", "a")) == "b, a"


def test_of_many_names_the_nearest_are_said_and_the_rest_counted():
    said = names_like("gpt", [*(f"other-{index}" for index in range(50)), "GPT-2"])
    assert said.startswith("GPT-2, ")
    assert said.count(", ") == NAMES_SHOWN - 1
    assert said.endswith(f" and {51 - NAMES_SHOWN} more")


@pytest.mark.parametrize("text", ["/nowhere/lama.json", "zzz", "x" * 5000])
def test_an_unknown_model_gets_an_error_of_a_few_lines(text):
    with pytest.raises(InvalidInputError) as raised:
        model_of_words(text)
    assert len(str(raised.value)) < 600
