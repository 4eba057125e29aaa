"""Atoms: sizes are followed through views whatever their order, and equal dims are found."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.models.traced.atoms import Atoms, axis_size, resolve

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=5)


def test_a_view_cuts_a_dim_everywhere() -> None:
    atoms = Atoms()
    batch, hidden = atoms.fresh(3), atoms.fresh(32)
    axes, mixed = atoms.regrouped((batch, hidden), (3, 4, 8))
    assert not mixed
    assert [axis_size(axis) for axis in axes] == [3, 4, 8]
    assert resolve(hidden) == resolve((*axes[1], *axes[2]))


def test_a_flattened_dim_is_both() -> None:
    atoms = Atoms()
    given_axes = (atoms.fresh(3), atoms.fresh(5), atoms.fresh(7))
    axes, mixed = atoms.regrouped(given_axes, (15, 7))
    assert not mixed and axes == ((*given_axes[0], *given_axes[1]), given_axes[2])


def test_sizes_that_do_not_nest_are_mixed() -> None:
    atoms = Atoms()
    axes, mixed = atoms.regrouped((atoms.fresh(4), atoms.fresh(6)), (6, 4))
    assert [axis_size(axis) for axis in axes] == [6, 4]
    assert {atom.size for atom in mixed} == {4, 6}
    assert not {atom for axis in axes for atom in resolve(axis)} & mixed


def test_equal_axes_are_one_from_then_on() -> None:
    atoms = Atoms()
    heads, size, hidden = atoms.fresh(4), atoms.fresh(8), atoms.fresh(32)
    assert atoms.unify((*heads, *size), hidden)
    assert resolve(hidden) == (*heads, *size)
    # A cut found later is found in both.
    (left, right), mixed = atoms.regrouped((hidden,), (2, 16))
    assert not mixed
    assert resolve(heads) == (*resolve(left), *resolve(right)[:1])


def test_factors_that_do_not_nest_are_not_equal() -> None:
    atoms = Atoms()
    assert not atoms.unify((*atoms.fresh(2), *atoms.fresh(3)), (*atoms.fresh(3), *atoms.fresh(2)))


@given(sizes=SIZES, data=st.data())
def test_views_keep_every_element_and_their_sizes(sizes: list[int], data: st.DataObject) -> None:
    atoms = Atoms()
    axes = tuple(atoms.fresh(size) for size in sizes)
    target: list[int] = []
    rest = math.prod(sizes)
    while rest > 1:
        divisors = [d for d in range(2, rest + 1) if rest % d == 0]
        target.append(data.draw(st.sampled_from(divisors)))
        rest //= target[-1]
    made, mixed = atoms.regrouped(axes, target)
    assert [axis_size(axis) for axis in made] == target
    kept = {atom for axis in axes for atom in resolve(axis)} - {a for m in mixed for a in m.resolved()}
    written = {atom for axis in made for atom in resolve(axis)}
    assert kept <= written


@given(first=SIZES, second=SIZES)
def test_unification_is_symmetric(first: list[int], second: list[int]) -> None:
    def joined(a: list[int], b: list[int]) -> bool:
        atoms = Atoms()
        left = tuple(atom for size in a for atom in atoms.fresh(size))
        right = tuple(atom for size in b for atom in atoms.fresh(size))
        if not atoms.unify(left, right):
            return False
        assert resolve(left) == resolve(right)
        return True

    assert joined(first, second) == joined(second, first)
