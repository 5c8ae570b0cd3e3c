"""Triton's answers become objects, events, usage and log-probabilities."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hf_triton.ports.openai import app, exchanges
from hf_triton.ports.openai.responses.kept import EarlierResponses
from hf_triton.ports.openai.routes import answers
from tests.unit.openai_api.conftest import Translator


def test_a_completion(api: Translator) -> None:
    reply = api.completion(max_tokens=2)
    body = reply.body
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "object": "text_completion",
        "model": "echo",
        "choices": [{"index": 0, "text": "a b", "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
    assert reply.headers["X-Request-Id"].startswith("cmpl-")


def test_a_completion_may_echo_and_run_out_of_time(api: Translator) -> None:
    [choice] = api.completion(prompt="a !late", echo=True).body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("a !latea !late", "length")


def test_a_chat(api: Translator) -> None:
    body = api.chat().body
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    [choice] = body["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "a b c", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }


@pytest.mark.parametrize("model", ["echo", "whole"])
@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_all_prompts_are_counted_through(
    model: str, stream: bool, api: Translator
) -> None:
    reply = api.completion(model=model, prompt=["a b", "c", "d e f"], n=2, stream=stream)
    texts = joined(reply) if stream else [c["text"] for c in reply.body["choices"]]
    assert texts == ["a b", "a b", "c", "c", "d e f", "d e f"]
    if not stream:
        usage = {"prompt_tokens": 5 + 4 + 6, "completion_tokens": 12, "total_tokens": 27}
        assert reply.body["usage"] == usage


def joined(reply: Any) -> list[str]:
    """The texts of a stream's choices by index; checks that each ends once, and then is silent."""
    texts: dict[int, str] = {}
    ended: set[int] = set()
    *events, done = reply.events
    assert done == "[DONE]"
    for event in events:
        for choice in event["choices"]:
            index = choice["index"]
            assert index not in ended
            delta = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            texts[index] = texts.get(index, "") + delta
            if choice["finish_reason"]:
                ended.add(index)
    assert ended == set(texts)
    assert len({event["id"] for event in events}) == 1
    return [texts[index] for index in sorted(texts)]


def test_a_stream_of_a_chat_begins_with_the_role_of_each_choice(api: Translator) -> None:
    reply = api.chat(stream=True, n=2)
    first, second, *_ = reply.events
    assert first["object"] == "chat.completion.chunk"
    for index, event in enumerate((first, second)):
        [choice] = event["choices"]
        assert choice["index"] == index
        assert choice["delta"] == {"role": "assistant", "content": ""}
    assert joined(reply) == ["a b c", "a b c"]


def test_usage_so_far_is_in_every_event_where_it_is_wanted(api: Translator) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, usage, _ = api.chat(stream=True, stream_options=options).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == usage["usage"]["completion_tokens"] == 3
    *events, usage, _ = api.chat(stream=True, stream_options={"include_usage": True}).events
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9}
    assert all(event["usage"] is None for event in events)
    assert not any("usage" in event for event in api.chat(stream=True).events)


def test_logprobs_of_a_completion(api: Translator) -> None:
    logprobs = api.completion(logprobs=2, prompt="a b").body["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", " b"],
        "token_logprobs": [-1.5, -1.5],
        "top_logprobs": [{"\ufffd": -0.5, "a": -1.5}, {"\ufffd": -0.5, " b": -1.5}],
        "text_offset": [0, 1],
    }
    assert api.completion(logprobs=0).body["choices"][0]["logprobs"]["top_logprobs"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_echoed_logprobs_begin_with_the_prompts(stream: bool, api: Translator) -> None:
    asked = {"prompt": "a b", "echo": True, "logprobs": 1, "max_tokens": 1}
    reply = api.completion(**asked, stream=stream)
    [first] = reply.events[:-1] if stream else [reply.body]
    logprobs = first["choices"][0]["logprobs"]
    assert first["choices"][0]["text"] == "a ba"
    likeliest = {"\ufffd": -0.5}
    assert logprobs == {
        "tokens": ["a", " b", "a"],
        "token_logprobs": [None, -1.5, -1.5],
        "top_logprobs": [None, {**likeliest, " b": -1.5}, {**likeliest, "a": -1.5}],
        "text_offset": [0, 1, 3],
    }


def test_a_prompt_alone_can_be_looked_at(api: Translator) -> None:
    body = api.completion(prompt="a b", echo=True, logprobs=0, max_tokens=0).body
    [choice] = body["choices"]
    assert choice["text"] == "a b"
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5]
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert api.triton.seen[0]["sampling_parameters"]["max_tokens"] == 0


@pytest.mark.threat("guesses-in-metrics")
def test_cached_tokens_are_told_to_whom_they_belong(api: Translator) -> None:
    assert "prompt_tokens_details" not in api.completion().body["usage"]
    usage = api.completion(cache_salt="ann").body["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("stream", [False, True])
def test_the_tokens_of_a_reasoning_are_told_where_they_are_counted(
    stream: bool, api: Translator
) -> None:
    counted = {"reasoning": "think", "num_reasoning_tokens": [2]}
    kwargs = {"chat_template_kwargs": {"chat_format": counted}}
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    messages = [{"role": "user", "content": "<think>a b</think> c"}]
    reply = api.chat(messages=messages, **kwargs, **options)
    usage = reply.events[-2]["usage"] if stream else reply.body["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2}
    told = api.post("/v1/responses", model="echo", input="<think>a b</think>", **kwargs).body[
        "usage"
    ]
    assert told["output_tokens_details"] == {"reasoning_tokens": 2}
    usage = api.chat(**kwargs).body["usage"]
    assert "completion_tokens_details" not in usage, "nothing of it was reasoning"


def test_logprobs_of_a_chat_leave_out_what_is_less_likely(api: Translator) -> None:
    reply = api.chat(logprobs=True, top_logprobs=2)
    first = reply.body["choices"][0]["logprobs"]["content"][0]
    assert first == {
        "token": "a",
        "logprob": -1.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "\ufffd", "logprob": -0.5, "bytes": None},
            {"token": "a", "logprob": -1.5, "bytes": [97]},
        ],
    }
    reply = api.chat(logprobs=True)
    assert reply.body["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


@pytest.mark.threat("many-logprobs")
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_long_is_read_and_written_on_a_thread(
    stream: bool, api: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would wait meanwhile."""
    threads: list[threading.Thread] = []

    def noting(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(value: Any) -> Any:
            threads.append(threading.current_thread())
            return write(value)

        return noted

    asked: dict[str, Any] = {"prompt": "a b", "logprobs": 1, "stream": stream}
    monkeypatch.setattr(answers, "to_json", noting(answers.to_json))
    monkeypatch.setattr(app, "json_response", noting(exchanges.json_response))
    reply = api.completion(**asked)
    told = [one["choices"] for one in (reply.events[:-1] if stream else [reply.body])]
    (loop,) = set(threads)
    threads.clear()
    monkeypatch.setattr(answers, "LARGE_BYTES", 1)
    reply = api.completion(**asked)
    assert told == [one["choices"] for one in (reply.events[:-1] if stream else [reply.body])]
    assert threads
    assert threads[0] is not loop


@pytest.mark.parametrize("stream", [False, True])
def test_a_large_response_is_kept_from_a_thread(
    stream: bool, api: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    put = EarlierResponses.put

    def noted(*args: Any) -> bool:
        threads.append(threading.current_thread())
        return put(*args)

    monkeypatch.setattr(EarlierResponses, "put", noted)
    asked = {"model": "echo", "input": "a b", "include": ["message.output_text.logprobs"]}
    for _ in range(2):
        assert api.post("/v1/responses", **asked, stream=stream).status == 200
        monkeypatch.setattr(answers, "LARGE_BYTES", 1)
    loop, other = threads
    assert other is not loop
