"""Files come from a local path, the cache, or a Hub (a fake one, asked by the real client)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from huggingface_hub import constants
from transformers.models.bertweet.tokenization_bertweet import BertweetTokenizer

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights import weight_loading as loading
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.runtime.weights.weight_loading import load_config, load_tokenizer
from tests.support.fake_hub import COMMIT, FakeHub, Repository, ask_from_here, running_hub
from tests.support.served_models import served_model

SECRET = "hf_SecretTokenThatMustNotBeSeen"
FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"words"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with running_hub() as hub:
        ask_from_here(hub, monkeypatch, tmp_path / "no token")
        hub.repositories["org/tiny"] = Repository(dict(FILES))
        yield hub


def served(folder: Path, model: str = "org/tiny", **changes: Any) -> ServedModel:
    return served_model(folder / "tiny", model=model, **changes)


def load_error(model: ServedModel) -> str:
    with pytest.raises(LoadError) as raised:
        model_files(model)
    text = str(raised.value)
    assert "\n" not in text
    return text


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_local_model_is_used_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/config.json").write_text("{}")
    model = served(tmp_path, "../weights", local=True)
    assert model_files(model) == tmp_path / "weights"
    assert not model.cache_dir.exists()


def test_a_missing_local_model_names_the_place(tmp_path: Path) -> None:
    expected = f"local model: no config.json in {tmp_path / 'nowhere'}"
    assert load_error(served(tmp_path, "../nowhere", local=True)) == expected


@pytest.mark.parametrize(
    "file, expected",
    [
        (
            "model-Q4_K_M.gguf",
            "has weights only as GGUF: choose a file with gguf_file: model-Q4_K_M.gguf",
        ),
        (
            "adapter_config.json",
            "is an adapter (adapter_config.json), not a whole model: set model",
        ),
    ],
)
def test_files_of_another_kind_are_named_with_what_to_do(
    hub: FakeHub, tmp_path: Path, file: str, expected: str
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / file).write_text("{}")
    local = served(tmp_path, "../weights", local=True)
    assert load_error(local).startswith(f"local model: {tmp_path / 'weights'} {expected}")
    hub.repositories["org/tiny"].files = {file: b"{}", "README.md": b"", "a.safetensors": b"w"}
    assert load_error(served(tmp_path)).startswith(f"org/tiny {expected}")


@pytest.fixture
def users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache of every program that asks the Hub, with the model's snapshot."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "users"))
    repository = tmp_path / "users/models--org--tiny"
    snapshot = repository / "snapshots" / COMMIT
    for name, content in FILES.items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(content)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(COMMIT)
    return snapshot


def test_a_complete_model_of_the_users_cache_is_taken_where_the_hub_is_not_reached(
    hub: FakeHub, tmp_path: Path, users_cache: Path, log_lines: list[str]
) -> None:
    hub.fails = True
    assert model_files(served(tmp_path)) == users_cache
    assert log_lines[-1].endswith(f"no answer: loading org/tiny from HF_HOME, {COMMIT}")
    hub.fails = False
    assert model_files(served(tmp_path)) != users_cache


@pytest.mark.parametrize(
    "index", [{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}, {}, []]
)
def test_a_model_of_the_users_cache_that_lacks_weights_is_not_taken(
    hub: FakeHub, tmp_path: Path, users_cache: Path, index: Any
) -> None:
    hub.fails = True
    (users_cache / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "could not be downloaded" in load_error(served(tmp_path))


def test_files_are_downloaded_into_the_models_own_cache_with_one_line(
    hub: FakeHub, tmp_path: Path, log_lines: list[str]
) -> None:
    model = served(tmp_path)
    files = model_files(model)
    assert names(files) == set(FILES)
    assert files.is_relative_to(tmp_path / "tiny" / "hf_cache")
    assert (files / "model.safetensors").read_bytes() == b"weights"
    assert log_lines == ["I tiny: downloading org/tiny"]


@pytest.mark.parametrize("revision", ["v1", COMMIT])
def test_a_revision_is_downloaded_and_cached(hub: FakeHub, tmp_path: Path, revision: str) -> None:
    files = model_files(served(tmp_path, revision=revision))
    assert any(f"/{revision}" in path for path in hub.paths)
    hub.paths.clear()
    assert model_files(served(tmp_path, revision=revision)) == files
    assert hub.paths == []
    model_files(served(tmp_path))
    assert hub.paths != [], "another revision is not taken from the cache"


def test_the_gguf_file_that_is_asked_for_is_downloaded(hub: FakeHub, tmp_path: Path) -> None:
    weights = b"w" * 1000
    hub.repositories["org/tiny"] = Repository({"q4.gguf": weights, "q8.gguf": weights + b"8"})
    for _ in range(2):  # the second time from the cache
        folder = model_files(served(tmp_path, gguf_file="q4.gguf"))
        assert [path.name for path in folder.iterdir()] == ["q4.gguf"]
    with pytest.raises(LoadError, match=r"its GGUF files are q4\.gguf, q8\.gguf$"):
        model_files(served(tmp_path / "n", gguf_file="q5.gguf"))


def test_other_frameworks_weights_are_left_out(hub: FakeHub, tmp_path: Path) -> None:
    others = {"pytorch_model.bin": b"p", "tf_model.h5": b"t", "onnx/model.onnx": b"o"}
    hub.repositories["org/tiny"].files.update(others)
    assert names(model_files(served(tmp_path))) == set(FILES)


def test_a_sentence_transformers_modules_weights_are_taken(hub: FakeHub, tmp_path: Path) -> None:
    """Many have safetensors for the transformer alone."""
    dense = {"2_Dense/config.json": b"{}", "2_Dense/pytorch_model.bin": b"d"}
    others = {"pytorch_model.bin": b"p", "checkpoint-5/optimizer.bin": b"o"}
    hub.repositories["org/tiny"].files.update({**dense, **others})
    assert names(model_files(served(tmp_path, allow_pickle=True))) == {*FILES, *dense}
    assert "2_Dense/pytorch_model.bin" in load_error(served(tmp_path))


@pytest.mark.threat("pickles")
@pytest.mark.parametrize("cached", [False, True])
def test_pickles_that_are_not_allowed_are_never_taken(
    hub: FakeHub, tmp_path: Path, cached: bool
) -> None:
    hub.repositories["org/tiny"].files = {"config.json": b"{}", "pytorch_model.bin": b"p"}
    if cached:
        model_files(served(tmp_path, allow_pickle=True))
    assert load_error(served(tmp_path)) == (
        "org/tiny has weights only as pickles (pytorch_model.bin), and loading one can run code of "
        "its author: set allow_pickle: true to allow it, or a revision that has safetensors"
    )
    assert not any("resolve" in path and "bin" in path for path in hub.paths) or cached


@pytest.mark.threat("pickles")
def test_a_local_models_pickles_need_to_be_allowed_too(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (tmp_path / "weights" / name).write_text("{}")
    assert "set allow_pickle: true" in load_error(served(tmp_path, "../weights", local=True))
    model = served(tmp_path, "../weights", local=True, allow_pickle=True)
    assert model_files(model) == tmp_path / "weights"


PICKLES = {"config.json": b"{}", "pytorch_model.bin": b"p"}


@pytest.mark.parametrize(
    "files, missing",
    [
        ({**FILES, "model-2.safetensors": b"more"}, "model-2.safetensors"),
        (FILES, "tokenizer.json"),
        (PICKLES, "pytorch_model.bin"),
    ],
)
def test_a_download_that_broke_off_is_completed(
    hub: FakeHub, tmp_path: Path, files: dict[str, bytes], missing: str
) -> None:
    """Pickles are taken where they are allowed and nothing else is there."""
    hub.repositories["org/tiny"] = Repository(dict(files), broken={missing})
    model = served(tmp_path, allow_pickle=files is PICKLES)
    assert load_error(model).startswith("org/tiny could not be downloaded into hf_cache/: ")
    hub.repositories["org/tiny"].broken.clear()
    assert names(model_files(model)) == set(files)
    hub.paths.clear()
    assert names(model_files(model)) == set(files)
    assert hub.paths == []


@pytest.mark.parametrize("variable", ["HF_TOKEN", "PRIVATE_REPO_TOKEN"])
def test_either_token_variable_opens_a_private_model(
    hub: FakeHub,
    tmp_path: Path,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    log_lines: list[str],
) -> None:
    hub.repositories["org/tiny"].token = SECRET
    monkeypatch.setenv("PRIVATE_REPO_TOKEN", "hf_second")
    monkeypatch.setenv(variable, SECRET)
    assert names(model_files(served(tmp_path))) == set(FILES)
    assert hub.authorizations == {f"Bearer {SECRET}"}
    assert SECRET not in "".join(log_lines)
    assert not any(SECRET in str(path) for path in tmp_path.rglob("*"))


def test_what_the_hub_has_not_is_one_line_with_what_to_do(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        return (
            f"org/{name}: the Hub has no such model, or it is private and HF_TOKEN is not set to "
            "a token that may read it"
        )

    assert load_error(served(tmp_path, "org/typo")) == missing("typo")
    expected = "org/tiny@v9: the Hub has no such revision"
    assert load_error(served(tmp_path, revision="v9")) == expected
    tiny = hub.repositories["org/tiny"]
    tiny.token = SECRET
    assert load_error(served(tmp_path)) == missing("tiny")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert load_error(served(tmp_path)) == missing("tiny")
    tiny.gated = True
    assert load_error(served(tmp_path)) == (
        "org/tiny is gated: accept its terms on the Hub and set HF_TOKEN to a token "
        "that may read it"
    )
    tiny.files, tiny.token, tiny.gated = {"config.json": b"{}", "tf_model.h5": b"t"}, None, False
    expected = "org/tiny has no weights to serve: neither *.safetensors nor pytorch_model.bin"
    assert load_error(served(tmp_path)) == expected


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("ENDPOINT", "http://127.0.0.1:9", "ConnectError: "),
        ("HF_HUB_OFFLINE", True, "OfflineModeIsEnabled:"),
    ],
)
def test_a_hub_that_is_out_of_reach_is_one_line(
    hub: FakeHub, tmp_path: Path, name: str, value: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, name, value)
    text = load_error(served(tmp_path))
    assert text.startswith(f"org/tiny could not be downloaded into hf_cache/: {said}")
    assert hub.paths == []


@pytest.mark.threat("hub-token")
@pytest.mark.parametrize("place", [0, 383])
def test_no_error_ever_holds_a_token(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even its first half, where a long text is cut."""

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("x" * place + f" sent {SECRET} and failed")

    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    assert SECRET[:9] not in load_error(served(tmp_path))


@pytest.mark.threat("remote-code")
def test_a_model_with_code_of_its_own_is_refused_with_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    config = '{"model_type": "mine", "auto_map": {"AutoConfig": "mine.MyConfig"}}'
    (folder / "config.json").write_text(config)
    (folder / "mine.py").write_text("raise SystemExit('ran')")
    with pytest.raises(LoadError) as raised:
        load_config(served(tmp_path, "../weights", local=True), folder)
    assert str(raised.value) == (
        f"{folder} brings its own Python code: read it, and set trust_remote_code: true to allow it"
    )


def test_a_broken_config_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{not\njson")
    with pytest.raises(LoadError) as raised:
        load_config(served(tmp_path, "..", local=True), tmp_path)
    assert str(raised.value).startswith(f"{tmp_path}: OSError: ")
    assert "\n" not in str(raised.value)


@pytest.mark.threat("python-tokenizers")
def test_a_tokenizer_in_python_keeps_a_bounded_number_of_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = BertweetTokenizer(*bertweet_files(tmp_path))
    monkeypatch.setattr(loading, "load_part", lambda *_, **__: made)
    monkeypatch.setattr(loading, "MOST_WORDS", 10)
    tokenizer = loading.load_tokenizer(served(tmp_path), tmp_path)
    before = tokenizer("abc").input_ids
    for number in range(100):
        tokenizer(f"ab{number} {'c' * (100 + number)}")
    assert len(tokenizer.cache) == 10
    assert tokenizer("abc").input_ids == before


def bertweet_files(folder: Path) -> tuple[str, str]:
    vocab, merges = folder / "vocab.txt", folder / "bpe.codes"
    vocab.write_text("abc 1\n", encoding="utf-8")
    merges.write_text("a b 1\nab c</w> 1\n", encoding="utf-8")
    return str(vocab), str(merges)


TEXT = "the cat sat on green hills where old friends met again"
# model type -> the file's name, and what the files beside it say
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("spiece.model", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}),
    "mt5": ("spiece.model", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}),
    "pegasus": ("spiece.model", {"tokenizer_class": "PegasusTokenizer"}),
    "albert": ("spiece.model", {"tokenizer_class": "AlbertTokenizer"}),
    "xlm-roberta": ("sentencepiece.bpe.model", {"tokenizer_class": "XLMRobertaTokenizer"}),
    "llama": ("tokenizer.model", {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
}


def pieces_file(folder: Path, kind: str, path: Path) -> sentencepiece.SentencePieceProcessor:
    """Trains a model of sentencepiece: a family's kind of pieces, of a few words."""
    corpus = folder / "corpus.txt"
    corpus.write_text(f"{TEXT}\nhello world, summer rain fell slowly over the park\n" * 20)
    train: Any = sentencepiece.SentencePieceTrainer.train
    train(
        input=str(corpus),
        model_prefix=str(folder / "trained"),
        model_type="bpe" if kind == "llama" else "unigram",
        vocab_size=80 if kind != "llama" else 60,
        hard_vocab_limit=False,
        minloglevel=2,
        **({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} if kind == "pegasus" else {}),
        user_defined_symbols=["[CLS]", "[SEP]", "[MASK]", "<pad>"] if kind == "albert" else [],
    )
    (folder / "trained.model").rename(path)
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_with_nothing_but_sentencepieces_file_is_tokenized(
    kind: str, tmp_path: Path
) -> None:
    name, config = FAMILIES[kind]
    folder = tmp_path / "model"
    folder.mkdir()
    pieces = pieces_file(tmp_path, kind, folder / name)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(served_model(tmp_path, model="model", local=True), folder)
    tokens = tokenizer.tokenize(TEXT)
    assert tokens == pieces.encode(TEXT, out_type=str)
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.unk_token_id not in ids
