"""Laws of memory: known ones are found again, and a source is scored by a law that has not seen it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.held_out.memory_laws import ToldMemory, fitted_laws, laws_without, log_memory, told_memory
from meshwright.app.evidence.training.prediction import Constants, predict_run
from meshwright.app.evidence.training.rows import read_measured_runs
from meshwright.app.evidence.training.sources import Source, Sources
from meshwright.app.evidence.training.stated import MemoryCount, MemoryRank
from meshwright.costmodels.model.memory_law import GENERIC_LAW, MemoryLaw
from meshwright.solver.problem.implementation import StatedImplementation
from tests.unit.app.validation.tables import write_table

GB = 1e9
TRUE = MemoryLaw(1.1, 1.3, 1.6, shared_sigma=0.02, own_sigma=0.0, origin="made up")


def runs(source: str, *, profile: str = "megatron-core-0.20", law: MemoryLaw = TRUE, n: int = 60) -> list[ToldMemory]:
    """Runs of a source under a known law: half of them tell a peak, half only whether they fitted."""
    chance = random.Random(source)
    found = []
    for index in range(n):
        stages = np.array([[chance.uniform(5, 40), chance.uniform(2, 60), chance.uniform(1, 12), 1.0] for _ in range(2)]) * GB
        count = (MemoryCount.PROCESS, MemoryCount.ALLOCATED, MemoryCount.RESERVED)[index % 3]
        run = ToldMemory(source, profile, "a model", stages, count, MemoryRank.FULLEST, 80 * GB, None, False)
        factors = np.array([1.0, law.activations, law.transients])
        tensors = stages[:, :3] @ factors * (1.0 if count is MemoryCount.ALLOCATED else law.allocator)
        shown = float((tensors + stages[:, 3] * (count is MemoryCount.PROCESS)).max())
        shown *= math.exp(chance.gauss(0, law.log_sigma))
        whole = float(np.exp(log_memory([run], law))[0]) * math.exp(chance.gauss(0, law.log_sigma))
        found.append(replace(run, ran_out=whole > run.device_bytes) if index % 2 else replace(run, peak_bytes=shown))
    return found


def test_a_known_law_is_found_again() -> None:
    law = fitted_laws([run for n in range(8) for run in runs(f"source {n}", n=120)]).of_all
    assert law.allocator == pytest.approx(1.1, abs=0.03)
    assert law.activations == pytest.approx(1.3, abs=0.05)
    assert law.transients == pytest.approx(1.6, abs=0.2)
    assert law.log_sigma == pytest.approx(0.02, abs=0.015)


def test_a_profile_leans_on_the_law_of_all_where_it_has_few_runs() -> None:
    laws = fitted_laws([*runs("a"), *runs("b"), *runs("one", n=2, profile="paddlenlp")])
    assert laws.of("paddlenlp").allocator == pytest.approx(laws.of_all.allocator)
    assert laws.of("paddlenlp").activations == pytest.approx(laws.of_all.activations, rel=0.05)
    assert laws.of("internevo") is laws.of_all


def test_spreads_are_those_of_sources_that_were_left_out() -> None:
    """Sources that differ by 10% with runs that differ by 3%: a fit that has seen them all would promise less of the next."""
    shifts = (-0.12, -0.08, -0.04, 0.0, 0.04, 0.08, 0.12, 0.16)
    members = [
        replace(run, peak_bytes=run.peak_bytes * math.exp(shift) * math.exp(0.03 * (-1) ** (index // 2)))
        for shift in shifts
        for index, run in enumerate(runs(f"source {shift}"))
        if run.peak_bytes is not None
    ]
    laws = fitted_laws(members)
    assert laws.of_all.own_sigma == pytest.approx(0.03, rel=0.25)
    assert laws.of_all.shared_sigma == pytest.approx(0.09, rel=0.25)
    of_profile = laws.of("megatron-core-0.20")
    assert (of_profile.shared_sigma, of_profile.own_sigma) == (laws.of_all.shared_sigma, laws.of_all.own_sigma)


@pytest.mark.slow
def test_a_source_that_is_left_out_does_not_change_its_own_law() -> None:
    others = [*runs("a"), *runs("b"), *runs("c", profile="paddlenlp")]
    far = MemoryLaw(1.0, 3.0, 3.0, 0.02, 0.0, "made up")
    for profile in ("megatron-core-0.20", "paddlenlp", "internevo"):
        laws = [laws_without([*others, *runs("own", profile=profile, law=law)])["own"] for law in (TRUE, far)]
        assert laws[0] == laws[1]
        assert laws[0].activations == pytest.approx(1.3, abs=0.1)


@pytest.mark.slow
def test_other_sources_of_its_profile_tell_more_of_a_source_s_law() -> None:
    heavy = MemoryLaw(1.1, 2.0, 1.6, 0.02, 0.0, "made up")
    known = [*runs("a"), *runs("b"), *runs("own", profile="paddlenlp", law=heavy)]
    same, other = (
        laws_without([*known, *runs("d", profile=profile, law=heavy)])["own"].activations
        for profile in ("paddlenlp", "internevo")
    )
    assert same > other + 0.03


def test_rows_are_counted_without_any_law(tmp_path: Path) -> None:
    """The same row under another law tells the same bytes, and a given law takes the place of the profile's."""
    heavy = replace(GENERIC_LAW, activations=2.0)
    table = write_table(tmp_path / "m.csv", {"source_id": "own", "peak_mem_gb": "40"})

    def read(law: MemoryLaw) -> Sources:
        return Sources(sources={"own": Source("made up", StatedImplementation("megatron-core-0.20", memory=law))})

    light, more = (read_measured_runs(table, read(law))[0] for law in (GENERIC_LAW, heavy))
    assert np.allclose(told_memory([light])[0].stages, told_memory([more])[0].stages)
    assert predict_run(light.run, Constants(memory=heavy)).peak_memory_gb == predict_run(more.run).peak_memory_gb
    assert predict_run(light.run).peak_memory_gb < predict_run(more.run).peak_memory_gb
