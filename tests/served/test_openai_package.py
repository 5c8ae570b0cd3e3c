"""OpenAI's own package against the demo model on a real server."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image

from tests.scenarios.metrics import settled
from tests.support.media_files import base64_text, sound_file
from tests.support.one_server import LONGEST_TEXT, OneServer
from tests.support.tiny_whisper import speech
from tests.support.triton import Triton, eventually
from tests.unit.openai_api.conftest import openai_port

KEY = "the-key"
MODELS = ("demo", "batched", "embedding")
LONG: dict[str, Any] = {"max_tokens": LONGEST_TEXT, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models(*MODELS)


@pytest.fixture(scope="module")
def tight(one_server: OneServer) -> None:
    """Runs one request at a time. It knows tools, and writes LONGEST_TEXT tokens."""
    one_server.with_models("tight")


@pytest.fixture(scope="module")
def url(triton: Triton) -> Iterator[str]:
    with openai_port(triton, KEY) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


def test_a_transcription(one_server: OneServer, client: openai.OpenAI, triton: Triton) -> None:
    one_server.with_models("whisper")
    file = sound_file(speech(3.0))
    answer = triton.generate("whisper", audio=base64_text(file), return_timestamps="segments")
    found = client.audio.transcriptions.create(
        model="whisper", file=("a.wav", file), response_format="verbose_json"
    )
    assert found.text == answer.body["text_output"].strip()
    assert [(one.start, one.end, one.text) for one in found.segments or ()] == [
        (one["start"], one["end"], one["text"]) for one in json.loads(answer.body["segments"])
    ]
    assert all(one.avg_logprob < 0 and one.tokens for one in found.segments or ())
    assert found.language in ("english", "french", "german")
    with pytest.raises(openai.BadRequestError, match="file: the WAV file is cut short"):
        client.audio.transcriptions.create(model="whisper", file=("a.wav", file[:-3000]))


def test_embeddings(client: openai.OpenAI) -> None:
    """The package asks for base64, and decodes it."""
    model = "embedding"
    texts = ["A dog sleeps under a tree.", "A dog is sleeping below a tree.", "Prices rose again."]
    answer = client.embeddings.create(model=model, input=texts)
    vectors = np.array([row.embedding for row in answer.data])
    assert answer.usage.prompt_tokens > 12
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]

    floats = client.embeddings.create(model=model, input=texts[0], encoding_format="float")
    np.testing.assert_allclose(floats.data[0].embedding, vectors[0], atol=1e-5)
    short = client.embeddings.create(model=model, input=texts[0], dimensions=8)
    assert len(short.data[0].embedding) == 8
    blank = client.embeddings.create(model=model, input=[texts[0], " "]).data
    np.testing.assert_allclose(blank[0].embedding, vectors[0], atol=1e-5)
    body = {"model": model, "text_1": texts[0], "text_2": texts[1:]}
    scored: Any = client.post("/score", cast_to=object, body=body)
    lengths = np.linalg.norm(vectors, axis=1)
    expected = vectors[1:] @ vectors[0] / lengths[1:] / lengths[0]
    np.testing.assert_allclose([one["score"] for one in scored["data"]], expected, atol=1e-4)


def test_a_tokenizer_tells_the_tokens_that_a_prompt_has(client: openai.OpenAI) -> None:
    root = str(client.base_url).removesuffix("/v1/")

    def ask(path: str, **body: object) -> Any:
        return client.post(f"{root}/{path}", cast_to=object, body={"model": "demo", **body})

    told = ask("tokenize", prompt="I am going", return_token_strs=True)
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 1}
    usage = client.completions.create(prompt="I am going", **asked).usage
    assert usage is not None
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) == usage.prompt_tokens
    assert ask("detokenize", tokens=told["tokens"])["prompt"] == "I am going"
    messages: Any = [{"role": "user", "content": "I am going"}]
    chat = client.chat.completions.create(messages=messages, **asked)
    assert chat.usage is not None
    assert ask("tokenize", messages=messages)["count"] == chat.usage.prompt_tokens
    counted = ask("v1/messages/count_tokens", messages=messages)
    assert counted == {"input_tokens": chat.usage.prompt_tokens}
    with pytest.raises(openai.BadRequestError, match="tokens: got 99999999, allowed: integers"):
        ask("detokenize", tokens=[99_999_999])


@pytest.mark.parametrize("model", ["demo", "see", "batched"])
def test_a_stream_reads_as_the_whole(
    model: str, client: openai.OpenAI, one_server: OneServer
) -> None:
    triton = one_server.with_models(model)
    asked: dict[str, Any] = {"model": model, "prompt": "I am going", "temperature": 0}
    chunks = list(client.completions.create(**asked, max_tokens=30, stream=True))
    direct = triton.generate(model, text_input="I am going", max_tokens=30).body
    assert "".join(chunk.choices[0].text for chunk in chunks) == direct["text_output"]
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")
    assert len(chunks) == 1 if model == "see" else len(chunks) > 1


def test_responses(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "input": "Hello, how are you?", "temperature": 0}
    whole = client.responses.create(**asked)
    *_, last = client.responses.create(**asked, stream=True)
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text == whole.output_text
    messages: Any = [{"role": "user", "content": asked["input"]}]
    chat = client.chat.completions.create(model="demo", messages=messages, temperature=0)
    assert chat.choices[0].message.content == whole.output_text
    later = client.responses.create(**asked, previous_response_id=whole.id)
    assert later.usage.input_tokens > whole.usage.input_tokens  # the earlier turn's beside its own
    with pytest.raises(openai.BadRequestError, match="maximum context length is"):
        client.responses.create(model="demo", input="word " * 3000)


@pytest.mark.parametrize("model", ["demo", "batched"])
def test_a_chat(model: str, client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "I am going"}]
    asked: dict[str, Any] = {"model": model, "messages": messages, "seed": 5, "n": 2}
    whole = client.chat.completions.create(**asked, max_completion_tokens=20)
    texts = ["", ""]
    usage = None
    options: Any = {"include_usage": True}
    for chunk in client.chat.completions.create(
        **asked, max_completion_tokens=20, stream=True, stream_options=options
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert usage is not None
    assert whole.usage is not None
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")  # the second finds its prompt
    assert usage.model_dump(include={*counts}) == whole.usage.model_dump(include={*counts})
    assert whole.choices[0].message.role == "assistant"


def about(file: bytes) -> Any:
    url = f"data:image/png;base64,{base64.b64encode(file).decode()}"
    image = {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}
    text = {"type": "text", "text": "What colour is it?"}
    return [{"role": "user", "content": [text, image]}]


def test_chats_about_images_and_a_bad_one_beside_them(
    one_server: OneServer, client: openai.OpenAI
) -> None:
    one_server.with_models("see")
    files = {}
    for colour in ("red", "blue"):
        packed = io.BytesIO()
        Image.new("RGB", (50, 40), colour).save(packed, "PNG")
        files[colour] = packed.getvalue()
    files["bad"] = files["red"][:60]

    def said(name: str) -> str:
        found: Any = client.chat.completions.create(
            model="see", messages=about(files[name]), temperature=0, stream=name == "blue"
        )
        if name == "blue":
            return "".join(chunk.choices[0].delta.content or "" for chunk in found)
        return str(found.choices[0].message.content)

    with ThreadPoolExecutor(3) as threads:
        red, bad, blue = (threads.submit(said, name) for name in ("red", "bad", "blue"))
    assert [red.result().strip(), blue.result().strip()] == ["it is red.", "it is blue."]
    with pytest.raises(openai.BadRequestError) as raised:
        bad.result()
    assert raised.value.param == "messages[0].content[1].image_url.url"
    assert "messages[0].content[1].image_url.url: the PNG image is cut short" in str(raised.value)
    with pytest.raises(openai.BadRequestError, match=r"'demo' \(text-generation\) reads only"):
        client.chat.completions.create(model="demo", messages=about(files["red"]))


def test_errors_are_the_packages_own(client: openai.OpenAI, url: str) -> None:
    create = client.completions.create
    with pytest.raises(openai.BadRequestError, match="temperature: got -1") as caught:
        create(model="demo", prompt="x", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match=r"1024"):
        create(model="demo", prompt="x", max_tokens=5000)
    with pytest.raises(openai.BadRequestError, match="role"):
        client.chat.completions.create(model="demo", messages=[{"content": "x"}])  # type: ignore[list-item]
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="nobody", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="is a text-generation model"):
        client.embeddings.create(model="demo", input="x")
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def is_free(client: openai.OpenAI) -> bool:
    """True if ``tight``, which has one slot, answers, so that the slot is free."""
    try:
        asking = client.with_options(timeout=5)
        asking.completions.create(model="tight", prompt="x", max_tokens=1)
    except openai.APITimeoutError:
        return False
    return True


@pytest.mark.usefixtures("tight")
def test_a_client_that_gives_up_waiting_frees_its_slot(
    client: openai.OpenAI, triton: Triton
) -> None:
    def num_tokens() -> float:
        return triton.metric("hf_triton_generated_tokens_total", model="tight")

    before = settled(num_tokens)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).completions.create(model="tight", prompt="x", **LONG)
    assert eventually(lambda: is_free(client))
    assert settled(num_tokens) < before + LONG["max_tokens"], "it went on to its end"


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
]
ASK: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
# A text that the model is made to write, as it would not by itself.
CALL = (
    r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "[A-Z][a-z]{1,4}"\}\}\n</tool_call>'
)


def test_an_answer_fits_its_response_format(client: openai.OpenAI) -> None:
    named = {"$schema": "any", "$id": "Output Format", **SCHEMA}
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": named}}
    asked: dict[str, Any] = {"model": "demo", "messages": ASK, "response_format": form}
    whole = client.chat.completions.create(**asked, temperature=0).choices[0]
    assert set(json.loads(whole.message.content or "")) == {"city"}
    assert whole.finish_reason == "stop"
    form["json_schema"]["schema"] = {"type": "strin"}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="schema: Invalid type: strin"):
            client.chat.completions.create(**asked, stream=stream)


@pytest.mark.usefixtures("tight")
def test_a_model_that_writes_a_call_is_answered_with_it_and_takes_its_result(
    client: openai.OpenAI,
) -> None:
    asked: dict[str, Any] = {"model": "tight", "tools": TOOLS, "extra_body": {"guided_regex": CALL}}
    answer = client.chat.completions.create(**asked, messages=ASK).choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"city"}

    names, arguments = [], ""
    for chunk in client.chat.completions.create(**asked, messages=ASK, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            assert part.function is not None
            names += [part.function.name] if part.function.name else []
            arguments += part.function.arguments or ""
    assert names == ["weather"]
    assert set(json.loads(arguments)) == {"city"}

    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    messages = [*ASK, answer.message, result]
    said = client.chat.completions.create(
        model="tight", messages=messages, tools=TOOLS, max_tokens=8
    ).choices[0]
    assert said.message.content
    assert said.message.tool_calls is None


def test_a_template_without_tools_is_told_of_them_in_words(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "tools": TOOLS[:1], "messages": [*ASK]}
    forced: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
    answer = client.chat.completions.create(**asked, **forced, temperature=0).choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls or []
    assert call.type == "function"
    assert set(json.loads(call.function.arguments)) == {"city"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    asked["messages"] += [answer.message, result]
    said = client.chat.completions.create(**asked, max_tokens=8).choices[0]
    assert said.finish_reason in ("length", "stop", "tool_calls")
