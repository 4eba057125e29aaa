"""``shard``: one sharding strategy for every operator, of a problem file or of a request's model."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.app.base.errors import EXIT_GOOD, EXIT_INTERNAL, EXIT_NO
from meshwright.app.base.figures import percent, seconds
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import Output, print_json, tell
from meshwright.app.cli.shard_command import ModelShardingQuestion, parse_mesh, run_model_sharding, run_shard
from meshwright.app.requests.files import read_request
from meshwright.app.store.named_calibrations import CalibrationsOf
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.strategies.operator_graph import Ties

_SAID = {
    "agrees": "{solver} agrees: solved again without our reductions and bounds",
    "disagrees": "{solver} contradicts this answer: it proves a cost of {cost}. Please report the problem file as a defect",
    "unfinished": "{solver} proved nothing in its time: no second opinion",
}


@dataclass(frozen=True, slots=True)
class ShardCommand:
    """Options of ``shard``: a problem file, or a request whose model is sharded over a mesh."""

    problem: str | None
    model: str | None
    mesh: str | None
    ties: Ties
    time_limit_s: float | None
    work_limit: int | None
    seed: int
    confirm: str | None
    output: Output


def run_shard_command(command: ShardCommand, settings: Settings) -> int:
    """Solve and print the answer; exit code 1 when no feasible choice was found, 3 when a second opinion contradicts it."""
    if command.model is not None and command.problem is None:
        return _shard_model(command, command.model, settings)
    if command.problem is None or command.model is not None:
        raise InvalidInputError(
            "give what to shard", given="both" if command.problem else "nothing", allowed="a problem file, or --model REQUEST"
        )
    if command.mesh is not None:
        raise InvalidInputError("a mesh goes with --model: a problem file has its strategies", given=command.mesh)
    answer = run_shard(
        command.problem,
        time_limit_s=command.time_limit_s,
        work_limit=command.work_limit,
        seed=command.seed,
        confirm=command.confirm,
    )
    opinion = answer["second_opinion"]
    if command.output is Output.JSON:
        print_json(answer)
    else:
        tell(f"{answer['name']}: {answer['status']} after {seconds(answer['seconds'])}")
        if answer["feasible"]:
            gap = "unknown" if answer["gap"] is None else percent(answer["gap"])
            tell(f"cost {answer['cost']:,}, proven bound {answer['bound']:,}, gap {gap}")
            tell(f"{len(answer['solution']):,} operators have their strategy; --json lists them")
        if opinion is not None:
            tell(_SAID[opinion["verdict"]].format(solver=opinion["solver"], cost=opinion["cost"]))
    if opinion is not None and opinion["verdict"] == "disagrees":
        return EXIT_INTERNAL
    return EXIT_GOOD if answer["feasible"] else EXIT_NO


def _shard_model(command: ShardCommand, request: str, settings: Settings) -> int:
    if command.confirm is not None:
        raise InvalidInputError("a second opinion goes with a problem file, not with --model", given=command.confirm)
    question = ModelShardingQuestion(
        request=read_request(request, stored=CalibrationsOf(settings)),
        mesh=parse_mesh(command.mesh),
        ties=command.ties,
        time_limit_s=command.time_limit_s,
        work_limit=command.work_limit,
        seed=command.seed,
    )
    answer = run_model_sharding(question)
    if command.output is Output.JSON:
        print_json(answer)
    else:
        from meshwright.app.base.console import page_console
        from meshwright.app.cli.pages.sharding_page import print_model_sharding

        print_model_sharding(page_console(), answer)
    return EXIT_GOOD if answer["feasible"] else EXIT_NO
