"""Responses that are kept: gone on from, told again, forgotten; each caller's for itself."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from hf_triton.ports.openai.responses import kept as kept_responses
from hf_triton.ports.openai.responses.kept import EarlierResponses, KeptResponses, item_id
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.settings import Access, Caller
from tests.unit.openai_api.conftest import Reply, Starter, Translator

PATH = "/v1/responses"


def ask(api: Translator, **body: Any) -> Reply:
    return api.post(PATH, **{"model": "echo", "input": "a b", **body})


def said(api: Translator) -> list[tuple[str, str]]:
    messages = Reply(200, {}, api.triton.seen[-1]["messages"]).body
    return [(message["role"], message["content"]) for message in messages]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_an_earlier_response(api: Translator, stream: bool) -> None:
    first = ask(api, instructions="Be kind.", stream=stream)
    text = first.text.rpartition("data: ")[2] if stream else first.text
    body = Reply(200, {}, text).body
    second = ask(api, input="c", previous_response_id=(body["response"] if stream else body)["id"])
    third = ask(api, input="d", previous_response_id=second.body["id"]).body
    assert third["previous_response_id"] == second.body["id"]
    asked = [("user", "a b"), ("assistant", "a b"), ("user", "c"), ("assistant", "c")]
    assert said(api) == [*asked, ("user", "d")], "instructions are of one response alone"


def test_an_item_is_referred_to(api: Translator) -> None:
    [item] = ask(api).body["output"]
    reference = {"type": "item_reference", "id": item["id"]}
    second = ask(api, input=[reference, {"role": "user", "content": "c"}]).body
    assert said(api) == [("assistant", "a b"), ("user", "c")]
    ask(api, input="d", previous_response_id=second["id"])
    assert said(api)[0] == ("assistant", "a b")
    twice = ask(api, input=[reference, reference])
    assert twice.error["param"] == "input[1]"


def test_a_response_is_told_again_and_forgotten(api: Translator) -> None:
    answered = ask(api).body
    path = f"{PATH}/{answered['id']}"
    assert api.get(path).body == answered
    Response.model_validate(answered)
    assert api.get(f"{path}?stream=true").status == 400
    assert api.send("DELETE", f"{path}?stream=true").body["deleted"] is True
    for reply in (api.get(path), api.send("DELETE", path)):
        assert (reply.status, reply.error["param"]) == (404, "id")
    gone = ask(api, previous_response_id=answered["id"])
    assert (gone.status, gone.error["code"]) == (400, "previous_response_not_found")


def test_what_is_not_to_be_stored_is_not(api: Translator, starter: Starter) -> None:
    answered = ask(api, store=False).body
    assert answered["store"] is False
    assert api.get(f"{PATH}/{answered['id']}").status == 404
    off = starter.api(keep_s=0)
    answered = ask(off, store=True).body
    assert answered["store"] is False
    assert off.get(f"{PATH}/{answered['id']}").status == 404


@pytest.mark.threat("kept-responses")
def test_nobody_reads_anothers(starter: Starter) -> None:
    api = starter.api(access=Access((Caller("alice", "a" * 16), Caller("bob", "b" * 16))))
    api.headers["Authorization"] = f"Bearer {'a' * 16}"
    answered = ask(api).body
    reference = {"type": "item_reference", "id": answered["output"][0]["id"]}
    api.headers["Authorization"] = f"Bearer {'b' * 16}"
    path = f"{PATH}/{answered['id']}"
    tried = (api.get(path), api.send("DELETE", path))
    assert [reply.status for reply in tried] == [404] * 2
    assert ask(api, previous_response_id=answered["id"]).status == 400
    assert ask(api, input=[reference]).status == 400
    api.headers["Authorization"] = f"Bearer {'a' * 16}"
    assert api.get(path).status == 200


def put(kept: KeptResponses, caller: str, response_id: str, size: int, before: Any = None) -> bool:
    output = [{"id": item_id("msg", response_id, 0), "text": "x" * size}]
    response = {"id": response_id, "previous_response_id": before, "output": output}
    return EarlierResponses(kept, caller, caller).put(response["id"], response, [])


@pytest.mark.threat("kept-responses")
def test_a_caller_pushes_out_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptResponses(60)
    assert put(kept, "alice", "first", 10)
    for number in range(40):
        assert put(kept, "bob", f"b{number}", 2**20)
    assert not put(kept, "bob", "huge", 33 * 2**20)
    assert kept.num_bytes_of("bob") <= 32 * 2**20
    assert kept.find("first", "alice")
    assert kept.find("b39", "bob")
    assert kept.find("b0", "bob") is None
    monkeypatch.setattr(kept_responses, "ALL_BYTES", 2**20)
    put(kept, "carol", "c", 10)
    assert kept.find("first", "alice"), "who has most loses first"
    assert kept.find("b39", "bob") is None
    for number in range(2000):
        put(kept, "alice", f"a{number}", 10)
    assert kept.num_bytes_of("alice") <= 2**20


def test_what_is_used_is_kept_longer() -> None:
    now_s = [0.0]
    kept = KeptResponses(60, lambda: now_s[0])
    put(kept, "", "one", 10)
    put(kept, "", "two", 10, "one")
    put(kept, "", "other", 10)
    now_s[0] = 50
    EarlierResponses(kept).until("two")
    now_s[0] = 100
    assert [item["id"] for item in EarlierResponses(kept).until("two")] == [
        "msg_one00",
        "msg_two00",
    ]
    assert kept.find("other", "") is None


@pytest.mark.threat("kept-responses")
def test_what_is_referred_to_is_no_more_than_a_body_may_be() -> None:
    kept, before = KeptResponses(60), None
    for number in range(3):
        output = [{"id": f"i{number}", "content": [[]] * 100_000}]
        response = {"id": f"r{number}", "previous_response_id": before, "output": output}
        EarlierResponses(kept).put(f"r{number}", response, [])
        before = f"r{number}"
    assert EarlierResponses(kept).until("r1")
    with pytest.raises(ApiError, match="too many lists"):
        EarlierResponses(kept).until("r2")
