"""Counts the models of the catalogue whose plans and layers `plan` and `shard` price the same.

Run from the root of the repository: python -m benchmarks.one_cost
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from meshwright.app.models import catalog
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.dims import EXPERTS, KV_HEADS, VOCAB
from meshwright.solver.problem.graph import ModelGraph
from tests.unit.solver.strategies.both_costs import BOTH, Both, priced, request_of

TP = 2
SEQ_LENS = (4096, 256)
"""The longer one where the model has so many positions."""


def main() -> None:
    """Prints a table of causes, for whole plans of ZeRO-3 and for layers over dp x tp."""
    names = catalog.model_names()
    whole, layers = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name in names:
        unlike = ", ".join(_unlike_plan(_both(name, tp=1)))
        whole[f"differ in {unlike}" if unlike else "agree"].append(name)
        layers[_cause(name)].append(name)
    for what, found in (("plans of ZeRO-3", whole), (f"layers over tp {TP}", layers)):
        print(f"{what} of {len(names)} models, to {BOTH:g}:")
        for cause, of in sorted(found.items(), key=lambda item: -len(item[1])):
            print(f"  {len(of):4} {cause}{'' if cause == 'agree' else ': ' + ', '.join(of)}")


def _both(name: str, *, tp: int) -> Both:
    """A model's plan with tokens as many as it has positions for."""
    for seq_len in SEQ_LENS:
        try:
            return priced(request_of(name, nodes=4, batch=64, seq_len=seq_len), dp=32 // tp, tp=tp, microbatch=1)
        except WorkloadError:
            continue
    raise WorkloadError("no sequence is short enough", given=name)


def _cause(name: str) -> str:
    """Why the layers of a model over tp have no cost in both, or another one; "agree" where they have one."""
    model = catalog.model(name)
    if model.dims.get(VOCAB, 0) % TP:
        return "the vocabulary is padded in plans alone"
    try:
        both = _both(name, tp=TP)
    except StopIteration:
        return "launchers don't split it over tp"
    parts = list(_unlike_layers(both, inner=slice(2, -1)))
    if not parts:
        return "agree"
    return f"differ in {', '.join(parts)}{_trait(model)}"


def _trait(model: ModelGraph) -> str:
    """What models have that differ most often."""
    if not model.is_chain:
        return " (branches)"
    if EXPERTS in model.dims:
        return " (experts)"
    return " (fewer key/value heads than ranks)" if model.dims.get(KV_HEADS, TP) < TP else ""


def _unlike_plan(both: Both) -> list[str]:
    """Parts of a whole plan that are not the same."""
    pairs = {
        "step": (both.time.step_s, both.plan.step_time_s),
        "memory": (both.peak_bytes, both.plan.stages[0].device_bytes),
    }
    return [part for part, (mine, other) in pairs.items() if not _are_equal(mine, other)]


def _unlike_layers(both: Both, *, inner: slice) -> Iterator[str]:
    """Parts of the time of inner layers that are not the same; why those at the ends are not, docs/sharding.md says."""
    time, parts = both.time, both.table.parts
    pairs = {
        "time": (time.forward_s + time.backward_s + time.exposed_s, both.table.time_s[0]),
        "forward": (time.forward_s, parts.forward_s),
        "resharding": (time.resharding_s, parts.tp_comm_s),
        "exposed": (time.exposed_s, parts.dp_comm_s),
    }
    for part, (mine, other) in pairs.items():
        if not _are_equal(mine[inner], other[inner]):
            yield part


def _are_equal(mine: object, other: object) -> bool:
    return bool(np.allclose(np.asarray(mine, float), np.asarray(other, float), rtol=BOTH, atol=0.0))


if __name__ == "__main__":
    main()
