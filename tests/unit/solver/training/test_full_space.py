"""The random requests of the full space open every choice of the ledger, one that is added tomorrow too."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from meshwright.solver.problem.choice import TRAINING
from meshwright.solver.problem.search import LEDGER, Search
from tests.unit.solver.training.full_space import TO_OPEN, drawn_request

OPEN = [name for name, entry in LEDGER.items() if entry.choice.forms & TRAINING and entry.choice.place is not None]


@cache
def searches() -> tuple[Search, ...]:
    return tuple(drawn_request(seed, np.random.default_rng([seed, 5])).search for seed in range(200))


@pytest.mark.parametrize("name", OPEN)
def test_every_choice_of_training_plans_is_open_in_some_requests(name: str) -> None:
    values = [getattr(search, name) for search in searches()]
    if name in TO_OPEN:
        assert any(value != LEDGER[name].default for value in values)
    assert any(value == LEDGER[name].default for value in values)
