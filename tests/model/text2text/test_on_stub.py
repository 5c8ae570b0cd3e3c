"""Each family of encoder-decoders behind the stub: every expected answer is transformers' own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.model.text2text.conftest import Folders, References
from tests.scenarios.endpoint import FLAGS, Endpoint, Model, joined
from tests.scenarios.stub_endpoint import StubEndpoint, serving_stub
from tests.support.text2text.tiny_translators import SUMMARY, WORDS, texts

pytestmark = pytest.mark.filterwarnings("ignore:Recommended")  # sacremoses, by Marian's tokenizer

BATCHED = ("bart", "m2m100", "searching")
# name -> the family of its model, and what else its entry says
SERVED = {
    "t5": ("t5", "options: {task_specific_params: summarization, max_model_len: 48}"),
    "bart": ("bart", "max_batch_size: 8"),
    "marian": ("marian", "options: {max_num_seqs: 4}"),
    "m2m100": ("m2m100", "max_batch_size: 8"),
    "mbart": ("mbart", "streaming: false"),
    "mbart50": ("mbart50", "options: {target_lang: fr_XX}"),
    "nllb": ("nllb", "options: {source_lang: deu_Latn, truncation: true}"),
    "searching": ("bart", "max_batch_size: 8\n    options: {num_beams: 4}"),
}
TEXT, LONG = " ".join(WORDS[:6]), " ".join(WORDS * 9)
# Beside its text, what each family's request says.
TARGETS: dict[str, dict[str, str]] = {
    "m2m100": {"source_lang": "de", "target_lang": "fr"},
    "nllb": {"target_lang": "fra_Latn"},
}
# A request's options, and what transformers is told for the same.
ASKED: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "t5": [({"max_tokens": 11}, {"max_new_tokens": 11})],
    "bart": [
        *(
            ({"max_tokens": n}, {"max_new_tokens": n, "min_length": min(8, n + 1)})
            for n in (3, 9, 17)
        ),
        *(({"min_tokens": n}, {"min_length": 0, "min_new_tokens": n}) for n in (0, 14)),
        ({"repetition_penalty": 1.8}, {"repetition_penalty": 1.8}),
    ],
    "marian": [({"max_tokens": 11}, {"max_new_tokens": 11})],
    "m2m100": [({"repetition_penalty": 1.8}, {"repetition_penalty": 1.8})],
}


def models_yaml(folder: Callable[[str], Path], names: Iterable[str] = SERVED) -> str:
    """A models.yaml of these; ``folder`` gives that of a family's model."""
    entries = [
        f"  - name: {name}\n    model: {folder(SERVED[name][0])}\n    {SERVED[name][1]}\n"
        for name in names
    ]
    return f"defaults: {{task: text2text-generation}}\nmodels:\n{''.join(entries)}"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, folders: Folders) -> Iterator[StubEndpoint]:
    with serving_stub(tmp_path_factory.mktemp("stub"), models_yaml(folders)) as stub:
        yield stub


def model_at(endpoint: Endpoint, name: str) -> Model:
    return Model(endpoint, name, batched=name in BATCHED)


def expected(references: References, name: str, text: str, **changes: Any) -> str:
    """transformers' greedy answer to what a request of this family asks for."""
    reference = references(name)
    if name == "t5":
        own = {key: SUMMARY[key] for key in ("min_length", "max_length", "no_repeat_ngram_size")}
        return reference.greedy(f"summarize: {text}", **{**own, **changes})
    target = {"mbart50": "fr_XX"}.get(name) or TARGETS.get(name, {}).get("target_lang")
    source = {"nllb": "deu_Latn"}.get(name) or TARGETS.get(name, {}).get("source_lang")
    if target is not None:
        changes["forced_bos_token_id"] = reference.lang_id(target)
    return reference.greedy(text, source, **changes)


@pytest.mark.parametrize("name", [name for name in SERVED if name != "searching"])
def test_a_batch_of_mixed_lengths_answers_as_transformers_does_one_by_one(
    endpoint: Endpoint, references: References, name: str
) -> None:
    model = model_at(endpoint, name)
    asked: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        *((text, {}, {}) for text in texts()),
        *((TEXT, ours, theirs) for ours, theirs in ASKED.get(name, [])),
    ]
    replies = model.infer_together(
        [model.by_tensors(text, **TARGETS.get(name, {}), **ours) for text, ours, _ in asked]
    )
    assert all(reply.ok for reply in replies), [reply.error for reply in replies]
    found = [reply.text() for reply in replies]
    assert found == [expected(references, name, text, **theirs) for text, _, theirs in asked]
    assert len(set(found)) > 1  # random weights: how many depends on the CPU


@pytest.mark.parametrize("name", ["t5", "marian", "m2m100"])
def test_a_stream_is_the_whole_text_in_pieces(
    endpoint: Endpoint, references: References, name: str
) -> None:
    text = texts()[1]
    chunks = model_at(endpoint, name).engine.stream(text, **TARGETS.get(name, {}))
    assert joined(chunks) == expected(references, name, text)
    assert len(chunks) > 1  # steps that are late come together


def test_generate_and_its_stream_take_flat_json(endpoint: Endpoint, references: References) -> None:
    model, text = model_at(endpoint, "t5"), expected(references, "t5", TEXT)
    status, body = model.generate({"text_input": TEXT})
    assert (status, body["text_output"]) == (200, text)
    status, events = model.engine.generate_stream({"text_input": TEXT, "stream": True})
    assert status == 200
    assert "".join(event["text_output"] for event in events) == text


def test_rows_of_one_batch_are_translated_to_languages_of_their_own(
    endpoint: Endpoint, references: References
) -> None:
    model, reference = model_at(endpoint, "m2m100"), references("m2m100")
    asked = [("en", "fr"), ("de", "ta"), ("en", "ta")]
    replies = model.infer_together(
        [model.by_tensors(TEXT, source_lang=s, target_lang=t) for s, t in asked]
    )
    found = [reply.text() for reply in replies]
    assert found == [
        reference.greedy(TEXT, source, forced_bos_token_id=reference.lang_id(target))
        for source, target in asked
    ]
    assert len(set(found)) > 1  # random weights: how many depends on the CPU


@pytest.mark.parametrize("how", ["tensors", "parameters"])
def test_mbarts_decoder_starts_with_the_target_language(
    endpoint: Endpoint, references: References, how: str
) -> None:
    model, reference = model_at(endpoint, "mbart"), references("mbart")
    reply = model.ask(how, TEXT, target_lang="de_DE")
    start = reference.lang_id("de_DE")
    assert reply.text() == reference.greedy(TEXT, decoder_start_token_id=start)
    assert reply.text() != model.ask(how, TEXT).text()


def test_marians_target_is_a_mark_before_the_text(
    endpoint: Endpoint, references: References
) -> None:
    model = model_at(endpoint, "marian")
    text = expected(references, "marian", f">>deu<< {TEXT}", max_new_tokens=12)
    for target in ("deu", ">>deu<<"):
        assert model.ask("tensors", TEXT, target_lang=target, max_tokens=12).text() == text
    assert model.ask("tensors", f">>deu<< {TEXT}", max_tokens=12).text() == text
    assert model.ask("tensors", TEXT, max_tokens=12).text() != text


@pytest.mark.parametrize("how", ["tensors", "parameters"])
def test_truncate_cuts_a_long_input_as_transformers_does(
    endpoint: Endpoint, references: References, how: str
) -> None:
    """With what stands before it: a language's token, or t5's prefix, which stays."""
    for name, most in (("bart", 64), ("m2m100", 64), ("t5", 48)):
        asked = {**TARGETS.get(name, {}), "truncate": True, **FLAGS}
        reply = model_at(endpoint, name).ask(how, LONG, **asked)
        cut = {"truncation": True, "max_length": most}
        assert reply.text() == expected(references, name, LONG, truncation=cut)
        assert reply.number("num_input_tokens") == most


def test_a_long_input_is_refused_with_both_numbers(
    endpoint: Endpoint, references: References
) -> None:
    model, nllb = model_at(endpoint, "bart"), model_at(endpoint, "nllb")
    got = len(references("bart").tokenizer(LONG).input_ids)
    said = f"text_input: got {got} tokens, this model takes at most 64; send truncate: true to cut"
    assert model.ask("tensors", LONG).error.startswith(said)
    # The option cuts there, and a request says otherwise.
    assert nllb.ask("tensors", LONG * 2, **TARGETS["nllb"]).ok
    refused = nllb.ask("tensors", LONG * 2, **TARGETS["nllb"], truncate=False)
    assert (refused.status, "this model takes at most 128" in refused.error) == (400, True)
    huge = "cat " * 500_000  # not even tokenised
    said = "text_input: got 2000000 characters, allowed: at most "
    assert model.ask("tensors", huge).error.startswith(said)
    assert model.ask("tensors", huge, truncate=True, max_tokens=4).ok


def test_a_batch_answers_as_transformers_own_beam_search_does(
    endpoint: Endpoint, references: References
) -> None:
    model, reference = model_at(endpoint, "searching"), references("bart")
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"beam_width": 4}, {}),
        ({"max_tokens": 12}, {"max_new_tokens": 12}),
        ({"min_tokens": 16}, {"min_new_tokens": 16}),
        ({"length_penalty": -1.5}, {"length_penalty": -1.5}),
        ({"repetition_penalty": 2.0}, {"repetition_penalty": 2.0}),
    ]
    asked = [*((TEXT, *change) for change in changes), (texts()[3], {}, {})]
    replies = model.infer_together([model.by_tensors(text, **ours) for text, ours, _ in asked])
    found = [reply.text() for reply in replies]
    assert found == [reference.beams(text, 4, **theirs) for text, _, theirs in asked]
    assert found[0] != reference.greedy(TEXT)


def test_one_beam_is_greedy_and_may_sample_and_stream(
    endpoint: Endpoint, references: References
) -> None:
    model, greedy = model_at(endpoint, "searching"), references("bart").greedy(TEXT)
    assert model.ask("tensors", TEXT, beam_width=1).text() == greedy
    assert joined(model.engine.stream(TEXT, beam_width=1)) == greedy
    sampled = model.ask("tensors", TEXT, beam_width=1, temperature=1.5, seed=7)
    assert sampled.ok
    assert sampled.text() != greedy


_NO_CHOICE = "but this model has no languages to choose from there"
_NO_BEAM = "{}: this model answers by a search with 4 beams, which can't do that; send beam_width 1"
# Model, text, options, and what the refusal begins with.
REFUSED: list[tuple[str, str | bytes, dict[str, Any], str]] = [
    ("m2m100", TEXT, {"target_lang": "fra"}, "target_lang: got fra, allowed: fr, "),
    ("m2m100", TEXT, {"target_lang": "a text" * 9}, "target_lang: got a name of 54 characters"),
    ("m2m100", TEXT, {}, "target_lang: missing, allowed: af, am, ar, "),
    (
        *("m2m100", TEXT, {"source_lang": "eng", "target_lang": "fr"}),
        "source_lang: got eng, allowed: en, ",
    ),
    ("nllb", TEXT, {"target_lang": "fra"}, "target_lang: got fra, allowed: fra_Latn, "),
    ("marian", TEXT, {"target_lang": "ita"}, "target_lang: got ita, allowed: deu, fra"),
    ("marian", TEXT, {"source_lang": "en"}, f"source_lang: got en, {_NO_CHOICE}"),
    ("bart", TEXT, {"target_lang": "fr"}, f"target_lang: got fr, {_NO_CHOICE}"),
    (
        *("marian", f">>fra<< {TEXT}", {"target_lang": "deu"}),
        "target_lang: got deu, but text_input begins with >>fra<<; send one of them",
    ),
    ("bart", "", {}, "text_input: empty, a text is required"),
    ("bart", " \n", {}, "text_input: got only white space, a text is required"),
    ("bart", b"\xff", {}, "text_input: not valid UTF-8 at byte 0"),
    ("bart", TEXT, {"max_tokens": 65}, "max_tokens: got 65 tokens, allowed: at most 64"),
    ("bart", TEXT, {"beam_width": 4}, "beam_width: got 4, allowed: 1 (no beam search)"),
    ("bart", TEXT, {"length_penalty": 2.0}, "length_penalty: got 2.0, allowed: 1 (it only weighs"),
    ("searching", TEXT, {"beam_width": 2}, "beam_width: got 2, allowed: 1 or 4"),
    *(
        ("searching", TEXT, options, _NO_BEAM.format(*options))
        for options in (
            *({"stream": True}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.5}, {"seed": 3}),
            *(
                {"n": 2},
                {"frequency_penalty": 0.5},
                {"presence_penalty": 0.5},
                {"regex": "cat|dog"},
            ),
            *({"stop_words": ["cat"]}, {"choice": ["cat", "dog"]}, {"return_logprobs": True}),
            {"return_cumulative_logprob": True},
        )
    ),
]


@pytest.mark.parametrize("name, text, options, message", REFUSED)
def test_a_bad_request_is_refused_and_its_neighbours_are_not(
    endpoint: Endpoint, name: str, text: str, options: dict[str, Any], message: str
) -> None:
    model = model_at(endpoint, name)
    good = model.by_tensors(TEXT, max_tokens=4, **TARGETS.get(name, {}))
    before, bad, after = model.infer_together([good, model.by_tensors(text, **options), good])
    assert bad.status == 400
    assert bad.error.startswith(message), bad.error
    assert len(bad.error) < 300, "of many languages it shows some"
    assert before.text() == after.text()


def test_a_chats_messages_are_no_parameter_and_beams_have_no_logprobs(endpoint: Endpoint) -> None:
    reply = model_at(endpoint, "bart").ask("parameters", TEXT, messages="[]")
    assert (reply.status, reply.error[:27]) == (400, "messages: unknown parameter")
    reply = model_at(endpoint, "searching").ask("tensors", TEXT, "text_output", "logprobs")
    said = "logprobs: beams have none; send beam_width 1 for them"
    assert (reply.status, reply.error) == (400, said)
