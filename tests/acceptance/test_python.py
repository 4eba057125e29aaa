"""The public Python interface: what it exports, and that it answers as the command line does."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import pydoc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import meshwright
from tests.support.command_line import Cli
from tests.support.requests_given import serving, training

ROOT = Path(__file__).parents[2]
HEAVY = {"numpy", "numba", "scipy", "pydantic", "sqlalchemy", "alembic", "fastapi", "typer", "rich", "ortools", "pandas"}
SMALL = {"tp": [1, 2], "pp": [1], "cp": [1], "microbatch": [1], "max_candidates": 20}


@pytest.fixture(scope="module")
def request_of_training() -> meshwright.Request:
    workload = meshwright.training(global_batch=64, seq_len=4096)
    return meshwright.request("llama-3.1-8b", "dgx-h100", workload, search=SMALL)


@pytest.fixture(scope="module")
def plan(request_of_training: meshwright.Request) -> meshwright.Plan:
    return meshwright.plan(request_of_training)


def modules_after(code: str) -> set[str]:
    """Top-level packages that are loaded when some code has run in a process of its own."""
    run = f"{code}\nimport sys; print(sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, check=True)
    names: list[str] = ast.literal_eval(done.stdout.splitlines()[-1])
    return set(names)


@pytest.mark.slow
def test_the_page_of_the_documentation_runs() -> None:
    ran = doctest.testfile(str(ROOT / "docs" / "python.md"), module_relative=False, verbose=False)
    assert ran.attempted > 30
    assert ran.failed == 0


def test_every_public_name_is_there_described_and_on_the_page() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert list(meshwright.__all__) == sorted(meshwright.__all__)
    for name in meshwright.__all__:
        found = getattr(meshwright, name)
        if name != "__version__":
            assert inspect.getdoc(found), name
    callables = {name for name in meshwright.__all__ if inspect.isfunction(getattr(meshwright, name))}
    assert {name for name in callables if f"{name}(" not in page} == set()
    errors = {name for name in meshwright.__all__ if name.endswith("Error")}
    assert {name for name in errors if name not in page} == set()


def test_type_checkers_see_the_names_that_are_loaded() -> None:
    tree = ast.parse((ROOT / "meshwright" / "__init__.py").read_text(encoding="utf-8"))
    typed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(meshwright.__all__) - {"__version__"} <= typed
    homes = {name for names in meshwright._HOMES.values() for name in names}
    assert homes == set(meshwright.__all__) - {"__version__"}
    assert (ROOT / "meshwright" / "py.typed").is_file()


def test_no_error_of_the_family_is_left_out() -> None:
    """Every error that a call from Python can raise is public; the service's own are not."""
    from meshwright.costmodels import errors

    family = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert family <= set(meshwright.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        meshwright.plann  # noqa: B018


def test_importing_loads_nothing_heavy() -> None:
    assert modules_after("import meshwright; meshwright.__version__; meshwright.MeshwrightError") & HEAVY == set()


def test_planning_needs_no_database() -> None:
    loaded = modules_after("from meshwright import plan, predict, simulate, export, validate, read_request, read_plan")
    assert loaded & {"sqlalchemy", "alembic", "dbos", "fastapi", "typer", "pandas"} == set()


def test_help_is_a_page() -> None:
    text = pydoc.render_doc(meshwright, renderer=pydoc.plaintext)
    assert text.splitlines()[3].strip() == "meshwright - Meshwright plans how large models train and serve on a cluster."
    assert "plan(request" in text
    assert "Return the best plan for a request" in text
    assert all(f"\n    {name}(" in text for name in ("predict", "simulate", "export", "validate", "training", "serving"))


def test_it_answers_as_the_command_line_does(cli: Cli, tmp_path: Path) -> None:
    request = training(search=SMALL)
    path = tmp_path / "request.yaml"
    path.write_text(yaml.safe_dump(request))
    assert cli("plan", str(path), "--no-store", "--json") == 0
    expected = cli.json()
    for given in (path, str(path), request, meshwright.read_request(path)):
        answer = meshwright.plan(given)
        assert unhurried(json.loads(answer.to_json())) == unhurried(expected)
    answer.save(tmp_path / "plan.json")
    assert meshwright.read_plan(tmp_path / "plan.json") == answer
    assert cli("predict", str(path), "--plan", str(tmp_path / "plan.json"), "--json") == 0
    assert meshwright.predict(path, tmp_path / "plan.json").document == cli.json()


def unhurried(document: dict[str, object]) -> dict[str, object]:
    """A plan document without the time that its search took."""
    search = document["search"]
    assert isinstance(search, dict)
    return document | {"search": search | {"seconds": 0.0}}


def test_exports_are_those_of_the_command_line(cli: Cli, plan: meshwright.Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    launch = meshwright.export(plan, "torchtitan")
    assert cli("export", str(tmp_path / "plan.json"), "--to", "torchtitan", "--json") == 0
    assert launch.document == cli.json()
    assert cli("export", str(tmp_path / "plan.json"), "--to", "torchtitan") == 0
    assert launch.script() + "\n" == cli.out
    written = launch.write(tmp_path / "run")
    assert {path.name for path in written} == {*launch.files, "launch.sh"}
    assert launch.command in (tmp_path / "run" / "launch.sh").read_text()


def test_builders_make_what_request_files_say() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000}
    document = {
        "schema": "meshwright.request/1",
        "model": {"config": config, "name": "small"},
        "cluster": {"groups": [{"name": "a", "node": "dgx-h100", "nodes": 2}], "oversubscription": 2.0},
        "workload": {"kind": "training", "global_batch": 8, "seq_len": 128},
        "slo": {"max_step_time_s": 10.0},
        "objective": "cost",
        "search": {"tp": [1]},
    }
    built = meshwright.request(
        meshwright.model(config, name="small"),
        meshwright.mixed_cluster({"a": ("dgx-h100", 2)}, oversubscription=2.0),
        meshwright.training(global_batch=8, seq_len=128),
        slo={"max_step_time_s": 10.0},
        objective="cost",
        search={"tp": (1,)},
    )
    assert built == meshwright.read_request(document)
    assert built.digest == meshwright.read_request(built.document).digest


def test_models_come_from_names_files_folders_and_numbers(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    config |= {"num_hidden_layers": 2, "num_key_value_heads": 4, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    own = meshwright.transformer("own", layers=2, hidden=256, heads=4, ffn=512, vocabulary=1000)
    found = [meshwright.model(given) for given in (config, tmp_path, tmp_path / "config.json", str(tmp_path / "config.json"))]
    assert {model.parameters for model in found} == {own.parameters}
    graph = meshwright.request(own, "dgx-h100", meshwright.training(global_batch=8, seq_len=128)).document["model"]["graph"]
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    assert meshwright.model(graph).name == meshwright.model(tmp_path / "graph.json").name == "own"
    mixture = meshwright.transformer("moe", layers=2, hidden=256, heads=4, ffn=512, vocabulary=1000, experts=8)
    assert mixture.parameters > 4 * own.parameters - 3 * 2 * 256 * 1000
    for name in meshwright.model_names():
        assert meshwright.model(name).name == name


def test_numbers_of_numpy_are_numbers() -> None:
    given = meshwright.training(global_batch=np.int64(64), seq_len=np.array(4096))
    assert given == meshwright.training(global_batch=64, seq_len=4096)


def test_a_node_like_another_differs_where_it_says() -> None:
    node = meshwright.node("dgx-h100", name="large", device={"memory_bytes": 96 * 2**30}, devices_per_node=4)
    request = meshwright.request("llama-3.1-8b", node, meshwright.training(global_batch=8, seq_len=128))
    like = meshwright.request("llama-3.1-8b", "dgx-h100", meshwright.training(global_batch=8, seq_len=128))
    group, other = (asked.document["cluster"]["groups"][0]["node"] for asked in (request, like))
    assert request.devices == 4
    assert group["device"]["memory_bytes"] == 96 * 2**30
    changed = {"name", "devices_per_node", "device", "sources"}
    assert {name for name in group if group[name] != other[name]} == changed
    assert {name for name in group["device"] if group["device"][name] != other["device"][name]} <= {
        "name",
        "memory_bytes",
        "sources",
    }


def test_serving_plans_are_simulated(tmp_path: Path) -> None:
    request = meshwright.read_request(serving(search={"tp": [1], "pp": [1]}))
    plan = meshwright.plan(request)
    simulated = meshwright.simulate(request, plan)
    frame = simulated.to_frame()
    assert len(frame) == len(simulated.document["timeline"]["busy"])
    assert frame["busy"].between(0, 1).all()
    assert plan.to_frame("summary")["serving.replicas"][0] == plan.document["serving"]["replicas"]


def test_launch_commands_are_explained(cli: Cli) -> None:
    command = "vllm serve Qwen/Qwen3-8B -tp 4 --enforce-eager"
    found = meshwright.explain(command, gpus="8xH100", isl=200, osl=20, concurrency=8, objective="devices", search=False)
    assert (found.verdict, found.problems, found.better) == ("runs", (), None)
    assert found.plan is not None and found.plan.axes["tp"] == 4
    options = ("--gpus", "8xH100", "--isl", "200", "--osl", "20", "--concurrency", "8", "--objective", "devices", "--as-given")
    assert cli("explain", *options, "--json", "--", *command.split()) == 0
    assert {**cli.json(), "command": command} == found.document
    assert repr(found) == "Explanation(vllm: runs)"
    slow = meshwright.explain(command, gpus="8xH100", isl=200, osl=20, concurrency=8, search=False, measured="tpot 30ms")
    assert slow.document["measured"]["causes"] and found.document["measured"] is None
    assert found.request.document["cluster"] == found.document["request"]["cluster"]


def test_frames_have_a_row_a_stage(plan: meshwright.Plan) -> None:
    workload = meshwright.training(global_batch=64, seq_len=4096)
    search = SMALL | {"tp": [1], "pp": [4]}
    deep = meshwright.plan(meshwright.request("llama-3.1-8b", "dgx-h100", workload, search=search))
    frame = deep.to_frame()
    assert list(frame["stage"]) == [0, 1, 2, 3]
    assert frame["time_s"].tolist() == [stage["time_s"] for stage in deep.document["stages"]]
    assert plan.to_frame("summary")["predicted.tokens_per_s"][0] == plan.tokens_per_s
    with pytest.raises(meshwright.InvalidInputError, match="no such table"):
        plan.to_frame("stage")  # type: ignore[arg-type]


def test_without_pandas_frames_say_what_to_install(plan: meshwright.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(meshwright.MissingExtraError, match=r"meshwright\[pandas\]"):
        plan.to_frame()


def test_progress_ends_a_search_by_what_it_raises(request_of_training: meshwright.Request) -> None:
    def end(progress: meshwright.Progress) -> None:
        raise InterruptedError(f"{progress.done} of {progress.total}")

    with pytest.raises(InterruptedError, match="of"):
        meshwright.plan(request_of_training, on_progress=end)


def test_the_page_of_a_plan_is_the_command_lines(plan: meshwright.Plan) -> None:
    page = plan.page()
    assert page.startswith("llama-3.1-8b (8.03 B parameters) on 1 x dgx-h100")
    assert "Optimal" in page or "Feasible" in page
    short = plan.page(full=False)
    assert len(short.splitlines()) < len(page.splitlines()) and "--full shows" in short and "--full" not in page


HOSTILE = [
    object(),
    -3,
    b"x",
    "no such\0file.json",
    {"a": object()},
    {1: 2},
    [],
    {"deep": None},
    float("nan"),
    Path("/no/such"),
]


@pytest.mark.parametrize("given", HOSTILE, ids=lambda given: type(given).__name__)
def test_whatever_is_given_the_error_is_of_the_family(given: object, request_of_training: meshwright.Request) -> None:
    if given == {"deep": None}:
        deep: dict[str, object] = {}
        deep["deep"] = deep
        given = deep
    any_given: object = given
    calls = (
        lambda: meshwright.plan(any_given),  # type: ignore[arg-type]
        lambda: meshwright.explain(any_given, gpus="8xH100"),  # type: ignore[arg-type]
        lambda: meshwright.model(any_given),  # type: ignore[arg-type]
        lambda: meshwright.predict(request_of_training, any_given),  # type: ignore[arg-type]
        lambda: meshwright.export(any_given, "vllm"),  # type: ignore[arg-type]
        lambda: meshwright.validate(any_given),  # type: ignore[arg-type]
        lambda: meshwright.cluster(any_given),  # type: ignore[arg-type]
        lambda: meshwright.training(global_batch=any_given, seq_len=1),  # type: ignore[arg-type]
        lambda: meshwright.serving(arrivals=any_given),  # type: ignore[arg-type]
        lambda: meshwright.request(
            "llama-3.1-8b", "dgx-h100", meshwright.training(global_batch=1, seq_len=1), search=any_given
        ),  # type: ignore[arg-type]
        lambda: meshwright.mixed_cluster({"a": any_given}),  # type: ignore[dict-item]
        lambda: meshwright.node("dgx-h100", name="a", device=any_given),
    )
    for call in calls:
        with pytest.raises(meshwright.MeshwrightError):
            call()
