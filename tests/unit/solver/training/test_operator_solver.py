"""Plans whose operators are sharded by each solver: the same plan, and the certificate says who proved it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.hardware import node_type
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import OperatorSolver, Recompute, Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify.check import check

REQUEST = TrainingRequest(
    model("tinyllama-1.1b"),
    Cluster((NodeGroup("a", part_of_node(node_type("dgx-h100"), 2), 1),)),
    TrainingWorkload("training", 4, 4096),
    search=Search(space=Space.FREE, tp=(2,), pp=(1,), microbatch=(1,), zero_stages=(0,), recompute=(Recompute.NONE,)),
)


def by(solver: OperatorSolver) -> Plan:
    asked = replace(REQUEST, search=replace(REQUEST.search, operator_solver=solver))
    return plan_training(asked, stop=never_stop, progress=ignore_progress)


@pytest.mark.parametrize("solver", [OperatorSolver.CP_SAT, pytest.param(OperatorSolver.ILP, marks=pytest.mark.slow)])
def test_each_solver_finds_the_same_plan(solver: OperatorSolver) -> None:
    usual, plan = by(OperatorSolver.AUTO), by(solver)
    assert usual.certificate.operator_solvers == (OperatorSolver.ELIMINATION,)
    assert plan.certificate.operator_solvers == (solver,)
    assert plan.certificate.status is Status.OPTIMAL
    assert plan.certificate.objective == pytest.approx(usual.certificate.objective, rel=1e-9)
    check(plan, REQUEST)


def test_a_plan_whose_operators_have_one_strategy_each_names_no_solver() -> None:
    launchable = replace(REQUEST, search=replace(REQUEST.search, space=Space.LAUNCHABLE))
    assert plan_training(launchable, stop=never_stop, progress=ignore_progress).certificate.operator_solvers == ()


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "loaded"), [(OperatorSolver.AUTO, []), (OperatorSolver.CP_SAT, ["ortools"])])
def test_a_library_is_loaded_where_it_solves_alone(solver: OperatorSolver, loaded: list[str]) -> None:
    code = (
        "import sys\n"
        f"from {__name__} import OperatorSolver, by\n"
        f"by(OperatorSolver({solver.value!r}))\n"
        "print([name for name in ('pulp', 'ortools') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(loaded)
