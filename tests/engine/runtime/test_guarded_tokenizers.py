"""What a tokenizer's files could do to its process, they do in another one or not at all."""

from __future__ import annotations

import copy
import json
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_triton.runtime import log
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.tokenizing import guarded
from hf_triton.runtime.tokenizing.guarded import GuardedTokenizer, guard, may_take_long
from hf_triton.runtime.tokenizing.trust import KNOWN_EXPRESSIONS, is_trusted
from hf_triton.runtime.weights.loading import load_tokenizer
from tests.support.triton import DEMO_MODEL

SPLIT = "isolated"
EXPLODES = "x+[yz]"  # looks from each x of a run for its end
PANICS = r"(a+)+$"  # beyond what the library tries
TEXTS = ("I am going home, 12 é", "", " a  b ", "日本 🙂")


def demo(expression: str | None = None) -> Tokenizer:
    """The demo model's tokenizer, which splits texts by this expression before it reads them."""
    made = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    if expression is not None:
        split = pre_tokenizers.Split(Regex(expression), SPLIT)
        made.pre_tokenizer = pre_tokenizers.Sequence([split, made.pre_tokenizer])
    return made


def guarded_of(backend: Tokenizer) -> Any:
    made = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|endoftext|>")
    guard(made)
    return made


def seconds_of(backend: Any, text: str) -> float:
    began_s = time.thread_time()
    backend.pre_tokenize_str(text)
    return time.thread_time() - began_s


@pytest.mark.threat("tokenizer-files")
@pytest.mark.parametrize("expression", sorted(KNOWN_EXPRESSIONS), ids=lambda one: one[:24])
def test_a_known_expression_takes_time_with_a_texts_length(expression: str) -> None:
    split = pre_tokenizers.Split(Regex(expression), SPLIT)
    for part in ("a", "A", "aA", "漢", " ", "\n", " \n", "1", "!", " !", "a\u0301"):
        for end in ("", "!", "a"):
            short, long = part * 500 + end, part * 16_000 + end
            once_s = min(seconds_of(split, short) for _ in range(3))
            # 32 times as long: 32 times the time, or 1,000 times.
            assert min(seconds_of(split, long) for _ in range(2)) < 300 * (once_s + 1e-5)


@pytest.mark.threat("tokenizer-files")
def test_transformers_own_kinds_are_trusted_and_others_not() -> None:
    assert is_trusted(demo())
    assert is_trusted(demo(r"\p{N}{1,3}"))
    assert not is_trusted(demo(EXPLODES))
    for made in (
        Tokenizer(models.WordPiece({"[UNK]": 0}, max_input_chars_per_word=10**6)),
        Tokenizer(models.BPE({"a" * 10_000: 0}, [])),
        Tokenizer(models.BPE(end_of_word_suffix="z" * 100)),
    ):
        assert not is_trusted(made)
    made = demo()
    made.normalizer = normalizers.Replace("a", "a" * 100)
    assert not is_trusted(made)
    made = demo()
    made.decoder = decoders.Sequence([decoders.Replace(Regex(EXPLODES), "")])
    assert not is_trusted(made)


@pytest.mark.threat("tokenizer-files")
def test_a_sandboxed_tokenizer_is_the_same_to_its_callers() -> None:
    trusted, sandboxed = guarded_of(demo()), guarded_of(demo(r"(?:\d)"))
    assert may_take_long(sandboxed)
    assert not may_take_long(trusted)
    draw = random.Random(2)
    for options in (
        {},
        {"add_special_tokens": False},
        {"truncation": True, "max_length": 3, "return_offsets_mapping": True},
        {"text_pair": "c d"},
        {"return_overflowing_tokens": True, "truncation": True, "max_length": 2},
    ):
        for text in (*TEXTS, "".join(draw.choices("ab 1é日", k=300))):
            assert sandboxed(text, **options).data == trusted(text, **options).data
    assert sandboxed([*TEXTS], padding=True).data == trusted([*TEXTS], padding=True).data
    ids = trusted(TEXTS[0]).input_ids
    assert sandboxed.decode(ids) == trusted.decode(ids) == TEXTS[0]


def test_a_changed_tokenizer_is_changed_in_its_sandbox() -> None:
    sandboxed = guarded_of(demo(r"(?:\d)"))
    before = sandboxed("going<new>").input_ids
    sandboxed.add_tokens(["<new>"])
    after = sandboxed("going<new>").input_ids
    assert after != before
    assert after[-1] == len(sandboxed) - 1


@pytest.mark.threat("tokenizer-files")
@pytest.mark.parametrize("is_sandboxed", [False, True])
def test_a_panic_is_the_requests_own_error_without_a_path(is_sandboxed: bool) -> None:
    tokenizer = GuardedTokenizer(demo(PANICS), is_sandboxed=is_sandboxed)
    with pytest.raises(RequestError) as raised:
        tokenizer.encode("a" * 200 + "!")
    assert str(raised.value) == "this model's tokenizer fails at the text: send another"
    assert tokenizer.encode("hello").ids == demo().encode("hello").ids


@pytest.mark.threat("tokenizer-files")
def test_an_expression_that_explodes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "_LIMIT_S", 0.5)
    tokenizer = GuardedTokenizer(demo(EXPLODES), is_sandboxed=True)
    with pytest.raises(RequestError, match=r"^the text takes this model's tokenizer more than 1 s"):
        tokenizer.encode("x" * 100_000)
    assert tokenizer.encode("hello").ids == demo().encode("hello").ids


def test_a_tokenizer_that_some_texts_take_long_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(log, "warn", warned.append)
    guarded_of(demo(r"(?:\d)"))
    assert warned == []
    guarded_of(demo(PANICS))
    assert "such texts will be refused" in warned[0]


def test_a_copy_shares_nothing_and_is_the_tokenizer_itself() -> None:
    tokenizer = GuardedTokenizer(demo(), is_sandboxed=False)
    copied = copy.copy(tokenizer)
    copied.enable_truncation(2)
    assert isinstance(copied, Tokenizer)
    assert tokenizer.truncation is None


@pytest.mark.threat("tokenizer-files")
@pytest.mark.parametrize("kind", [{"type": "Replace"}, {}], ids=["named", "by what it holds"])
def test_a_normalizer_that_multiplies_texts_is_refused_before_it_is_loaded(
    kind: dict[str, str], tmp_path: Path
) -> None:
    described = json.loads((DEMO_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    step = {**kind, "pattern": {"String": "a"}, "content": "a" * 1000}
    described["normalizer"] = {"type": "Sequence", "normalizers": [step] * 4}
    # transformers normalises it as it loads the file.
    described["added_tokens"][0].update(content="a", normalized=True)
    (tmp_path / "tokenizer.json").write_text(json.dumps(described), encoding="utf-8")
    served = SimpleNamespace(source="it", trust_remote_code=False, gguf_file=None)
    with pytest.raises(
        LoadError, match=r"^tokenizer.json: it makes up to 1e\+12 characters of one"
    ):
        load_tokenizer(served, tmp_path)  # type: ignore[arg-type]


@pytest.mark.threat("tokenizer-files")
def test_every_tokenizer_that_is_loaded_is_guarded() -> None:
    served = SimpleNamespace(source="it", trust_remote_code=False, gguf_file=None)
    loaded = load_tokenizer(served, DEMO_MODEL)  # type: ignore[arg-type]
    assert isinstance(loaded.backend_tokenizer, GuardedTokenizer)
    assert loaded(TEXTS[0]) == AutoTokenizer.from_pretrained(DEMO_MODEL)(TEXTS[0])
