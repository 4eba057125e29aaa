"""Meshwright plans how large models train and serve on a cluster.

>>> import meshwright
>>> asked = meshwright.request("llama-3.1-8b", "dgx-h100", meshwright.training(global_batch=512, seq_len=8192))
>>> plan = meshwright.plan(asked)                           # doctest: +SKIP
>>> plan.tokens_per_s, plan.status                          # doctest: +SKIP
>>> meshwright.export(plan, "megatron-lm").command          # doctest: +SKIP

To ask: ``request`` puts a model (``model``, ``transformer``), a cluster (``cluster``, ``mixed_cluster``, ``node``) and a
workload (``training``, ``serving``) together; ``read_request`` reads a file. ``model_names`` and ``node_names`` list what can
be named. To answer: ``plan``, ``predict``, ``simulate``, ``export``, ``explain`` and ``validate``.
``read_plan`` reads a plan file.

The names in ``meshwright.__all__`` and the documents that they take and give are what stays; every other name may change
with any version. Nothing here needs a database. Importing the package loads nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright._answers import Explanation, Launch, Plan, Simulation, Validation
    from meshwright._asked import Cluster, Model, Node, Request, Workload
    from meshwright._building import (
        cluster,
        mixed_cluster,
        model,
        model_names,
        node,
        node_names,
        read_request,
        request,
        serving,
        training,
        transformer,
    )
    from meshwright._calls import Progress, explain, export, plan, predict, read_plan, simulate, validate
    from meshwright.app.base.errors import DocumentError, FieldError, MissingExtraError
    from meshwright.costmodels.errors import (
        ClusterError,
        ExportError,
        InfeasibleError,
        InvalidInputError,
        MeshwrightError,
        ModelError,
        PlanFileError,
        PlanRejectedError,
        WorkloadError,
    )

    __version__: str

_HOMES = {
    "_answers": ("Explanation", "Launch", "Plan", "Simulation", "Validation"),
    "_asked": ("Cluster", "Model", "Node", "Request", "Workload"),
    "_building": (
        "cluster",
        "mixed_cluster",
        "model",
        "model_names",
        "node",
        "node_names",
        "read_request",
        "request",
        "serving",
        "training",
        "transformer",
    ),
    "_calls": ("Progress", "explain", "export", "plan", "predict", "read_plan", "simulate", "validate"),
    "app.base.errors": ("DocumentError", "FieldError", "MissingExtraError"),
    "costmodels.errors": (
        "ClusterError",
        "ExportError",
        "InfeasibleError",
        "InvalidInputError",
        "MeshwrightError",
        "ModelError",
        "PlanFileError",
        "PlanRejectedError",
        "WorkloadError",
    ),
}
"""The public names by the module that holds them."""

__all__ = [
    "Cluster",
    "ClusterError",
    "DocumentError",
    "Explanation",
    "ExportError",
    "FieldError",
    "InfeasibleError",
    "InvalidInputError",
    "Launch",
    "MeshwrightError",
    "MissingExtraError",
    "Model",
    "ModelError",
    "Node",
    "Plan",
    "PlanFileError",
    "PlanRejectedError",
    "Progress",
    "Request",
    "Simulation",
    "Validation",
    "Workload",
    "WorkloadError",
    "__version__",
    "cluster",
    "explain",
    "export",
    "mixed_cluster",
    "model",
    "model_names",
    "node",
    "node_names",
    "plan",
    "predict",
    "read_plan",
    "read_request",
    "request",
    "serving",
    "simulate",
    "training",
    "transformer",
    "validate",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562)."""
    from importlib import import_module

    if name == "__version__":
        from meshwright.app.base.version import installed_version

        return installed_version()
    for home, names in _HOMES.items():
        if name in names:
            found: object = getattr(import_module(f"{__name__}.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted({*globals(), *__all__})
