"""`meshwright doctor`: what it sees, and what it says to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.doctoring import Finding, Health, findings
from meshwright.app.store.engine import open_engine, writing
from meshwright.app.store.migrate import upgrade


def found(what: str, url: str = "sqlite://", folder: Path = Path("/nowhere")) -> Finding:
    settings = Settings(database_url=url)
    return next(each for each in findings(settings, folder / "nvidia", folder / "amd") if each.what == what)


def test_a_store_that_is_not_there_yet_is_good_and_stays_away(tmp_path: Path) -> None:
    file = tmp_path / "plans.db"
    assert found("plan store", f"sqlite:///{file}").health is Health.GOOD
    assert not file.exists()


def test_a_store_of_another_schema_is_wrong_until_it_is_migrated(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    engine = open_engine(url)
    upgrade(engine)
    assert found("plan store", url).health is Health.GOOD
    with writing(engine) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    wrong = found("plan store", url)
    assert wrong.health is Health.WRONG and "0001" in wrong.state and "migrate" in wrong.remedy


def test_a_store_that_does_not_answer_is_said_with_its_address() -> None:
    wrong = found("plan store", "postgresql+psycopg://me:secret@127.0.0.1:1/plans")
    assert wrong.health is Health.WRONG and wrong.remedy
    assert "127.0.0.1" in wrong.state and "secret" not in wrong.state


def test_gpus_are_read_from_their_drivers(tmp_path: Path) -> None:
    assert found("GPUs", folder=tmp_path).health is Health.ABSENT
    for bus in ("01", "02"):
        (tmp_path / "nvidia" / bus).mkdir(parents=True)
        (tmp_path / "nvidia" / bus / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 5\n")
    for node, units in (("0", 0), ("1", 1216)):
        (tmp_path / "amd" / node).mkdir(parents=True)
        (tmp_path / "amd" / node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {units}\n")
    assert found("GPUs", folder=tmp_path).state == "2 x NVIDIA H100 80GB HBM3, 1 x AMD GPU"


def test_a_folder_that_can_not_be_written_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    wrong = found("temporary files")
    assert wrong.health is Health.WRONG and "TMPDIR" in wrong.remedy


@pytest.mark.slow
def test_compiled_loops_are_those_of_a_first_serving_plan(tmp_path: Path) -> None:
    """In processes of their own, with an empty folder of compiled loops."""
    asked = [sys.executable, "-c", "from meshwright.app.cli.main import main; main()"]
    options = ["--gpus", "8xH100", "--serve", "--isl", "2000", "--osl", "300", "--rate", "4", "--json"]
    here = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "MESHWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path / 'plans.db'}"}
    subprocess.run([*asked, "doctor", "--compile"], env=here, check=True, capture_output=True)
    kept = {path.name for path in tmp_path.rglob("*.nbc")}
    subprocess.run([*asked, "plan", "llama-3.1-8b", *options], env=here, check=True, capture_output=True)
    assert len(kept) > 10 and {path.name for path in tmp_path.rglob("*.nbc")} == kept
