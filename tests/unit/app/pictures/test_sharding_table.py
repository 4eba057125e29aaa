"""The table of a plan's shardings says them in words."""

from __future__ import annotations

from meshwright.app.models.catalog import model
from meshwright.app.pictures.page import plan_page
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.declared.operator_splits import OperatorSplit
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from tests.unit.solver.training.planned import planned


def test_what_is_split_and_what_is_stored_split_are_told_apart() -> None:
    search = Search(
        space=Space.FREE,
        tp=(8,),
        pp=(1,),
        cp=(1,),
        microbatch=(8,),
        zero_stages=(1,),
        schedules=(Schedule.ONE_F_ONE_B,),
        operator_splits=tuple(OperatorSplit),
    )
    cluster = Cluster((NodeGroup("node", node_type("dgx-h100"), 1),))
    request = TrainingRequest(model("llama-3.1-8b"), cluster, TrainingWorkload("training", 16, 4096), search=search)
    page = plan_page(AnsweredRequest(planned(request), request))
    for words in ("batch split 8 ways<", "seq split 8 ways, weights stored 8 ways<", "vocab split 8 ways<"):
        assert words in page, words
