"""Laws of memory that ship are those of the page, and the fit writes them as they ship."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import fit_memory
from meshwright.costmodels.implementations.profile import Profile, implementation_profiles
from meshwright.costmodels.model.memory_law import GENERIC_LAW, MemoryLaw

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cost-models.md").read_text(encoding="utf-8")


def test_the_page_has_the_law_of_others_that_ships() -> None:
    assert fit_memory.law_cells("all profiles (the law of others)", GENERIC_LAW) in PAGE


@pytest.mark.parametrize("profile", implementation_profiles(), ids=lambda profile: profile.name)
def test_the_page_has_the_laws_of_profiles_that_ship(profile: Profile) -> None:
    law, told_by = profile.implementation.memory, fit_memory.ALSO.get(profile.name, profile.name)
    if law == GENERIC_LAW:
        assert f"| {told_by} | {law.origin} |" not in PAGE
    else:
        assert fit_memory.law_cells(told_by, law) in PAGE


def test_laws_are_written_into_files_of_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laws that ship are written as they stand; a profile without runs loses its law, one that shares another's gets it."""
    before = tmp_path / "profiles"
    shutil.copytree(ROOT / fit_memory.PROFILES, before)
    monkeypatch.setattr(fit_memory, "PROFILES", before)
    laws = {each.name: law for each in implementation_profiles() if (law := each.implementation.memory) != GENERIC_LAW}
    fit_memory._write(laws)
    for path in sorted((ROOT / fit_memory.PROFILES).iterdir()):
        assert (before / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
    fit_memory._write({"torchtitan-0.3": fit_memory.shipped(MemoryLaw(1.01234, 2.0, 1.0, 0.1, 0.05, "made up"))})
    assert '"memory"' not in (before / "paddlenlp.json").read_text(encoding="utf-8")
    compiled = (before / "torchtitan-0.3-compiled.json").read_text(encoding="utf-8")
    assert '"allocator": 1.012,' in compiled
