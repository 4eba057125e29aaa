"""Meshwright as it is installed: from its wheel and as an editable tree, beside a project with an ``app`` of its own."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from meshwright.app.models.catalog.huggingface_ids import LISTED

pytest.importorskip("setuptools", minversion="77", reason="what builds the wheel is not installed: pip install -e '.[dev]'")

ROOT = Path(__file__).parents[2]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "meshwright", "app", "solver", "costmodels", "migrations")
FLOORS = ("app", "costmodels", "migrations", "solver")
BUILD = "from setuptools.build_meta import {hook} as build; build({folder!r})"

REQUEST = """\
schema: meshwright.request/1
model: {catalog: llama-3.1-8b}
cluster: {catalog: dgx-h100, nodes: 1}
workload: {kind: training, global_batch: 64, seq_len: 4096}
search: {tp: [1], pp: [1], cp: [1], microbatch: [1]}
"""

PROJECT = {
    "app/__init__.py": 'OWNER = "the project"\n',
    "migrations/__init__.py": 'OWNER = "the project"\n',
    "solver.py": 'OWNER = "the project"\n',
    "plans/llama.plan.yaml": REQUEST,
    "test_own.py": """\
import app
import migrations
import solver


def test_the_projects_own_packages_are_imported():
    assert {app.OWNER, migrations.OWNER, solver.OWNER} == {"the project"}


def test_meshwright_is_there_too():
    import meshwright

    assert "llama-3.1-8b" in meshwright.model_names()
""",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built, so that building leaves nothing in the repository."""
    folder = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("build_wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=["wheel", "editable"])
def python(request: pytest.FixtureRequest, source: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with Meshwright; everything else is this environment's own."""
    folder = tmp_path_factory.mktemp(f"environment-{request.param}")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    interpreter = folder / "bin" / "python"
    packages = Path(run(str(interpreter), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    what = [str(wheel)] if request.param == "wheel" else ["--editable", str(source)]
    pip = ["-m", "pip", "--python", str(interpreter), "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    run(sys.executable, *pip, "--ignore-installed", *what)
    return interpreter


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def run(*command: str, cwd: Path | None = None, **variables: str) -> str:
    """Return what a command prints; fail with its messages if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "MESHWRIGHT"))}
    done = subprocess.run(command, cwd=cwd, env=environment | variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(hook: str, source: Path, folder: Path) -> Path:
    run(sys.executable, "-c", BUILD.format(hook=hook, folder=str(folder)), cwd=source)
    (found,) = folder.iterdir()
    return found


@pytest.mark.slow
def test_the_projects_own_packages_are_imported(python: Path, project: Path) -> None:
    bin_folder = python.parent
    assert "2 passed in" in run(str(python), "-m", "pytest", "-q", "--import-mode=prepend", cwd=project)
    pytest_alone = "import sys; sys.path.pop(0); import pytest; sys.exit(pytest.main(['-q']))"
    assert "2 passed in" in run(str(python), "-c", pytest_alone, cwd=project)
    shown = run(str(bin_folder / "meshwright"), "plan", "plans/llama.plan.yaml", "--no-store", cwd=project, PYTHONPATH=".")
    assert "Optimal" in shown


@pytest.mark.slow
def test_the_plugin_of_pytest_checks_plans(python: Path, project: Path, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'plans.db'}"
    run(str(python.parent / "meshwright"), "check", "plans", "--update", cwd=project, MESHWRIGHT_DATABASE_URL=database)
    shown = run(str(python), "-m", "pytest", "-q", "--meshwright", cwd=project, MESHWRIGHT_DATABASE_URL=database)
    assert "3 passed in" in shown


@pytest.mark.slow
def test_data_and_types_are_installed(python: Path, tmp_path: Path) -> None:
    code = """
import meshwright, pathlib
from meshwright.app.requests.digests import calibration_files
print(pathlib.Path(meshwright.__file__).parent)
assert pathlib.Path(meshwright.__file__).with_name("py.typed").is_file()
print(len(meshwright.model_names()), len(meshwright.node_names()), len(calibration_files()))
"""
    where, counts = run(str(python), "-c", code, cwd=tmp_path).splitlines()
    assert not Path(where).is_relative_to(ROOT)
    with_files = len(list((ROOT / "app/models/catalog/models").glob("*.json")))
    catalogue = with_files + len(LISTED.documents)
    nodes = len(list((ROOT / "costmodels/hardware/nodes").glob("*.json")))
    calibrations = len(list((ROOT / "costmodels/hardware/calibrations").rglob("*.json")))
    assert counts == f"{catalogue} {nodes} {calibrations}"
    database = f"sqlite:///{tmp_path / 'new.db'}"
    run(str(python.parent / "meshwright"), "migrate", cwd=tmp_path, MESHWRIGHT_DATABASE_URL=database)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert run(str(python.parent / "meshwright"), "--version", cwd=tmp_path) == f"meshwright {version}\n"


@pytest.mark.slow
def test_the_wheel_and_the_source_archive_hold_every_module_and_data_file(wheel: Path, source: Path, tmp_path: Path) -> None:
    kept = {".py", ".json", ".csv", ".typed", ".html", ".css", ".js"}
    expected = {f"meshwright/{path.relative_to(source)}" for floor in FLOORS for path in (source / floor).rglob("*.*")}
    expected |= {str(path.relative_to(source)) for path in (source / "meshwright").glob("*.*")}
    expected = {name for name in expected if Path(name).suffix in kept}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if Path(name).suffix in kept}
    assert held == expected
    with tarfile.open(built("build_sdist", source, tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert expected <= names


@pytest.mark.slow
def test_a_checkout_imports_its_own_files_alone_installed_or_not(python: Path, tmp_path: Path) -> None:
    """Another version is installed in the environment: all of it or nothing of it is imported."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in BUILT_FROM:
        (checkout / name).symlink_to(ROOT / name)
    loaded = "import sys, meshwright.app.cli.main, meshwright.solver.api, meshwright.migrations; ours = [module for name, "
    loaded += "module in sys.modules.items() if name.startswith('meshwright') and module.__file__]; "
    code = loaded + "print({module.__file__.partition('/meshwright/')[0] for module in ours})"
    for folder in (checkout, tmp_path):
        (where,) = ast.literal_eval(run(str(python), "-c", code, cwd=folder))
        assert (Path(where) == checkout) is (folder is checkout)
