"""The models as the page shows them: each with its state, and what a request to it may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from generator.render import model_config
from generator.render.sample_requests import sample_request
from generator.spec.task_sets import CHAT_TASKS, COMPLETION_TASKS
from generator.spec.triton_models import (
    ARM_PARAMETER,
    DECOUPLED,
    ROLE_PARAMETER,
    STEPS,
    TASK_PARAMETER,
    runs_our_code,
)
from hf_triton.ports.openai.playground.generate import datatype
from hf_triton.ports.openai.schema.errors import ApiError, model_is_loading, model_not_found
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.repeats import Model, NotReady
from hf_triton.tritonserver.model_state import State

_HIDDEN_ROLES = ("engine", *STEPS)  # a front or an ensemble stands for them


class Models:
    """Those of one Triton; ``repository`` is its model repository, None where it is elsewhere;
    ``asleep`` are the ModelConfigs of those that a request has loaded.
    """

    def __init__(
        self,
        triton: Triton,
        not_ready: NotReady,
        repository: Path | None,
        asleep: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self._asleep = asleep
        self._triton = triton
        self._not_ready = not_ready
        self._repository = repository

    async def states(self) -> list[dict[str, Any]]:
        """Each model with ``name``, ``state`` and, where it is not ready, ``reason``; if it can be
        asked, with ``task``, ``versions`` and how it is asked. Raises ApiError.
        """
        versions = await self._triton.ready_models()
        configs = await asyncio.gather(*map(self._triton.config, versions))
        found = {
            config.name: {**_described(config), "versions": versions[config.name]}
            for config in configs
            if config is not None and _is_public(config)
        }
        found |= {
            config.name: {**_described(config), "versions": [], "state": "asleep"}
            for config in self._asleep()
            if _is_public(config)
        }
        told = self._not_ready()
        return [
            {"name": name, **found.get(name, {}), **_state(told.get(name), found.get(name))}
            for name in sorted({*found, *told})
        ]

    async def config(self, name: str) -> Any:
        """The ModelConfig of a model that is ready. Raises ApiError."""
        config = next((one for one in self._asleep() if one.name == name), None)
        config = config or await self._triton.config(name)
        if config is None and await self._triton.is_ready(name) is False:
            raise model_is_loading(name)
        if config is None:
            raise model_not_found(name, sorted(await self._triton.ready_models()))
        return config

    async def form(self, name: str) -> dict[str, Any]:
        """The ``inputs`` of a model, and the values of a ``sample`` request. Raises ApiError."""
        config = await self.config(name)
        inputs = [_input(tensor) for tensor in config.input]
        sample: Mapping[str, Any] = {one["name"]: "" for one in inputs if not one["optional"]}
        if self._repository and (self._repository / name).is_dir():
            sample = await asyncio.to_thread(sample_request, self._repository, name, config)
        return {"inputs": inputs, "sample": sample or {one["name"]: "" for one in inputs[:1]}}


def one_answer(config: Any) -> bool:
    """Whether each request has one answer. Raises ApiError, 400, for one half of a model."""
    role = model_config.parameters(config).get(ROLE_PARAMETER)
    if role == "engine":
        raise ApiError(400, f"model: '{config.name}' streams, ask the model that it is a part of")
    return role not in DECOUPLED and not config.model_transaction_policy.decoupled


def is_ours(config: Any) -> bool:
    """Whether it is a model of ours rather than, for example, of NVIDIA's vLLM backend."""
    return runs_our_code(model_config.parameters(config).get(ROLE_PARAMETER))


def _is_public(config: Any) -> bool:
    parameters = model_config.parameters(config)
    return parameters.get(ROLE_PARAMETER) not in _HIDDEN_ROLES and ARM_PARAMETER not in parameters


def _state(told: Model | None, found: Mapping[str, Any] | None) -> dict[str, str]:
    if told is None:
        return {"state": (found or {}).get("state", "ready")}
    comes_back = told.state in (State.LOADING, State.HEALING)
    return {"state": "loading" if comes_back else "failed", "reason": told.reason}


def _described(config: Any) -> dict[str, Any]:
    parameters = model_config.parameters(config)
    task = parameters.get(TASK_PARAMETER, "")
    return {
        "task": task,
        "chats": is_ours(config) and task in CHAT_TASKS,
        "completes": is_ours(config) and task in COMPLETION_TASKS,
        "media": [*_media(config)] if task in CHAT_TASKS else [],
    }


def _media(config: Any) -> Iterator[str]:
    return (one.name for one in config.input if one.name in ("image", "audio"))


def _input(tensor: Any) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": datatype(tensor),
        "is_list": list(tensor.dims) != [1],
        "optional": tensor.optional,
    }
