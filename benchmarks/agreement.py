"""Draws models, formats, engines and devices, and asks whether ``plan``, ``explain`` and ``validate`` price each alike.

    python -m benchmarks.agreement [--count 500] [--seed 0]

The same server is said three ways: a request in one line, its launch command, and a row of a measured table. Of each the engine
is built, and its step times, cache and weights are compared.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.app.evidence.serving.deployment import deployment
from meshwright.app.evidence.serving.replay import simulated_engine
from meshwright.app.evidence.serving.rows import AGGREGATED, ServingRun
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.models.catalog.huggingface_ids import CATALOGUE_NAMES
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine, Task
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.app.service.explaining.explain import asked_of
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.split_dims import RankGrid, divides
from meshwright.costmodels.queueing.step_times import GroupTimes
from meshwright.solver.problem.request import PlanRequest, ServingRequest
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import Layout, runs, served_shape

ENGINES = {
    "vllm": "vllm serve {model} --tensor-parallel-size {tp} --max-num-batched-tokens {tokens}",
    "sglang": "python -m sglang.launch_server --model-path {model} --tp-size {tp} --chunked-prefill-size {tokens}",
    "tensorrt-llm": "trtllm-serve {model} --tp_size {tp} --max_num_tokens {tokens}",
}
"""Launchers, each with the command of a server."""
CACHES = {"vllm": "--kv-cache-dtype fp8", "sglang": "--kv-cache-dtype fp8_e4m3", "tensorrt-llm": "--kv_cache_dtype fp8"}
"""How each is told to store its cache in 8 bits. TensorRT-LLM always is here: rows that leave it unsaid are of checkpoints that
do so by themselves."""
DEVICES = {"H100": 8, "H200": 8, "B200": 8, "A100": 8, "L40S": 8, "MI300X": 8, "T4": 4}
"""Cards, and how many their nodes have: the ranks of a server stay in one."""
TENSOR_PARALLEL = (1, 2, 4, 8)
STEP_TOKENS = 8192
"""Tokens of a step, said in the command: what each launcher takes by default is not what is compared."""
ENDINGS = ("", "", "-FP8", "-FP8-dynamic", "-AWQ", "-GPTQ-Int4", "-GPTQ-Int8", "-NVFP4", "-FP4", "-bf16", "-bnb-4bit", "-W8A8")
"""Ends of names, which say the format of a copy; most models are served as they are."""
MAKERS = ("RedHatAI", "nvidia", "Qwen", "someone")
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Server:
    """A server as people say it."""

    model: str
    engine: str
    device: str
    tp: int
    narrow_cache: bool

    @property
    def command(self) -> str:
        """Its launch command."""
        command = ENGINES[self.engine].format(model=self.model, tp=self.tp, tokens=STEP_TOKENS)
        return f"{command} {CACHES[self.engine]}" if self.narrow_cache else command

    @property
    def line(self) -> OneLine:
        """Its request, which says nothing of degrees."""
        devices = f"8x{self.device}"
        return OneLine(self.model, devices, Task.SERVE, isl="500", osl="100", concurrency="8", launcher=self.engine)

    @property
    def row(self) -> ServingRun:
        """Its row of a measured table."""
        return ServingRun(
            line=1,
            source="drawn",
            model=self.model,
            gpu=self.device,
            n_gpus=self.tp,
            engine=self.engine.replace("tensorrt-llm", "trtllm"),
            precision="",
            mode=AGGREGATED,
            prompt_tokens=500,
            output_tokens=100,
            concurrency="8",
            note="",
            launch=self.command,
            tp=str(self.tp),
            pp="",
            attention_dp="",
            ep="",
        )


def drawn(count: int, seed: int) -> Iterator[Server]:
    """Yield servers drawn at random: listed models and copies of them by other makers in other formats."""
    chance = random.Random(seed)
    ids = sorted(CATALOGUE_NAMES)
    for _ in range(count):
        model, ending = chance.choice(ids), chance.choice(ENDINGS)
        if ending:
            model = f"{chance.choice(MAKERS)}/{model.rsplit('/', maxsplit=1)[-1]}{ending}"
        engine = chance.choice(tuple(ENGINES))
        narrow = chance.random() < 0.5 or engine == "tensorrt-llm"
        device = chance.choice(tuple(DEVICES))
        yield Server(model, engine, device, min(chance.choice(TENSOR_PARALLEL), DEVICES[device]), narrow)


def difference(server: Server) -> str | None:
    """Return in what the three differ; None where they agree, be it in a refusal."""
    found = {way: _priced(priced, server) for way, priced in _WAYS.items()}
    refused = [way for way, figures in found.items() if figures is None]
    if refused:
        return None if len(refused) == len(found) else f"refused by {', '.join(refused)} alone"
    first, *others = ((way, figures) for way, figures in found.items() if figures is not None)
    for way, figures in others:
        for name, value in first[1].items():
            if not math.isclose(value, figures[name], rel_tol=TOLERANCE, abs_tol=0.0):
                return f"{name}: {value:.9g} by {first[0]}, {figures[name]:.9g} by {way}"
    return None


def _priced(engine_of: Callable[[Server], Engine], server: Server) -> dict[str, float] | None:
    """The figures of a server's engine; None where it is refused."""
    try:
        return _figures(engine_of(server))
    except (InvalidInputError, NotPredictedError):
        return None


def _planned(server: Server) -> Engine:
    document = request_of_line(server.line)
    if server.narrow_cache:
        document["workload"]["kv_dtype"] = "fp8"
    return _engine(_resolve(document), server)


def _explained(server: Server) -> Engine:
    return _engine(asked_of(server.command, server.line, _resolve).request, server)


def _validated(server: Server) -> Engine:
    return simulated_engine(deployment(server.row))


_WAYS: Mapping[str, Callable[[Server], Engine]] = {"plan": _planned, "explain": _explained, "validate": _validated}


def _resolve(document: dict[str, object]) -> PlanRequest:
    return resolve_request(document, files=NoFiles())


def _engine(request: PlanRequest, server: Server) -> Engine:
    assert isinstance(request, ServingRequest)
    group, grid = request.cluster.groups[0], RankGrid(tp=server.tp)
    shape = served_shape(request.model, request.workload.weight_format)
    if not (divides(request.model.dims, grid) and runs(request.search.engine, grid, shape)):
        raise NotPredictedError("the layout does not divide the model")
    # The ranges of tables are those that rows of measured tables are priced with.
    builder = EngineBuilder(request, sequence_tokens=2 * STEP_TOKENS, step_tokens=STEP_TOKENS, sequences=2048)
    return builder.engine(Layout(group, 0, grid, 1))


def _figures(engine: Engine) -> dict[str, float]:
    """The figures that are compared: seconds of steps, bytes that do not depend on the load, tokens of the cache."""
    times = engine.simulated_times
    times = times.own if isinstance(times, GroupTimes) else times
    arrays = {name: getattr(times, name) for name in times.__dataclass_fields__}
    found = {name: float(np.sum(value)) for name, value in arrays.items() if isinstance(value, np.ndarray)}
    found |= {name: float(value) for name, value in arrays.items() if isinstance(value, int | float)}
    stages = enumerate(engine.needs)
    found |= {f"bytes of stage {k}": engine.fixed_bytes(stage, step_tokens=2048, sequences=64) for k, stage in stages}
    return found | {"tokens of the cache": float(engine.kv_tokens(step_tokens=2048, sequences=64))}


def main() -> None:
    """Print how many of the drawn servers are priced alike, and in what the others differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = [(server, difference(server)) for server in drawn(options.count, options.seed)]
    for server, said in found:
        if said is not None:
            cache = "fp8" if server.narrow_cache else "16 bit"
            print(f"{server.model} on {server.device}, {server.engine}, tp {server.tp}, {cache} cache: {said}")
    print(f"{sum(said is None for _, said in found)} of {len(found)} alike")


if __name__ == "__main__":
    main()
