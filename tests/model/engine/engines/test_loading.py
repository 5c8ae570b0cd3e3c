"""A served model from its folder to a started engine, with one readable line where that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.weights.served_model import ServedModel, read_served_model
from hf_triton.text_generation.engine.generation_rules import eos_token_ids
from hf_triton.text_generation.generation_loading import LoadedModel, load_engine
from hf_triton.text_generation.options import Options
from tests.support import served_models
from tests.support.driving import Answers
from tests.support.tiny_adapters import save_adapter
from tests.support.tiny_models import tiny_model
from tests.support.triton import ROOT, eventually

VALUES: dict[str, Any] = {
    **served_models.VALUES,
    "model": "../../weights",
    "local": True,
    "options": {"max_num_seqs": 2},
}
CPU = Placement("cpu", {"": "cpu"})
LETTERS = [chr(ord("a") + number) for number in range(26)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 97 tokens, whose tokenizer has one too many, and its folder in a repository."""
    root = tmp_path_factory.mktemp("served")
    model = tiny_model("llama")
    model.generation_config.repetition_penalty = 1.5
    model.save_pretrained(root / "weights")
    vocab = {letter: number for number, letter in enumerate(LETTERS)} | {"abc": 30, "Z": 97}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="z", unk_token="a")
    fast.save_pretrained(root / "weights")
    (root / "repository" / "tiny").mkdir(parents=True)
    return root / "repository" / "tiny"


def served(folder: Path, **changes: Any) -> ServedModel:
    return ServedModel(folder=folder, **{**VALUES, **changes})


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Iterator[LoadedModel]:
    loaded = load_engine(served(folder), CPU, num_threads=1)
    yield loaded
    loaded.engine.stop()


def test_a_loaded_model_says_what_where_and_how(loaded: LoadedModel, folder: Path) -> None:
    weights = folder.parents[1] / "weights"
    assert loaded.description == (
        f"{weights} (float32) on cpu, in_flight engine (fused), 16 pages of 16 tokens, "
        "at most 2 sequences of 128, KV cache 0.00 GiB"
    )
    assert not loaded.parts.config.is_encoder_decoder
    assert loaded.reader.default_repetition_penalty == 1.5  # the model's own


def test_adapters_are_those_of_their_file_at_the_load_and_while_the_model_serves(
    folder: Path,
) -> None:
    model, version = tiny_model("llama"), folder / "7"
    version.mkdir()
    for number, name in enumerate(("sql", "new")):
        save_adapter(model, folder / name, seed=number, r=2, target_modules=["q_proj"])

    def write(*names: str, **more: Any) -> Path:
        values = [{"name": n, "model": n, "local": True, "revision": None, **more} for n in names]
        (version / "adapters.json").write_text(json.dumps(values))
        return version / "adapters.json"

    # An adapter that a request loaded, and that has gone, does not keep the model from loading.
    values = {**VALUES, "adapters_file": write("sql", "gone", loaded_at=1.5).name}
    (version / "model.json").write_text(json.dumps(values))
    loaded = load_engine(read_served_model(folder, "7"), CPU, num_threads=1)
    try:
        assert list(loaded.reader.adapters) == ["sql"]
        write()
        assert eventually(lambda: not loaded.reader.adapters)
        write("new", "sql")
        assert eventually(lambda: list(loaded.reader.adapters) == ["new", "sql"])
        write("missing")
        (status,) = folder.parent.glob("*/hf_cache/adapters/*-7-*.json")
        assert eventually(lambda: "adapter missing: " in status.read_text())
        assert list(loaded.reader.adapters) == ["new", "sql"]
    finally:
        loaded.engine.stop()
    assert eventually(lambda: not status.exists())


def test_a_loaded_model_generates(loaded: LoadedModel) -> None:
    answers = Answers()
    prompt = loaded.reader.tokenize("hello")
    assert prompt == [LETTERS.index(letter) for letter in "hello"]
    loaded.engine.submit([answers.sequence(0, prompt, max_tokens=3)])
    assert len(answers.completion(0).token_ids) == 3


@pytest.mark.threat("huge-input")
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(loaded.parts.tokenizer), "__call__", None)
    with pytest.raises(RequestError) as raised:
        loaded.reader.tokenize("a" * 10_000_000)
    assert str(raised.value) == (
        "text_input: got 10000000 characters, allowed: at most 65536 where 128 tokens fit"
    )


def test_a_token_that_the_model_lacks_is_its_prompts_own_error(loaded: LoadedModel) -> None:
    with pytest.raises(RequestError) as raised:
        loaded.reader.tokenize("abZ")
    expected = "text_input: the tokenizer makes token 97 of it, this model has 97"
    assert str(raised.value) == expected
    with pytest.raises(RequestError, match="makes no token of it, send another"):
        loaded.reader.tokenize("")


@pytest.mark.parametrize(
    "models_own, tokenizers_own, expected",
    [
        (5, 6, {5}),
        ([5, 7], 6, {5, 7}),
        (None, 6, {6}),
        (None, None, set()),
        ([5, 1000, -1], None, {5}),  # ids that the model can't make
    ],
)
def test_end_tokens_are_the_models_own_else_the_tokenizers(
    models_own: Any, tokenizers_own: int | None, expected: set[int]
) -> None:
    model = tiny_model("gpt2")
    model.generation_config.eos_token_id = models_own
    tokenizer = SimpleNamespace(eos_token_id=tokenizers_own)
    assert eos_token_ids(model, tokenizer) == expected


def write_model_json(folder: Path, text: str) -> None:
    (folder / "1").mkdir()
    (folder / "1/model.json").write_text(text)


def test_model_json_is_read_with_its_paths_relative_to_the_models_folder(tmp_path: Path) -> None:
    write_model_json(tmp_path, json.dumps(VALUES))
    model = read_served_model(tmp_path, "1")
    assert model == served(tmp_path)
    assert model.local_path == tmp_path.parents[1] / "weights"
    assert model.cache_dir == tmp_path.parent / "tiny" / "hf_cache"
    assert Options(**model.options).max_num_seqs == 2


READ_IN_ASCII = """
import sys
from pathlib import Path
from hf_triton.runtime.weights.served_model import read_served_model
assert sys.getfilesystemencoding() != "utf-8"
model = read_served_model(Path(sys.argv[1]), "1")
assert str(model.local_path).isascii()
print((model.local_path / "config.json").read_text(), ascii(model.source))
"""


def test_a_path_of_letters_that_tritons_python_can_not_encode_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    write_model_json(folder, json.dumps({**VALUES, "model": "../modèle"}))
    (tmp_path / "modèle").mkdir()
    (tmp_path / "modèle/config.json").write_text("{}")
    ran = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", READ_IN_ASCII, str(folder)],
        env={
            "LC_ALL": "C",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == f"{{}} {str(tmp_path / 'modèle')!a}\n", ran.stderr


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"local": False, "model": "org/tiny"}, "org/tiny"),
        ({"local": False, "model": "org/tiny", "revision": "v1"}, "org/tiny@v1"),
        ({"model": "/models/tiny"}, "/models/tiny"),
    ],
)
def test_a_models_source_is_its_id_with_revision_or_its_path(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert served(tmp_path, **changes).source == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("{", "Expecting property name"),
        ("[]", "must be a mapping"),
        ('{"name": "tiny"}', "missing 11 required positional arguments"),
        (json.dumps({**VALUES, "unknown": 1}), "unexpected keyword argument 'unknown'"),
    ],
)
def test_a_model_json_of_another_kind_says_how_to_write_it_anew(
    text: str, expected: str, tmp_path: Path
) -> None:
    write_model_json(tmp_path, text)
    with pytest.raises(LoadError) as raised:
        read_served_model(tmp_path, "1")
    assert str(raised.value).startswith("model.json: ")
    assert expected in str(raised.value)
    assert str(raised.value).endswith("; run `hf-triton generate` again")
