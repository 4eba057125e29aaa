"""``meshwright replan`` on the service's database."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.base.settings import Auth, Settings
from tests.integration.calibrations.service import fitted
from tests.integration.replans.rest_replans import BySize, ask, put
from tests.support.command_line import Cli
from tests.support.service import running_service


@pytest.mark.slow
def test_preview_and_batch(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(Settings(f"sqlite:///{tmp_path / 'fleet.db'}"), auth=Auth.OFF)
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", settings.database_url)
    with running_service(settings, BySize()) as client:
        put(client, 2)
        ask(client, 0, 7)
        put(client, 1)
        assert cli("replan", "--cluster", "prod", "--dry-run", "--json") == 0
        assert cli.json() == {"questions": 2, "plans": 2, "stored": 0, "unusable": 0}
        assert cli("replan", "--cluster", "prod") == 1
        assert "1 unchanged, 1 worse" in cli.out
        assert cli("replan", "--cluster", "prod", "--json") == 0
        assert cli.json()["items"] == []
        client.post("/v1/calibrations", json=dict(fitted().document))
        assert cli("replan", "--calibration", "h100_sxm", "--dry-run", "--json") == 0
        assert cli.json()["questions"] == 2
        assert cli("replan", "--calibration", "h100_sxm") == 0
        assert "2 unchanged" in cli.out
        assert cli("replan", "--model", "nonesuch") == 2
    assert cli("replan", "--cluster", "nonesuch") == 2
    assert cli("replan", "--calibration", "nonesuch") == 2
