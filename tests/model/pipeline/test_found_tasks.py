"""The task of a model that nobody has named, by the files that transformers saves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_triton.cli.verbs.add import entry_of
from tests.model.engine.runtime.test_gguf import write_demo
from tests.support import tiny_pipelines as tiny
from tests.support.saved_models import CASES, save
from tests.support.tiny_whisper import tiny_whisper

CROSS_ENCODERS = [name for name, case in CASES.items() if case.is_cross_encoder][:3]


@pytest.mark.parametrize(
    "make, task, others",
    [
        (tiny.llama, "text-generation", ()),
        (tiny.bert_classifier, "text-classification", ()),
        (tiny.bert_nli, "text-classification", ("zero-shot-classification",)),
        (tiny.bert_mask, "fill-mask", ("feature-extraction",)),
        (tiny.bert_hidden, "feature-extraction", ()),
        (tiny.bert_tagger, "token-classification", ()),
        (tiny_whisper, "automatic-speech-recognition", ()),
        (tiny.wav2vec2_ctc, "automatic-speech-recognition", ()),
        (tiny.llava, "image-text-to-text", ()),
        (tiny.vit, "image-classification", ()),
        (tiny.wav2vec2_classifier, "audio-classification", ()),
        (tiny.depth, "depth-estimation", ()),
    ],
)
def test_a_saved_folder_tells_its_task(
    make: Callable[[Path], object], task: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    make(folder)
    entry, why = entry_of(str(folder), None, None, tmp_path)
    options = entry.get("options")
    found = options["pipeline"] if isinstance(options, dict) else entry["task"]
    assert (entry["name"], found) == ("tiny", task)
    assert why.count("--task ") == len(others)
    assert all(f"--task {other} takes that" in why for other in others)


@pytest.mark.parametrize("name", ["release 6", "0_Transformer", "T5 whole", *CROSS_ENCODERS])
def test_a_folder_of_sentence_transformers_embeds_or_classifies(name: str, tmp_path: Path) -> None:
    folder = save(CASES[name], tmp_path / "tiny")
    task = "text-classification" if CASES[name].is_cross_encoder else "feature-extraction"
    assert entry_of(str(folder), None, None, tmp_path)[0]["task"] == task


def test_a_gguf_file_is_text_generation(tmp_path: Path) -> None:
    write_demo(tmp_path / "demo.F32.gguf")
    entry, _ = entry_of(str(tmp_path / "demo.F32.gguf"), None, None, tmp_path)
    assert (entry["name"], entry["task"]) == ("demo.F32", "text-generation")
