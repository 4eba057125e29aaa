"""The benchmark of freedoms: its base is what plans have, and each freedom only adds to it."""

from __future__ import annotations

import pytest

from benchmarks.freedoms import Freedom, Restricted, Role, Scheme, schemes
from meshwright.solver.strategies.contraction import GATHERED_KEYS
from meshwright.solver.strategies.graph_costs import OperatorChoice
from meshwright.solver.strategies.layer_costs import LayerCosts
from tests.unit.solver.strategies.both_costs import Both, priced, request_of


@pytest.fixture(scope="module")
def both() -> Both:
    return priced(request_of("llama-3.1-8b", nodes=4, batch=64, seq_len=4096), dp=16, tp=2, microbatch=1)


def allowed(full: LayerCosts, scheme: Scheme) -> set[tuple[int, tuple[str, ...], tuple[int, ...]]]:
    """(class, what each axis does, axes that split the storage) of all that a scheme allows."""
    costs = Restricted(full, scheme)
    pricings = [(index, costs.of_class(index)) for index in range(len(costs.folding.members))]
    return {
        (index, priced.placed.name(priced.assignments[storage.assignment]), storage.axes)
        for index, priced in pricings
        for storage in priced.storages
    }


def test_one_scheme_is_one_sharding_and_costs_what_plans_say(both: Both) -> None:
    scheme = Scheme((Role.BATCH, Role.TENSOR), frozenset({0}), Freedom.NONE)
    costs = Restricted(both.costs, scheme)
    assert costs.is_possible
    assert len(allowed(both.costs, scheme)) == len(costs.folding.members)
    only = [OperatorChoice(0, 0)] * len(costs.folding.members)
    assert costs.step_time(only).step_s == pytest.approx(both.time.step_s, rel=1e-12)
    assert costs.peak_bytes(only) == pytest.approx(both.costs.peak_bytes(both.choices), rel=1e-12)


def test_each_freedom_adds_to_one_scheme(both: Both) -> None:
    spaces = {
        freedom: {(each.roles, each.stored): allowed(both.costs, each) for each in schemes(freedom, 2, routed=False)}
        for freedom in Freedom
    }
    for (roles, stored), base in spaces[Freedom.NONE].items():
        assert base <= spaces[Freedom.DIMS][roles, stored] & spaces[Freedom.KEYS][roles, stored]
        assert base <= spaces[Freedom.STORAGE][roles, frozenset()]
        assert any(base <= space for space in spaces[Freedom.ROLES].values())
    base, dims, keys = (set().union(*spaces[freedom].values()) for freedom in (Freedom.NONE, Freedom.DIMS, Freedom.KEYS))
    assert {names for _, names, _ in keys - base} == {(GATHERED_KEYS, GATHERED_KEYS), *_beside_gathered_keys()}
    assert any(set(names) == {"heads", "hidden"} for _, names, _ in dims - base)


def _beside_gathered_keys() -> set[tuple[str, ...]]:
    pairs = {(GATHERED_KEYS, other) for other in ("batch", "heads")}
    return pairs | {(other, gathered) for gathered, other in pairs}


def test_experts_lie_over_an_axis_that_splits_the_batch_elsewhere() -> None:
    both = priced(request_of("mixtral-8x7b", nodes=1, batch=8, seq_len=1024), dp=8, tp=1, microbatch=1)
    scheme = Scheme((Role.EXPERTS_AND_BATCH,), frozenset(), Freedom.NONE)
    assert Restricted(both.costs, scheme).is_possible
    splits = {
        (both.costs.graph.nodes[both.costs.folding.members[index][0]].operator.name, names)
        for index, names, _ in allowed(both.costs, scheme)
    }
    assert ("experts_down_proj", ("experts",)) in splits
    assert {("router", ("batch",)), ("dispatch", ("batch",)), ("attention", ("batch",))} <= splits
