"""Random plans of each launcher over Hugging Face Accelerate, exported and read by the launcher's own parser.

    MESHWRIGHT_LAUNCHER_PYTHON=... python -m benchmarks.launchable_plans [PLANS [LAUNCHER ...]]

Prints a row a launcher: plans, refusals of the export, refusals of the parser; and of as many plans that
are broken on purpose, those that the export lets through.
"""

from __future__ import annotations

import itertools
import random
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from meshwright.app.base.solving import solve_here
from meshwright.app.launching.exporters import Export, export
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.errors import ExportError, MeshwrightError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.memory.training_state import Offload
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from tests.support.flat_plans import flat, with_fields
from tests.unit.app.exporters.real_tools import ask

SEED = 20
MODELS = ("llama-3.2-1b", "llama-3.2-3b", "qwen3-0.6b", "qwen3-4b", "qwen3-8b", "llama-3.1-8b", "gemma-2-9b", "phi-3-mini")
CANDIDATES = 40
"""So many candidates of each search: plans need not be the best ones here."""
Case = tuple[Plan, TrainingRequest]


@dataclass(frozen=True, slots=True)
class Parser:
    """A launcher's own parser: the package that it is in, its script, and the question that an export makes."""

    tool: str
    script: str
    question: Callable[[Export], dict[str, Any]]


def _words_after(word: str) -> Callable[[Export], dict[str, Any]]:
    def question(found: Export) -> dict[str, Any]:
        filled = {"$NODE_RANK": "1", "$MASTER_ADDR": "node-0"}
        words = [filled.get(each, each) for each in shlex.split(found.command.replace("\\\n", " "))]
        words = ["16" if each.startswith("$((") else each for each in words]
        return {"files": dict(found.files), "words": words[words.index(word) + 1 :]}

    return question


def _config(name: str) -> Callable[[Export], dict[str, Any]]:
    return lambda found: {"files": dict(found.files), "config": name}


PARSERS = {
    Launcher.ACCELERATE: Parser("accelerate", "accelerate_args.py", _words_after("launch")),
    Launcher.HF_TRAINER: Parser("accelerate", "hf_trainer_args.py", _words_after("run_clm.py")),
    Launcher.TRL: Parser("trl", "trl_args.py", _words_after("sft")),
    Launcher.AXOLOTL: Parser("axolotl", "axolotl_args.py", _config("axolotl.yaml")),
    Launcher.LLAMA_FACTORY: Parser("llamafactory", "llama_factory_args.py", _config("llama_factory.yaml")),
}


def drawn(launcher: Launcher, draw: random.Random) -> Case | None:
    """A plan of a random request; None where nothing fits it."""
    node = node_type("dgx-h100")
    devices, nodes = draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2, 3, 4))
    cluster = Cluster((NodeGroup("a", part_of_node(node, devices) if devices < 8 else node, nodes),))
    workload = TrainingWorkload(
        "training", global_batch=draw.choice((24, 64, 96, 192)), seq_len=draw.choice((512, 2048, 4096, 8192))
    )
    zero: tuple[int, ...] = draw.choice(((), (0,), (1,), (2,), (3,), (2, 3)))
    search = Search(
        launcher=launcher,
        space=Space.LAUNCHABLE,
        zero_stages=zero,
        shard_ranks=draw.choice(((), (), (devices,))) if set(zero) & {2, 3} and launcher is not Launcher.HF_TRAINER else (),
        recompute=draw.choice(((), (Recompute.FULL,))),
        offload_optimizer=draw.choice(((), (), (0.0, 1.0), (1.0,))),
        max_candidates=CANDIDATES,
    )
    request = TrainingRequest(model(draw.choice(MODELS)), cluster, workload, search=search)
    try:
        plan = solve_here(request, ignore_progress)
    except MeshwrightError:
        return None
    return (plan, request) if plan.feasible else None


@cache
def cases(launcher: Launcher, n_plans: int) -> tuple[Case, ...]:
    """So many random plans of a launcher's space."""
    draw = random.Random(f"{SEED} {launcher.value}")
    endless = (drawn(launcher, draw) for _ in itertools.count())
    return tuple(itertools.islice((case for case in endless if case is not None), n_plans))


def exported(found: Iterable[Case], launcher: Launcher, refused: Counter[str]) -> list[Export]:
    """The exports of plans; what is refused is counted by its words."""
    made = []
    for plan, request in found:
        try:
            made.append(export(plan, request, launcher.value))
        except ExportError as error:
            refused[str(error)[:160]] += 1
    return made


def broken(case: Case, draw: random.Random) -> Case:
    """The plan with one thing wrong."""
    plan, request = case
    stages, microbatch = flat(plan).stages, flat(plan).microbatch
    assert microbatch is not None
    changes: tuple[dict[str, Any], ...] = (
        {"stages": (replace(stages[0], blocks=stages[0].blocks[:-1]),)},
        {"stages": (replace(stages[0], recompute=Recompute.SELECTIVE),)},
        {"stages": (replace(stages[0], shard_ranks=plan.devices + 1),)},
        {"stages": (replace(stages[0], devices=(replace(stages[0].devices[0], first=1),)),)},
        {"stages": (replace(stages[0], axes=replace(stages[0].axes, dp=stages[0].axes.dp + 1)),)},
        {"stages": (replace(stages[0], offload=Offload(activations=0.5)),)},
        {"microbatch": replace(microbatch, count=microbatch.count + 1)},
    )
    return with_fields(plan, **draw.choice(changes)), request


def main() -> None:
    """Print a row a launcher."""
    n_plans = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    for launcher in [Launcher(name) for name in sys.argv[2:]] or list(PARSERS):
        parser, refused = PARSERS[launcher], Counter[str]()
        # Launchers of the same facts have the same space: one search does for all.
        found = cases(next(each for each in PARSERS if TRAINERS[each] == TRAINERS[launcher]), n_plans)
        made = exported(found, launcher, refused)
        draw = random.Random(f"{SEED} broken {launcher.value}")
        passed = exported((broken(case, draw) for case in found), launcher, Counter[str]())
        answers = ask(parser.tool, parser.script, [parser.question(each) for each in made])
        wrong = Counter(answer["error"][:160] for answer in answers if "error" in answer)
        print(
            f"| `{launcher.value}` | {n_plans} | {refused.total()} | {wrong.total()} | {len(passed)} |",
            *refused,
            *wrong,
            flush=True,
        )


if __name__ == "__main__":
    main()
