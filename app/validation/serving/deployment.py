"""From a row to what ran: model, device, engine, layout and load, with what its source leaves unsaid filled in.

Conventions, each with its basis; none looks at a measured figure of the row.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from meshwright.app.catalog import model_names
from meshwright.app.validation.serving.recipes import EngineName, Load, Source, held_steps, joined_steps, kv_dtype, step_tokens
from meshwright.app.validation.serving.rows import AGGREGATED, ServingRun
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.costmodels.queueing.simulation.replica import Admission, Scheduling
from meshwright.costmodels.units import DType

MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Llama 3.1 8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Llama 3.3 70B": "llama-3.1-70b",
    "Llama 3.1 405B": "llama-3.1-405b",
    "Llama 4 Scout": "llama-4-scout",
    "Llama 4 Maverick": "llama-4-maverick",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "DeepSeek-R1-0528": "deepseek-v3",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "GPT-OSS 120B": "gpt-oss-120b",
    "GPT-OSS 20B": "gpt-oss-20b",
}
"""Catalogue names of models; Llama 3.3 70B and DeepSeek-R1 have the shapes of Llama 3.1 70B and DeepSeek-V3."""

NODES = {
    "h100_sxm": "dgx-h100",
    "H100": "dgx-h100",
    "h200_sxm": "dgx-h200",
    "H200": "dgx-h200",
    "b200_sxm": "dgx-b200",
    "B200": "dgx-b200",
}

MAX_LOAD = "max_load(all queued)"
"""Concurrency of throughput benchmarks: every request is queued at the start."""

MAX_LOAD_SEQUENCES = 2048
"""Sequences at once under full load: default --max_batch_size of trtllm-bench and trtllm-serve."""

MAX_LOAD_REQUESTS = 3000
"""Requests of such a run: TensorRT-LLM's perf-overview runs 1,000 to 30,000 by lengths, 3,000 for most."""

REQUESTS_PER_CLIENT = 10
"""As InferenceX runs vLLM's benchmark_serving: ten prompts a client (--num-prompts CONC * 10). Taken for all rows."""

INFERENCEX_SHORTEST = 0.8
"""InferenceX draws lengths uniform in 80% to 100% of the nominal ones (--random-range-ratio 0.8); other rows state nothing, so
their lengths are taken as fixed."""

_INFERENCEX = re.compile(r"source_file=2026-|db-dump/")
"""Notes of rows taken from InferenceX's data base."""

_MEASURED = re.compile(r"measured=(\d{4}-\d{2}-\d{2})")

_AICONFIGURATOR = "aic-auto-gap-analysis"
"""Notes of rows that AIConfigurator's developers ran."""

_DEVICES_PER_SERVER = 8


SCHEDULING = {
    EngineName.VLLM: (Scheduling.CHUNKED_PREFILL,),
    # Without chunks by default (enable_chunked_prefill false), yet often switched on: calibration chooses.
    EngineName.TENSORRT_LLM: (Scheduling.WHOLE_PROMPTS, Scheduling.CHUNKED_PREFILL),
    # SGLang runs a prefill batch before any decode batch unless --enable-mixed-chunk is given.
    EngineName.SGLANG: (Scheduling.PREFILL_FIRST,),
}
"""Schedulings that an engine may have run with, its default first."""

ADMISSION = {
    EngineName.VLLM: Admission.PREEMPT,
    EngineName.SGLANG: Admission.PREEMPT,
    # Default capacity policy GUARANTEED_NO_EVICT.
    EngineName.TENSORRT_LLM: Admission.RESERVE,
}


@dataclass(frozen=True, slots=True)
class Workers:
    """Equal replicas of one phase, or of both."""

    count: int
    tp: int
    pp: int
    ep: int
    attention_dp: int

    @property
    def devices(self) -> int:
        """Devices of one of them."""
        return self.tp * self.pp * self.attention_dp


@dataclass(frozen=True, slots=True)
class Deployment:
    """A row as the cost models take it. ``prefill`` is None where one worker does both phases; ``clients`` send a request
    as soon as their last is answered, None under full load; lengths are uniform from ``shortest`` of the nominal ones.
    ``step_tokens`` limit a step, ``held_steps`` is how many decode steps a new request is held back for on average,
    ``joined_steps`` for how many at most until every attention group has a prompt."""

    model: str
    node: str
    engine: EngineName
    precision: DType
    kv_dtype: DType
    prefill: Workers | None
    decode: Workers
    prompt_tokens: int
    output_tokens: int
    clients: int | None
    shortest: float
    step_tokens: int
    held_steps: float
    joined_steps: int

    @property
    def hardware(self) -> tuple[str, str]:
        """Model and node type: what calibration leaves out as one, however a row spells them."""
        return self.model, self.node


def deployment(run: ServingRun) -> Deployment:
    """Return the deployment of a row; raises NotPredictedError with what the row leaves open or the catalogue lacks."""
    name = MODELS.get(run.model)
    if name is None or name not in model_names():
        raise NotPredictedError(f"model not in the catalogue: {run.model}")
    if run.gpu not in NODES:
        raise NotPredictedError(f"GPU not in the catalogue: {run.gpu or 'not stated'}")
    if run.prompt_tokens is None or run.output_tokens is None:
        raise NotPredictedError("the row does not state its lengths")
    engine, precision = _engine(run), _precision(run)
    source = _source(run)
    prefill, decode = _workers(run, degrees_multiplied=source is Source.INFERENCEX)
    load = Load(
        source=source,
        engine=engine,
        model=name,
        node=NODES[run.gpu],
        precision=precision,
        tp=decode.tp,
        prompt_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens,
        clients=_clients(run),
        measured="" if (dated := _MEASURED.search(run.note)) is None else dated[1],
    )
    return Deployment(
        model=name,
        node=NODES[run.gpu],
        engine=engine,
        precision=precision,
        kv_dtype=kv_dtype(load),
        prefill=prefill,
        decode=decode,
        prompt_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens,
        clients=load.clients,
        shortest=INFERENCEX_SHORTEST if source is Source.INFERENCEX else 1.0,
        step_tokens=step_tokens(load),
        held_steps=held_steps(load) if prefill is None else 0.0,
        joined_steps=joined_steps(load) if prefill is None else 0,
    )


def _source(run: ServingRun) -> Source:
    if _INFERENCEX.search(run.note):
        return Source.INFERENCEX
    return Source.AICONFIGURATOR if _AICONFIGURATOR in run.note else Source.OTHER


def _engine(run: ServingRun) -> EngineName:
    for engine in EngineName:
        if run.engine.startswith(engine.value):
            return engine
    raise NotPredictedError(f"engine without a profile: {run.engine or 'not stated'}")


def _precision(run: ServingRun) -> DType:
    """An empty precision is taken as the checkpoint's own, bf16."""
    try:
        return DType(run.precision or "bf16")
    except ValueError:
        raise NotPredictedError(f"unknown precision: {run.precision}") from None


def _workers(run: ServingRun, *, degrees_multiplied: bool) -> tuple[Workers | None, Workers]:
    if run.mode != AGGREGATED:
        return _phase(run, "P"), _phase(run, "D")
    tp, attention_dp, ep = _degree(run.tp), _degree(run.attention_dp), _degree(run.ep)
    pp = _degree(run.pp)
    if degrees_multiplied and tp * attention_dp == run.n_gpus and (tp > ep > 1 or tp * attention_dp > _DEVICES_PER_SERVER):
        # These rows multiply the degree of attention by that of experts, which share the same devices of one server: they
        # repeat rows of tp 2, 4 and 8 as 4, 16 and 64 with ep 2, 4 and 8.
        tp, attention_dp = max(1, tp // ep), max(1, attention_dp // ep)
        return None, Workers(1, tp, pp, ep, attention_dp)
    one = Workers(1, tp, pp, ep, attention_dp)
    if attention_dp == tp and run.n_gpus == tp * pp:
        # Some sources state attention dp on the same devices as tp.
        one = Workers(1, 1, pp, ep, attention_dp)
    count = 1 if run.n_gpus is None else max(1, run.n_gpus // one.devices)
    return None, Workers(count, one.tp, pp, ep, one.attention_dp)


def _phase(run: ServingRun, phase: str) -> Workers:
    """Workers of one phase: "P1x8/D9x8" is one prefill worker of tp 8 and nine decode workers of tp 8."""
    shape = re.search(rf"{phase}(\d+)x(\d+)", run.tp)
    if shape is None:
        raise NotPredictedError("the row does not state the workers of each phase")
    attention_dp, ep = (re.search(rf"{phase}(\d+)", text) for text in (run.attention_dp, run.ep))
    return Workers(
        count=int(shape[1]),
        tp=int(shape[2]),
        pp=1,
        ep=max(1, int(ep[1])) if ep else 1,
        attention_dp=max(1, int(attention_dp[1])) if attention_dp else 1,
    )


def _degree(text: str) -> int:
    """A degree; nothing and 0 mean that the axis is not used."""
    return max(1, int(text)) if text.isdigit() else 1


def _clients(run: ServingRun) -> int | None:
    if run.concurrency == MAX_LOAD:
        return None
    try:
        clients = float(run.concurrency)
    except ValueError:
        clients = math.nan
    if not (clients >= 1 and clients.is_integer()):
        raise NotPredictedError("the row does not state its concurrency")
    return int(clients)
