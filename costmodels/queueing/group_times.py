"""Time of one step of a replica whose attention groups run in lockstep, as tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.queueing.step_times import StepTimes

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Dealing:
    """The rule that picks the attention group of an arriving request: the one with the least ``waiting`` x requests that wait
    in it + ``running`` x requests that run; of equal ones the next after the group that got the request before. Both 0: in
    turn."""

    waiting: int
    running: int


IN_TURN = Dealing(0, 0)


@dataclass(frozen=True, eq=False)
class GroupTimes:
    """Seconds of a step that ``groups`` attention groups run together, each on requests of its own; no pipeline stages.

    The experts need the tokens of all, so a step takes as long as the slowest group for its own part, and then, for ``total``
    tokens of all groups with ``fullest`` of them in the fullest one, the joint part: experts, and the faster way of bringing
    tokens to them. A group without work brings no tokens. Shared experts run beside that in groups of up to ``beside_tokens``
    tokens, else before it.

    own           what a group does by itself, as of an engine of one stage; its least_prompt_s is that of whole steps
    total_grid    [k] ascending totals at which experts_s and gathered_s are known; linear between
    experts_s     [k] kernels of the routed experts; as fitted, so that more tokens may take a little less
    gathered_s    [k] everything gathered on all ranks, and results scattered
    exchanged_s   [t] tokens sent to the ranks of their experts and back, by those of the fullest group; infinite where the
                  layout can't
    shared_s      [t] shared experts
    dealing       how requests are given to groups
    joined_steps  steps for which prompts wait at most until every group has one, as long as all decode; 0: they do not
                  (TensorRT-LLM, timeout_iters of attention_dp_config with enable_balance)
    """

    own: StepTimes
    groups: int
    total_grid: FloatArray
    experts_s: FloatArray
    gathered_s: FloatArray
    exchanged_s: FloatArray
    shared_s: FloatArray
    beside_tokens: int
    dealing: Dealing
    joined_steps: int = 0

    def __post_init__(self) -> None:
        tokens = self.own.max_tokens + 1
        assert self.own.stages == 1, f"attention groups have one stage, not {self.own.stages}"
        assert len(self.total_grid) == len(self.experts_s) == len(self.gathered_s), "tables of the total differ in length"
        assert len(self.exchanged_s) == len(self.shared_s) == tokens, "tables of the fullest group differ in length"

    def routed_s(self, total: FloatArray, fullest: npt.NDArray[np.int64]) -> FloatArray:
        """Routed experts, with what brings tokens to them and back."""
        gathered_s = np.interp(total, self.total_grid, self.gathered_s)
        return np.asarray(np.interp(total, self.total_grid, self.experts_s) + np.minimum(gathered_s, self.exchanged_s[fullest]))

    def joint_s(self, total: FloatArray, fullest: npt.NDArray[np.int64]) -> FloatArray:
        """Joint part of steps."""
        routed_s, shared_s = self.routed_s(total, fullest), self.shared_s[fullest]
        beside = fullest <= self.beside_tokens
        return np.asarray(np.where(beside, np.maximum(routed_s, shared_s), routed_s + shared_s))

    def alone(self) -> StepTimes:
        """Step times of a group while no other has work, or less where company would make the experts faster: no step with
        its tokens is below."""
        tokens = np.arange(self.own.max_tokens + 1)
        least_s = np.minimum.accumulate(self.experts_s[::-1])[::-1]
        joint_s = replace(self, experts_s=least_s).joint_s(tokens.astype(np.float64), tokens)
        joint_s[0] = 0.0
        return replace(self.own, tokens_s=self.own.tokens_s + joint_s)

    def least(self) -> StepTimes:
        """Times that no step with these mean numbers of tokens and sequences of a group is below, for linear programs.

        The slowest group is no faster than the mean one, and a convex function of the mean no more than the mean of the
        function. So tokens_s has the largest convex function below the groups' own; a group without work counts as one with a
        token, as who has work is no faster. What depends on sequences has yet to be made convex. The joint part is that of the
        mean group, linear between whole numbers; where experts overtake shared ones in between, that would be above it, so the
        lower end stays.
        """
        tokens = np.arange(self.own.max_tokens + 1)
        total = tokens.astype(np.float64) * self.groups
        joint_s, routed_s = self.joint_s(total, tokens), self.routed_s(total, tokens)
        overtaken = (routed_s[1:] > self.shared_s[1:]) & (routed_s[:-1] < self.shared_s[:-1])
        overtaken &= tokens[1:] <= self.beside_tokens
        joint_s[1:][overtaken] = self.shared_s[1:][overtaken]
        joint_s[0] = 0.0
        own_s = self.own.tokens_s[0].copy()
        own_s[0] = own_s[min(1, self.own.max_tokens)]
        nodes = np.unique(np.concatenate([[0, 1, self.own.max_tokens], self.own.bends]))
        least_s = np.interp(tokens, nodes, convex_below(nodes.astype(np.float64), own_s[nodes])) + joint_s
        return replace(self.own, tokens_s=least_s[None, :])


def convex_below(at: FloatArray, values: FloatArray) -> FloatArray:
    """The largest convex function below values at ascending points: their lower hull (Andrew 1979)."""
    hull: list[int] = []
    for i in range(len(values)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (values[b] - values[a]) * (at[i] - at[a]) < (values[i] - values[a]) * (at[b] - at[a]):
                break
            hull.pop()
        hull.append(i)
    return np.asarray(np.interp(at, at[hull], values[hull]))
