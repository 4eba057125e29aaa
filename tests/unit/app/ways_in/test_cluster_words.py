"""Clusters as people say them: each sentence of `clusters.yaml` is understood, or answered with the right hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.app.requests.cluster_words import LONGEST, cluster_of_words
from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.costmodels.errors import ClusterError, InvalidInputError
from meshwright.costmodels.hardware import devices, devices_by_name, node_types, node_types_by_name

SENTENCES = yaml.safe_load((Path(__file__).parent / "clusters.yaml").read_text(encoding="utf-8"))
TRAINED = {
    "schema": "meshwright.request/1",
    "model": {"catalog": "llama-3.1-8b"},
    "workload": {"kind": "training", "global_batch": 8, "seq_len": 2048},
}


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: sentence["say"] or "nothing")
def test_a_sentence_is_understood_or_answered(sentence: dict[str, Any]) -> None:
    if "hint" in sentence:
        with pytest.raises(InvalidInputError) as refused:
            cluster_of_words(sentence["say"])
        assert sentence["hint"] in str(refused.value)
        return
    groups = cluster_of_words(sentence["say"]).groups
    assert [[group.name, group.nodes, group.node.devices_per_node] for group in groups] == [said[:3] for said in sentence["is"]]
    for group, said in zip(groups, sentence["is"], strict=True):
        whole = next(node for node in node_types() if node.name == group.node.name)
        share = whole.inter.bytes_per_s * group.node.devices_per_node / whole.devices_per_node
        assert group.node.inter.bytes_per_s == (said[3] * 1e9 / 8 if said[3:] else share)


def test_there_are_forty_sentences() -> None:
    assert len(SENTENCES) >= 40 and len({sentence["say"] for sentence in SENTENCES}) == len(SENTENCES)


def test_words_ask_for_what_fields_ask_for() -> None:
    """A request of words is the request of fields: the same document, so the same digest and plan."""
    for words, fields in (
        ("16xH100", {"catalog": "dgx-h100", "nodes": 2}),
        ("5 of 8 H100", {"groups": [{"name": "dgx-h100", "node": "dgx-h100", "nodes": 1, "lost_devices": 3}]}),
    ):
        said, given = (resolve_request({**TRAINED, "cluster": each}, files=NoFiles()) for each in (words, fields))
        assert request_document(said) == request_document(given)


def test_every_device_of_a_node_has_one_usual_node() -> None:
    held = {node.device.name for node in node_types()}
    for device in devices():
        names = {name for name, record in devices_by_name().items() if record == device}
        usual: set[str] = {node_types_by_name()[name].name for name in names if name in node_types_by_name()}
        assert len(usual) == (device.name in held), device.name
        for name in names & set(node_types_by_name()):
            node: NodeType = node_types_by_name()[name]
            assert node.device == device


@pytest.mark.parametrize("words", ["9" * 10_000, "x" * LONGEST, "8x" * (LONGEST // 2), "8x" + " " * 200 + "H1O0" + "+" * 80])
def test_hostile_words_are_answered(words: str) -> None:
    with pytest.raises(ClusterError) as refused:
        cluster_of_words(words)
    assert refused.value.allowed and len(str(refused.value)) < 3_000
