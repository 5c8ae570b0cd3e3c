"""instructor with its default mode, a tool that the model must call, and its others."""

from __future__ import annotations

import instructor
from pydantic import BaseModel
from tried import SAID, tried


class Answer(BaseModel, extra="forbid"):
    happy: bool


def asked(client: instructor.Instructor) -> Answer:
    return client.create(
        response_model=Answer, messages=[{"role": "user", "content": SAID}], max_tokens=60
    )


with tried("from_provider"):
    assert isinstance(asked(instructor.from_provider("openai/chat")), Answer)
with tried("create_partial"):
    parts = instructor.from_provider("openai/chat").create_partial(
        response_model=Answer, messages=[{"role": "user", "content": SAID}], max_tokens=60
    )
    assert isinstance(list(parts)[-1].happy, bool)
with tried("Mode.JSON_SCHEMA"):
    mode = instructor.Mode.JSON_SCHEMA
    assert isinstance(asked(instructor.from_provider("openai/chat", mode=mode)), Answer)
with tried("Mode.RESPONSES_TOOLS"):
    mode = instructor.Mode.RESPONSES_TOOLS
    assert isinstance(asked(instructor.from_provider("openai/chat", mode=mode)), Answer)
