from __future__ import annotations

import pytest

from benchmarks.enumerable import compare_frontiers


@pytest.mark.slow
def test_a_block_that_presolve_once_took_for_infeasible_has_its_whole_frontier(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a decoder's 6 shardings CP-SAT found 3: without probing OR-Tools 9.15 said that there were no more."""
    assert compare_frontiers(719258, 1) == 0
    assert "'cp-sat': 1" in capsys.readouterr().out
