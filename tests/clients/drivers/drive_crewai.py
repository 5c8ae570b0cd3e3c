"""crewai's LLM, an agent and a crew of it. What the model ``agent`` writes is in the task
(tests/clients/agent).
"""

from __future__ import annotations

import json
import os
from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from pydantic import BaseModel
from tried import SAID, joined, tried

LONG = "It rains. " * 100  # longer than an answer is by default


class Answer(BaseModel, extra="forbid"):
    happy: bool


@tool
def weather(city: str) -> str:
    """Tells the weather."""
    seen.append(city)
    return f"rain in {city}"


def llm(name: str, **options: Any) -> LLM:
    return LLM(model=f"openai/{name}", base_url=os.environ["OPENAI_BASE_URL"], **options)


def crew(*script: Any, stream: bool = False, **options: Any) -> Any:
    """What a crew of one agent with a task comes to."""
    named = {"role": "a guide", "goal": "Tell the weather.", "backstory": "It knows the sky."}
    agent = Agent(**named, llm=llm("agent"), tools=[weather])
    asked = f"Do it. <script>{json.dumps(script)}</script>"
    task = Task(description=asked, expected_output="The weather.", agent=agent, **options)
    return Crew(agents=[agent], tasks=[task], stream=stream).kickoff()


seen: list[str] = []
CALL = {"name": "weather", "arguments": {"city": "Rome"}}

with tried("LLM.call"):
    assert llm("chat").call(SAID)
with tried("LLM.call with response_format"):
    found = llm("chat", response_format=Answer).call(SAID)
    assert isinstance(found, Answer) or Answer.model_validate_json(found), found
with tried("Crew.kickoff with a tool"):
    done = crew(CALL, LONG)
    assert seen == ["Rome"], done
    assert done.raw.strip() == LONG.strip(), done
    assert done.token_usage.completion_tokens > 128, done
with tried("Crew.kickoff with output_pydantic"):
    assert crew('{"happy": true}', output_pydantic=Answer).pydantic == Answer(happy=True)
with tried("Crew.kickoff, streamed, with a tool"):
    seen.clear()
    pieces = joined(chunk.content for chunk in crew(CALL, LONG, stream=True))
    assert seen == ["Rome"], pieces
    assert LONG.strip() in pieces, pieces
