"""Requests that show that OpenAI's API works."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.render import model_config
from generator.render.sample_requests import sample_chat
from generator.spec.task_sets import (
    CLASSIFIER_TASKS,
    COMPLETION_TASKS,
    EMBEDDING_TASKS,
    MEDIA_TASKS,
)
from generator.spec.triton_models import TASK_PARAMETER
from hf_triton.ports.openai.key import VARIABLE as KEY_VARIABLE
from hf_triton.ports.settings import Access, OpenAiPort
from hf_triton.tritonserver.listen import Listen

_SHOWN = (*COMPLETION_TASKS, *EMBEDDING_TASKS, *CLASSIFIER_TASKS)


@dataclass(frozen=True)
class OpenAiApi:
    """What ``serve`` shows of it; ``key_variable`` is the shell variable that has a caller's key,
    "" where none is needed.
    """

    url: str
    key_variable: str = ""
    has_playground: bool = True

    def curl_lines(self, model: str, config_file: Path) -> list[str]:
        """A request that works, none where the model of this config.pbtxt is not for this API, or
        is asked with a file.
        """
        config: Any = model_config.parse(config_file.read_text(encoding="utf-8"))
        task = model_config.parameters(config).get(TASK_PARAMETER)
        return [curl_line(self.url, model, self.key_variable, task)] if task in _SHOWN else []


def api_of(port: OpenAiPort, listen: Listen, access: Access) -> OpenAiApi:
    """What is shown of a port."""
    url = f"{'https' if access.tls else 'http'}://{listen.address(port.port)}"
    key_variable = KEY_VARIABLE if port.caller else access.key_variable
    return OpenAiApi(url, key_variable, port.has_playground)


def curl_line(url: str, model: str, key_variable: str, task: str = COMPLETION_TASKS[0]) -> str:
    """A completion from ``model``, a chat with an image or a sound, an embedding or labels, as its
    task is; with a key, from the variable that has it.
    """
    header = f' -H "Authorization: Bearer ${key_variable}"' if key_variable else ""
    path, asked = "completions", dict[str, Any](prompt="I am going")
    if task in EMBEDDING_TASKS:
        path, asked = "embeddings", {"input": "I am going"}
    elif task in CLASSIFIER_TASKS:
        path, asked = "classify", {"input": "I am going"}
    elif task in MEDIA_TASKS:
        path, asked = "chat/completions", {"messages": sample_chat(task)}
    body = json.dumps({"model": model, **asked})
    return f"curl {url}/v1/{path}{header} -d '{body}'"
