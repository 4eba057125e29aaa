"""``shard``: one sharding strategy for every operator of a problem file."""

from __future__ import annotations

from dataclasses import dataclass

from app.commands.exits import print_json
from app.commands.planning import Output
from app.errors import EXIT_GOOD, EXIT_NO


@dataclass(frozen=True, slots=True)
class ShardCommand:
    """Options of ``shard``."""

    problem: str
    time_limit_s: float | None
    work_limit: int | None
    seed: int
    output: Output


def run_shard_command(command: ShardCommand) -> int:
    """Solve the problem and print the answer; exit code 1 when nothing feasible was found."""
    from app.shard_command import run_shard

    answer = run_shard(command.problem, time_limit_s=command.time_limit_s, work_limit=command.work_limit, seed=command.seed)
    print_json(answer)
    return EXIT_GOOD if answer.get("feasible", True) else EXIT_NO
