"""smolagents' OpenAIModel, alone and under its agents; these end after one step."""

from __future__ import annotations

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent
from tried import SAID, joined, tried

model = OpenAIModel(model_id="chat", max_tokens=60)
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": SAID}]}]

with tried("OpenAIModel"):
    assert model.generate(MESSAGES).content
with tried("OpenAIModel, streamed"):
    assert joined(piece.content for piece in model.generate_stream(MESSAGES))
with tried("CodeAgent"):
    agent = CodeAgent(tools=[], model=model, max_steps=1, verbosity_level=0)
    agent.prompt_templates["system_prompt"] = "Write Python code."  # its own has 4,000 tokens
    assert agent.run(SAID)
with tried("ToolCallingAgent"):
    agent = ToolCallingAgent(tools=[], model=model, max_steps=1, verbosity_level=0)
    agent.prompt_templates["system_prompt"] = "Call a tool."
    assert agent.run(SAID)
