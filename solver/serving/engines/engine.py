"""The engine of a layout: step times, and memory for the cache under each token limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, group_topology
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.split_dims import RankGrid
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.queueing.step_times import GroupTimes, StepTimes
from meshwright.costmodels.serving.engine_profile import (
    ENGINE_PROFILES,
    FAST_LINK_BYTES_PER_S,
    EngineMemory,
    EngineProfile,
    ServingPrecision,
)
from meshwright.costmodels.serving.memory import BlockMemory, CacheBytes, block_memory
from meshwright.costmodels.serving.operators import ProductTimes, ServedOn, TokenSplit, stage_ranks
from meshwright.costmodels.serving.speculation import Speculation, speculative_times, with_repeated_answers
from meshwright.costmodels.serving.step_time import (
    BlockTimes,
    ModelWork,
    TableRange,
    block_times,
    group_times,
    model_work,
    step_times,
)
from meshwright.solver.answer.stage import LayerSpan, StageMemory
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.layouts import SEQUENCES, STEP_TOKENS, Layout, pipeline_stages, serving_precision


@dataclass(frozen=True, eq=False)
class StageNeeds:
    """Memory that a stage needs before any cache, on its fullest device; workspace grows with the token limit."""

    weights_bytes: float
    cache: CacheBytes
    token_bytes: float
    expert_bytes: float
    logits: float
    answer_bytes: float


@dataclass(frozen=True, eq=False)
class Engine:
    """A replica of a layout: layers, operators and needs of its stages, step times, and what its devices offer.

    Step times are made when they are first asked for: an engine that does not fit in memory needs none.
    """

    layout: Layout
    spans: tuple[tuple[LayerSpan, ...], ...]
    operators: tuple[int, ...]
    needs: tuple[StageNeeds, ...]
    tables: Callable[[], StepTimes]
    group_tables: Callable[[], GroupTimes]
    capacity_bytes: float
    overhead_bytes: float
    memory_share: float
    memory: EngineMemory
    turnaround_s: float
    work: ModelWork
    precision: ServingPrecision
    speculation: Speculation | None = None
    _kv_tokens: dict[tuple[int, int], int] = field(default_factory=dict, init=False)

    @cached_property
    def times(self) -> StepTimes:
        """Step times of an attention group among others alike."""
        return self.tables()

    @cached_property
    def simulated_times(self) -> StepTimes | GroupTimes:
        """Step times of the replica as it is simulated: of attention groups that step together; those of a pipeline, or
        that share prompts, as if alike."""
        apart = self.layout.schedulers > 1 and self.layout.pp == self.layout.grid.cp == 1
        return self.group_tables() if apart else self.times

    @cached_property
    def alone_times(self) -> StepTimes:
        """Step times of an attention group whose companions are idle."""
        times = self.simulated_times
        return times.alone() if isinstance(times, GroupTimes) else times

    @property
    def query_tokens(self) -> int:
        """Tokens of a decoding sequence in a step: one, or those that are verified."""
        return 1 if self.speculation is None else self.speculation.query_tokens

    @property
    def key(self) -> tuple[str | int, ...]:
        """The key that tells the engines of a request apart."""
        return self.layout.key

    def fixed_bytes(self, stage: StageNeeds, *, step_tokens: int, sequences: int) -> float:
        """Weights, workspace and overhead of a stage."""
        workspace = self._workspace_bytes(stage, step_tokens=step_tokens, sequences=sequences)
        return stage.weights_bytes + workspace + self.overhead_bytes

    def _workspace_bytes(self, stage: StageNeeds, *, step_tokens: int, sequences: int) -> float:
        """Activations of the largest step, and logits of every token that is sampled or verified: both where the engine keeps
        activations while it chooses tokens, else whichever is more."""
        tokens_bytes = step_tokens * stage.token_bytes
        if self.layout.repeats_answers:
            tokens_bytes = max(tokens_bytes, sequences * stage.answer_bytes)
        chosen_bytes = sequences * self.query_tokens * stage.logits * self.memory.logit_bytes
        if not self.memory.returns:
            return tokens_bytes + chosen_bytes
        if stage.logits:
            chosen_bytes += self.memory.sampler_bytes + step_tokens * stage.expert_bytes
        return max(tokens_bytes, chosen_bytes)

    def usable_bytes(self) -> float:
        """Return the bytes of a device that the engine may fill."""
        return min(self.capacity_bytes, self.layout.group.node.device.memory_bytes * self.memory_share)

    def kv_tokens(self, *, step_tokens: int, sequences: int) -> int:
        """Tokens that the cache of an attention group holds: those of its fullest stage."""
        key = (step_tokens, sequences)
        if key not in self._kv_tokens:
            self._kv_tokens[key] = min(
                stage.cache.tokens_that_fit(
                    self.usable_bytes() - self.fixed_bytes(stage, step_tokens=step_tokens, sequences=sequences),
                    sequences=sequences,
                    step_tokens=step_tokens,
                )
                for stage in self._distinct_needs
            )
        return self._kv_tokens[key]

    @cached_property
    def _distinct_needs(self) -> tuple[StageNeeds, ...]:
        """The needs of each kind of stage once."""
        kinds: dict[tuple[object, ...], StageNeeds] = {}
        for needs in self.needs:
            cache = (needs.cache.per_token, needs.cache.per_sequence, *sorted(needs.cache.windowed.items()))
            activations = (needs.token_bytes, needs.expert_bytes, needs.logits, needs.answer_bytes)
            kinds[(needs.weights_bytes, *activations, *cache)] = needs
        return tuple(kinds.values())

    def stage_memory(self, stage: StageNeeds, *, step_tokens: int, sequences: int) -> StageMemory:
        """Memory of a stage's device by kind, the cache as large as the replica can use."""
        tokens = self.kv_tokens(step_tokens=step_tokens, sequences=sequences)
        return StageMemory(
            weights_bytes=stage.weights_bytes,
            gradients_bytes=0.0,
            optimizer_bytes=0.0,
            activations_bytes=0.0,
            transient_bytes=self._workspace_bytes(stage, step_tokens=step_tokens, sequences=sequences),
            overhead_bytes=self.overhead_bytes,
            capacity_bytes=self.capacity_bytes,
            kv_cache_bytes=stage.cache.bytes_of(tokens, sequences=sequences, step_tokens=step_tokens),
        )


class EngineBuilder:
    """Builds engines of one request; tables of a block are made once for each device and grid of ranks."""

    def __init__(
        self,
        request: ServingRequest,
        *,
        sequence_tokens: int,
        step_tokens: int = STEP_TOKENS[-1],
        sequences: int = SEQUENCES[-1],
        profile: EngineProfile | None = None,
    ):
        self._model: ModelGraph = request.model
        self._cluster: Cluster = request.cluster
        self._profile = profile or ENGINE_PROFILES[request.search.engine]
        self._memory_share = request.search.memory_share or self._profile.memory_share
        self._precision = serving_precision(request.workload)
        self._work = model_work(((self._model.block(r.block).operators, r.repeat) for r in self._model.chain), self._model.dims)
        self._routing = request.workload.experts
        self._speculation = request.workload.speculation
        rows = 1 if self._speculation is None else self._speculation.query_tokens
        self._range = TableRange(step_tokens, sequences * rows, sequence_tokens)
        self._times: dict[tuple[str, RankGrid, int, TokenSplit], Mapping[str, BlockTimes]] = {}
        self._products: dict[str, ProductTimes] = {}
        self._memory: dict[RankGrid, Mapping[str, BlockMemory]] = {}

    def engine(self, layout: Layout) -> Engine:
        """The engine of a layout; its tables raise ClusterError when the device lacks the precision."""
        spans = pipeline_stages(self._model, layout.pp)
        memory = self._block_memory(layout.grid)
        device = layout.group.node.device

        def layers(query_tokens: int, split: TokenSplit) -> list[list[tuple[BlockTimes, int]]]:
            times = self._block_times(layout, query_tokens, split)
            return [[(times[span.block], span.count) for span in stage] for stage in spans]

        @cache
        def of_tokens(query_tokens: int, split: TokenSplit = TokenSplit.SHARED) -> StepTimes:
            return step_times(
                layers(query_tokens, split),
                boundary_elements=self._boundary_elements(),
                links=[self._link(layout, stage) for stage in range(layout.pp - 1)],
                precision=self._precision,
                engine=self._profile,
                table_range=self._range,
            )

        def drafting(times: StepTimes) -> StepTimes:
            """Times of steps that verify tokens, with those of the drafts."""
            drafted = self._speculation
            return times if drafted is None else speculative_times(of_tokens(1), times, drafted)

        rows = 1 if self._speculation is None else self._speculation.query_tokens

        def tables() -> StepTimes:
            if layout.repeats_answers:
                return with_repeated_answers(of_tokens(1), of_tokens(1, TokenSplit.REPEATED))
            return drafting(of_tokens(rows))

        def group_tables() -> GroupTimes:
            (stage,) = layers(rows, TokenSplit.SHARED)
            times = group_times(stage, of_tokens(rows), groups=layout.schedulers, engine=self._profile, table_range=self._range)
            return replace(times, own=drafting(times.own))

        draft_bytes = 0.0 if self._speculation is None else self._speculation.draft.memory_bytes
        grid = layout.grid
        # One communicator each for dense ranks, kvp, cp, the stage's experts and the pipeline.
        split = (grid.dense_tp > 1, grid.kvp > 1, grid.cp > 1, grid.ranks > grid.dense_tp, layout.pp > 1)
        communicators = sum(split)
        return Engine(
            layout=layout,
            spans=spans,
            operators=tuple(sum(s.count * len(self._model.block(s.block).operators) for s in stage) for stage in spans),
            needs=tuple(_stage_needs(stage, memory, draft_bytes=draft_bytes) for stage in spans),
            tables=tables,
            group_tables=group_tables,
            capacity_bytes=device.memory_bytes * (1.0 - self._cluster.memory_reserve),
            overhead_bytes=self._profile.memory.overhead_bytes(
                communicators=communicators,
                communicator_bytes=device.communicator_bytes,
                fast_links=layout.group.node.intra.bytes_per_s >= FAST_LINK_BYTES_PER_S,
            ),
            memory_share=self._memory_share,
            memory=self._profile.memory,
            turnaround_s=self._profile.turnaround_s,
            work=self._work,
            precision=self._precision,
            speculation=self._speculation,
        )

    def whole_model(self) -> StageNeeds:
        """Needs of the model where one rank holds it all."""
        (spans,) = pipeline_stages(self._model, 1)
        return _stage_needs(spans, self._block_memory(RankGrid()), draft_bytes=0.0)

    def _block_times(self, layout: Layout, query_tokens: int, split: TokenSplit) -> Mapping[str, BlockTimes]:
        key = (layout.group.name, layout.grid, query_tokens, split)
        if key not in self._times:
            on = ServedOn(
                dims=self._model.dims,
                device=layout.group.node.device,
                ranks=stage_ranks(self._cluster, layout.grid, first=layout.first_rank),
                precision=self._precision,
                engine=self._profile.engine,
                products=self._products.setdefault(layout.group.name, {}),
                query_tokens=query_tokens,
                split=split,
            )
            self._times[key] = {
                block.name: block_times(
                    block.operators, on, engine=self._profile, table_range=self._range, routing=self._routing
                )
                for block in self._model.blocks
            }
        return self._times[key]

    def _block_memory(self, grid: RankGrid) -> Mapping[str, BlockMemory]:
        if grid not in self._memory:
            self._memory[grid] = {
                block.name: block_memory(
                    block.operators, self._model.dims, grid=grid, precision=self._precision, routing=self._routing
                )
                for block in self._model.blocks
            }
        return self._memory[grid]

    def _link(self, layout: Layout, stage: int) -> GroupTopology:
        """Topology between a stage and the next, in the replica where it is slowest (replicas may lie across nodes)."""
        per_node = layout.group.node.devices_per_node
        offsets = {(r * layout.devices) % per_node: r for r in range(min(layout.most_replicas, per_node))}
        pairs = [
            group_topology(
                self._cluster,
                n=2,
                stride=layout.grid.ranks,
                first=layout.first_rank + replica * layout.devices + stage * layout.grid.ranks,
            )
            for replica in sorted(offsets.values())
        ]
        return max(pairs, key=lambda pair: float(collective_s(Collective.SEND_RECV, 2**20, pair)))

    def _boundary_elements(self) -> int:
        """Elements of one token that go from one layer to the next."""
        block = self._model.block(self._model.layers[0])
        tensor = next(t for operator in block.operators for t in operator.outputs if t.name == block.output)
        return tensor.elements({**self._model.dims, BATCH: 1, SEQ: 1})


def _stage_needs(stage: tuple[LayerSpan, ...], memory: Mapping[str, BlockMemory], *, draft_bytes: float) -> StageNeeds:
    here = {span.block for span in stage}
    # A tied weight is stored again where its owner is on another stage.
    tied = {
        owner: size
        for span in stage
        for owner, size in memory[span.block].tied_bytes.items()
        if not any(owner.startswith(f"{block}/") for block in here)
    }
    cache = CacheBytes()
    for span in stage:
        cache = cache.plus(memory[span.block].cache, times=span.count)
    return StageNeeds(
        weights_bytes=sum(span.count * memory[span.block].weights_bytes for span in stage) + sum(tied.values()) + draft_bytes,
        cache=cache,
        token_bytes=max(memory[span.block].token_bytes for span in stage),
        expert_bytes=max(memory[span.block].expert_bytes for span in stage),
        logits=max(memory[span.block].logits for span in stage),
        answer_bytes=max(memory[span.block].answer_bytes for span in stage),
    )
