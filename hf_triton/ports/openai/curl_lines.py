"""Requests that show that OpenAI's API works."""

from __future__ import annotations

import json
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

# The path and the body by the task.
_SAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(COMPLETION_TASKS, ("completions", {"prompt": "I am going"})),
    **{task: ("chat/completions", {"messages": sample_chat(task)}) for task in MEDIA_TASKS},
    **dict.fromkeys(EMBEDDING_TASKS, ("embeddings", {"input": "I am going"})),
    **dict.fromkeys(CLASSIFIER_TASKS, ("classify", {"input": "I am going"})),
}


def openai_curl_lines(url: str, model: str, config_file: Path, key_variable: str) -> list[str]:
    """A request that works at the port of ``url``, with a caller's key from that shell variable;
    none where the model is not for this API, or takes a file.
    """
    config: Any = model_config.parse(config_file.read_text(encoding="utf-8"))
    task = model_config.parameters(config).get(TASK_PARAMETER, "")
    return [curl_line(url, model, task, key_variable)] if task in _SAMPLES else []


def curl_line(url: str, model: str, task: str, key_variable: str = "") -> str:
    header = f' -H "Authorization: Bearer ${key_variable}"' if key_variable else ""
    path, asked = _SAMPLES[task]
    return f"curl {url}/v1/{path}{header} -d '{json.dumps({'model': model, **asked})}'"
