"""The causes of slow answers: changes of a serving request, its server's limits or its devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from meshwright.app.base.figures import seconds
from meshwright.app.base.solving import predict_here
from meshwright.app.service.explaining.causes import (
    CLOCK_CHECK,
    LINKS_CHECK,
    NETWORK_CHECK,
    Extent,
    SpeedCause,
    links_extent,
    links_said,
    network_extent,
    network_said,
    slower_links,
    slower_network,
    with_nodes,
    words,
)
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.costmodels.model.experts import BALANCED, PowerLawRouting
from meshwright.costmodels.model.implementation import HAND_FUSED
from meshwright.costmodels.serving.engine_profile import ENGINE_PROFILES
from meshwright.solver.answer.layouts import EngineLoad, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.request import Arrivals, Length, ServingRequest, ServingWorkload
from meshwright.solver.problem.serving_load import (
    ClosedArrivals,
    FixedLength,
    PoissonArrivals,
)
from meshwright.solver.training.costs.host import host_time


@dataclass(frozen=True, slots=True)
class ServingCase:
    """A server's plan and load under one change; ``launches_s`` is what the host takes for a step whose kernels it launches,
    and ``counted`` how many tokens the measurement counts for each generated one."""

    request: ServingRequest
    plan: Plan
    launches_s: float = 0.0
    counted: float = 1.0

    def predicted(self) -> Predicted | None:
        """Return its figures, None where it does not fit or keep up; raises InvalidInputError where it can't be."""
        plan = predict_here(self.request, self.plan)
        if not plan.feasible or plan.predicted is None:
            return None
        if self.counted != 1.0:
            return replace(plan.predicted, tokens_per_s=self.counted * plan.predicted.tokens_per_s)
        if not self.launches_s or not isinstance(plan.layout, Replicas):
            return plan.predicted
        is_closed = isinstance(self.request.workload.arrivals, ClosedArrivals)
        return _with_launches(plan.predicted, plan.layout.load, self.launches_s, is_closed=is_closed)

    @property
    def replicas(self) -> Replicas:
        """The layout: a server's command stands for equal replicas."""
        assert isinstance(self.plan.layout, Replicas), "a server's command stands for equal replicas"
        return self.plan.layout

    @property
    def devices_of_replica(self) -> int:
        """Devices of one replica."""
        return max(1, self.plan.devices // self.replicas.workers.count)

    def at(self, workload: ServingWorkload) -> ServingCase:
        """Return the same under another load."""
        return replace(self, request=replace(self.request, workload=workload))

    def within(self, **limits: int) -> ServingCase:
        """Return the same of a server with other limits of its batches."""
        layout = replace(self.replicas, load=replace(self.replicas.load, **limits))
        return replace(self, plan=replace(self.plan, layout=layout))


def _with_launches(predicted: Predicted, load: EngineLoad, host_s: float, *, is_closed: bool) -> Predicted:
    """The figures of a server of which no step takes less than the host does."""
    ttft_s, tpot_s = predicted.ttft_p95_s, predicted.tpot_p95_s
    assert ttft_s is not None and tpot_s is not None, "a server's figures have both times"
    later_s, more_s = max(0.0, host_s - load.prefill_time_s), max(0.0, host_s - load.decode_step_s)
    # Clients that wait for their answers send the next requests later.
    slowed = (tpot_s + more_s) / tpot_s if is_closed and tpot_s > 0.0 else 1.0
    return replace(
        predicted,
        ttft_p95_s=ttft_s + later_s,
        tpot_p95_s=tpot_s + more_s,
        tokens_per_s=predicted.tokens_per_s / slowed,
        bands={},
    )


def _modules_s(case: ServingCase) -> float:
    """The host's time for a step that PyTorch's modules run one by one: that of a forward pass in training.

    Engines have fused kernels and no autograd, and take less: how much less is not known. Llama 7B takes 39 ms a token so on an
    A100 (25.5 tokens/s: pytorch.org/blog/accelerating-generative-ai-2), 1.2 ms a layer.
    """
    model, device = case.request.model, case.request.cluster.groups[0].node.device
    sums = int(case.replicas.axes.tp > 1)
    of_block = {
        name: host_time(model.block(name), device, HAND_FUSED, collectives_of_sum=sums).forward_s for name in set(model.layers)
    }
    return sum(of_block[name] for name in model.layers)


def _launched(case: ServingCase, factor: float) -> ServingCase:
    return replace(case, launches_s=factor * case.replicas.load.decode_step_s)


def _launched_extent(case: ServingCase) -> Extent:
    most = _modules_s(case) / case.replicas.load.decode_step_s
    return Extent(most, 1.0, max(most, 1.0))


def _devices(case: ServingCase, factor: float) -> ServingCase:
    """The case on devices that compute and move memory so many times slower."""

    def slower(device: Device) -> Device:
        peaks = {dtype: flops / factor for dtype, flops in device.peak_flops.items()}
        return replace(device, peak_flops=peaks, memory_bytes_per_s=device.memory_bytes_per_s / factor)

    cluster = with_nodes(case.request.cluster, lambda node: replace(node, device=slower(node.device)))
    return replace(case, request=replace(case.request, cluster=cluster))


def _network(case: ServingCase, factor: float) -> ServingCase | None:
    cluster = case.request.cluster
    if case.devices_of_replica <= cluster.groups[0].node.devices_per_node:
        return None
    return replace(case, request=replace(case.request, cluster=slower_network(cluster, factor)))


def _links(case: ServingCase, factor: float) -> ServingCase | None:
    if case.devices_of_replica == 1:
        return None
    return replace(case, request=replace(case.request, cluster=slower_links(case.request.cluster, factor)))


def _sequences(case: ServingCase, factor: float) -> ServingCase:
    return case.within(max_num_seqs=max(1, round(case.replicas.load.max_num_seqs / factor)))


def _chunks(case: ServingCase, factor: float) -> ServingCase | None:
    load = case.replicas.load
    tokens = max(load.max_num_seqs, round(load.max_num_batched_tokens / factor))
    return case.within(max_num_batched_tokens=tokens) if tokens < load.max_num_batched_tokens else None


def _whole_prompts(case: ServingCase, _: float) -> ServingCase | None:
    length = case.request.workload.prompt_tokens
    if not isinstance(length, FixedLength) or length.fixed <= case.replicas.load.max_num_batched_tokens:
        return None
    return case.within(max_num_batched_tokens=length.fixed)


def _cache(case: ServingCase, factor: float) -> ServingCase:
    search = case.request.search
    share = search.memory_share or ENGINE_PROFILES[search.engine].memory_share
    return replace(case, request=replace(case.request, search=replace(search, memory_share=share / factor)))


def _hits(case: ServingCase, factor: float) -> ServingCase | None:
    work = case.request.workload
    if work.prefix_hit_ratio or work.hits_by_request:
        return None
    return case.at(replace(work, prefix_hit_ratio=1.0 - 1.0 / factor))


def _load(case: ServingCase, factor: float) -> ServingCase | None:
    match case.request.workload.arrivals:
        case PoissonArrivals() as arrivals:
            changed: Arrivals = replace(arrivals, requests_per_s=arrivals.requests_per_s * factor)
        case ClosedArrivals() as arrivals:
            changed = replace(arrivals, concurrency=max(1, round(arrivals.concurrency * factor)))
        case _:
            return None
    return case.at(replace(case.request.workload, arrivals=changed))


def _prompts(case: ServingCase, factor: float) -> ServingCase | None:
    length = _scaled(case.request.workload.prompt_tokens, factor)
    return None if length is None else case.at(replace(case.request.workload, prompt_tokens=length))


def _answers(case: ServingCase, factor: float) -> ServingCase | None:
    length = _scaled(case.request.workload.output_tokens, factor)
    return None if length is None else case.at(replace(case.request.workload, output_tokens=length))


def _scaled(length: Length | None, factor: float) -> FixedLength | None:
    """A length so many times longer: options of a command say fixed ones alone."""
    return FixedLength(max(1, round(length.fixed * factor))) if isinstance(length, FixedLength) else None


def _smaller(change: Callable[[ServingCase, float], ServingCase | None]) -> Callable[[ServingCase, float], ServingCase | None]:
    """The same change the other way."""
    return lambda case, factor: change(case, 1.0 / factor)


def _counts_prompts(case: ServingCase, _: float) -> ServingCase | None:
    prompt, answer = case.request.workload.prompt_tokens, case.request.workload.output_tokens
    if not isinstance(prompt, FixedLength) or not isinstance(answer, FixedLength):
        return None
    return replace(case, counted=(prompt.fixed + answer.fixed) / answer.fixed)


def _experts(case: ServingCase, factor: float) -> ServingCase | None:
    work = case.request.workload
    if EXPERTS not in case.request.model.dims or case.replicas.axes.ep == 1 or work.experts != BALANCED:
        return None
    return case.at(replace(work, experts=PowerLawRouting("power_law", factor - 1.0)))


_LOAD_CHECK = "the engine's log: Running and Waiting requests; the benchmark's own request rate and number of clients"
_LENGTHS_CHECK = "usage in the answers: prompt_tokens and completion_tokens; chat templates and system prompts count"

CAUSES: tuple[SpeedCause[ServingCase], ...] = (
    SpeedCause(
        "no-cuda-graphs",
        _launched,
        lambda case, factor: (
            "steps run without CUDA graphs: the host launches each kernel, "
            f"{seconds(factor * case.replicas.load.decode_step_s)} a step"
        ),
        "the log of the start: vLLM enforce_eager=False and Capturing CUDA graphs, SGLang Capture cuda graph; nsys shows gaps",
        _launched_extent,
        flags=frozenset(("enforce-eager", "disable-cuda-graph")),
    ),
    SpeedCause(
        "links",
        _links,
        lambda case, factor: links_said(case.request.cluster, factor),
        LINKS_CHECK,
        lambda case: links_extent(case.request.cluster),
        flags=frozenset(("disable-custom-all-reduce",)),
    ),
    SpeedCause(
        "network",
        _network,
        lambda case, factor: network_said(case.request.cluster, factor),
        NETWORK_CHECK,
        lambda case: network_extent(case.request.cluster),
    ),
    SpeedCause(
        "load-above",
        _load,
        words("the load is {} times what was said"),
        _LOAD_CHECK,
        lambda _: Extent(4.0, 1.1, 2.0),
    ),
    SpeedCause(
        "sequences-limited",
        _sequences,
        lambda case, factor: (
            f"{_sequences(case, factor).replicas.load.max_num_seqs} requests run at once, not {case.replicas.load.max_num_seqs}"
        ),
        "the engine's log: Running stays at a number while Waiting grows; max_num_seqs (--max-running-requests) at the start",
        lambda case: Extent(float(case.replicas.load.max_num_seqs), 2.0, 64.0),
    ),
    SpeedCause(
        "cache-small",
        _cache,
        words("the cache has less room: the engine fills 1/{} of the memory that was said"),
        "the log of the start: vLLM GPU KV cache size: N tokens; while it runs: GPU KV cache usage near 100%, Preempted",
        # Down to half of a device: another process on it takes the rest.
        lambda _: Extent(2.0, 1.05, 2.0),
        flags=frozenset(("num-gpu-blocks-override", "kv-cache-memory-bytes")),
    ),
    SpeedCause(
        "chunks-small",
        _chunks,
        lambda case, factor: (
            f"a step takes {max(case.replicas.load.max_num_seqs, round(case.replicas.load.max_num_batched_tokens / factor)):,} "
            f"tokens, not {case.replicas.load.max_num_batched_tokens:,}"
        ),
        "the log of the start: max_num_batched_tokens, chunked_prefill_size",
        # From today's 8,192 tokens to the 512 of vLLM 0.5.
        lambda _: Extent(16.0, 2.0, 16.0),
    ),
    SpeedCause(
        "prompts-whole",
        _whole_prompts,
        words("prompts run whole, and answers wait for them: chunked prefill is off"),
        "the log of the start: chunked_prefill_enabled, chunked_prefill_size",
    ),
    SpeedCause(
        "prompts-longer",
        _prompts,
        words("prompts are {} times as long as was said"),
        _LENGTHS_CHECK,
        lambda _: Extent(8.0, 1.1, 4.0),
    ),
    SpeedCause(
        "answers-longer",
        _answers,
        words("answers are {} times as long as was said"),
        _LENGTHS_CHECK,
        lambda _: Extent(8.0, 1.1, 4.0),
    ),
    SpeedCause(
        "clocks",
        _devices,
        words("devices work {} times slower: clocks are down, or others share them"),
        CLOCK_CHECK,
        lambda _: Extent(4.0, 1.05, 2.0),
    ),
    SpeedCause(
        "experts-uneven",
        _experts,
        lambda _, factor: f"tokens spread unevenly over experts, as a power law of exponent {factor - 1.0:.2g}",
        "tokens of each expert (SGLang: --enable-expert-distribution-metrics; vLLM: --enable-eplb logs balancedness)",
        lambda _: Extent(3.0, 1.1, 2.0),
    ),
    SpeedCause(
        "counts-prompts",
        _counts_prompts,
        words("the figure counts the tokens of prompts, too"),
        "the benchmark's own words: Total token throughput counts both, Output token throughput what is generated",
    ),
    SpeedCause(
        "prefix-hits",
        _hits,
        lambda _, factor: f"prompts find {1.0 - 1.0 / factor:.0%} of themselves in the prefix cache",
        "the engine's log: Prefix cache hit rate; repeated or synthetic prompts of a benchmark hit it",
        lambda _: Extent(20.0, 1.5, 20.0),
    ),
    SpeedCause(
        "load-below",
        _smaller(_load),
        words("the load is 1/{} of what was said"),
        _LOAD_CHECK,
        lambda _: Extent(16.0, 1.1, 4.0),
    ),
    SpeedCause(
        "prompts-shorter",
        _smaller(_prompts),
        words("prompts are 1/{} as long as was said"),
        _LENGTHS_CHECK,
        lambda _: Extent(8.0, 1.1, 4.0),
    ),
    SpeedCause(
        "answers-shorter",
        _smaller(_answers),
        words("answers are 1/{} as long as was said"),
        _LENGTHS_CHECK,
        lambda _: Extent(8.0, 1.1, 4.0),
    ),
)
"""Every cause, the likelier first of those that one figure can't tell apart."""
