"""Folders of checkpoints as people have them: a config.json or a params.json, with fields that published files hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.requests.files import FilesBeside
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.serving.operators import state_bytes
from meshwright.solver.problem.graph import ModelGraph

FOLDER = Path(__file__).parent / "checkpoints"

# Parameters of the layers: without towers, layers for multi-token prediction, and biases that correct routing. They are
# those of transformers where it has the class (of LongCat without the gates of experts that do nothing), else within 0.3% of
# the model card.
PARAMETERS = {
    "apertus-8b": 8_053_338_176,
    "baichuan2-13b": 13_896_668_160,
    "bge-m3": 567_754_752,
    "dbrx-instruct": 131_596_523_520,
    "exaone-4.5-33b": 32_527_504_384,
    "glm-4-9b": 9_399_951_360,
    "hunyuan-a13b": 80_393_183_232,
    "internlm2-chat-20b": 19_861_149_696,
    "internvl2-8b": 7_737_782_272,
    "kimi-linear-48b": 49_122_675_072,
    "ling-mini-2.0": 16_255_638_528,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-11b-vision": 9_775_192_080,
    "longcat-flash": 560_664_958_976,
    "minimax-text-01": 456_089_655_296,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen-7b": 7_721_324_544,
    "qwen3-omni-30b-a3b": 30_532_646_912,
    "recurrentgemma-9b": 8_579_977_216,
}
# Bytes that a sequence keeps in one layer: a state in fp32, and what a convolution still needs in 16 bits.
STATES = {
    "kimi-linear-48b": 32 * 128 * 128 * 4 + 3 * 32 * 128 * 3 * 2,
    "minimax-text-01": 64 * 128 * 128 * 4,
    "recurrentgemma-9b": 4096 * 4 + 4096 * 3 * 2,
}


def model(name: str) -> ModelGraph:
    document, read_as = FilesBeside(FOLDER).read_config(name)
    assert read_as == name
    assert isinstance(document, dict)
    return read_huggingface_config(document, name=name)


def test_every_folder_has_its_parameters_here() -> None:
    assert {folder.name for folder in FOLDER.iterdir()} == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_checkpoint_is_read_with_its_parameters(name: str) -> None:
    assert model(name).parameters() == PARAMETERS[name]


@pytest.mark.parametrize("name", STATES)
def test_a_layer_with_a_state_keeps_as_many_bytes_as_engines_do(name: str) -> None:
    graph = model(name)
    kept = {
        block.name: sum(state_bytes(operator, {**graph.dims, BATCH: 1, SEQ: 1}) for operator in block.operators)
        for block in graph.blocks
        if any(operator.kind is OperatorKind.SCAN for operator in block.operators)
    }
    assert set(kept.values()) == {STATES[name]}


@pytest.mark.parametrize(
    ("name", "layers", "attending"),
    [("kimi-linear-48b", 27, 7), ("minimax-text-01", 80, 10), ("recurrentgemma-9b", 38, 12), ("longcat-flash", 56, 56)],
)
def test_layers_that_attend_are_those_that_the_file_says(name: str, layers: int, attending: int) -> None:
    graph = model(name)
    attends = {block.name: any(op.kind is OperatorKind.ATTENTION for op in block.operators) for block in graph.blocks}
    inner = graph.chain[1:-1]
    assert sum(run.repeat for run in inner) == layers
    assert sum(run.repeat for run in inner if attends[run.block]) == attending
