"""ChatOpenAI and OpenAIEmbeddings of langchain-openai."""

from __future__ import annotations

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from tried import SAID, joined, raises, tried

chat = ChatOpenAI(model="chat", max_tokens=200)


class Answer(BaseModel, extra="forbid"):
    """Says if somebody is happy."""

    happy: bool


with tried("invoke"):
    assert chat.invoke(SAID).content
with tried("stream"):
    assert joined(chunk.content for chunk in chat.stream(SAID))
with tried("batch"):
    assert all(answer.content for answer in chat.batch([SAID, SAID]))
with tried("with_structured_output()"):
    assert isinstance(chat.with_structured_output(Answer).invoke(SAID), Answer)
with tried("with_structured_output() by a tool"):
    asked = chat.with_structured_output(Answer, method="function_calling")
    assert isinstance(asked.invoke(SAID), Answer)
with tried("bind_tools()"):
    assert chat.bind_tools([Answer]).invoke(SAID).id
with tried("bind_tools() with a forced tool"):
    found = chat.bind_tools([Answer], tool_choice="Answer").invoke(SAID)
    assert found.tool_calls[0]["name"] == "Answer", found
with tried("use_responses_api"):
    found = ChatOpenAI(model="chat", max_tokens=200, use_responses_api=True).invoke(SAID)
    assert found.text, found
with tried("use_previous_response_id"):
    model = ChatOpenAI(
        model="chat", max_tokens=200, use_responses_api=True, use_previous_response_id=True
    )
    said = [HumanMessage(SAID)]
    first = model.invoke(said)
    second = model.invoke([*said, first, HumanMessage(SAID)])
    used = [one.usage_metadata["input_tokens"] for one in (first, second)]
    assert used[1] > used[0], used
with tried("bind_tools() beside a hosted tool"):
    asked = ChatOpenAI(model="chat", max_tokens=200, use_responses_api=True)
    found = asked.bind_tools([{"type": "web_search"}, Answer], tool_choice="Answer").invoke(SAID)
    assert found.tool_calls[0]["name"] == "Answer", found
with tried("OpenAI, the completions"):
    assert OpenAI(model="chat", max_tokens=12).invoke(SAID)
with tried("OpenAIEmbeddings"):
    rows = OpenAIEmbeddings(model="embedding").embed_documents(["A dog.", "A cat."])
    assert [len(row) for row in rows] == [64, 64]
with tried("OpenAIEmbeddings with check_embedding_ctx_length=False"):
    embeddings = OpenAIEmbeddings(model="embedding", check_embedding_ctx_length=False)
    rows = embeddings.embed_documents(["A dog.", "A cat."])
    assert [len(row) for row in rows] == [64, 64]
with tried("ContextOverflowError"), raises(ContextOverflowError):
    chat.invoke("one " * 5000)
with tried("NotFoundError"), raises(openai.NotFoundError, "model_not_found"):
    ChatOpenAI(model="nobody").invoke(SAID)
