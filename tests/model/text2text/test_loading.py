"""A served encoder-decoder from its folder to a reader, with one line where that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from generator.errors import SpecError
from generator.models_yaml.reading import load
from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.text2text_generation.source import SourceReader
from hf_triton.text2text_generation.text2text_loading import load_text2text
from hf_triton.text_generation.generation_loading import LoadedModel
from hf_triton.text_generation.memory.layer_shapes import max_lengths
from hf_triton.text_generation.request.row_options import read_rows
from tests.model.text2text.conftest import Folders
from tests.support.request_fields import fields
from tests.support.served_models import served_model
from tests.support.text2text.tiny_translators import make
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:Recommended")  # sacremoses, by Marian's tokenizer
CPU = Placement("cpu", {"": "cpu"})


def served(folder: Path, **options: Any) -> ServedModel:
    task = "text2text-generation"
    return served_model(folder, task=task, model=str(folder), local=True, options=options)


@contextmanager
def loaded(folder: Path, **options: Any) -> Iterator[LoadedModel]:
    model = load_text2text(served(folder, **options), CPU, 1)
    try:
        yield model
    finally:
        model.engine.stop()


def reader_of(model: LoadedModel) -> SourceReader:
    assert isinstance(model.reader, SourceReader)
    return model.reader


@pytest.mark.parametrize(
    "options, prefix, max_tokens, min_tokens",
    [
        ({}, "", 128, 0),
        ({"task_specific_params": "summarization"}, "summarize: ", 23, 7),
        ({"task_specific_params": "translation_en_to_de"}, "translate English to German: ", 128, 0),
        ({"task_specific_params": "summarization", "prefix": ""}, "", 23, 7),
        ({"prefix": "sum: ", "default_max_tokens": 9}, "sum: ", 9, 0),
    ],
)
def test_prefix_and_lengths_are_the_options_else_the_models_own(
    folders: Folders, options: dict[str, Any], prefix: str, max_tokens: int, min_tokens: int
) -> None:
    with loaded(folders("t5"), max_model_len=512, **options) as model:
        reader = reader_of(model)
        assert reader.prefix == prefix
        assert reader.output_length(5, None, clamps=False) == max_tokens
        assert reader.default_min_tokens == min_tokens


def test_what_may_surprise_is_logged_once(folders: Folders, log_lines: list[str]) -> None:
    with loaded(folders("t5")):
        (line,) = log_lines
        known = "summarization, translation_en_to_de"
        assert line == f"I tiny: no prefix; the option task_specific_params can be {known}"
    log_lines.clear()
    with loaded(folders("bart")):
        (line,) = log_lines
        assert line == (
            "I tiny: answers are greedy; the model's own settings search with 4 beams, as the "
            "option num_beams: 4 does"
        )
    log_lines.clear()
    with loaded(folders("bart"), num_beams=2):
        why = "beams are searched for in padded batches"
        assert log_lines == [f"I tiny: engine generate, because {why}"]


@pytest.mark.parametrize(
    "family, options, message",
    [
        (
            "t5",
            {"task_specific_params": "summary"},
            "task_specific_params: got 'summary', allowed: summarization, translation_en_to_de",
        ),
        (
            "bart",
            {"task_specific_params": "summarization"},
            "task_specific_params: got 'summarization', allowed: nothing, for the model has none",
        ),
        ("nllb", {"target_lang": "fr"}, "target_lang: got fr, allowed: fra_Latn, ace_Arab, "),
        ("m2m100", {"source_lang": "eng"}, "source_lang: got eng, allowed: en, "),
        (
            "t5",
            {"source_lang": "en"},
            "source_lang: got en, but this model has no languages to choose from there",
        ),
        ("bart", {"max_model_len": 65}, "max_model_len: got 65, the model's own limit is 64"),
        (
            "bart",
            {"max_model_len": 2},
            "max_model_len: got 2, but special tokens alone are 2",
        ),
    ],
)
def test_an_option_that_the_model_cannot_have_is_one_line(
    folders: Folders, family: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError) as raised:
        load_text2text(served(folders(family), **options), CPU, 1)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_a_decoder_is_pointed_to_its_own_task(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    with pytest.raises(LoadError) as raised:
        load_text2text(served(tmp_path), CPU, 1)
    assert str(raised.value) == (
        "task text2text-generation: llama is not an encoder-decoder; serve it with task: "
        "text-generation"
    )


def test_a_setting_that_the_generate_engine_does_not_follow_is_told(
    tmp_path: Path, log_lines: list[str]
) -> None:
    folder = make("bart", tmp_path, exponential_decay_length_penalty=(5, 1.1))
    with loaded(folder, num_beams=2):
        setting = "exponential_decay_length_penalty"
        assert f"W generation_config.json: the generate engine ignores {setting}" in log_lines


def test_bad_words_are_spelt_by_marians_tokenizer_of_outputs(folders: Folders) -> None:
    with loaded(folders("marian")) as model:
        words = model.reader.tokenize_word("again")
        own = model.parts.tokenizer(text_target="again", add_special_tokens=False).input_ids
        assert tuple(own) in words


def test_a_tokenizers_limit_is_the_longest_input(folders: Folders) -> None:
    with loaded(folders("marian")) as model:
        assert model.engine.max_model_len == 64
        assert "sequences of 64" in model.description


def test_keys_and_values_stay_within_kv_cache_gib(folders: Folders) -> None:
    sizes = []
    for gib in (0.01, 0.02):
        with loaded(folders("t5"), max_model_len=512, kv_cache_gib=gib) as model:
            assert "in_flight engine (encoder-decoder)" in model.description
            sizes.append(model.engine.max_num_seqs)
            assert model.engine.gauges["kv_cache_bytes"] <= gib * 2**30
    assert 1 <= sizes[0] < sizes[1] < 128
    with (
        pytest.raises(LoadError, match=r"^the KV cache does not fit"),
        loaded(folders("t5"), max_model_len=512, kv_cache_gib=1e-6),
    ):
        pass


@pytest.mark.parametrize(
    "family, config, asked, expected",
    [
        ("bart", {}, None, (1024, 1024)),
        ("bart", {}, 300, (300, 300)),
        ("led", {}, None, (16384, 1024)),
        ("led", {}, 2000, (2000, 1024)),
        ("t5", {}, None, (2048, 2048)),
        ("t5", {"n_positions": 512}, None, (512, 512)),
        ("t5", {"n_positions": 512}, 4096, (4096, 4096)),
        ("gpt2", {"n_positions": 512}, None, (512, 512)),
    ],
)
def test_inputs_and_outputs_are_as_long_as_positions_reach(
    family: str, config: dict[str, int], asked: int | None, expected: tuple[int, int]
) -> None:
    assert max_lengths(AutoConfig.for_model(family, **config), asked) == expected


def test_max_model_len_beyond_an_encoders_positions_is_an_error() -> None:
    with pytest.raises(LoadError) as raised:
        max_lengths(AutoConfig.for_model("bart"), 1025)
    assert str(raised.value) == "max_model_len: got 1025, the model's own limit is 1024 tokens"


NOBODY: Any = None
READER = SourceReader(
    *(NOBODY,) * 4, encode=NOBODY, languages=NOBODY, prefix="", truncation=False, beams=4
)


def rows(**constraints: list[Any]) -> list[dict[str, Any]]:
    """The rows of a client's batch of two."""
    given = {"text_input": [[b"a"], [b"b"]], **constraints}
    return read_rows(fields(given, {}, batched=True), SourceReader.fields)


@pytest.mark.parametrize("empty", [{"choice": [["", ""]] * 2}, {"regex": [[""]] * 2}])
def test_empty_texts_of_a_batch_hold_no_beam_to_anything(empty: dict[str, list[Any]]) -> None:
    assert [READER.num_beams(row) for row in rows(**empty)] == [4, 4]


def test_a_row_of_a_batch_that_is_held_to_something_is_refused_by_its_name() -> None:
    free, held = rows(choice=[["", ""], ["yes", "no"]])
    assert READER.num_beams(free) == 4
    with pytest.raises(RequestError, match=r"^choice: this model answers by a search with 4 beams"):
        READER.num_beams(held)


def test_more_beams_than_sequences_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(
        "models:\n  - name: tiny\n    model: google/flan-t5-small\n"
        "    task: text2text-generation\n    options: {num_beams: 8, max_num_seqs: 4}\n"
    )
    said = r"options\.num_beams: got 8, expected at most max_num_seqs \(4\)"
    with pytest.raises(SpecError, match=said):
        load(path)


def test_an_empty_prefix_is_one(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(
        "models:\n  - name: tiny\n    model: google/flan-t5-small\n"
        '    task: text2text-generation\n    options: {prefix: ""}\n'
    )
    (spec,) = load(tmp_path / "models.yaml")
    assert spec.options["prefix"] == ""
