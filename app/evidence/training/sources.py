"""The mapping that travels with a table of measured runs: of each source what its rows do not repeat.

Nothing here is of one source. The file names a source's implementation as a request would, says what its rows mean where they
are silent, and which memory it measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from meshwright.app.base.records import read_record
from meshwright.app.evidence.training.stated import MemoryCount, MemoryRank, RowRule, UnstatedRecompute, UnstatedSequence
from meshwright.app.evidence.training.unsaid import UNSAID
from meshwright.app.requests.files import read_document
from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.network.token_dispatch import TokenDispatch
from meshwright.costmodels.units import GIB, STRICT_RECORD, DType, Name, NonNegativeInt, PositiveInt
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.implementation import StatedImplementation

SOURCES_SCHEMA: Final = "meshwright.sources/1"
SUFFIX = ".sources.yaml"

MEGATRON_CORE = StatedImplementation(profile="megatron-core-0.20")


@dataclass(frozen=True, slots=True)
class Source:
    """The meaning of a source's rows where they are silent.

    basis                how this is known
    implementation       how its framework runs the training, as in a request's workload
    vocab, mamba_vocab   vocabulary of its models, and of those of state-space mixers alone
    devices              number of devices
    zero_stage           ZeRO stage
    gradient_dtype       format of gradients
    fp8_recipe           recipe of rows that say fp8 alone
    unstated_recompute   whether rows that don't say recompute where they would not fit
    unstated_sequence    layout of norms and residuals over tp
    memory_rank          device whose memory is reported
    memory_count         what of its memory
    memory_unit_bytes    unit of it
    dispatch             how tokens get to the ranks of their experts
    expert_overlap       whether these exchanges run under the pass of another micro-batch
    mtp_layers           modules beside the head that each predict one more token
    rows                 meaning of rows by their words
    """

    __pydantic_config__ = STRICT_RECORD

    basis: str
    implementation: StatedImplementation = MEGATRON_CORE
    vocab: PositiveInt | None = None
    mamba_vocab: PositiveInt | None = None
    devices: PositiveInt | None = None
    zero_stage: Literal[0, 1, 2, 3] = 0
    gradient_dtype: DType = DType.FP32
    fp8_recipe: MatmulRecipe = MatmulRecipe.FP8_DELAYED
    unstated_recompute: UnstatedRecompute = UnstatedRecompute.NEVER
    unstated_sequence: UnstatedSequence = UnstatedSequence.REPLICATED
    memory_rank: MemoryRank = MemoryRank.FULLEST
    memory_count: MemoryCount = MemoryCount.PROCESS
    memory_unit_bytes: PositiveInt = GIB
    dispatch: TokenDispatch = TokenDispatch.COPIES
    expert_overlap: ExpertOverlap | None = None
    mtp_layers: NonNegativeInt = 0
    rows: tuple[RowRule, ...] = ()

    @property
    def is_assumed(self) -> bool:
        """True of a source that no mapping names."""
        return self.basis == UNKNOWN.basis


UNKNOWN = Source(
    "nothing is known of the source: Megatron Core 0.20, fp32 gradients and no ZeRO, but for what its words say",
    rows=UNSAID,
)


@dataclass(frozen=True)
class Sources:
    """The sources of a table, by the text of its column source_id; others are `UNKNOWN`."""

    __pydantic_config__ = STRICT_RECORD

    schema: Literal["meshwright.sources/1"] = SOURCES_SCHEMA
    sources: Mapping[Name, Source] = field(default_factory=dict)

    def of(self, source_id: str) -> Source:
        """The source of a row."""
        return self.sources.get(source_id, UNKNOWN)


NO_SOURCES = Sources()


def sources_of(table: Path, given: Path | None = None) -> Sources:
    """The mapping of a table: the given file, else the one beside it, "<table>.sources.yaml"; none where there is none.

    Raises InvalidInputError for a file that is no such mapping, or that names an unknown profile.
    """
    beside = table.with_suffix(SUFFIX)
    if given is None and not beside.is_file():
        return NO_SOURCES
    mapping = read_record(Sources, read_document(str(given or beside), what="sources"), what="sources")
    for source in mapping.sources.values():
        for implementation in (source.implementation, *(rule.implementation for rule in source.rows)):
            if implementation.profile is not None:
                implementation_profile(implementation.profile)
    return mapping
