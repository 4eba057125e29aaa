"""The limits of a request's size: checked before anything is built from it.

The bounds are far beyond any real request. They keep a small document from asking for unbounded work, and keep every
number where arithmetic in doubles is exact enough.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from meshwright.app.base.errors import DocumentError, FieldError, short_text
from meshwright.app.base.quoting import ALLOWED_CHARACTERS, HIDDEN
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError
from meshwright.solver.problem.graph import MAX_DIM, MAX_LAYERS, MAX_OPERATORS, MAX_RANK
from meshwright.solver.problem.request import PlanRequest, ServingWorkload, TrainingWorkload
from meshwright.solver.problem.search import LEDGER, Search
from meshwright.solver.problem.serving_load import (
    ClosedArrivals,
    EmpiricalLength,
    FixedLength,
    LognormalLength,
    ScheduleArrivals,
    TraceArrivals,
)

MAX_DEVICES = 1_000_000
MAX_GROUPS = 1_000
MAX_GLOBAL_BATCH = 10_000_000
MAX_SEQ_LEN = 100_000_000
MAX_REQUESTS_PER_S = 1e6
MAX_CONCURRENCY = 100_000
MAX_DRAFT_TOKENS = 32
MAX_COUNT = 1_000_000_000_000
MAX_TRACE = 100_000
MAX_INTERVALS = 1_000
MAX_RUN = 1_000_000
MAX_CHOICES = 1_000
MAX_VALUES = 1_000_000
MAX_ITEMS = 100_000
MAX_NUMBER = 1e18
MIN_NUMBER = 1e-18

_END = object()
"""After the last item of a part."""

NO_NAMES = (("model", "config"), ("config",))
"""Where the file of another tool stands in a request or a model: no text of it becomes a name, and some have lines."""


UNUSABLE_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Characters that no version took: a database has no place for them."""


class Entry(Enum):
    """The way in which a document comes in."""

    NEW = "from outside: texts hold no hidden characters"
    FOREIGN = "a file of another tool: no text of it becomes a name"
    STORED = "written by us or an earlier version: texts are read as they are, and quoted wherever they are shown"


REQUEST_LIMITS = {
    "devices of a cluster": MAX_DEVICES,
    "node groups of a cluster": MAX_GROUPS,
    "workload.global_batch": MAX_GLOBAL_BATCH,
    "workload.seq_len, prompt and output tokens": MAX_SEQ_LEN,
    "workload.arrivals.requests_per_s": MAX_REQUESTS_PER_S,
    "workload.arrivals.concurrency": MAX_CONCURRENCY,
    "workload.speculation.draft_tokens": MAX_DRAFT_TOKENS,
    "workload.lengths.counts": MAX_COUNT,
    "requests of a trace, counts of an empirical length": MAX_TRACE,
    "workload.arrivals.intervals": MAX_INTERVALS,
    "requests of all clients of a run": MAX_RUN,
    "values of one restriction in 'search'": MAX_CHOICES,
    **{f"search.{name}": entry.choice.at_most for name, entry in LEDGER.items() if entry.choice.at_most is not None},
    "size of a dim": MAX_DIM,
    "dims of a tensor": MAX_RANK,
    "layers of a model": MAX_LAYERS,
    "operators in distinct blocks": MAX_OPERATORS,
    "values in a document": MAX_VALUES,
    "items of one list or object": MAX_ITEMS,
    "magnitude of a number": MAX_NUMBER,
}
"""Every bound, as the documentation lists them."""


def check_values(document: object, entry: Entry = Entry.NEW) -> None:
    """Refuse unusable numbers and texts, and documents of too many values; raises DocumentError."""
    place = _Place()
    open_parts: list[Iterator[tuple[object, object]]] = [iter([(None, document)])]
    count = 0
    while open_parts:
        key, value = next(open_parts[-1], (_END, None))
        if key is _END:
            open_parts.pop()
            place.leave()
            continue
        count += 1
        if count > MAX_VALUES:
            raise _fault("", "too many values in the document", f"more than {MAX_VALUES}", f"at most {MAX_VALUES}")
        place.stand_at(key)
        if isinstance(value, dict | list) and len(value) > MAX_ITEMS:
            raise _fault(place.path(), "too many items", len(value), f"at most {MAX_ITEMS}")
        if isinstance(value, dict):
            for name in value:
                _check_text(place, str(name), entry)
            open_parts.append(iter(value.items()))
            place.enter()
        elif isinstance(value, list):
            open_parts.append(iter(enumerate(value)))
            place.enter()
        elif isinstance(value, str):
            _check_text(place, value, entry)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _check_number(place, value)


class _Place:
    """Where a walk through a document stands: a key for each depth. Its path is put together for a fault only.

    A name may have 50,000 characters and 25,000 items under it: a path for each item takes 1.2 GB for 100 kB of input.
    """

    def __init__(self) -> None:
        self._keys: list[object] = [None]

    def stand_at(self, key: object) -> None:
        self._keys[-1] = key

    def enter(self) -> None:
        self._keys.append(None)

    def leave(self) -> None:
        self._keys.pop()

    def path(self) -> str:
        """The keys from the document down, which itself has none."""
        return ".".join(str(key) for key in self._keys[1:])

    def is_in(self, part: tuple[str, ...]) -> bool:
        """Whether this is an item of the part with that path."""
        return len(self._keys) > len(part) + 1 and tuple(self._keys[1 : len(part) + 1]) == part


def _check_text(place: _Place, text: str, entry: Entry) -> None:
    """Refuse what ends lines, drives terminals or reorders what is shown; of stored texts, what no database takes."""
    if HIDDEN.search(text) is None:
        return
    if entry is Entry.NEW and not any(place.is_in(part) for part in NO_NAMES):
        problem = "text has characters that can't be used"
        raise _fault(place.path(), problem, text, ALLOWED_CHARACTERS, remedy="take them out")
    if UNUSABLE_TEXT.search(text):
        allowed = "no control characters, no lone surrogates"
        raise _fault(place.path(), "text has characters that can't be used", text, allowed)


def _check_number(place: _Place, value: float) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _fault(place.path(), "number is not finite", value, "finite numbers")
    if value != 0 and not MIN_NUMBER <= abs(value) <= MAX_NUMBER:
        raise _fault(place.path(), "number is out of range", value, f"0, or a magnitude of {MIN_NUMBER} to {MAX_NUMBER}")


def check_cluster(cluster: Cluster) -> None:
    """Refuse a cluster of too many groups or devices; raises ClusterError."""
    if len(cluster.groups) > MAX_GROUPS:
        raise ClusterError("too many node groups", given=len(cluster.groups), allowed=f"at most {MAX_GROUPS}")
    if cluster.n_devices > MAX_DEVICES:
        raise ClusterError("too many devices", given=cluster.n_devices, allowed=f"at most {MAX_DEVICES}")


def _check_training(workload: TrainingWorkload) -> None:
    _at_most("workload.global_batch", workload.global_batch, MAX_GLOBAL_BATCH)
    _at_most("workload.seq_len", workload.seq_len, MAX_SEQ_LEN)
    if workload.lengths is not None:
        _at_most("workload.lengths.tokens", max(workload.lengths.tokens), MAX_SEQ_LEN)
        _at_most("workload.lengths.counts", max(workload.lengths.counts), MAX_COUNT)


def _check_serving(workload: ServingWorkload) -> None:
    if workload.speculation is not None:
        _at_most("workload.speculation.draft_tokens", workload.speculation.draft_tokens, MAX_DRAFT_TOKENS)
    arrivals = workload.arrivals
    if isinstance(arrivals, ClosedArrivals):
        _at_most("workload.arrivals.concurrency", arrivals.concurrency, MAX_CONCURRENCY)
        _at_most("workload.arrivals.requests_per_client", arrivals.requests_per_client or 0, MAX_RUN // arrivals.concurrency)
    else:
        _at_most("workload.arrivals.requests_per_s", arrivals.requests_per_s, MAX_REQUESTS_PER_S)
    if isinstance(arrivals, ScheduleArrivals):
        _at_most("workload.arrivals.intervals", len(arrivals.intervals), MAX_INTERVALS)
    if isinstance(arrivals, TraceArrivals):
        _at_most("workload.arrivals.times_s", len(arrivals.times_s), MAX_TRACE)
        _at_most("workload.arrivals.prompt_tokens", max(arrivals.prompt_tokens), MAX_SEQ_LEN)
        _at_most("workload.arrivals.output_tokens", max(arrivals.output_tokens), MAX_SEQ_LEN)
    lengths = [("prompt_tokens", workload.prompt_tokens), ("output_tokens", workload.output_tokens)]
    if workload.prefix_cache is not None:
        _at_most("workload.prefix_cache.system_tokens", workload.prefix_cache.system_tokens, MAX_SEQ_LEN)
        lengths.append(("prefix_cache.hit_tokens", workload.prefix_cache.hit_tokens))
    for name, length in lengths:
        match length:
            case FixedLength():
                _at_most(f"workload.{name}.fixed", length.fixed, MAX_SEQ_LEN)
            case LognormalLength():
                _at_most(f"workload.{name}.p95", length.p95, MAX_SEQ_LEN)
            case EmpiricalLength():
                _at_most(f"workload.{name}.empirical", max(length.empirical), MAX_SEQ_LEN)


_CHECKS: Mapping[str, Callable[[Any], None]] = {"training": _check_training, "serving": _check_serving}
"""What refuses workloads of each kind that are beyond the bounds."""


def check_request(request: PlanRequest) -> None:
    """Refuse a workload or search options beyond the bounds; raises DocumentError."""
    _CHECKS[request.workload.kind](request.workload)
    _check_search(request.search)


def _check_search(search: Search) -> None:
    for name, entry in LEDGER.items():
        given = getattr(search, name)
        if isinstance(given, tuple) and len(given) > MAX_CHOICES:
            raise _fault(f"search.{name}", "too many values", len(given), f"at most {MAX_CHOICES}")
        most = entry.choice.at_most
        if most is not None and given is not None and given > most:
            raise _fault(f"search.{name}", "value is too large", given, f"at most {most:.16g}")


def _at_most(field: str, value: float, limit: float) -> None:
    if value > limit:
        raise _fault(field, "value is too large", value, f"at most {limit:g}")


def _fault(field: str, problem: str, given: object, allowed: str, remedy: str | None = None) -> DocumentError:
    return DocumentError("this request can't be used", (FieldError(field, problem, short_text(given), allowed, remedy),))
