"""Adds a stand-in of each kind that CONTRIBUTING.md tells how to add, in a copy of the tree, and sees which tests notice.

    python benchmarks/additions.py [KIND ...]

For each kind: with all its files the tests that are named pass; with any one of them left out one fails. So the lists of
CONTRIBUTING.md are neither too short nor too long.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "solver", "costmodels", "migrations")
COPIED = (
    *PACKAGES,
    "meshwright",
    "benchmarks",
    "tests",
    "docs",
    "examples",
    "pyproject.toml",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "README.md",
)
TESTS_TAKE_S = 500


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of an addition, and what it becomes; a file that is not there begins empty."""

    path: str
    edited: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Addition:
    """A stand-in of a kind of things that people add.

    heading   of the list in CONTRIBUTING.md
    name      of the stand-in, which the list says as NAME
    most      files of code and data that it may take; pages and tests are counted apart
    folder    of its own, whose files are not counted; none unless given
    tests     arguments of pytest for the tests that notice what is missing
    """

    heading: str
    name: str
    most: int
    pieces: tuple[Piece, ...]
    tests: tuple[str, ...]
    folder: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Return the paths of the pieces, as the list says them; a folder of its own is one."""
        paths = [self.folder if self._is_own(piece.path) else piece.path for piece in self.pieces]
        return tuple(path.replace(self.name, "NAME") for path in dict.fromkeys(paths))

    def _is_own(self, path: str) -> bool:
        return bool(self.folder) and path.startswith(f"{self.folder}/")

    @property
    def of_the_house(self) -> int:
        """Return the number of files that are neither pages nor tests, nor in a folder of its own."""
        paths = [piece.path for piece in self.pieces if not self._is_own(piece.path)]
        return sum(path.split("/")[0] in (*PACKAGES, "pyproject.toml") for path in paths)


def new(text: str) -> Callable[[str], str]:
    """Return the edit that makes a new file."""

    def edited(old: str) -> str:
        if old:
            raise ValueError(f"the file is there already: {old[:60]!r}")
        return text

    return edited


def replaced(*pairs: tuple[str, str]) -> Callable[[str], str]:
    """Return the edit that replaces each text, which is there once, by another."""

    def edited(old: str) -> str:
        for before, after in pairs:
            if old.count(before) != 1:
                raise ValueError(f"{before!r} is there {old.count(before)} times")
            old = old.replace(before, after)
        return old

    return edited


def appended(text: str) -> Callable[[str], str]:
    """Return the edit that adds text at the end."""
    return lambda old: old + text


def with_entry(key: str, value: object) -> Callable[[str], str]:
    """Return the edit that adds an entry to a JSON object."""
    return lambda old: json.dumps(json.loads(old) | {key: value})


FAMILY = Addition(
    heading="A model family",
    name="standin",
    most=3,
    pieces=(
        Piece(
            "app/importers/families/standin.py",
            new(
                '"""A stand-in."""\n\n'
                "from meshwright.app.importers.families.family import Family\n"
                "from meshwright.app.importers.families.llama import _LLAMA_DEFAULTS, _read_llama\n\n"
                'STANDIN_FAMILIES = (Family("standin", ("StandinForCausalLM",), _read_llama, _LLAMA_DEFAULTS),)\n'
            ),
        ),
        Piece(
            "app/importers/families/__init__.py",
            replaced(
                ("\n_GROUPS = (\n", "from meshwright.app.importers.families.standin import STANDIN_FAMILIES\n\n_GROUPS = (\n"),
                ("    LLAMA_FAMILIES,\n", "    LLAMA_FAMILIES,\n    STANDIN_FAMILIES,\n"),
            ),
        ),
        Piece(
            "tests/unit/app/importers/golden_models.json",
            with_entry("standin", {"parameters": 6738415616, "config": {"model_type": "standin"}}),
        ),
    ),
    tests=("tests/unit/app/importers/test_huggingface_counts.py", "-k", "golden and not transformers"),
)

SCHEDULE = Addition(
    heading="A pipeline schedule",
    name="standin",
    most=6,
    pieces=(
        Piece(
            "costmodels/pipeline/program.py",
            replaced(('    GPIPE = "gpipe"\n', '    GPIPE = "gpipe"\n    STANDIN = "standin"\n')),
        ),
        Piece(
            "costmodels/pipeline/schedules/standin.py",
            new(
                '"""A stand-in: 1F1B by another name."""\n\n'
                "from dataclasses import replace\n\n"
                "from meshwright.costmodels.pipeline.program import Schedule\n"
                "from meshwright.costmodels.pipeline.schedules import one_f_one_b\n"
                "from meshwright.costmodels.pipeline.traits import PipelineRuntime\n\n"
                'RUN_BY = ((PipelineRuntime.PYTORCH, "Standin"),)\n'
                'TRAITS = replace(one_f_one_b.TRAITS, schedule=Schedule.STANDIN, title="Stand-in", run_by=RUN_BY)\n'
            ),
        ),
        Piece(
            "costmodels/pipeline/schedules/table.py",
            replaced(
                ("    seq_1f1b,\n    terapipe,\n", "    seq_1f1b,\n    standin,\n    terapipe,\n"),
                ("    gpipe,\n    one_f_one_b,\n    eager", "    gpipe,\n    standin,\n    one_f_one_b,\n    eager"),
            ),
        ),
        Piece(
            "solver/verify/launchers.py",
            replaced(('_OF_PYTORCH = ("gpipe", "1f1b",', '_OF_PYTORCH = ("gpipe", "standin", "1f1b",')),
        ),
        Piece("docs/request-format.md", replaced(("of `gpipe`, `1f1b`,", "of `gpipe`, `standin`, `1f1b`,"))),
    ),
    tests=(
        "tests/unit/costmodels/test_schedule_traits.py",
        "tests/unit/solver/verify/test_event_programs.py",
        "tests/unit/solver/verify/test_launcher_schedules.py",
        "tests/acceptance/test_docs.py::test_every_field_of_a_request_is_described",
    ),
)

HARDWARE = "costmodels/hardware"


def like(path: str, **fields: object) -> Callable[[str], str]:
    """Return the edit that makes a file of the catalogue from another one of it."""

    def edited(old: str) -> str:
        like_it = json.loads((ROOT / HARDWARE / path).read_text(encoding="utf-8"))
        return new(json.dumps(like_it | fields))(old)

    return edited


DEVICE = Addition(
    heading="A device, of a new generation too",
    name="standin",
    most=5,
    pieces=(
        Piece(
            f"{HARDWARE}/devices/standin.json",
            like("devices/b300-sxm-270gb.json", name="standin", aliases=[], generation="standin", calibration="standin"),
        ),
        Piece(f"{HARDWARE}/generations/standin.json", like("generations/blackwell.json", name="standin")),
        *(
            Piece(f"{HARDWARE}/calibrations/{kind}/standin.json", like(f"calibrations/{kind}/b300_sxm.json", key="standin"))
            for kind in ("kernels", "collectives", "serving")
        ),
    ),
    tests=(
        "tests/unit/costmodels/test_hardware.py",
        "tests/unit/costmodels/test_compute.py",
        "tests/unit/costmodels/test_new_generation.py",
        "-k",
        # The page of the catalogue is generated: `python -m benchmarks.hardware_page` writes it anew.
        "not newer and not new_generation_plans and not page_of_the_hardware",
    ),
)

EXPORTERS = "tests/unit/app/exporters"

LAUNCHER = Addition(
    heading="A launcher",
    name="standin",
    most=4,
    pieces=(
        Piece(
            "solver/problem/choices.py",
            replaced(('    DEEPSPEED = "deepspeed"\n', '    DEEPSPEED = "deepspeed"\n    STANDIN = "standin"\n')),
        ),
        Piece(
            "solver/problem/launchers/standin.py",
            new('"""A stand-in."""\n\nfrom meshwright.solver.problem.launchers.deepspeed import LAUNCHER as LAUNCHER\n'),
        ),
        Piece(
            "app/exporters/standin.py",
            new(
                '"""A stand-in."""\n\n'
                "from dataclasses import replace\n\n"
                "from meshwright.app.exporters import deepspeed\n"
                "from meshwright.solver.problem.choices import Launcher\n\n\n"
                "def export_plan(plan, request):\n"
                "    return replace(deepspeed.export_plan(plan, request), launcher=Launcher.STANDIN)\n"
            ),
        ),
        Piece("solver/verify/launchers.py", appended("TRAINERS[Launcher.STANDIN] = TRAINERS[Launcher.DEEPSPEED]\n")),
        Piece(
            "docs/request-format.md", replaced(("| `megatron-lm`, `deepspeed`,", "| `megatron-lm`, `standin`, `deepspeed`,"))
        ),
        Piece(
            "docs/exporters.md",
            replaced(
                (
                    "| `deepspeed` | 0.19.8 | training |\n",
                    "| `deepspeed` | 0.19.8 | training |\n| `standin` | 0.19.8 | training |\n",
                ),
                ("- **DeepSpeed** counts", "- **standin** is none.\n- **DeepSpeed** counts"),
            ),
        ),
        Piece(
            f"{EXPORTERS}/test_export.py", replaced(("case Launcher.DEEPSPEED:", "case Launcher.DEEPSPEED | Launcher.STANDIN:"))
        ),
        Piece(
            f"{EXPORTERS}/golden/standin.txt",
            lambda old: new((ROOT / EXPORTERS / "golden/deepspeed.txt").read_text().replace("deepspeed 0", "standin 0", 1))(
                old
            ),
        ),
        Piece(f"{EXPORTERS}/real/standin_args.py", new('"""A stand-in."""\n')),
    ),
    tests=(
        f"{EXPORTERS}/test_every_launcher.py",
        f"{EXPORTERS}/test_export.py::test_golden_exports",
        "tests/acceptance/test_docs.py::test_every_field_of_a_request_is_described",
    ),
)

STAGE = "gradients: Gradients = Gradients.KEPT\n"
OF_PLACE = ", self.optimizer, self.gradients)"
OF_STAGE = "gradients=pipelines.stages[0].gradients,\n"

CHOICE = Addition(
    heading="A search choice",
    name="standin",
    most=12,
    pieces=(
        Piece(
            "solver/problem/search.py",
            replaced(
                (
                    "    offload_optimizer: Annotated[\n",
                    "    standin: Annotated[\n"
                    "        tuple[PositiveInt, ...],\n"
                    '        of_stages("standin", "standin", launched=Launched.BY_NONE, closed=(1,)),\n'
                    "    ] = ()\n"
                    "    offload_optimizer: Annotated[\n",
                )
            ),
        ),
        Piece("solver/answer/stage.py", replaced((f"    {STAGE}", f"    {STAGE}    standin: int = 1\n"))),
        Piece(
            "solver/training/space/state_places.py",
            replaced(
                (f"    {STAGE}", f"    {STAGE}    standin: int = 1\n"),
                ("import dataclass\n", "import dataclass, replace\n"),
                (
                    "                        yield StatePlace(zero_stage, shard_ranks, offload, chosen, gradients)\n",
                    "                        for standin in search.standin or (1,):\n"
                    "                            place = StatePlace(zero_stage, shard_ranks, offload, chosen, gradients)\n"
                    "                            yield replace(place, standin=standin)\n",
                ),
            ),
        ),
        Piece(
            "solver/training/space/candidates.py",
            replaced(
                (f"    {STAGE}", f"    {STAGE}    standin: int = 1\n"),
                (OF_PLACE, ", self.optimizer, self.gradients, self.standin)"),
                ("self.gradients.value, self.tp", "self.gradients.value, self.standin, self.tp"),
                ("gradients=place.gradients,\n", "gradients=place.gradients, standin=place.standin,\n"),
            ),
        ),
        Piece(
            "solver/training/report/plan_report.py",
            replaced(("gradients=candidate.gradients,\n", "gradients=candidate.gradients, standin=candidate.standin,\n")),
        ),
        Piece(
            "solver/training/forms/uniform/given_decision.py",
            replaced((OF_STAGE, OF_STAGE + "        standin=pipelines.stages[0].standin,\n")),
        ),
        Piece(
            "solver/verify/training/restrictions.py",
            replaced(
                (
                    "        moved = stage.offload\n        choices.append(",
                    '        choices.append((f"stages[{index}].standin", stage.standin, search.standin or (1,)))\n'
                    "        moved = stage.offload\n        choices.append(",
                )
            ),
        ),
        Piece(
            "docs/request-format.md",
            replaced(
                (
                    "| `offload_optimizer` |",
                    "| `standin` | training in the `free` space: allowed numbers | 1 alone |\n| `offload_optimizer` |",
                )
            ),
        ),
    ),
    tests=(
        "tests/unit/solver/training/test_every_choice.py",
        "tests/acceptance/test_search_table.py",
        "tests/unit/solver/test_ledger.py",
        "tests/unit/solver/training/test_full_space.py",
        "-k",
        "not each_form and (standin or not asks_for)",
    ),
)

FORM_FOLDER = "solver/serving/forms/standin"
OF_REPLICAS = "meshwright.solver.serving.forms.replicas"

FORM = Addition(
    heading="A form of a serving plan",
    name="standin",
    most=5,
    folder=FORM_FOLDER,
    pieces=(
        Piece(f"{FORM_FOLDER}/__init__.py", new('"""Replicas by another name."""\n')),
        Piece(
            f"{FORM_FOLDER}/form.py",
            new(
                '"""A stand-in."""\n\n'
                "from dataclasses import replace\n\n"
                "from meshwright.solver.answer.layouts import Standin, StandinShare\n"
                "from meshwright.solver.problem.choices import ServingMode\n"
                "from meshwright.solver.serving.forms.form import Form, Misfit\n"
                f"from {OF_REPLICAS}.form import FORM as REPLICAS\n"
                f"from {OF_REPLICAS}.planning import ReplicasSearch\n\n\n"
                "class StandinSearch(ReplicasSearch):\n"
                "    def plan(self, others, *, stats, notes):\n"
                "        return _standin(super().plan(others, stats=stats, notes=notes))\n\n\n"
                "def _standin(plan):\n"
                "    if plan is None or isinstance(plan, Misfit):\n"
                "        return plan\n"
                "    return replace(plan, layout=Standin(StandinShare(1.0), plan.layout))\n\n\n"
                "FORM = Form(\n"
                '    "standin",\n'
                "    Standin,\n"
                "    refuse=lambda request: None,\n"
                '    space=lambda request: "",\n'
                "    search=lambda asked: (\n"
                "        StandinSearch(asked) if ServingMode.STANDIN in asked.request.search.modes else None\n"
                "    ),\n"
                "    predict=lambda request, plan, layout: _standin(REPLICAS.predict(request, plan, layout.answers)),\n"
                "    simulate=lambda request, layout: REPLICAS.simulate(request, layout.answers),\n"
                ")\n"
            ),
        ),
        Piece(
            "solver/problem/choices.py",
            replaced(('    SWITCHED = "switched"\n', '    SWITCHED = "switched"\n    STANDIN = "standin"\n')),
        ),
        Piece(
            "solver/answer/layouts.py",
            replaced(
                (
                    "TrainingLayout = Uniform",
                    "@dataclass(frozen=True, slots=True)\n"
                    "class StandinShare:\n"
                    '    """A stand-in."""\n\n'
                    "    share: float\n\n\n"
                    "@dataclass(frozen=True, slots=True)\n"
                    "class Standin(OfWorkers):\n"
                    '    """A stand-in."""\n\n'
                    "    standin: StandinShare\n"
                    "    answers: Replicas\n\n"
                    "    @property\n"
                    "    def all_workers(self):\n"
                    '        """Its workers."""\n'
                    "        return self.answers.all_workers\n\n\n"
                    "TrainingLayout = Uniform",
                ),
                ("Kinds | Switched\n", "Kinds | Switched | Standin\n"),
            ),
        ),
        Piece(
            "solver/answer/plan_record.py",
            replaced(
                (
                    "@dataclass(frozen=True, slots=True)\nclass ReplicaPool(",
                    "@dataclass(frozen=True, slots=True)\n"
                    "class StandinFields:\n"
                    '    """A stand-in."""\n\n'
                    "    __pydantic_config__ = STRICT_RECORD\n\n"
                    "    share: float\n\n\n"
                    "@dataclass(frozen=True, slots=True)\nclass ReplicaPool(",
                ),
                (
                    "    switched: SwitchedPrompts | None = None\n",
                    "    switched: SwitchedPrompts | None = None\n    standin: StandinFields | None = None\n",
                ),
            ),
        ),
        Piece(
            "solver/verify/serving/forms/standin.py",
            new(
                '"""A stand-in."""\n\n'
                "from dataclasses import replace\n\n"
                "from meshwright.solver.problem.choices import ServingMode\n"
                "from meshwright.solver.verify.serving.forms.replicas import replica_violations\n\n\n"
                "def violations(plan, layout, request):\n"
                "    request = replace(request, search=replace(request.search, modes=(ServingMode.AGGREGATED,)))\n"
                "    return replica_violations(layout.answers, plan.predicted, request, devices=plan.devices)\n"
            ),
        ),
        Piece(
            "pyproject.toml",
            replaced(
                (
                    '    "meshwright.solver.serving.forms.switched",\n',
                    '    "meshwright.solver.serving.forms.standin",\n    "meshwright.solver.serving.forms.switched",\n',
                )
            ),
        ),
        Piece(
            "docs/request-format.md",
            replaced(("allowed of `aggregated` (", "allowed of `standin`, `aggregated` (")),
        ),
        Piece(
            "docs/plan-format.md",
            replaced(("| `switched` | of a plan whose", "| `standin` | of a stand-in |\n| `switched` | of a plan whose")),
        ),
        Piece(
            "docs/design.md",
            replaced(
                (
                    "      kinds/              several kinds of workers beside each other\n",
                    "      kinds/              several kinds of workers beside each other\n"
                    "      standin/            replicas by another name\n",
                )
            ),
        ),
    ),
    tests=(
        "tests/unit/solver/serving/test_every_form.py",
        "tests/unit/solver/serving/test_forms.py::test_every_layout_of_a_serving_plan_has_one_form",
        "tests/unit/solver/serving/test_forms.py::test_every_folder_is_a_form",
        "tests/test_house.py::test_the_map_of_the_design_names_every_folder_and_no_other",
        "tests/test_house.py::test_every_folder_of_python_is_a_package_that_is_installed",
        "tests/acceptance/test_docs.py::test_every_field_of_a_request_is_described",
        "tests/acceptance/test_docs.py::test_every_field_of_a_plan_is_described",
        "-k",
        "standin or not checker and not predicted and not written and not launcher",
    ),
)

ADDITIONS = {
    "family": FAMILY,
    "device": DEVICE,
    "schedule": SCHEDULE,
    "launcher": LAUNCHER,
    "choice": CHOICE,
    "form": FORM,
}


@contextmanager
def copied_tree() -> Iterator[Path]:
    """Give a copy of the tree, of hard links, in which everything imports as ``meshwright.*`` if it is on the path."""
    with tempfile.TemporaryDirectory(prefix="additions-", dir=ROOT.parent) as folder:
        tree = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name, copy_function=os.link, symlinks=True)
            else:
                os.link(ROOT / name, tree / name)
        yield tree


def add(tree: Path, pieces: Sequence[Piece]) -> None:
    """Write the pieces into a copy; the files that it was linked from stay what they are."""
    for piece in pieces:
        path = tree / piece.path
        text = piece.edited(path.read_text(encoding="utf-8") if path.exists() else "")
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def passes(tree: Path, tests: Sequence[str]) -> bool:
    """Run tests in a copy; True if all pass, False if any fails or can't begin."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    # What hypothesis has read of the same sources already.
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(ROOT / ".hypothesis")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TESTS_TAKE_S, check=False)
    if ran.returncode not in (0, 1, 2, 4):
        raise RuntimeError(f"pytest ended with {ran.returncode}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.returncode == 0


def faults(addition: Addition) -> Iterator[str]:
    """Yield what is wrong with an addition's list: tests that fail with all of it, and pieces that no test misses."""
    with copied_tree() as tree:
        add(tree, addition.pieces)
        if not passes(tree, addition.tests):
            yield "with all files its tests fail: the list is too short"
            return
    for left_out in addition.pieces:
        with copied_tree() as tree:
            add(tree, [piece for piece in addition.pieces if piece is not left_out])
            if passes(tree, addition.tests):
                yield f"no test misses {left_out.path}"


def main(kinds: Sequence[str]) -> int:
    """Judge additions of these kinds, of all if none is given."""
    wrong = 0
    for kind in kinds or ADDITIONS:
        addition = ADDITIONS[kind]
        found = list(faults(addition))
        wrong += len(found)
        of_house, rest = addition.of_the_house, len(addition.files) - addition.of_the_house - bool(addition.folder)
        count = f"{of_house} files of code and data of at most {addition.most}, {rest} pages and tests"
        print(f"{kind}: {count}; " + ("; ".join(found) or "each is missed where it is left out"), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
