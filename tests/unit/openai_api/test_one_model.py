"""The APIs of Hugging Face's servers of one model: text-generation-inference's, and what of it is
at /models/NAME.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_triton.ports.openai.routes.answers import Answer, Choice
from hf_triton.ports.openai.routes.tgi import GenerationWriter, read_generate
from hf_triton.ports.openai.schema.logprobs import Offsets, read_positions
from tests.unit.openai_api.conftest import Reply, Translator

WORDS = [("a", -1.5), (" b", -1.5), (" c", -1.5)]
TOKENS = [{"id": 5, "text": text, "logprob": one, "special": False} for text, one in WORDS]
OF_SERVER = "/models/echo"


def generate(api: Translator, path: str = "/generate", **body: object) -> Reply:
    return api.post(f"{OF_SERVER}{path}", **{"inputs": "a b c", **body})


def sent(api: Translator) -> dict[str, Any]:
    return dict(api.triton.seen[-1])


def test_a_text_is_continued_and_told_token_by_token(api: Translator) -> None:
    assert generate(api).body == {"generated_text": "a b c"}
    asks = {"details": True, "decoder_input_details": False, "max_new_tokens": 9}
    assert generate(api, parameters=asks).body == {
        "generated_text": "a b c",
        "details": {
            "finish_reason": "eos_token",
            "generated_tokens": 3,
            "seed": None,
            "prefill": [],
            "tokens": TOKENS,
        },
    }


def test_a_stream_ends_with_the_whole_text(api: Translator) -> None:
    asks = {"details": True, "return_full_text": True, "stop": ["c"]}
    *events, last = generate(api, "/generate_stream", parameters=asks).events
    none = {"generated_text": None, "details": None}
    assert events == [{"index": n, "token": TOKENS[n - 1], **none} for n in (1, 2)]
    assert last == {
        "index": 3,
        "token": TOKENS[2],
        "generated_text": "a b ca b c",
        "details": {
            "finish_reason": "stop_sequence",
            "generated_tokens": 3,
            "seed": None,
            "input_length": 6,
        },
    }


def test_a_chunk_of_several_tokens_has_its_text_once() -> None:
    asked = read_generate({"inputs": "x", "stream": True})
    writer = GenerationWriter(Answer(asked, "cmpl-1", "text-generation"))
    tokens = [
        {str(number): {"logprob": -1.5, "rank": 1, "decoded_token": text}}
        for number, text in enumerate(("a", "b", "</s>"))
    ]
    positions = read_positions(json.dumps(tokens), Offsets())
    events = writer.add(Choice(0, "a b", positions, finish_reason="stop"))
    told = [(one.token.id, one.token.text, one.token.special) for one in events]
    assert told == [(0, "", False), (1, "a b", False), (2, "", True)]
    assert events[-1].generated_text == "a b"


def test_without_a_path_of_its_own_the_answer_is_a_list_with_the_prompt(api: Translator) -> None:
    """As that server has it, for clients whose address is that of the model itself."""
    assert generate(api, "").body == [{"generated_text": "a b ca b c"}]
    events = generate(api, "", stream=True).events
    assert "".join(event["token"]["text"] for event in events) == "a b c"
    whole = {"return_full_text": False}
    assert generate(api, "", parameters=whole).body == [{"generated_text": "a b c"}]


def test_parameters_reach_the_model_and_nothing_asks_for_chance_by_itself(api: Translator) -> None:
    asks = {"max_new_tokens": 7, "truncate": 5, "stop": ["x"], "top_k": None, "typical_p": 0.95}
    generate(api, parameters={**asks, "repetition_penalty": 1.1, "frequency_penalty": 0.1})
    assert sent(api)["sampling_parameters"] == {
        "temperature": 0,
        "max_tokens": 7,
        "truncate_prompt_tokens": 5,
        "stop": ["x"],
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "include_stop_str_in_output": True,
    }
    found = generate(api, parameters={"do_sample": True, "details": True}).body["details"]
    given = sent(api)["sampling_parameters"]
    assert (given["temperature"], given["seed"]) == (1, found["seed"])
    assert given["clamp_max_tokens"], "without a number as long as the context is"


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": {"type": "object"}},
        {"type": "json", "value": '{"type": "object"}'},
        {"type": "json_schema", "value": {"name": "a", "schema": {"type": "object"}}},
    ],
)
def test_a_grammar_holds_the_answer(grammar: dict[str, Any], api: Translator) -> None:
    assert generate(api, parameters={"grammar": grammar}).status == 200
    assert sent(api)["sampling_parameters"]["json_schema"] == '{"type": "object"}'


@pytest.mark.parametrize(
    "prompt, status, kind", [("!503", 429, "overloaded"), ("!500", 424, "generation")]
)
def test_errors_of_the_model_are_told_in_its_words(
    prompt: str, status: int, kind: str, api: Translator
) -> None:
    for path in ("/generate", "/generate_stream", ""):
        reply = generate(api, path, inputs=prompt)
        assert (reply.status, reply.body["error_type"]) == (status, kind)
    [*_, last] = generate(api, "/generate_stream", inputs="a !fails").events
    assert last == {"error": "the engine died: try again later", "error_type": "overloaded"}


def test_where_several_models_fit_one_is_to_be_named(api: Translator) -> None:
    for path in ("/", "/generate", "/generate_stream"):
        reply = api.post(path, inputs="a b")
        assert reply.status == 422
        assert reply.body["error"].endswith("name one as model, or ask /models/NAME")
        assert api.post(path, inputs="a b", model="whole").status == 200
    assert api.get("/info").status == 422
    assert api.get("/info?model=whole").body["model_id"] == "whole"


def test_the_path_of_a_model_answers_by_what_it_does(api: Translator) -> None:
    assert api.post("/models/vectors", inputs="two", normalize=False).body == [[3, ord("t"), 0.5]]
    translated = api.post("/models/translator", inputs="a b c").body
    assert translated == [{"generated_text": "a b c"}], "not the prompt before it"
    assert api.post("/models/vectors/generate", inputs="two").status == 404
    assert api.post("/models/nothing", inputs="two").status == 404
    other = api.post("/models/zero_shot", inputs="two")
    assert other.status == 422
    assert "is for the task zero-shot-classification; ask Triton's" in other.body["error"]
    told = api.get("/models/echo/info").body
    assert (told["model_pipeline_tag"], told["max_total_tokens"]) == ("text-generation", 99)
    assert api.get("/models/echo").body == told
    assert api.get("/models/vectors/info").body["max_client_batch_size"] == 2048


def test_openais_paths_of_a_model_need_no_name(api: Translator) -> None:
    """With what the openai package sends to the base_url of one model, where huggingface_hub sends
    ``dummy``, and TGI's own client ``tgi``; errors are OpenAI's.
    """
    messages = [{"role": "user", "content": "a b"}]
    path = f"{OF_SERVER}/v1/chat/completions"
    assert api.post(path, model="tgi", messages=messages).body["model"] == "echo"
    assert api.post(path, model="tgi", messages=[]).error["param"] == "messages"
    path = f"{OF_SERVER}/v1/completions"
    assert api.post(path, model="tgi", prompt="a b").body["choices"][0]["text"] == "a b"
    embedded = api.post("/models/vectors/v1/embeddings", model="x", input="two").body
    assert (embedded["model"], len(embedded["data"])) == ("vectors", 1)
    assert [one["id"] for one in api.get(f"{OF_SERVER}/v1/models").body["data"]] == ["echo"]
    assert api.get("/models/nothing/v1/models").error["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/similarity", "/models/vectors/similarity", "/models/vectors"])
def test_sentences_are_compared_with_one(path: str, api: Translator) -> None:
    """With what huggingface_hub's sentence_similarity sends."""
    inputs = {"source_sentence": "two", "sentences": ["two", "three words"]}
    same, other = api.post(path, model="vectors", inputs=inputs, parameters={}).body
    assert (same, other) == (9, 33)
    reply = api.post(path, model="vectors", inputs={"sentences": ["two"]})
    assert reply.status == 422
    assert reply.body["error"].startswith("inputs.source_sentence: got none, allowed: a text")


def test_a_path_that_a_model_does_not_have_is_no_models_name(api: Translator) -> None:
    reply = api.post("/models/echo/v1/nothing", inputs="a")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
