"""The seconds that tensor-parallel communication adds to the operators of a block: in full, or what the products beside it do
not hide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.kernels.operator_time import Product, product_in_parts_s, weight_gradient_s
from meshwright.costmodels.memory.saved_activations import SavingRules
from meshwright.costmodels.model.dims import FFN, VOCAB
from meshwright.costmodels.model.expert_parallel import ExpertRegion
from meshwright.costmodels.model.implementation import GatedProducts, TensorOverlap, TrainedWeights
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor
from meshwright.costmodels.network.chunked_products import CHUNKERS, added_s, adding_up_s, chunking, travelling_chunk_s
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.overlap import MEASURED_INTERFERENCE, Stream, exposed_s
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.tp_strategies import Spec, Strategy, conversion


@dataclass(frozen=True, slots=True)
class Placed:
    """An operator under a strategy."""

    operator: Operator
    strategy: Strategy


class TensorCommunication:
    """Times of the tp axis between the operators of one block, whose dims have ``sizes`` before they are split over it."""

    def __init__(self, setting: BlockSetting, sizes: dict[str, int], region: ExpertRegion, rules: SavingRules):
        self._setting = setting
        self._sizes = sizes
        self._region = region
        self._rules = rules
        self._converting_s: dict[tuple[Collective, float], float] = {}

    def edge_s(self, source: Placed, target: Placed, tensor: Tensor) -> tuple[float, float]:
        """Seconds that resharding a tensor adds forward, and its gradient backward."""
        read = next(t for t in target.operator.inputs if t.name == tensor.name)
        written, wanted = source.strategy.output_spec(source.operator, tensor), target.strategy.spec(read)
        forward = self._beside_products(Product.OUTPUT, written, wanted, tensor, before=source, after=target)
        written, wanted = (
            target.strategy.input_gradient_spec(target.operator, read),
            source.strategy.output_gradient_spec(tensor),
        )
        modules = self._modules_that_read(target.operator)
        if self._sums_beside_weights(target):
            return forward, self._beside_weight_gradient(modules * self.convert_s(written, wanted, tensor), target)
        backward = self._beside_products(Product.INPUT_GRADIENT, written, wanted, tensor, before=target, after=source)
        return forward, modules * backward

    def convert_s(self, source: Spec, target: Spec, tensor: Tensor) -> float:
        """Seconds of the collective that turns one layout of a tensor into another, while nothing else runs."""
        collective = conversion(source, target)
        if collective is None:
            return 0.0
        key = (collective, self._bytes(tensor))
        if key not in self._converting_s:
            self._converting_s[key] = float(collective_s(*key, self._setting.tp_topology))
        return self._converting_s[key]

    def _beside_products(
        self, product: Product, source: Spec, target: Spec, tensor: Tensor, *, before: Placed, after: Placed
    ) -> float:
        """Return the seconds that a collective adds where frameworks cut the product that feeds a scatter, or reads what was
        gathered."""
        whole_s = self.convert_s(source, target, tensor)
        setting, kind = self._setting, conversion(source, target)
        chunker = CHUNKERS.get(setting.implementation.tensor_overlap)
        placed = {Collective.ALL_GATHER: after, Collective.REDUCE_SCATTER: before}.get(kind) if kind else None
        if chunker is None or kind is None or placed is None or not self._is_cut(placed.operator):
            return whole_s
        cut = chunking(kind, setting.tp, chunker)
        size = self._bytes(tensor)
        product_s, part_s = product_in_parts_s(
            product,
            placed.operator,
            self._local(placed),
            device=setting.device,
            dtype=self._dtype(placed.operator),
            parts=cut.chunks,
        )
        chunk_s = travelling_chunk_s(kind, size, setting.tp_topology, cut, whole_s=whole_s)
        added = added_s(product_s, part_s, chunk_s, cut, self._stream, MEASURED_INTERFERENCE)
        return added + adding_up_s(kind, size, setting.device, cut)

    def _is_cut(self, operator: Operator) -> bool:
        """Linear layers of a block are; products of routed experts and the vocabulary's are not."""
        routed = operator.name in self._region.operators or operator.routed_dims
        return operator.kind is OperatorKind.MATMUL and not routed and VOCAB not in operator.dims

    def _sums_beside_weights(self, target: Placed) -> bool:
        """Return True if input gradients are summed over tp while the weight gradient is computed."""
        implementation = self._setting.implementation
        return (
            target.operator.kind is OperatorKind.MATMUL
            and implementation.tensor_overlap in (TensorOverlap.WEIGHT_GRADIENT, TensorOverlap.USERBUFFERS)
            and implementation.trained is not TrainedWeights.ADAPTERS
        )

    def _beside_weight_gradient(self, communication_s: float, target: Placed) -> float:
        """Return the seconds that summing an operator's input gradients over tp adds to its weight gradient."""
        if communication_s == 0.0:
            return 0.0
        setting = self._setting
        compute_s = weight_gradient_s(
            target.operator, self._local(target), device=setting.device, dtype=self._dtype(target.operator)
        )
        return float(exposed_s(np.array(communication_s), np.array(compute_s), self._stream, MEASURED_INTERFERENCE))

    def _modules_that_read(self, operator: Operator) -> int:
        """Modules among which a framework shares an operator, each with its own gradient of the input."""
        is_gated = operator.kind is OperatorKind.MATMUL and [FFN in tensor.dims for tensor in operator.outputs] == [True, True]
        return 2 if is_gated and self._setting.implementation.gated is GatedProducts.TWO else 1

    @property
    def _stream(self) -> Stream:
        return Stream.INTER_NODE if self._setting.tp_topology.spans_nodes else Stream.INTRA_NODE

    def _local(self, placed: Placed) -> dict[str, int]:
        evenly = placed.strategy.local_sizes(self._sizes, self._setting.tp)
        return self._region.local_sizes(placed.operator, evenly, ep=self._setting.ep)

    def _dtype(self, operator: Operator) -> DType:
        """Format that an operator's products compute in."""
        is_low = operator.name in self._rules.low_precision
        return (self._setting.recipe.dtype if is_low else None) or self._setting.dtype

    def _bytes(self, tensor: Tensor) -> float:
        return tensor.elements(self._sizes) * self._setting.dtype.size_bytes
