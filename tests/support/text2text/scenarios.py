"""Scenarios of text2text generation, whichever endpoint answers. Knows the models of
served_translators.py; every expected answer is transformers' own.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.text2text.conftest import References
from tests.scenarios.endpoint import FLAGS, Endpoint, Model, joined
from tests.support.text2text.served_translators import BATCHED
from tests.support.text2text.tiny_translators import SUMMARY, WORDS, texts

TEXT = " ".join(WORDS[:6])
# Beside its text, what each family's request says and what transformers is told for the same.
TARGETS: dict[str, dict[str, str]] = {
    "m2m100": {"source_lang": "de", "target_lang": "fr"},
    "mbart": {},
    "mbart50": {},
    "nllb": {"target_lang": "fra_Latn"},
}
COUNTS = {f"return_{name}": True for name in ("finish_reason", "num_output_tokens")}
FAMILIES = ("t5", "bart", "marian", *TARGETS)


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


class Agreement:
    """Answers are transformers' own, token for token."""

    @pytest.mark.parametrize("name", FAMILIES)
    def test_a_batch_of_mixed_lengths_answers_as_transformers_does_one_by_one(
        self, endpoint: Endpoint, references: References, name: str
    ) -> None:
        model = model_at(endpoint, name)
        requests = [model.by_tensors(text, **TARGETS.get(name, {})) for text in texts()]

        replies = model.infer_together(requests)

        assert all(reply.ok for reply in replies), [reply.error for reply in replies]
        found = [reply.text() for reply in replies]
        assert found == [expected(references, name, text) for text in texts()]
        assert len(set(found)) > 1  # random weights: how many depends on the CPU

    @pytest.mark.parametrize("name", ["t5", "bart", "marian"])
    def test_max_tokens_ends_an_output_as_max_new_tokens_does(
        self, endpoint: Endpoint, references: References, name: str
    ) -> None:
        model = model_at(endpoint, name)
        reply = model.infer(model.by_tensors(TEXT, max_tokens=11, **FLAGS))

        assert reply.text() == expected(references, name, TEXT, max_new_tokens=11)
        assert reply.number("num_output_tokens") <= 11

    def test_lengths_differ_within_a_batch(
        self, endpoint: Endpoint, references: References
    ) -> None:
        model = model_at(endpoint, "bart")
        lengths = (3, 9, 17)
        replies = model.infer_together([model.by_tensors(TEXT, max_tokens=n) for n in lengths])

        assert [reply.text() for reply in replies] == [
            expected(references, "bart", TEXT, max_new_tokens=n, min_length=min(8, n + 1))
            for n in lengths
        ]

    def test_min_tokens_replaces_the_models_own_min_length(
        self, endpoint: Endpoint, references: References
    ) -> None:
        model = model_at(endpoint, "bart")
        for least in (0, 14):
            reply = model.infer(model.by_tensors(TEXT, min_tokens=least))
            changes = {"min_length": 0, "min_new_tokens": least}
            assert reply.text() == expected(references, "bart", TEXT, **changes)

    @pytest.mark.parametrize("name", ["bart", "m2m100"])
    def test_a_repetition_penalty_looks_at_the_decoders_start_too(
        self, endpoint: Endpoint, references: References, name: str
    ) -> None:
        model = model_at(endpoint, name)
        reply = model.infer(model.by_tensors(TEXT, repetition_penalty=1.8, **TARGETS.get(name, {})))
        assert reply.text() == expected(references, name, TEXT, repetition_penalty=1.8)

    @pytest.mark.usefixtures("sent_step_by_step")
    @pytest.mark.parametrize("name", ["t5", "bart", "marian", "m2m100", "mbart50", "nllb"])
    def test_a_stream_is_the_whole_text_in_pieces(
        self, endpoint: Endpoint, references: References, name: str
    ) -> None:
        text = texts()[1]
        chunks = model_at(endpoint, name).engine.stream(text, **TARGETS.get(name, {}))
        assert joined(chunks) == expected(references, name, text)
        assert len(chunks) > 2

    def test_generate_and_its_stream_take_flat_json(
        self, endpoint: Endpoint, references: References
    ) -> None:
        model, text = model_at(endpoint, "t5"), expected(references, "t5", TEXT)
        status, body = model.generate({"text_input": TEXT})
        assert (status, body["text_output"]) == (200, text)
        status, events = model.engine.generate_stream({"text_input": TEXT, "stream": True})
        assert status == 200
        assert "".join(event["text_output"] for event in events) == text


class LanguagesAsked:
    """Source and target languages, by tensor, by parameter, by option."""

    def test_rows_of_one_batch_are_translated_to_languages_of_their_own(
        self, endpoint: Endpoint, references: References
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
        self, endpoint: Endpoint, references: References, how: str
    ) -> None:
        model, reference = model_at(endpoint, "mbart"), references("mbart")
        reply = model.ask(how, TEXT, target_lang="de_DE")
        start = reference.lang_id("de_DE")
        assert reply.text() == reference.greedy(TEXT, decoder_start_token_id=start)
        assert reply.text() != model.ask(how, TEXT).text()

    def test_marians_target_is_a_mark_before_the_text(
        self, endpoint: Endpoint, references: References
    ) -> None:
        model = model_at(endpoint, "marian")
        text = expected(references, "marian", f">>deu<< {TEXT}", max_new_tokens=12)
        for target in ("deu", ">>deu<<"):
            reply = model.ask("tensors", TEXT, target_lang=target, max_tokens=12)
            assert reply.text() == text
        assert model.ask("tensors", f">>deu<< {TEXT}", max_tokens=12).text() == text
        assert model.ask("tensors", TEXT, max_tokens=12).text() != text


class LongInputs:
    """What does not fit is refused, or cut where that is asked for."""

    LONG = " ".join(WORDS * 9)

    def test_a_long_input_is_refused_with_both_numbers(
        self, endpoint: Endpoint, references: References
    ) -> None:
        reply = model_at(endpoint, "bart").ask("tensors", self.LONG)
        got = len(references("bart").tokenizer(self.LONG).input_ids)
        assert reply.status == 400
        assert reply.error == (
            f"text_input: got {got} tokens, this model takes at most 64; send truncate: true to "
            "cut it"
        )

    @pytest.mark.parametrize("how", ["tensors", "parameters"])
    @pytest.mark.parametrize("name", ["bart", "m2m100"])
    def test_truncate_cuts_it_as_transformers_does(
        self, endpoint: Endpoint, references: References, how: str, name: str
    ) -> None:
        options = {**TARGETS.get(name, {}), "truncate": True}
        reply = model_at(endpoint, name).ask(how, self.LONG, **options)
        cut = {"truncation": True, "max_length": 64}
        assert reply.text() == expected(references, name, self.LONG, truncation=cut)

    def test_a_prefix_counts_and_stays(self, endpoint: Endpoint, references: References) -> None:
        model = model_at(endpoint, "t5")
        reply = model.infer(model.by_tensors(self.LONG, truncate=True, **FLAGS))
        cut = {"truncation": True, "max_length": 48}
        assert reply.text() == expected(references, "t5", self.LONG, truncation=cut)
        assert reply.number("num_input_tokens") == 48

    def test_the_option_cuts_and_a_request_says_otherwise(self, endpoint: Endpoint) -> None:
        model = model_at(endpoint, "nllb")
        long = self.LONG * 2
        assert model.ask("tensors", long, target_lang="fra_Latn").ok
        reply = model.ask("tensors", long, target_lang="fra_Latn", truncate=False)
        assert reply.status == 400
        assert "this model takes at most 128" in reply.error

    def test_far_too_long_a_text_is_not_even_tokenised(self, endpoint: Endpoint) -> None:
        model = model_at(endpoint, "bart")
        huge = "cat " * 500_000
        reply = model.ask("tensors", huge)
        assert reply.status == 400
        assert reply.error.startswith("text_input: got 2000000 characters, allowed: at most ")
        assert model.ask("tensors", huge, truncate=True, max_tokens=4).ok


class Beams:
    """A model with ``num_beams`` searches, and samples only where a request wants one beam."""

    def test_a_batch_answers_as_transformers_own_beam_search_does(
        self, endpoint: Endpoint, references: References
    ) -> None:
        model, reference = model_at(endpoint, "searching"), references("bart")
        replies = model.infer_together([model.by_tensors(text, **COUNTS) for text in texts()[:2]])
        replies += [model.ask("tensors", text) for text in texts()[2:]]
        assert [r.text() for r in replies] == [reference.beams(t, 4) for t in texts()]
        assert replies[0].text() != reference.greedy(texts()[0])

    def test_lengths_penalties_and_bad_words_are_transformers_own(
        self, endpoint: Endpoint, references: References
    ) -> None:
        model, reference = model_at(endpoint, "searching"), references("bart")
        asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"max_tokens": 12}, {"max_new_tokens": 12}),
            ({"min_tokens": 16}, {"min_new_tokens": 16}),
            ({"length_penalty": -1.5}, {"length_penalty": -1.5}),
            ({"repetition_penalty": 2.0}, {"repetition_penalty": 2.0}),
            ({"beam_width": 4}, {}),
        ]
        replies = model.infer_together([model.by_tensors(TEXT, **ours) for ours, _ in asked])
        assert [reply.text() for reply in replies] == [
            reference.beams(TEXT, 4, **theirs) for _, theirs in asked
        ]

    def test_one_beam_is_greedy_and_may_sample_and_stream(
        self, endpoint: Endpoint, references: References
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
    ("bart", " \n", {}, "text_input: got white space alone, a text is required"),
    ("bart", b"\xff", {}, "text_input: not valid UTF-8 at byte 0"),
    ("bart", TEXT, {"max_tokens": 65}, "max_tokens: got 65 tokens, this model holds 64"),
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


class Refusals:
    """Each mistake has an error of its own, and its neighbours are answered."""

    @pytest.mark.parametrize("name, text, options, message", REFUSED)
    def test_a_bad_request_is_refused_and_its_neighbours_are_not(
        self, endpoint: Endpoint, name: str, text: str, options: dict[str, Any], message: str
    ) -> None:
        model = model_at(endpoint, name)
        good = model.by_tensors(TEXT, max_tokens=4, **TARGETS.get(name, {}))
        before, bad, after = model.infer_together([good, model.by_tensors(text, **options), good])
        assert bad.status == 400
        assert bad.error.startswith(message), bad.error
        assert before.text() == after.text()

    def test_of_many_languages_a_refusal_shows_some(self, endpoint: Endpoint) -> None:
        reply = model_at(endpoint, "nllb").ask("tensors", TEXT, target_lang="zz")
        assert reply.error.endswith(" more")
        assert len(reply.error) < 300

    def test_a_chats_messages_are_no_parameter_here(self, endpoint: Endpoint) -> None:
        reply = model_at(endpoint, "bart").ask("parameters", TEXT, messages="[]")
        assert reply.status == 400
        assert reply.error.startswith("messages: unknown parameter")

    def test_beams_have_no_log_probabilities(self, endpoint: Endpoint) -> None:
        reply = model_at(endpoint, "searching").ask("tensors", TEXT, "text_output", "logprobs")
        said = "logprobs: beams have none; send beam_width 1 for them"
        assert (reply.status, reply.error) == (400, said)
