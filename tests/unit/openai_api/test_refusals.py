"""Refuses fields by the names that callers sent, route by route, before any model is asked.

That each declared field of each route is told by its name is tests/model/openai_api's.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.openai_api.conftest import Translator

USER = [{"role": "user", "content": "a b c"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
FLAT = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
OWN = {"name": "weather", "description": "Looks.", "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
HOSTED = [{"type": kind} for kind in ("web_search", "web_search_preview_2025_03_11", "mcp")]
HOSTED.append({"type": "local_shell"})
ALLOWED = {"type": "allowed_tools", "tools": [FLAT], "mode": "required"}
SPACE = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [FLAT]}
PATCH = {"type": "custom", "name": "patch"}
IMAGE = {"text": "a", "image": "data:image/png;base64,"}
BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "echo", "prompt": "a b c"},
    "/v1/chat/completions": {"model": "echo", "messages": USER},
    "/v1/responses": {"model": "echo", "input": "a b c"},
    "/v1/messages": {"model": "echo", "messages": USER, "max_tokens": 50},
    "/v1/embeddings": {"model": "vectors", "input": "x"},
    "/rerank": {"model": "pairs", "query": "a", "documents": ["b"]},
    "/v1/ranking": {"model": "pairs", "query": {"text": "a"}, "passages": [{"text": "b"}]},
    "/score": {"model": "pairs", "text_1": "a", "text_2": "b"},
    "/classify": {"model": "labels"},
    "/tokenize": {"model": "echo"},
    "/detokenize": {"model": "echo"},
    "/models/echo/generate": {"inputs": "a b c"},
    "/models/labels/predict": {"inputs": "a"},
    "/models/pairs/predict": {"inputs": ["a", "b"]},
    "/models/pairs/rerank": {"query": "a", "texts": ["b"]},
    "/v2/models/stranger/generate": {"words": "a"},
}
REFUSED: dict[str, list[tuple[Any, str]]] = {
    "/v1/completions": [
        ({"temprature": 1}, "temprature: unknown or unsupported field, did you mean temperature?"),
        ({"prompt": [1, "a"]}, "prompt: got a list of 2, allowed: a text, a list of token ids"),
        ({"prompt": [[1, -2]]}, "prompt[0][1]: got -2, allowed: an integer (0 and more)"),
        ({"prompt": [1, 2**31]}, f"prompt[1]: got {2**31}"),
        ({"prompt": [[]]}, "prompt[0]: got a list of 0, allowed: "),
        (
            {"prompt": ["a"] * 257},
            "prompt: got a list of 257, allowed: a text, a list of token ids, or 1 to 256",
        ),
        ({"prompt": None}, "prompt: got none"),
        ({"model": None}, "model: got none"),
        ({"max_tokens": 0}, "max_tokens: got 0, allowed: 1 and more, or 0 with echo"),
        (
            {"logit_bias": {"x": 1}},
            "logit_bias: got a name that is not an id, allowed: token ids",
        ),
        ({"best_of": 3}, "best_of: got 3, allowed: the same as n (1)"),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options: got an object, allowed: only with stream",
        ),
        ({"prompt_logprobs": 1}, "prompt_logprobs: send echo and logprobs to /v1/completions"),
        ({"return_token_ids": True}, "return_token_ids: Triton's /v2/models/NAME/generate"),
        ({"echo": True, "logprobs": 1, "stream": True, "n": 2}, "n: got 2"),
        *(({name: "T\0A"}, f"{name}: ") for name in ("cache_salt", "user", "safety_identifier")),
    ],
    "/v1/chat/completions": [
        *(({"use_beam_search": True}, "use_beam_search"), ({"length_penalty": 0.5}, "length_")),
        *(({"spaces_between_special_tokens": False}, "spaces"), ({"echo": True}, "echo: ")),
        *(({"mirostat": 2}, "mirostat: "), ({"top_logprobs": 1}, "top_logprobs: ")),
        *(({"n_predict": 9}, "n_predict: "), ({"options": {"temperature": 0}}, "options: ")),
        ({"web_search_options": {}}, "web_search_options: "),
        ({"max_completion_tokens": 2, "max_tokens": 3}, "max_tokens: "),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty: "),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final"),
        *(
            ({"response_format": form}, f"response_format{said}")
            for form, said in (
                (
                    {"type": "json_schema", "json_schema": {"name": "x"}},
                    ".json_schema.schema: got none",
                ),
                ({"type": "json"}, ".value: got none, allowed: an object"),
                ({"type": "regex", "value": {}}, ".value: got an object, allowed: a text"),
                ({"type": "json_schema"}, ".json_schema: got none"),
                ({"type": "json_object", "schema": {}, "value": {}}, ": got schema and val"),
                ({"type": "json_object", "json_schema": {}}, ": got an unknown name in it"),
                (
                    {"type": "xml"},
                    ".type: got another text, allowed: json, json_object, json_schema",
                ),
            )
        ),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name: "),
        ({"tools": [TOOL, TOOL]}, "tools: got one function's name twice"),
        ({"tools": [TOOL] * 129}, "tools: "),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice: "),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "tool_choice.allowed_tools: send those tools alone",
        ),
        ({"functions": [FUNCTION]}, "functions: of OpenAI's older API; send tools"),
        ({"function_call": "auto"}, "function_call: of OpenAI's older API; send tool_choice"),
        (
            {"messages": [{"role": "assistant", "content": None, "function_call": {"name": "f"}}]},
            "messages[0].function_call: of OpenAI's older API; send tool_calls",
        ),
        (
            {"messages": [*USER, {"role": "function", "name": "f", "content": "1"}]},
            "messages[1].role: function is of OpenAI's older API; send tool",
        ),
    ],
    "/v1/responses": [
        ({"previous_response_id": "r"}, "previous_response_id: not kept here, or no longer"),
        ({"conversation": "c"}, "conversation: conversations are not kept here; send previous_"),
        ({"background": True}, "background: got another value (true), allowed: false"),
        ({"messages": []}, "messages: not a field of this path; send input"),
        ({"max_tokens": 3}, "max_tokens: not a field of this path; send max_output_tokens"),
        (
            {"reasoning_effort": "high"},
            "reasoning_effort: not a field of this path; send reasoning.effort",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]: not kept here, or no"),
        ({"input": [{"type": "mcp_call"}]}, "input[0].type: got mcp_call"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content"),
        (
            {"tools": HOSTED[:1], "tool_choice": "required"},
            "tool_choice: got a call of web_search, allowed: functions, which the client",
        ),
        ({"tools": HOSTED, "tool_choice": {"type": "mcp"}}, "tool_choice: got a call of mcp"),
        ({"tools": [FLAT], "tool_choice": ALLOWED}, "tool_choice: got allowed_tools, allowed: "),
        ({"tools": [SPACE, SPACE]}, "tools: got one function's name twice"),
        (
            {"tools": [{**SPACE, "tools": [{"type": "function", "name": 5}]}]},
            "tools[0].tools[0].name: got 5",
        ),
        ({"tools": [*HOSTED, {**FLAT, "parameters": 5}]}, "tools[4].parameters: got 5"),
        ({"tools": [PATCH]}, "tools[0].type: got custom, allowed: function (for a custom tool"),
        ({"input": [{"type": "custom_tool_call"}]}, "input[0].type: got custom_tool_call"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary: got another text"),
        ({"truncation": "auto"}, "truncation: got another text, allowed: disabled"),
    ],
    "/v1/messages": [
        ({"max_tokens": None}, "max_tokens: got none"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role: "),
        ({"messages": [{"role": "system"}]}, "messages: got none with a content"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].cont"),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tools[0].type: got the hosted tool"),
        (
            {"tools": [OWN, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}},
            "tools[1].type: got the hosted tool web_search_20250305",
        ),
        ({"tools": [SEARCH, {"name": ""}]}, "tools[1].name: got an empty text"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"stop": "x"}, "stop: not a field of this path; send stop_sequences"),
        ({"thread": {"type": "create"}}, "thread: no conversation is kept here; send all"),
        ({"output_config": {"effort": ""}}, "output_config.effort: got an empty text"),
    ],
    "/v1/embeddings": [
        ({"input": ["a"] * 2049}, "input: got a list of 2049"),
        ({"input": [1, 2]}, "input: got token ids, allowed: a text or a list of texts ("),
        ({"task": "separation"}, "task: send input_type or prompt_name"),
        ({"embedding_type": "base64"}, "embedding_type: send encoding_format"),
        ({"normalized": True}, "normalized: serve a model that normalizes, or ask /embed"),
        ({"encoding_format": "int8"}, "encoding_format: got another text, allowed: base64, float"),
        ({"dimension": 3}, "dimension: unknown or unsupported field, did you mean dimensions?"),
        *(({name: "T\0A"}, f"{name}: ") for name in ("cache_salt", "user")),
    ],
    "/rerank": [
        ({"documents": ["a"] * 2049}, "documents: got a list of 2049, allowed: a list of "),
        (
            {"documents": ["a", {"title": "b"}]},
            "documents[1]: got an object without text, allowed: a text or",
        ),
        ({"documents": [5]}, "documents[0]: got 5"),
        ({"documents": [IMAGE]}, "documents[0].image: "),
        (
            {"truncate_prompt_tokens": 9},
            "truncate_prompt_tokens: got another value (9), allowed: -1 (nothing",
        ),
        ({"model": "labels"}, "model: got a classifier of 3 labels, allowed: one of a single"),
        ({"model": "zero_shot"}, "model: 'zero_shot' is for the task zero-shot-classification"),
        ({"priority": 1}, "priority: got another value (1)"),
    ],
    "/v1/ranking": [
        ({"query": {}}, "query: got an object without text"),
        ({"passages": [IMAGE]}, "passages[0].image: models"),
    ],
    "/score": [({"text_1": ["a", "b"]}, "text_1: got 2 texts for 1")],
    "/classify": [
        ({}, "input: got none, allowed: a text or a list"),
        ({"model": "zero_shot", "input": "a"}, "model: 'zero_shot' is for the task zero-shot"),
    ],
    "/tokenize": [
        ({}, "prompt: got none, allowed: a text, or messages"),
        ({"prompt": "a", "messages": USER}, "messages: got a value, allowed: none with prompt"),
    ],
    "/detokenize": [({}, "tokens: got none")],
    "/models/echo/generate": [
        *(
            ({"parameters": given}, f"parameters{said}")
            for given, said in (
                ({"best_of": 2}, ".best_of: got another value (2), allowed: 1"),
                ({"max_tokens": 5}, ".max_tokens: send max_new_tokens"),
                ({"top_n_tokens": 2}, ".top_n_tokens: send logprobs to /v1/completions"),
                ({"decoder_input_details": True}, ".decoder_input_details: send logprobs to"),
                ({"max_new_token": 5}, ".max_new_token: unknown or unsupported field, did you"),
                ({"grammar": {"type": "regex"}}, ".grammar.value: got none, allowed: a text"),
                ({"grammar": {"type": "json", "value": "{"}}, ".grammar.value: got a text"),
                ({"grammar": {"type": "json", "value": "1" * 5000}}, ".grammar.value: got a t"),
                ([], ": got a list, allowed: an object"),
            )
        ),
    ],
    "/models/labels/predict": [
        ({"inputs": ["a", "b", "c"]}, "inputs: got a list of 3, allowed: a text"),
        ({"inputs": [["a"], "b"]}, "inputs: got a list of 2, allowed: a"),
        ({"inputs": []}, "inputs: got a list of 0"),
        ({"parameters": {"top_k": 0}}, "parameters.top_k: got 0"),
    ],
    "/models/pairs/predict": [
        ({"inputs": [["a"], ["b", "c"]]}, "inputs: got a list of 2, allowed: a")
    ],
    "/models/pairs/rerank": [
        ({"texts": [5]}, "texts[0]: got 5, allowed: a text"),
        ({"top_n": 1}, "top_n: unknown or unsupported"),
    ],
    "/v2/models/stranger/generate": [
        ({"colour": "red"}, "colour: unknown, allowed: words, times, scale, loud"),
        *(
            ({name: value}, f"{name}: got another value, allowed: {of_type}, or a list of them")
            for name, value, of_type in (
                *(("words", [1], "BYTES"), ("times", "a", "INT32")),
                *(("times", 2**31, "INT32"), ("scale", 1e300, "FP32")),
            )
        ),
    ],
}


@pytest.fixture(scope="module")
def api(module_api: Translator) -> Translator:
    return module_api


@pytest.mark.threat("alike-salts")
@pytest.mark.parametrize(
    "path, body, said",
    [(path, body, said) for path, rows in REFUSED.items() for body, said in rows],
    ids=lambda value: str(value)[:50],
)
def test_what_is_wrong_is_named_in_the_form_of_its_route(
    path: str, body: dict[str, Any], said: str, api: Translator
) -> None:
    reply = api.post(path, **{**BASES[path], **body})
    told = reply.body["error"]
    if path.startswith("/models/"):
        assert (reply.status, reply.body["error_type"]) == (422, "validation"), reply.text
    else:
        assert (reply.status, told["type"]) == (400, "invalid_request_error"), reply.text
        if path != "/v1/messages":
            assert told["message"].startswith(told["param"].partition("[")[0].partition(".")[0])
        told = told["message"]
    assert told.startswith(said), told
    assert not api.triton.seen


BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "the body is not valid JSON: Input data was truncated"),
    "half": (b"{", "not valid JSON"),
    "a list": (b"[]", "got a list, allowed: a JSON object"),
    "no UTF-8": (b'{"a": "\xff"}', "Invalid UTF-8"),
    "NaN": (b'{"a": NaN}', "invalid character (byte 6)"),
    "a surrogate": (b'{"prompt": "\\ud800 and more"}', "surrogate pair"),
    "digits": (b'{"n": ' + b"9" * 5000 + b"}", "Integer value out of range"),
    "an integer": (b'{"model": "m", "prompt": "a", "seed": ' + b"9" * 4000 + b"}", "64 bits"),
    "deep": (b"[" * 200_000, "nested too deeply"),
    "infinity": (b'{"model": "echo", "prompt": "x", "temperature": 1e999}', "Number out of range"),
}


@pytest.mark.parametrize("data, said", BODIES.values(), ids=BODIES)
def test_a_broken_body_is_a_400_that_says_where(data: bytes, said: str, api: Translator) -> None:
    reply = api.send("POST", "/v1/completions", data)
    assert reply.status == 400
    assert said in reply.error["message"]


@pytest.mark.threat("texts-in-logs")
def test_no_error_quotes_a_text(api: Translator) -> None:
    secret = "my secret prompt"
    for body in ({"n": secret}, {secret: 1}, {"stop": {secret: 1}}, {"logit_bias": {secret: 1}}):
        assert secret not in api.completion(**body).text, json.dumps(body)
