"""``shard``: one sharding strategy for every operator of a problem file."""

from __future__ import annotations

from dataclasses import dataclass

from app.commands.exits import print_json
from app.commands.planning import Output
from app.errors import EXIT_GOOD, EXIT_NO
from app.render.figures import percent, seconds
from app.shard_command import run_shard


@dataclass(frozen=True, slots=True)
class ShardCommand:
    """Options of ``shard``."""

    problem: str
    time_limit_s: float | None
    work_limit: int | None
    seed: int
    output: Output


def run_shard_command(command: ShardCommand) -> int:
    """Solve the problem and print the answer; exit code 1 when no feasible choice was found."""
    answer = run_shard(command.problem, time_limit_s=command.time_limit_s, work_limit=command.work_limit, seed=command.seed)
    if command.output is Output.JSON:
        print_json(answer)
    else:
        print(f"{answer['name']}: {answer['status']} after {seconds(answer['seconds'])}")
        if answer["feasible"]:
            gap = "unknown" if answer["gap"] is None else percent(answer["gap"])
            print(f"cost {answer['cost']:,}, proven bound {answer['bound']:,}, gap {gap}")
            print(f"{len(answer['solution']):,} operators have their strategy; --json lists them")
    return EXIT_GOOD if answer["feasible"] else EXIT_NO
