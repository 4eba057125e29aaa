"""The layout of a serving plan on its page: workers, stages and memory, form by form."""

from __future__ import annotations

from rich.console import Group, RenderableType

from meshwright.app.cli.pages.stages import memory_bars, stage_table
from meshwright.app.text.console import plain
from meshwright.app.text.figures import amount, axes, counted, percent, seconds, significant
from meshwright.app.text.speed import speed_in_words
from meshwright.solver.answer.layouts import (
    Kinds,
    OfWorkers,
    Pools,
    PrefillWorkers,
    PromptPhase,
    Replicas,
    Switched,
    WorkerKind,
)
from meshwright.solver.answer.workers import Workers


def serving_parts(layout: OfWorkers) -> list[RenderableType]:
    """Stages and memory of all workers, those that compute prompts first; in the words of the form, where it has some."""
    match layout:
        case Replicas():
            return _replicas(layout, "Layout")
        case Pools():
            return [*_prefill_pool(layout.prefill), *_replicas(layout.decode, "Decode workers")]
        case Switched():
            return [*_prompt_phase(layout.prompts), *_replicas(layout.answers, "Layout of answers")]
        case Kinds():
            return [part for kind in layout.kinds for part in _kind(kind)]
        case _:
            return [part for workers in layout.all_workers for part in _workers(workers)]


def _workers(workers: Workers) -> list[RenderableType]:
    """Workers of a form that has no words of its own."""
    said = (
        f"Workers: {axes(workers.axes)}; {counted(workers.count, 'worker')}; at most "
        f"{counted(workers.max_num_seqs, 'sequence')} and {workers.max_num_batched_tokens:,} tokens a step"
    )
    return [Group(plain(said), stage_table(workers.stages, step="step", trains=False)), memory_bars(workers.stages)]


def _replicas(replicas: Replicas, name: str) -> list[RenderableType]:
    table = stage_table(replicas.stages, step="decode step", trains=False)
    return [Group(plain(f"{name}: {_in_words(replicas)}"), table), memory_bars(replicas.stages)]


def _in_words(replicas: Replicas) -> str:
    load = replicas.load
    return "; ".join(
        (
            axes(replicas.axes),
            f"{counted(load.replicas, 'replica')}, {percent(load.utilisation)} busy",
            f"at most {counted(load.max_num_seqs, 'sequence')} and {load.max_num_batched_tokens:,} tokens a step",
        )
    )


def _prefill_pool(pool: PrefillWorkers) -> list[RenderableType]:
    said = (
        f"Prefill workers: {axes(pool.axes)}; {counted(pool.workers, 'worker')}, {percent(pool.utilisation)} busy; at most "
        f"{pool.max_num_batched_tokens:,} tokens a step; keys and values reach a decode worker in {seconds(pool.transfer_s)}"
    )
    return [Group(plain(said), stage_table(pool.stages, step="prefill step", trains=False)), memory_bars(pool.stages)]


def _prompt_phase(prompts: PromptPhase) -> list[RenderableType]:
    """The layout of prompts of workers that switch, and what a change takes."""
    said = (
        f"Layout of prompts, on the same devices: {axes(prompts.axes)}; at most {prompts.max_num_batched_tokens:,} tokens a "
        f"step; {percent(prompts.prefill_share)} of the time, from one phase of prompts to the next {seconds(prompts.cycle_s)}"
    )
    change = (
        f"Changes: {seconds(prompts.to_decode_s)} to the layout of answers ({amount(prompts.to_decode_bytes, 'bytes')} a "
        f"device), {seconds(prompts.to_prefill_s)} back, {percent(prompts.switching_share)} of the time; host memory has room "
        f"for {prompts.buffer_tokens:,} tokens of a worker ({amount(prompts.host_bytes, 'bytes')} of a node with the weights)"
    )
    table = stage_table(prompts.stages, step="prefill step", trains=False)
    return [Group(plain(said), plain(change), table), memory_bars(prompts.stages)]


def _kind(kind: WorkerKind) -> list[RenderableType]:
    """Share, figures, layout and memory of one kind of workers."""
    taken = (
        f"{percent(kind.share)} of arrivals, {significant(kind.requests_per_s)} requests/s: "
        f"{speed_in_words(kind.predicted, devices=kind.devices)}"
    )
    replicas = kind.replicas
    table, layout = stage_table(replicas.stages, step="decode step", trains=False), plain(f"Layout: {_in_words(replicas)}")
    return [Group(plain(taken, style="bold"), layout, table), memory_bars(replicas.stages)]
