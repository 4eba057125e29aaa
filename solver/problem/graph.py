"""ModelGraph: named blocks of operators over named dims, how often each repeats, and how they follow one another.

Identical layers are one Block with a repeat count in the chain, so planning grows with distinct blocks, not with depth
(DESIGN level 0). Edges inside a block are implied by its tensors: an operator that reads a tensor depends on the
operator that writes it. Edges between runs of blocks are explicit; left out, the runs form a chain.

Hyperparameters of a published model change no plan; a launch file must still state them: rotary positions, the norms' epsilon,
the router's rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import RESERVED_DIMS
from meshwright.costmodels.model.operators import Operator, Weight, active_parameters, parameters
from meshwright.costmodels.units import STRICT_RECORD, Fraction, Name, NonNegativeFloat, PositiveFloat, PositiveInt


class RotaryScalingKind(StrEnum):
    """The rule that stretches rotary positions over longer sequences than a model was first trained on."""

    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, slots=True)
class RotaryScaling:
    """Stretched rotary positions, in the names of a Hugging Face ``rope_scaling``.

    factor               how many times longer sequences become
    original_positions   tokens of the longest sequence before it
    low_frequency, high_frequency   ends of what llama3's rule blends (``low_freq_factor``, ``high_freq_factor``)
    mscale, mscale_all_dim          YaRN's factors on attention's scale
    """

    __pydantic_config__ = STRICT_RECORD

    kind: RotaryScalingKind
    factor: PositiveFloat | None = None
    original_positions: PositiveInt | None = None
    low_frequency: PositiveFloat | None = None
    high_frequency: PositiveFloat | None = None
    mscale: NonNegativeFloat | None = None
    mscale_all_dim: NonNegativeFloat | None = None


class RouterScore(StrEnum):
    """The function that turns a router's outputs into scores of experts."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class RouterRule:
    """The rule by which a router chooses and weighs experts.

    normalised        the weights of a token's experts sum to 1 (before ``scale``)
    scale             factor on those weights
    has_bias          a bias that balances loads takes part in the choice, not in the weights (DeepSeek-V3, section 2.1.2)
    auxiliary_loss    coefficient of the loss that balances loads; None where the model names none
    """

    __pydantic_config__ = STRICT_RECORD

    score: RouterScore
    normalised: bool
    scale: PositiveFloat = 1.0
    has_bias: bool = False
    auxiliary_loss: NonNegativeFloat | None = None


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Each None where the model's source does not say it, or says several.

    rotary_base      base of the rotary frequencies (``rope_theta``)
    rotary_share     share of a head's dimensions that turn
    rotary_scaling   rule for longer sequences
    norm_epsilon     what norms add to the variance
    router           rule of the router
    positions        tokens of the longest sequence, prompt and answer; engines take no longer one unless they are told to
    """

    __pydantic_config__ = STRICT_RECORD

    rotary_base: PositiveFloat | None = None
    rotary_share: Fraction | None = None
    rotary_scaling: RotaryScaling | None = None
    norm_epsilon: PositiveFloat | None = None
    router: RouterRule | None = None
    positions: PositiveInt | None = None


MODEL_GRAPH_SCHEMA = "meshwright.model-graph/1"
MAX_OPERATORS = 20_000
MAX_LAYERS = 1024
MAX_DIM = 10**9
MAX_RANK = 8
"""Sizes of dims and ranks of tensors are bounded so that no product of them leaves the range of a float."""
RESIDUAL = "x"
"""Name of the tensor that enters a block; each block names the tensor that leaves it in ``output``."""


@dataclass(frozen=True)
class Block:
    """A piece of the model that is never split between pipeline stages, usually one layer."""

    __pydantic_config__ = STRICT_RECORD

    name: Name
    operators: tuple[Operator, ...]
    output: str

    def __post_init__(self) -> None:
        names = [operator.name for operator in self.operators]
        if not names:
            raise ModelError(f"block {self.name!r} has no operators")
        if len(set(names)) != len(names):
            raise ModelError(f"block {self.name!r} has two operators of one name", given=_repeated(names))
        outputs = [tensor.name for operator in self.operators for tensor in operator.outputs]
        if len(set(outputs)) != len(outputs):
            raise ModelError(f"block {self.name!r} writes a tensor twice", given=_repeated(outputs))
        if self.output not in outputs:
            raise ModelError(f"block {self.name!r} never writes its output", given=self.output, allowed=", ".join(outputs))
        _topological_order(names, self.edges(), what=f"operators of block {self.name!r}")

    def edges(self) -> tuple[tuple[str, str, str], ...]:
        """(writer, reader, tensor) of every tensor that goes from one operator of the block to another."""
        writer = {tensor.name: operator.name for operator in self.operators for tensor in operator.outputs}
        return tuple(
            (writer[tensor.name], operator.name, tensor.name)
            for operator in self.operators
            for tensor in operator.inputs
            if tensor.name in writer
        )

    def operator(self, name: str) -> Operator:
        """The operator of that name."""
        for candidate in self.operators:
            if candidate.name == name:
                return candidate
        raise ModelError(f"block {self.name!r} has no operator {name!r}")


class WeightOwner(NamedTuple):
    """The place of a weight that has its own storage: names of its block, its operator and itself."""

    block: str
    operator: str
    weight: str


@dataclass(frozen=True, slots=True)
class BlockRun:
    """``repeat`` copies of a block, one after the other, each with its own weights."""

    __pydantic_config__ = STRICT_RECORD

    block: Name
    repeat: PositiveInt = 1


@dataclass(frozen=True)
class ModelGraph:
    """A model.

    dims     size of every named dim but the reserved ``batch`` and ``seq``
    blocks   distinct blocks
    chain    the model's layers in order of execution, folded into runs
    edges    (from, to) between runs, as indices into ``chain``; empty means a chain
    hyperparameters   what launch files hand on and no plan depends on; None where the model's source says nothing of it
    """

    __pydantic_config__ = STRICT_RECORD

    name: Name
    dims: Mapping[str, PositiveInt] = field(hash=False)
    blocks: tuple[Block, ...]
    chain: tuple[BlockRun, ...]
    edges: tuple[tuple[int, int], ...] = ()
    schema: str = MODEL_GRAPH_SCHEMA
    hyperparameters: Hyperparameters | None = None

    def __post_init__(self) -> None:
        if self.schema != MODEL_GRAPH_SCHEMA:
            raise ModelError("unknown schema of a model graph", given=self.schema, allowed=MODEL_GRAPH_SCHEMA)
        _check_blocks(self)
        _check_chain(self)
        _check_tied(self)

    def block(self, name: str) -> Block:
        """The block of that name."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Block]:
        return {block.name: block for block in self.blocks}

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Block name of every layer in order of execution, runs unfolded."""
        return tuple(run.block for run in self.chain for _ in range(run.repeat))

    @property
    def is_chain(self) -> bool:
        """True if the runs follow one another in one line."""
        line = tuple((i, i + 1) for i in range(len(self.chain) - 1))
        return not self.edges or tuple(sorted(self.edges)) == line

    def parameters(self) -> int:
        """All parameters, tied ones counted once."""
        return sum(run.repeat * self.block_parameters(run.block) for run in self.chain)

    def active_parameters(self) -> int:
        """Parameters that a token meets: of routed experts those of its top k, of all other operators all of them."""
        return sum(
            run.repeat * active_parameters(operator, self.dims)
            for run in self.chain
            for operator in self.block(run.block).operators
        )

    def block_parameters(self, name: str) -> int:
        """Parameters that one copy of a block stores."""
        return sum(parameters(operator, self.dims) for operator in self.block(name).operators)

    def owner(self, name: str) -> WeightOwner:
        """Where the weight is that a tied one names; each of the names may have slashes of its own."""
        return self._owners[name]

    @cached_property
    def _owners(self) -> dict[str, WeightOwner]:
        own = (
            WeightOwner(block.name, operator.name, weight.name)
            for block in self.blocks
            for operator in block.operators
            for weight in operator.weights
            if weight.tied_to is None
        )
        return {"/".join(each): each for each in own}

    def tied_weights(self) -> tuple[tuple[str, str, Weight], ...]:
        """(block, operator, weight) of every weight whose storage is elsewhere."""
        return tuple(
            (block.name, operator.name, weight)
            for block in self.blocks
            for operator in block.operators
            for weight in operator.weights
            if weight.tied_to is not None
        )


def _check_blocks(graph: ModelGraph) -> None:
    names = [block.name for block in graph.blocks]
    if not names:
        raise ModelError("a model graph needs at least one block")
    if len(set(names)) != len(names):
        raise ModelError("names of blocks must differ", given=_repeated(names))
    n_operators = sum(len(block.operators) for block in graph.blocks)
    if n_operators > MAX_OPERATORS:
        raise ModelError("too many operators", given=n_operators, allowed=f"at most {MAX_OPERATORS} in distinct blocks")
    reserved = sorted(RESERVED_DIMS & set(graph.dims))
    if reserved:
        raise ModelError("dims that come from the workload can't be set by the model", given=reserved)
    oversized = {dim: size for dim, size in graph.dims.items() if size > MAX_DIM}
    if oversized:
        raise ModelError("dims are too large", given=oversized, allowed=f"at most {MAX_DIM}")
    for block in graph.blocks:
        for operator in block.operators:
            activations = (*operator.inputs, *operator.outputs)
            rank = max(*(len(tensor.dims) for tensor in activations), *(len(weight.dims) for weight in operator.weights))
            if rank > MAX_RANK:
                raise ModelError(
                    f"operator {block.name}/{operator.name} has a tensor of too many dims",
                    given=rank,
                    allowed=f"at most {MAX_RANK}",
                )
            unknown = sorted(operator.dims - set(graph.dims) - RESERVED_DIMS)
            if unknown:
                raise ModelError(
                    f"operator {block.name}/{operator.name} uses dims without a size",
                    given=unknown,
                    remedy="add them to 'dims'",
                )


def _check_chain(graph: ModelGraph) -> None:
    if not graph.chain:
        raise ModelError("a model graph needs at least one run of a block in 'chain'")
    unknown = sorted({run.block for run in graph.chain} - set(graph._by_name))
    if unknown:
        raise ModelError("chain names blocks that do not exist", given=unknown, allowed=", ".join(graph._by_name))
    n_layers = sum(run.repeat for run in graph.chain)
    if n_layers > MAX_LAYERS:
        raise ModelError("too many layers", given=n_layers, allowed=f"at most {MAX_LAYERS}")
    indices = range(len(graph.chain))
    for edge in graph.edges:
        if edge[0] not in indices or edge[1] not in indices:
            raise ModelError("edge between runs that do not exist", given=edge, allowed=f"0 to {len(graph.chain) - 1}")
    _topological_order(
        [str(i) for i in indices], [(str(a), str(b), "edge") for a, b in graph.edges], what="runs of the model graph"
    )


def _check_tied(graph: ModelGraph) -> None:
    for block, operator, weight in graph.tied_weights():
        if weight.tied_to not in graph._owners:
            raise ModelError(f"weight {block}/{operator}/{weight.name} is tied to no weight", given=weight.tied_to)


def _topological_order(names: list[str], edges: Iterable[tuple[str, str, str]], *, what: str) -> list[str]:
    """Order in which every node follows those it depends on; raises ModelError naming a cycle's nodes."""
    waiting: dict[str, int] = dict.fromkeys(names, 0)
    readers: dict[str, list[str]] = {name: [] for name in names}
    for source, target, _ in edges:
        waiting[target] += 1
        readers[source].append(target)
    ready = [name for name in names if waiting[name] == 0]
    order = []
    while ready:
        name = ready.pop()
        order.append(name)
        for target in readers[name]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    if len(order) < len(names):
        cycle = sorted(name for name in names if waiting[name] > 0)
        raise ModelError(
            f"{what} depend on one another in a cycle",
            given=cycle[:8],
            remedy="remove the edge that closes the cycle; recurrence over time belongs inside one operator",
        )
    return order


def _repeated(names: list[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)
