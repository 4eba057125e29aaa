"""The forms of a training plan that a request has searched."""

from __future__ import annotations

from meshwright.solver.problem.choice import Form
from meshwright.solver.problem.choices import BatchShares, StageDegrees
from meshwright.solver.problem.request import TrainingRequest


def forms_asked(request: TrainingRequest) -> frozenset[Form]:
    """Return the forms that are searched: equal pipelines always, and what the request opens beside them.

    Replicas by node group are searched only where there is more than one group.
    """
    search = request.search
    by_group = search.batch_shares is BatchShares.BY_GROUP and len(request.cluster.groups) > 1
    stagewise = search.stage_degrees is not StageDegrees.SAME
    opened = {Form.BY_GROUP: by_group, Form.STAGEWISE: stagewise}
    return frozenset({Form.UNIFORM, *(form for form, is_open in opened.items() if is_open)})
