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
from hf_triton.ports.settings import Access, OpenAiPort
from hf_triton.tritonserver.listen import Listen

# The path and the body by the task.
_SAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(COMPLETION_TASKS, ("completions", {"prompt": "I am going"})),
    **{task: ("chat/completions", {"messages": sample_chat(task)}) for task in MEDIA_TASKS},
    **dict.fromkeys(EMBEDDING_TASKS, ("embeddings", {"input": "I am going"})),
    **dict.fromkeys(CLASSIFIER_TASKS, ("classify", {"input": "I am going"})),
}


@dataclass(frozen=True)
class OpenAiApi:
    """The API as ``serve`` shows it, with the shell variable of a caller's key, or ""."""

    url: str
    key_variable: str = ""
    has_playground: bool = True

    def curl_lines(self, model: str, config_file: Path) -> list[str]:
        """A request that works; none where the model is not for this API, or takes a file."""
        config: Any = model_config.parse(config_file.read_text(encoding="utf-8"))
        task = model_config.parameters(config).get(TASK_PARAMETER, "")
        return [self.curl_line(model, task)] if task in _SAMPLES else []

    def curl_line(self, model: str, task: str = COMPLETION_TASKS[0]) -> str:
        """A request that fits the task, with the key from its variable."""
        header = f' -H "Authorization: Bearer ${self.key_variable}"' if self.key_variable else ""
        path, asked = _SAMPLES[task]
        return f"curl {self.url}/v1/{path}{header} -d '{json.dumps({'model': model, **asked})}'"


def api_of(port: OpenAiPort, listen: Listen, access: Access) -> OpenAiApi:
    url = f"{'https' if access.tls else 'http'}://{listen.address(port.port)}"
    return OpenAiApi(url, access.key_variable, port.has_playground)
