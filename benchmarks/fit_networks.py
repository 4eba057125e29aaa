"""Priors of networks between nodes: which share of its line rate a kind of network gives, fitted to measured training runs.

Run from the root of the repository: python -m benchmarks.fit_networks [tables of measured runs]

Each run over several nodes is predicted at shares and costs per rank on a grid. What a source's runs have in common besides the
network (a factor of its own, with the spread that docs/calibration.md states before any run) is integrated out, and so is the
scale of their errors, a Laplace distribution's. A cluster counts at most as much as ten runs. Shares of the clusters of a kind
are lognormal, cut near the whole line rate, and modes of kinds are so around a common one: kinds of few clusters stay near all
others. Common mode, both spreads and cost per rank are the likeliest. Each source is left out in turn: its runs are predicted
by the prior of its kind that all others give, and at 0.9 of line rate, which was taken before. The same is then done with
clusters told apart by their frameworks in place of their networks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from meshwright.app.evidence.training import prediction
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.evidence.training.prediction import Constants, cluster_name
from meshwright.app.evidence.training.rows import RunStatus, ValidationRun, read_measured_runs
from meshwright.app.evidence.training.sources import sources_of
from meshwright.costmodels.calibration.calibration import Calibration, calibrations_in_force
from meshwright.costmodels.calibration.from_runs import UNMEASURED_TIME
from meshwright.solver.problem.request import TrainingRequest

TABLES = (Path("../shared/data/training/measured.csv"), Path("../shared/data/training/newer.csv"))
SOURCES = Path("benchmarks/measured.sources.yaml")

SHARES = (0.09, 0.18, 0.3, 0.45, 0.65, 0.95)
RANK_S = (0.0, 1e-5, 1e-4, 1e-3, 2.6e-3)
RUNS_OF_CLUSTER = 24
"""Runs of a cluster that are looked at, evenly spaced: a cluster counts as much as ten."""

WEIGHT = 10.0
SCALES = (0.02, 0.04, 0.08, 0.15)
FACTORS = np.linspace(-3.0, 3.0, 61) * UNMEASURED_TIME.shared_sigma
LOG_SHARES = np.log(np.geomspace(SHARES[0], SHARES[-1], 40))
SPREADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
OTHER = "other"

LARGE_MESSAGES = ("megatron-core-0.20", "megatron-lm-2022")
"""Profiles whose gradients travel in buffers of many layers, and whose weights once a step: Megatron-LM's."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClusterRuns:
    """Runs of one cluster: what shares its prior, and measured over predicted log times [shares, costs per rank, runs]."""

    source: str
    name: str
    kind: str
    profile: str
    nodes: tuple[int, ...]
    errors: Floats


@dataclass(frozen=True, slots=True)
class Prior:
    """The distribution of the share over clusters of a kind: its 5th, 50th and 95th percentile."""

    slow: float
    median: float
    fast: float


def main() -> None:
    """Print the likeliest shares of each cluster, the priors of kinds, and errors of sources left out."""
    paths = [Path(given) for given in sys.argv[1:]] or list(TABLES)
    mapping = sources_of(paths[0], SOURCES)
    clusters = clusters_of([row for path in paths for row in read_measured_runs(path, mapping)])
    likelihoods = {each.name: likelihood(each) for each in clusters}
    for each in clusters:
        found = likelihoods[each.name]
        weights = np.exp(found[:, 0] - logsumexp(found[:, 0]))
        low, middle, high = (np.exp(LOG_SHARES[np.searchsorted(np.cumsum(weights), q)]) for q in (0.1, 0.5, 0.9))
        costs = " ".join(f"{value:.1f}" for value in found.max(axis=0) - found.max())
        print(
            f"{each.name:45} {each.kind:12} {each.errors.shape[2]:3} runs, share {middle:.2f} ({low:.2f} to {high:.2f}), "
            f"log likelihood by cost per rank {costs}"
        )
    print("\nby network")
    _print_left_out(clusters, likelihoods)
    print("\nby framework")
    frameworks = ["large messages" if each.profile in LARGE_MESSAGES else "others" for each in clusters]
    _print_left_out([replace(each, kind=kind) for each, kind in zip(clusters, frameworks, strict=True)], likelihoods)


def _print_left_out(clusters: Sequence[ClusterRuns], likelihoods: Mapping[str, Floats]) -> None:
    """Print the priors of kinds, and errors of sources left out."""
    rank_s, priors = priors_of(clusters, likelihoods)
    print(f"{rank_s * 1e6:.0f} us a rank")
    for kind, found_prior in priors.items():
        print(f"{kind:14} {_said(found_prior)}")
    before, after = [], []
    for source in sorted({each.source for each in clusters}):
        left = [each for each in clusters if each.source == source]
        _, priors = priors_of([each for each in clusters if each.source != source], likelihoods)
        before.append(np.mean([_mean_error(each, 0.9) for each in left]))
        after.append(np.mean([_mean_error(each, priors.get(each.kind, priors[OTHER]).median) for each in left]))
        print(f"without {source:20} {_said(priors[left[0].kind if left[0].kind in priors else OTHER])}: "
              f"error of its steps {before[-1]:.1%} at 0.9, {after[-1]:.1%} at the prior")  # fmt: skip
    print(f"mean over sources {np.mean(before):.1%} at 0.9, {np.mean(after):.1%} at the prior")


def clusters_of(rows: Sequence[ValidationRun]) -> list[ClusterRuns]:
    """Runs over several nodes by cluster, with their errors at each share and cost per rank."""
    by_cluster: dict[str, list[ValidationRun]] = {}
    kinds: dict[str, str] = {}
    nodes: dict[str, set[int]] = {}
    for row in rows:
        if row.outcome.status is not RunStatus.OK or row.outcome.step_time_s is None:
            continue
        try:
            groups = prediction.costed_run(row.run).request.cluster.groups
        except NotPredictedError:
            continue
        if sum(group.nodes for group in groups) > 1:
            name = f"{cluster_name(row.run)}/{groups[0].node.network}"
            by_cluster.setdefault(name, []).append(row)
            kinds[name] = groups[0].node.network
            nodes.setdefault(name, set()).add(groups[0].nodes)
    found = []
    for name, members in by_cluster.items():
        chosen = members[:: -(-len(members) // RUNS_OF_CLUSTER)]
        errors = np.array([[[_error(row, share, rank_s) for row in chosen] for rank_s in RANK_S] for share in SHARES])
        profile = members[0].run.reading.implementation.profile or ""
        found.append(ClusterRuns(members[0].run.source, name, kinds[name], profile, tuple(sorted(nodes[name])), errors))
        print("predicted", name, len(chosen), file=sys.stderr, flush=True)
    return found


def _error(row: ValidationRun, share: float, rank_s: float) -> float:
    """Logarithm of measured over predicted time with the network at a share of its line rate."""
    name = f"fabric.tried@{share}-{rank_s}"
    error = {"median": 0.0, "p95": 0.0, "basis": "tried"}
    document = {"share": share, "rank_s": rank_s, "slow": share, "fast": share, "error": error, "basis": "tried"}
    shipped = prediction.with_constants

    def at_share(request: TrainingRequest, run: object, constants: object) -> TrainingRequest:
        groups = (replace(group, node=replace(group.node, network=name)) for group in request.cluster.groups)
        return replace(request, cluster=replace(request.cluster, groups=tuple(groups)))

    prediction.with_constants = at_share
    try:
        with calibrations_in_force([Calibration(name, document)]):
            predicted_s = prediction.costed_run(row.run, Constants()).cost.step_time_s
    finally:
        prediction.with_constants = shipped
    assert row.outcome.step_time_s is not None
    return float(np.log(row.outcome.step_time_s / predicted_s))


def likelihood(cluster: ClusterRuns) -> Floats:
    """Logarithm of the likelihood of a cluster's runs [log shares, costs per rank]."""
    n = cluster.errors.shape[2]
    weight, at = min(1.0, WEIGHT / n), np.log(SHARES)
    found = np.empty((len(LOG_SHARES), len(RANK_S)))
    for cost in range(len(RANK_S)):
        between = np.array([np.interp(LOG_SHARES, at, cluster.errors[:, cost, run]) for run in range(n)]).T
        sizes = np.abs(between[:, None, :] - FACTORS[None, :, None])
        each = [weight * (-np.log(2 * scale) - sizes / scale).sum(axis=2) for scale in SCALES]
        expected = -0.5 * (FACTORS / UNMEASURED_TIME.shared_sigma) ** 2
        found[:, cost] = logsumexp(np.array(each) + expected, axis=(0, 2))
    return found


def priors_of(clusters: Sequence[ClusterRuns], likelihoods: Mapping[str, Floats]) -> tuple[float, dict[str, Prior]]:
    """The likeliest cost per rank, and the prior of each kind and of kinds without a cluster."""
    by_kind: dict[str, list[Floats]] = {}
    for each in clusters:
        by_kind.setdefault(each.kind, []).append(likelihoods[each.name])
    best, rank_s, found = -np.inf, 0.0, {}
    for cost, spread, apart in product(range(len(RANK_S)), SPREADS, SPREADS):
        around, modes = _lognormal(spread), _lognormal(apart)
        # [modes of a kind], by kind; then [common modes].
        of_kind = {
            kind: np.log(around @ np.exp(np.array([one[:, cost] for one in members])).T).sum(axis=1)
            for kind, members in by_kind.items()
        }
        total = sum(np.log(modes @ np.exp(each - each.max())) + each.max() for each in of_kind.values())
        mode = int(np.argmax(total))
        if total[mode] > best:
            best, rank_s = float(total[mode]), RANK_S[cost]
            weights = {kind: modes[mode] * np.exp(each - each.max()) for kind, each in of_kind.items()}
            weights[OTHER] = modes[mode]
            found = {kind: _percentiles((weight / weight.sum()) @ around) for kind, weight in weights.items()}
    return rank_s, found


def _lognormal(spread: float) -> Floats:
    """Shares around each mode [modes, shares]."""
    drawn = np.exp(-0.5 * ((LOG_SHARES - LOG_SHARES[:, None]) / spread) ** 2)
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True))


def _percentiles(chances: Floats) -> Prior:
    passed = np.cumsum(chances)
    slow, middle, fast = (float(np.exp(LOG_SHARES[np.searchsorted(passed, q)])) for q in (0.05, 0.5, 0.95))
    return Prior(slow, middle, fast)


def _mean_error(cluster: ClusterRuns, share: float) -> float:
    """Mean relative error of a cluster's steps at a share and no cost per rank."""
    errors = [np.interp(np.log(share), np.log(SHARES), cluster.errors[:, 0, run]) for run in range(cluster.errors.shape[2])]
    return float(np.mean(np.abs(np.expm1(-np.array(errors)))))


def _said(found: Prior) -> str:
    return f"share {found.median:.2f} ({found.slow:.2f} to {found.fast:.2f})"


if __name__ == "__main__":
    main()
