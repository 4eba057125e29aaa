"""Reads every config.json of some folders: which import, with parameters and format, and by what words others are refused.

Run from the root of the repository, where PyTorch and transformers are installed:

    python -m benchmarks.importer_trial FOLDER...          files named *config.json or *.json, in any depth
    python -m benchmarks.importer_trial --kinds            every decoder of transformers, with its class defaults

Parameters are compared with those of the model that transformers builds on the meta device, towers left out.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.app.models.checkpoint import checkpoint_format
from meshwright.app.models.huggingface import TEXT_MODELS, read_huggingface_config, supported_model_types
from meshwright.costmodels.errors import ModelError

# Kinds that transformers lacks, and the kind whose class their files have.
_SAME_AS = {
    "kimi_k2": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "mimo": "qwen2",
    "minimax_m3": "minimax_m3_vl_text",
    "deepseek_ref": "deepseek_v4",
}
_TOWERS = ("visual.", "vision_", "audio_", "mm_", "multi_modal_", "embed_vision", "embed_audio")
_LONGEST_REASON = 140
_NOT_ALONE = ("whisper",)
"""Kinds whose class for text is the decoder of a model that is read as a whole."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A file or kind: its parameters, or the words that refuse it; those of transformers where it builds the model."""

    name: str
    parameters: int | None
    theirs: int | None
    reason: str = ""
    stored: str = ""

    @property
    def verdict(self) -> str:
        """One word for the table's first column."""
        if self.parameters is None:
            return "refused"
        if self.theirs is None:
            return "unchecked"
        return "exact" if self.parameters == self.theirs else "DIFFERS"


def trials_of_files(folders: Iterable[Path]) -> Iterator[Trial]:
    """A trial of each JSON file."""
    for path in sorted(path for folder in folders for path in folder.rglob("*.json")):
        if "config" in path.stem or "--" in path.stem or "__" in path.stem:
            yield _trial(path.stem, json.loads(path.read_text(encoding="utf-8")))


def trials_of_kinds() -> Iterator[Trial]:
    """A trial of each kind that transformers has a decoder of, with its class defaults."""
    from transformers.models.auto import modeling_auto

    for kind in sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        if kind in _NOT_ALONE:
            continue
        if kind in supported_model_types():
            yield _trial(kind, {"model_type": kind})
        else:
            yield Trial(kind, None, None, "unknown kind")


def _trial(name: str, document: dict[str, Any]) -> Trial:
    try:
        graph = read_huggingface_config(document, name=name)
    except ModelError as refused:
        return Trial(name, None, None, str(refused).replace("\n", " ")[:_LONGEST_REASON])
    try:
        stored = checkpoint_format(document)
        words = "16 bits" if stored is None else f"{stored.weights.value}, {stored.quantised.value}"
    except ModelError as refused:
        words = str(refused).replace("\n", " ")[:_LONGEST_REASON]
    return Trial(name, graph.parameters(), _theirs(document), stored=words)


def _theirs(document: dict[str, Any]) -> int | None:
    """Parameters of the model of transformers, tied ones once and towers left out; None where it builds none."""
    import torch
    import transformers

    kept = {key: value for key, value in document.items() if key not in ("quantization_config", "auto_map")}
    kind = _SAME_AS.get(str(kept.get("model_type")), kept.get("model_type"))
    text = kept.get("text_config")
    if kind not in transformers.CONFIG_MAPPING and isinstance(text, dict):
        kept, kind = text, text.get("model_type")
    if document.get("model_type") in _SAME_AS and isinstance(text, dict):
        kept = text
    if kind == "step3p7" and not isinstance(text, dict):
        kept = {"text_config": {**{k: v for k, v in kept.items() if k != "architectures"}, "model_type": "step3p5"}}
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict({**kept, "model_type": kind})
        with torch.device("meta"):
            return _count(_built(transformers, config, kept, str(kind)))
    except Exception:  # of any kind: what can't be built there is not compared
        return None


def _built(transformers: Any, config: Any, kept: dict[str, Any], kind: str) -> Any:
    if kind in TEXT_MODELS:
        try:
            return transformers.AutoModelForImageTextToText.from_config(config)
        except ValueError:
            return transformers.AutoModelForCausalLM.from_config(config.get_text_config())
    named = (kept.get("architectures") or [None])[0]
    if named is not None and hasattr(transformers, named):
        return getattr(transformers, named)._from_config(config)
    return transformers.AutoModelForCausalLM.from_config(config)


def _count(model: Any) -> int:
    counted = ((name.removeprefix("model."), parameter.numel()) for name, parameter in model.named_parameters())
    return sum(count for name, count in counted if not name.startswith(_TOWERS))


def main(words: list[str]) -> None:
    """Print a row for each trial and how many there are of each verdict."""
    trials = trials_of_kinds() if words == ["--kinds"] else trials_of_files(Path(word) for word in words)
    verdicts: Counter[str] = Counter()
    for trial in trials:
        verdicts[trial.verdict] += 1
        parameters = "" if trial.parameters is None else f"{trial.parameters:,}"
        theirs = f" (transformers {trial.theirs:,})" if trial.verdict == "DIFFERS" else ""
        print(f"{trial.verdict:10}{trial.name:64}{parameters}{theirs} {trial.stored}{trial.reason}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))


if __name__ == "__main__":
    main(sys.argv[1:])
