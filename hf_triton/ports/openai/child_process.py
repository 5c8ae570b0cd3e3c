"""The OpenAI API of ``hf-triton serve``: a child process, and requests to show that it works."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from generator.python_modules import run_module
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
from hf_triton.ports.openai.key import with_key
from hf_triton.ports.openai.settings import Settings
from hf_triton.ports.settings import EVERYBODY, Access
from hf_triton.tritonserver.child_process import ChildProcess, environment_for
from hf_triton.tritonserver.listen import HeldPorts, Listen
from hf_triton.tritonserver.restart_policy import RestartPolicy

_SHOWN = (*COMPLETION_TASKS, *EMBEDDING_TASKS, *CLASSIFIER_TASKS)


class OpenAiProcess(ChildProcess):
    """The translator of one server."""

    def __init__(
        self,
        listen: Listen,
        key: str | None,
        access: Access = EVERYBODY,
        policy: RestartPolicy | None = None,
        repository: Path | None = None,
        media_hosts: Sequence[str] = (),
        *,
        has_playground: bool = True,
        keep_s: float = Settings.keep_s,
        verbose: bool = False,
        admin_key: str = "",
    ) -> None:
        settings = Settings(
            listen.host,
            listen.openai_port,
            listen.triton_grpc,
            with_key(access, key),
            repository,
            tuple(media_hosts),
            listen.metrics_socket if listen.sockets else "",
            has_playground,
            listen.abandoned_requests,
            keep_s,
            verbose,
            admin_key,
        )
        command = run_module("hf_triton.ports.openai")
        environment = partial(environment_for, settings)
        ports = HeldPorts(listen, ("--openai-port",))
        super().__init__("the OpenAI API", command, environment, policy, ports)
        self._listen = listen
        self._key, self._access = key, access
        self.has_playground = has_playground

    def curl_lines(self, model: str, config_file: Path) -> list[str]:
        """A request that works, none where the model of this config.pbtxt is not for this API, or
        is asked with a file.
        """
        config: Any = model_config.parse(config_file.read_text(encoding="utf-8"))
        task = model_config.parameters(config).get(TASK_PARAMETER)
        if task not in _SHOWN:
            return []
        scheme = "https" if self._access.tls else "http"
        url = f"{scheme}://{self._listen.address(self._listen.openai_port)}"
        needed = KEY_VARIABLE if self._key is not None else ""
        return [curl_line(url, model, needed or self._access.key_variable, task)]


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
