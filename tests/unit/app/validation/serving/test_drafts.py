"""Drafts of rows: what is stated, what is assumed, and what they do to the times."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.app.evidence.serving.deployment import ACCEPTANCE, Deployment, deployment
from meshwright.app.evidence.serving.recipes import EngineName
from meshwright.app.evidence.serving.replay import default_constants, replay
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.costmodels.errors import InvalidInputError
from tests.unit.app.validation.serving.tables import point

DEEPSEEK = {
    "model": "deepseek-ai/DeepSeek-R1",
    "gpu": "b200",
    "tp": "8",
    "n_gpus": "8",
    "engine": "trtllm",
    "osl": "64",
    "concurrency": "1",
    "speculation": "mtp",
}
POOLS = {"mode": "disagg", "n_gpus": "16", "tp": "P1x8/D1x8"}


def drafting(folder: Path, **changes: str) -> Deployment:
    return deployment(point(folder, **DEEPSEEK | changes).run)


def tokens(folder: Path, **changes: str) -> int:
    return drafting(folder, **changes).drafted[0][1].draft_tokens


def tpot_ms(deployed: Deployment) -> float:
    return replay(deployed, default_constants(deployed.engine)).tpot_ms


def test_what_a_row_states_is_taken(tmp_path: Path) -> None:
    ((weight, speculation),) = drafting(tmp_path, draft_tokens="2", acceptance="0.9").drafted
    assert (weight, speculation.draft_tokens, speculation.acceptance) == (1.0, 2, 0.9)


def test_an_acceptance_that_is_not_stated_is_the_engines_prior(tmp_path: Path) -> None:
    for engine in EngineName:
        found = tuple((weight, each.acceptance) for weight, each in drafting(tmp_path, engine=engine.value).drafted)
        assert found == ACCEPTANCE[engine]
        assert sum(weight for weight, _ in found) == 1.0


def test_tokens_as_scripts_draft_them(tmp_path: Path) -> None:
    groups = {"mode": "disagg", "tp": "P1x1/D1x1", "dp_attn": "P8/D8", "ep": "P8/D8", "n_gpus": "16"}
    assert tokens(tmp_path) == 3
    assert tokens(tmp_path, tp="1", dp_attn="8", ep="8") == 1
    assert tokens(tmp_path, **groups, concurrency="512") == 3
    assert tokens(tmp_path, **groups, concurrency="513") == 1
    assert tokens(tmp_path, engine="sglang") == 2


def test_the_prior_lies_between_its_ends(tmp_path: Path) -> None:
    low, mixed, high = (tpot_ms(drafting(tmp_path, acceptance=said)) for said in ("0.6", "", "0.8"))
    assert low > mixed > high


@pytest.mark.parametrize("row", [{}, POOLS])
def test_drafts_that_are_kept_make_tokens_come_faster(tmp_path: Path, row: dict[str, str]) -> None:
    plain, kept = drafting(tmp_path, **row, speculation="none"), drafting(tmp_path, **row, acceptance="0.9")
    never = drafting(tmp_path, **row, acceptance="0.01")
    assert tpot_ms(kept) < 0.6 * tpot_ms(plain)
    assert tpot_ms(never) > tpot_ms(plain)


def test_drafts_of_another_model_need_its_cost(tmp_path: Path) -> None:
    with pytest.raises(NotPredictedError, match="drafts whose cost is not known: eagle3"):
        drafting(tmp_path, speculation="eagle3")


def test_an_acceptance_is_a_share(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="column acceptance"):
        point(tmp_path, acceptance="1.5")
