"""Look for inputs that cost more than their size: ``python -m benchmarks.fuzz_cost [--minutes M | --inputs N] [--way NAME]``.

Each input is read in a child with limits, as its way in reads it before any solve. What cost most for a byte is kept and
changed further: of each way in the few dearest inputs. The budgets are 1 s of processor for each 100 kB begun, and 50 times
the input's bytes of Python's memory above 16 MiB. What is beyond, and what raises anything but InvalidInputError, is made
shorter and printed with its lineage, from which ``--only`` makes it again: the example, and a seed for each change.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import heapq
import itertools
import json
import os
import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.grown_inputs import grown
from benchmarks.ways_in import WAYS_IN, WayIn
from meshwright.costmodels.errors import InvalidInputError

CPU_S_EACH, CPU_BYTES = 1.0, 100_000
"""A second of processor for each 100 kB begun."""
MEMORY_FLOOR_BYTES, MEMORY_TIMES = 16 * 2**20, 50
"""Of all examples but one the dearest takes 5 MiB, a traced graph 23, a quarter of its budget. A list of JSON costs 50 times
its text."""
LIMIT_CPU_S, LIMIT_BYTES = 60, 3 * 2**30
"""Of a child: far beyond every budget, and within a small machine."""
KEPT = 6
"""Inputs of a way in that are changed further: the dearest."""
SHORT_BYTES = 10_000
"""Bytes up to which what a byte costs is mostly the noise of the clock."""
FRESH = 0.25
"""Share of inputs that are grown from an example rather than from a kept one."""
SHRINKS = 40
"""Tries to make a finding shorter."""
SEED = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of reading an input: seconds of processor, the peak of Python's memory, and how reading ended."""

    cpu_s: float
    peak_bytes: int
    ended: str


@dataclass(frozen=True, slots=True, order=True)
class Tried:
    """An input by the share of its budget that it took: 1 is the whole."""

    share: float
    lineage: str = field(compare=False)
    text: bytes = field(compare=False)
    cost: Cost = field(compare=False)

    def dearness(self, n_bytes: int, base: Cost) -> float:
        """The cost of a byte beyond what an example costs, in shares of the budgets without their floors."""
        cpu_s, peak_bytes = self.cost.cpu_s - base.cpu_s, self.cost.peak_bytes - base.peak_bytes
        return max(cpu_s / CPU_S_EACH * CPU_BYTES, peak_bytes / MEMORY_TIMES) / max(n_bytes, SHORT_BYTES)

    @property
    def is_bad(self) -> bool:
        """True of an input beyond its budget, or whose reading ended in any other way than in a result or a refusal."""
        return self.share > 1 or self.cost.ended not in ("read", "refused")


def share_of(cost: Cost, n_bytes: int, cpu_times: float = 1.0) -> float:
    """The larger share of both budgets, that of processor time being so many times the usual one."""
    cpu_s = cpu_times * CPU_S_EACH * -(-max(1, n_bytes) // CPU_BYTES)
    return max(cost.cpu_s / cpu_s, cost.peak_bytes / (MEMORY_FLOOR_BYTES + MEMORY_TIMES * n_bytes))


def cost_in_child(read: Callable[[bytes], object], text: bytes, *, traced: bool) -> Cost:
    """Read an input in a child with limits; memory is looked at in a traced one alone, whose processor time is longer."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        with contextlib.suppress(BaseException):
            os.write(sending, json.dumps(_cost_here(read, text, traced=traced)).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        said = pipe.read()
    _, status, used = os.wait4(child, 0)
    if said:
        return Cost(*json.loads(said))
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, f"ended by signal {os.WTERMSIG(status)}")


def _cost_here(read: Callable[[bytes], object], text: bytes, *, traced: bool) -> tuple[float, int, str]:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU_S, LIMIT_CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
    if traced:
        tracemalloc.start()
    began_s = time.process_time()
    try:
        read(text)
        ended = "read"
    except InvalidInputError:
        ended = "refused"
    except BaseException as error:
        ended = f"{type(error).__name__}: {str(error)[:200]}"
    cpu_s = time.process_time() - began_s
    return cpu_s, tracemalloc.get_traced_memory()[1] if traced else 0, ended


def tried(way: WayIn, lineage: str, text: bytes, cpu_times: float = 1.0) -> Tried:
    """Return an input with its cost; processor time beyond the budget counts when two children without traces take it too."""
    packed = way.packed(text)
    cost = cost_in_child(way.read, packed, traced=True)
    if cost.cpu_s > CPU_S_EACH:
        again = min(cost_in_child(way.read, packed, traced=False).cpu_s for _ in range(2))
        cost = Cost(min(again, cost.cpu_s), cost.peak_bytes, cost.ended)
    return Tried(share_of(cost, len(packed), way.cpu_times * cpu_times), lineage, text, cost)


def text_of(way: WayIn, lineage: str) -> bytes:
    """The input of a lineage: the number of an example, and the seeds of its changes."""
    example, *changes = map(int, lineage.split("."))
    examples = list(way.examples())
    text = examples[example]
    for seed in changes:
        text = grown(text, random.Random(f"{SEED}/{seed}"), examples, way.longest)
    return text


def inputs_of(way: WayIn, chance: random.Random, cpu_times: float) -> Iterator[Tried]:
    """Yield the examples as they are, then inputs without an end, grown from the dearest so far."""
    examples = list(way.examples())
    kept: list[tuple[float, int, Tried]] = []
    base = Cost(0.0, 0, "")
    for number, example in enumerate(examples):
        # Here as well: what is loaded for the first input is no cost of every one.
        with contextlib.suppress(InvalidInputError):
            way.read(way.packed(example))
        gc.freeze()
        made = tried(way, str(number), example, cpu_times)
        base = Cost(max(base.cpu_s, made.cost.cpu_s), max(base.peak_bytes, made.cost.peak_bytes), "")
        yield made
    for count in itertools.count():
        number = chance.randrange(len(examples))
        parent, lineage = examples[number], str(number)
        if kept and chance.random() > FRESH:
            dear = chance.choice(kept)[2]
            parent, lineage = dear.text, dear.lineage
        seed = chance.randrange(10**9)
        made = tried(way, f"{lineage}.{seed}", grown(parent, random.Random(f"{SEED}/{seed}"), examples, way.longest), cpu_times)
        if all(made.text != each.text for _, _, each in kept):
            kept = heapq.nlargest(KEPT, [*kept, (made.dearness(len(way.packed(made.text)), base), count, made)])
        yield made


def shrunk(way: WayIn, found: Tried, cpu_times: float) -> Tried:
    """The finding with parts left out, as long as it is one."""
    part, tries = len(found.text) // 2, 0
    while part and tries < SHRINKS:
        for at in range(0, len(found.text), part):
            tries += 1
            less = tried(way, found.lineage, found.text[:at] + found.text[at + part :], cpu_times)
            if less.is_bad or tries >= SHRINKS:
                found = less if less.is_bad else found
                break
        else:
            part //= 2
        part = min(part, len(found.text) // 2)
    return found


def shown(way: WayIn, found: Tried) -> str:
    text = found.text if len(found.text) <= 300 else found.text[:200] + b" ... " + found.text[-100:]
    cost = found.cost
    said = f"{found.share:.2f} of its budget, {cost.cpu_s:.2f} s, {cost.peak_bytes / 2**20:.1f} MiB, {cost.ended}"
    return f"{way.name}: {len(way.packed(found.text)):,} bytes, {said}\n  --way {way.name!r} --only {found.lineage}\n  {text!r}"


def search(ways: Sequence[WayIn], *, n_inputs: int | None, until_s: float, cpu_times: float = 1.0) -> int:
    """Try inputs until there are so many, or until then; print findings and the dearest of each way in, return findings."""
    streams = {way.name: inputs_of(way, random.Random(f"{SEED}/{way.name}"), cpu_times) for way in ways}
    dearest: dict[str, Tried] = {}
    bad: dict[str, Tried] = {}
    count, spent_s = 0, dict.fromkeys(streams, 0.0)
    while (n_inputs is None or count < n_inputs) and (began_s := time.monotonic()) < until_s:
        # Slow ways in get as much time as others, not as many inputs.
        way = min(ways, key=lambda each: spent_s[each.name])
        made = next(streams[way.name])
        spent_s[way.name] += time.monotonic() - began_s
        count += 1
        dearest[way.name] = max(dearest.get(way.name, made), made)
        if made.is_bad and way.name not in bad:
            bad[way.name] = made
            print("BEYOND " + shown(way, shrunk(way, made, cpu_times)))
    for way in ways:
        if way.name in dearest:
            print("dearest " + shown(way, dearest[way.name]).split("\n")[0])
    print(f"{count:,} inputs, {len(bad)} ways in with findings")
    return len(bad)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="minutes after which it ends")
    parser.add_argument("--inputs", type=int, help="inputs in all")
    parser.add_argument(
        "--cpu-times", type=float, default=1.0, help="so many times the budget of processor: 10 on a busy machine"
    )
    parser.add_argument("--way", action="append", help="this way in alone; several may be given")
    parser.add_argument("--only", help="read the input of this lineage alone, and write it to stdout")
    given = parser.parse_args()
    ways = [way for way in WAYS_IN if given.way is None or way.name in given.way]
    if given.only is not None:
        text = ways[0].packed(text_of(ways[0], given.only))
        sys.stdout.buffer.write(text)
        print(cost_in_child(ways[0].read, text, traced=True), file=sys.stderr)
        return 0
    return (
        1
        if search(ways, n_inputs=given.inputs, until_s=time.monotonic() + 60 * given.minutes, cpu_times=given.cpu_times)
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
