"""Rows are validated as they would be planned: sources are a mapping beside the table, and rows are public requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from meshwright.app.evidence.training.prediction import predict_run
from meshwright.app.evidence.training.rows import COLUMNS, read_measured_runs
from meshwright.app.evidence.training.sources import NO_SOURCES, UNKNOWN, Source, sources_of
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.implementations.profile import implementation_profiles
from meshwright.solver.problem.choices import Launcher
from tests.support.command_line import Cli
from tests.unit.app.validation.tables import MAPPING, write_table

ROOT = Path(__file__).parents[4]

ROWS: tuple[dict[str, str], ...] = (
    {"source_id": "vtrain_single", "precision": "fp16", "dp": "2", "tp": "2", "pp": "2"},
    {"source_id": "seed_ascend", "gpu": "Ascend-910B", "dp": "2", "vocab": "", "tp": "2", "pp": "2"},
    {"source_id": "aleph_layouts", "flash_attention": "0", "kv_heads": "32", "notes": "kernel=torch"},
    {"source_id": "bigscience_1b3_v100", "gpu": "V100-32GB", "precision": "fp16", "n_gpus": "8", "gpus_per_node": "4"},
    {"source_id": "simumax_b200", "gpu": "B200", "dp": "4", "tp": "1", "pp": "2", "vpp": "2"},
    {"source_id": "korthikanti_fig1_mem", "flash_attention": "", "seq_len": "2048"},
    {"source_id": "torchtitan", "gpu": "H100-SXM-80GB", "dp": "8", "tp": "1", "pp": "1", "notes": "compile"},
    {"source_id": "nobody_knows"},
)


def test_planning_a_written_row_gives_what_was_validated(cli: Cli) -> None:
    table = write_table(cli.folder / "m.csv", *ROWS)
    folder = cli.folder / "requests"
    assert cli("validate", str(table), "--sources", str(MAPPING), "--requests", str(folder), "--json") == 0
    runs = cli.json()["runs"]
    assert len(runs) == len(ROWS) and len(list(folder.iterdir())) == 2 * len(ROWS)
    for run in runs:
        files = [folder / f"row-{run['line']}.{kind}.json" for kind in ("request", "plan")]
        cli("predict", str(files[0]), "--plan", str(files[1]), "--json")
        predicted = cli.json()
        assert predicted["predicted"]["step_time_s"] == run["predicted"]["step_time_s"], run["source"]
        assert predicted["feasible"] == run["predicted"]["fits"]


def test_predicting_a_plan_that_does_not_fit_proves_nothing_of_others(cli: Cli) -> None:
    table = write_table(cli.folder / "m.csv", {"dp": "8", "tp": "1", "pp": "1", "micro_batch": "8"})
    folder = cli.folder / "requests"
    assert cli("validate", str(table), "--requests", str(folder)) == 0
    files = [str(folder / f"row-2.{kind}.json") for kind in ("request", "plan")]
    assert cli("predict", files[0], "--plan", files[1]) == 1
    assert "Infeasible" in cli.out and "Proven" not in cli.out
    assert "no search was made" in " ".join(cli.out.split())


def test_renaming_every_source_and_its_mapping_changes_no_figure(tmp_path: Path) -> None:
    names = {row["source_id"]: f"source {index}" for index, row in enumerate(ROWS)}
    document = yaml.safe_load(MAPPING.read_text(encoding="utf-8"))
    document["sources"] = {names.get(name, f"another {name}"): source for name, source in document["sources"].items()}
    renamed_mapping = tmp_path / "renamed.yaml"
    renamed_mapping.write_text(yaml.safe_dump(document))
    table = write_table(tmp_path / "m.csv", *ROWS)
    renamed = write_table(tmp_path / "r.csv", *(row | {"source_id": names[row["source_id"]]} for row in ROWS))
    before = [predict_run(row.run) for row in read_measured_runs(table, sources_of(table, MAPPING))]
    after = [predict_run(row.run) for row in read_measured_runs(renamed, sources_of(renamed, renamed_mapping))]
    assert before == after
    unknown = [predict_run(row.run) for row in read_measured_runs(renamed, NO_SOURCES) if row.run.vocab is not None]
    assert unknown[-1] == after[-1] and unknown[0] != after[0]


def test_a_mapping_beside_the_table_is_found(tmp_path: Path) -> None:
    table = write_table(tmp_path / "mine.csv", {})
    assert sources_of(table).of("ours") is UNKNOWN
    mapping = {"schema": "meshwright.sources/1", "sources": {"ours": {"basis": "we ran it", "zero_stage": 1}}}
    (tmp_path / "mine.sources.yaml").write_text(yaml.safe_dump(mapping))
    assert sources_of(table).of("ours") == Source("we ran it", zero_stage=1)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"schema": "meshwright.sources/2", "sources": {}}, "schema"),
        ({"schema": "meshwright.sources/1", "sources": {"a": {}}}, "basis"),
        ({"schema": "meshwright.sources/1", "sources": {"a": {"basis": "b", "zero_stage": 7}}}, "zero_stage"),
        (
            {"schema": "meshwright.sources/1", "sources": {"a": {"basis": "b", "implementation": {"profile": "nobody's"}}}},
            "torchtitan-0.3",
        ),
        ({"schema": "meshwright.sources/1", "sources": {"a": {"basis": "b", "implementation": {"kernels": "x"}}}}, "kernels"),
    ],
)
def test_a_faulty_mapping_is_bad_input(tmp_path: Path, mapping: dict[str, object], words: str) -> None:
    given = tmp_path / "given.yaml"
    given.write_text(yaml.safe_dump(mapping))
    with pytest.raises(InvalidInputError) as raised:
        sources_of(write_table(tmp_path / "m.csv", {}), given)
    assert words in str(raised.value)


def test_a_table_of_an_unknown_source_is_predicted_with_what_was_assumed(cli: Cli) -> None:
    table = write_table(cli.folder / "m.csv", {"micro_batch": "", "recompute": ""}, {"micro_batch": "2"})
    assert cli("validate", str(table), "--json") == 0
    silent, stated = (run["assumed"] for run in cli.json()["runs"])
    assert [UNKNOWN.basis, "micro-batches of 1 sequence", "no recomputation"] == silent[:3]
    assert UNKNOWN.basis in stated and not any("micro-batches" in each or "recomputation" in each for each in stated)


def test_no_source_of_the_tables_is_named_in_code() -> None:
    sources = yaml.safe_load(MAPPING.read_text(encoding="utf-8"))["sources"]
    frameworks = {launcher.value for launcher in Launcher} | {profile.name for profile in implementation_profiles()}
    named = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sources if name not in {*frameworks, *COLUMNS}))
    files = [path for folder in ("app", "solver", "costmodels", "meshwright") for path in (ROOT / folder).rglob("*.py")]
    found = [f"{path.relative_to(ROOT)}: {named.findall(path.read_text(encoding='utf-8'))}" for path in files]
    assert [line for line in found if not line.endswith("[]")] == []
